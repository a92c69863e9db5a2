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
                 negatives, lr_start, lr_stop, seed, first, last, shared=False, line_weights=None,
                 label_weights=None, rests=None, paths=None, lead=1.0):  # fmt: skip
    """float64 copies of (inputs, outputs), trained, then the sums of losses and of weights."""
    inputs = inputs[:, :dim].astype(np.float64)
    outputs = outputs[:, :dim].astype(np.float64)
    total, weighed, drawn = 0.0, 0.0, 0
    start, stop = bag_ptr[first], bag_ptr[last]

    def below(bound):
        nonlocal drawn
        drawn += 1
        return draw(seed, drawn, bound)

    def binary(row, yes, no, rate):
        nonlocal hidden, gradient
        chance = 1 / (1 + np.exp(-outputs[row] @ hidden))
        step = rate * (yes * (1 - chance) - no * chance)
        gradient += step * outputs[row]
        outputs[row] += step * hidden
        return -(yes * np.log(chance) + no * np.log(1 - chance))

    for line in range(first, last):
        rows = bag_rows[bag_ptr[line] : bag_ptr[line + 1]]
        at = np.arange(label_ptr[line], label_ptr[line + 1])
        if len(rows) == 0 or len(at) == 0:
            continue
        of_line = 1.0 if line_weights is None else float(line_weights[line])
        rate = lr_start + (lr_stop - lr_start) * (bag_ptr[line] - start) / (stop - start)
        if loss != 1 and label_weights is None:
            at = at[[below(len(at)) if len(at) > 1 else 0]]
        weights = np.ones(len(at)) if label_weights is None else label_weights[at].astype(float)
        weight = of_line * (weights.sum() if loss != 1 else max(1, *weights))
        done = 0.0
        while done < weight:
            part = min(max(1.0, done if loss in (0, 3) else done / 16), weight - done)
            factor = of_line * part / weight
            hidden = inputs[rows].mean(0)
            gradient = np.zeros(dim)
            before = 0.0
            if loss == 1:
                yes, no = np.zeros(len(outputs)), np.ones(len(outputs))
                np.maximum.at(yes, labels[at], weights)
                np.minimum.at(no, labels[at], np.zeros(len(at)) if rests is None else rests[at])
                for row in range(len(outputs)):
                    before += factor * binary(row, yes[row], no[row], rate * factor)
            elif loss == 0:
                wanted = np.zeros(len(outputs))
                np.add.at(wanted, labels[at], factor * weights)
                scores = outputs @ hidden
                chances = np.exp(scores - scores.max())
                chances /= chances.sum()
                before -= wanted @ np.log(chances)
                gradient = rate * (wanted - part * chances) @ outputs
                outputs += np.outer(rate * (wanted - part * chances), hidden)
            else:
                for target, of_label in zip(labels[at], factor * weights, strict=True):
                    if of_label == 0:
                        continue
                    if paths is not None:
                        for turn in paths.turns[paths.ptr[target] : paths.ptr[target + 1]].tolist():
                            right = turn & 1
                            step = rate * of_label
                            before += of_label * binary(turn >> 1, right, 1 - right, step)
                        continue
                    before += of_label * binary(target, 1, 0, rate * of_label)
                    for _ in range(negatives):
                        for _ in range(TRIES):
                            other = int(noise[below(len(noise))])
                            if other != target:
                                before += of_label * binary(other, 0, 1, rate * of_label)
                                break
            np.add.at(inputs, rows, lead * gradient / len(rows))
            total += (done == 0) * before / part * weight
            done += part
        weighed += of_line if loss == 1 else weight
    return inputs, outputs, total, weighed


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
