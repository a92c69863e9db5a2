"""Loss of word vectors on text that they were not trained on, by NumPy alone.

    model.bin, text -> pairs of a word and a context word, noise words -> mean loss of a pair

Skip-gram with negative sampling, as in training: unknown words are left out, frequent ones are
subsampled, each word draws its reach.  Pairs and noise depend on the text, the vocabulary and the
seed alone, so models of one vocabulary are compared on the same pairs.
"""

from pathlib import Path

import numpy as np

from snailps.data._subwords import subwords_csr
from snailps.vectors.fasttext_bin import BinModel, read_bin

PAIRS = 200_000
"""The standard error of the mean is then about 0.004."""
TOGETHER = 10_000
NOISE_POWER = 0.5


def held_out_loss(
    path: Path,
    text: Path,
    *,
    window: int = 5,
    negatives: int = 5,
    pairs: int = PAIRS,
    seed: int = 1,
) -> float:
    """Mean over pairs of the negative log likelihood of the context and of its noise words."""
    model = read_bin(path)
    rng = np.random.default_rng(seed)
    lines = tokens(model.words, text)
    lines = [subsample(line, model.counts, model.header.sample, rng) for line in lines]
    centres, contexts = neighbours(lines, window, rng)
    if not len(centres):
        raise ValueError(f"{text}: no two known words within {window} words of each other")
    some = rng.permutation(len(centres))[:pairs]
    centres, contexts = centres[some], contexts[some]
    weights = np.cumsum(model.counts.astype(np.float64) ** NOISE_POWER)
    total = 0.0
    for at in range(0, len(centres), TOGETHER):
        part = slice(at, at + TOGETHER)
        hidden = vectors(model, centres[part])
        drawn = rng.random((len(hidden), negatives)) * weights[-1]
        noise = np.searchsorted(weights, drawn, side="right")
        right = np.einsum("nd,nd->n", hidden, model.output[contexts[part]])
        wrong = np.einsum("nd,nkd->nk", hidden, model.output[noise])
        # log(1 + exp(x)) without overflow
        total += np.logaddexp(0, -right).sum(dtype=np.float64)
        total += np.logaddexp(0, wrong).sum(dtype=np.float64)
    return total / len(centres)


def tokens(words: list[bytes], text: Path) -> list[np.ndarray]:
    """Known words of each line as their numbers, int64."""
    place = {word: i for i, word in enumerate(words)}
    found = []
    for line in text.read_bytes().splitlines():
        numbers = [place[word] for word in line.split() if word in place]
        found.append(np.array(numbers, np.int64))
    return found


def subsample(
    line: np.ndarray, counts: np.ndarray, sample: float, rng: np.random.Generator
) -> np.ndarray:
    """Words that stay: one of frequency f with probability sqrt(t / f) + t / f."""
    if not sample or not len(line):
        return line
    share = sample / (counts[line] / counts.sum())
    return line[rng.random(len(line)) < np.sqrt(share) + share]


def neighbours(
    lines: list[np.ndarray], window: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of each word and those within the reach that it draws, 1 to `window`."""
    centres, contexts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for line in lines:
        reach = rng.integers(1, window + 1, len(line))
        for distance in range(1, min(window, len(line) - 1) + 1):
            before, after = line[:-distance], line[distance:]
            ahead, back = reach[:-distance] >= distance, reach[distance:] >= distance
            centres += [before[ahead], after[back]]
            contexts += [after[ahead], before[back]]
    return np.concatenate(centres), np.concatenate(contexts)


def vectors(model: BinModel, words: np.ndarray) -> np.ndarray:
    """Vectors of these words, float32 (n, dim): means of their rows."""
    header = model.header
    if not header.maxn:
        return model.input[words]
    different, place = np.unique(words, return_inverse=True)
    names = [model.words[i] for i in different]
    ptr, rows = subwords_csr(names, header.minn, header.maxn, header.bucket)
    # Of each bag the word's own row comes first, numbered among these words alone.
    rows = rows.astype(np.int64)
    own = rows < len(names)
    rows[own] = different[rows[own]]
    rows[~own] += len(model.words) - len(names)
    sums = np.add.reduceat(model.input[rows], ptr[:-1], axis=0)
    return (sums / np.diff(ptr)[:, None])[place]
