"""Plain twins of what a classifier does: features of lines, and one step after the other."""

import itertools
import re

import numpy as np
from twins.kernels import draw
from twins.text import MASK, SENTENCE_END, ngram_hash, subword_ids, tokens_of

TRIES = 8


def signed(h: int) -> int:
    """A 32-bit hash as fastText keeps it: signed, then 64 bits wide."""
    return (h - (1 << 32) if h >> 31 else h) & MASK


def lines_of(data, words, labels, *, prefix=b"__label__", word_ngrams=1, minn=0, maxn=0, bucket=0):
    """[(features, labels)] of every line, features in rising order; all tokens; words not read."""
    lines, total, unread = [], 0, 0
    for text in re.findall(rb"[^\n]*\n|[^\n]+", data):
        tokens = tokens_of(text)
        total += len(tokens)
        end = (tokens.index(SENTENCE_END) if SENTENCE_END in tokens else len(tokens)) + 1
        unread += sum(token != SENTENCE_END for token in tokens[end:])
        features, own, hashes = [], [], []
        for token in tokens[:end]:
            if token in labels:
                own.append(labels.index(token))
            elif token in words or not token.startswith(prefix):
                hashes.append(signed(ngram_hash(token)))
                if token in words:
                    features.append(words.index(token))
                features += subword_ids(token, minn, maxn, bucket, len(words))
        if tokens:
            lines.append((features, own, hashes))
    for features, _, hashes in lines:
        for i in range(len(hashes)):
            h = hashes[i]
            for j in range(i + 1, min(i + word_ngrams, len(hashes))):
                h = (h * 116049371 + hashes[j]) & MASK
                features.append(len(words) + h % bucket)
    return [(sorted(features), own) for features, own, _ in lines], total, unread


def train_labels(inputs, outputs, dim, bag_ptr, bag_rows, label_ptr, labels, noise, *, loss,
                 negatives, lr_start, lr_stop, seed, first, last, shared=False):  # fmt: skip
    """float64 copies of (inputs, outputs), trained, then the sum of losses and the lines."""
    inputs = inputs[:, :dim].astype(np.float64)
    outputs = outputs[:, :dim].astype(np.float64)
    total, count, drawn = 0.0, 0, 0
    start, stop = bag_ptr[first], bag_ptr[last]

    def below(bound):
        nonlocal drawn
        drawn += 1
        return draw(seed, drawn, bound)

    for line in range(first, last):
        rows = bag_rows[bag_ptr[line] : bag_ptr[line + 1]]
        own = labels[label_ptr[line] : label_ptr[line + 1]]
        if len(rows) == 0 or len(own) == 0:
            continue
        rate = lr_start + (lr_stop - lr_start) * (bag_ptr[line] - start) / (stop - start)
        hidden = inputs[rows].mean(0)
        gradient = np.zeros(dim)
        truth = np.zeros(len(outputs))
        if loss == 1:
            truth[own] = 1
            asked = list(range(len(outputs)))
        else:
            target = own[below(len(own)) if len(own) > 1 else 0]
            truth[target] = 1
            asked = [int(target)]
        if loss == 0:
            scores = outputs @ hidden
            chances = np.exp(scores - scores.max())
            chances /= chances.sum()
            total -= np.log(chances[target])
            gradient = rate * (truth - chances) @ outputs
            outputs += np.outer(rate * (truth - chances), hidden)
        else:
            for _ in range(negatives if loss == 2 else 0):
                for _ in range(TRIES):
                    other = int(noise[below(len(noise))])
                    if other != target:
                        asked.append(other)
                        break
            for row in asked:
                chance = 1 / (1 + np.exp(-outputs[row] @ hidden))
                total -= np.log(chance if truth[row] else 1 - chance)
                gradient += rate * (truth[row] - chance) * outputs[row]
                outputs[row] += rate * (truth[row] - chance) * hidden
        np.add.at(inputs, rows, gradient / len(rows))
        count += 1
    return inputs, outputs, total, count


def hidden_of(inputs, ptr, features):
    """Means of rows, float64; zeros of a line without any."""
    rows = [inputs[features[a:b]] for a, b in itertools.pairwise(ptr)]
    zeros = np.zeros(inputs.shape[1])
    return np.array([r.astype(np.float64).mean(0) if len(r) else zeros for r in rows]).reshape(
        len(rows), inputs.shape[1]
    )


def chances_of(hidden, outputs, softmax, children=None):
    """Probabilities of all labels, float64."""
    scores = hidden @ outputs.astype(np.float64).T
    if children is not None and len(children):
        labels = len(children) + 1
        nodes = np.ones((len(hidden), 2 * labels - 1))
        right = 1 / (1 + np.exp(-scores))
        for inner in range(labels - 2, -1, -1):
            here = nodes[:, labels + inner]
            nodes[:, children[inner, 0]] = here * (1 - right[:, inner])
            nodes[:, children[inner, 1]] = here * right[:, inner]
        return nodes[:, :labels]
    if softmax:
        powers = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
        return powers / powers.sum(axis=1, keepdims=True)
    return 1 / (1 + np.exp(-scores))
