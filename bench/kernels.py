"""Speed and quality of the word-vector kernel alone: no network, no blocks, whole-corpus arrays.

    corpus -> word numbers -> subsampled epochs -> kernels on N threads -> figures

What is measured is the ceiling that a cluster can reach on this machine; bench/words.py measures
clusters.  Reports words/s of wall time and of CPU time: on a busy machine only the latter holds
still.

    python bench/kernels.py --corpus text8like.txt.gz --similarity WS.txt SimLex.txt \
        --analogies questions-words.txt --subwords --json
"""

from __future__ import annotations

import argparse
import gzip
import json
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from snailps import kernels
from snailps.models.word_vectors.skip_gram import BUNDLE, RUN_WORDS, bundling

SENTENCE = 1024  # tokens; the corpus is one line, and fastText cuts there
NOISE = 1 << 22


def read_corpus(path: Path, min_count: int, cache: Path | None) -> tuple[list[str], np.ndarray]:
    """Words by falling count, and the corpus as their numbers."""
    if cache and (cache / "words.txt").exists():
        words = (cache / "words.txt").read_text().split("\n")
        return words, np.load(cache / "ids.npy")
    raw = path.read_bytes()
    tokens = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode().split()
    words = [w for w, n in Counter(tokens).most_common() if n >= min_count]
    number = {w: i for i, w in enumerate(words)}
    ids = np.fromiter((number.get(t, -1) for t in tokens), np.int32, len(tokens))
    ids = ids[ids >= 0]
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "words.txt").write_text("\n".join(words))
        np.save(cache / "ids.npy", ids)
    return words, ids


def ngram_rows(word: str, minn: int, maxn: int, buckets: int) -> list[int]:
    """fastText's bucket numbers of a word's n-grams (ASCII words)."""
    marked = f"<{word}>".encode()
    rows = []
    for start in range(len(marked)):
        for n in range(minn, min(maxn, len(marked) - start) + 1):
            hashed = 2166136261
            for byte in marked[start : start + n]:
                hashed = ((hashed ^ byte) * 16777619) & 0xFFFFFFFF
            rows.append(hashed % buckets)
    return rows


def bags(words: list[str], subwords: bool, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows make up each word."""
    if not subwords:
        return np.arange(len(words) + 1), np.arange(len(words), dtype=np.int32)
    rows = [
        [i, *(len(words) + r for r in ngram_rows(w, 3, 6, buckets))] for i, w in enumerate(words)
    ]
    pointers = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    return pointers, np.concatenate([np.array(r, np.int32) for r in rows])


def subsampled(ids: np.ndarray, keep: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The tokens of one epoch, with -1 after each sentence."""
    drawn = np.where(rng.random(len(ids), np.float32) < keep[ids], ids, -2)
    full = len(ids) // SENTENCE * SENTENCE
    lines = np.full((full // SENTENCE, SENTENCE + 1), -1, np.int32)
    lines[:, :-1] = drawn[:full].reshape(-1, SENTENCE)
    tokens = np.concatenate([lines.ravel(), drawn[full:]]).astype(np.int32)
    return tokens[tokens != -2]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation, ties averaged."""

    def ranks(x: np.ndarray) -> np.ndarray:
        _, inverse, count = np.unique(x, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def quality(
    words: list[str], vectors: np.ndarray, similarity: list[Path], analogies: Path | None
) -> dict[str, float]:
    """Spearman a similarity file and accuracy (3CosAdd), over words of the vocabulary."""
    number = {w: i for i, w in enumerate(words)}
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    found = {}
    for path in similarity:
        rows = [line.lower().split() for line in path.read_text().splitlines()]
        rows = [r for r in rows if len(r) == 3 and r[0] in number and r[1] in number]
        got = [unit[number[a]] @ unit[number[b]] for a, b, _ in rows]
        found[path.stem] = spearman(np.array(got), np.array([float(r[2]) for r in rows]))
    if analogies:
        lines = [line.lower().split() for line in analogies.read_text().splitlines()]
        asked = np.array(
            [[number[w] for w in x] for x in lines if x[0] != ":" and all(w in number for w in x)]
        )
        right = 0
        for part in np.array_split(asked, max(len(asked) // 512, 1)):
            a, b, c, d = part.T
            score = (unit[b] - unit[a] + unit[c]) @ unit.T
            for known in (a, b, c):
                score[np.arange(len(part)), known] = -9
            right += int((score.argmax(1) == d).sum())
        found["analogies"] = right / len(asked)
    return found


def train(ids: np.ndarray, words: list[str], o: argparse.Namespace) -> tuple[np.ndarray, dict]:
    """All epochs; returns the words' vectors and the figures."""
    rng = np.random.default_rng(o.seed)
    counts = np.bincount(ids, minlength=len(words))
    ratio = o.sample * len(ids) / np.maximum(counts, 1)
    keep = (np.sqrt(ratio) + ratio).astype(np.float32)
    q = counts**0.5 / (counts**0.5).sum()
    noise = rng.choice(len(words), NOISE, p=q).astype(np.int32)
    logit = np.zeros(len(words), np.float32)
    if o.nce:
        logit = np.log(o.negatives * q).astype(np.float32)
    pointers, rows = bags(words, o.subwords, o.buckets)
    most = min(RUN_WORDS, len(words))  # words are in falling order of their counts
    kept = counts[:most] * np.minimum(keep[:most], 1.0)
    lanes, bundles_a_run = bundling(kept, pointers[: most + 1], rows[: pointers[most]], o.threads)
    inputs = kernels.padded(len(words) + (o.buckets if o.subwords else 0), o.dim)
    for part in np.array_split(inputs[:, : o.dim], 64):
        part[:] = rng.random(part.shape, np.float32) * (2 / o.dim) - 1 / o.dim
    outputs = kernels.padded(len(words), o.dim)
    figures = {"tokens": 0, "wall_s": 0.0, "cpu_s": 0.0}
    parts = np.array_split(ids, o.threads)
    for epoch in range(o.epochs):
        tokens = [subsampled(part, keep, rng) for part in parts]
        results: list[tuple[float, int, float]] = []

        def run(t: int, tokens: list[np.ndarray] = tokens, epoch: int = epoch,
                results: list[tuple[float, int, float]] = results) -> None:  # fmt: skip
            begun = time.thread_time()
            seed = o.seed * 1000 + epoch * 10 + t
            rates = [o.lr * (1 - (epoch + at) / o.epochs) for at in (0, 1)]
            arguments = {"negatives": o.negatives, "lr_start": rates[0], "lr_stop": rates[1],
                         "seed": seed}  # fmt: skip
            rest = pointers, rows, noise, logit
            if o.cbow:
                loss, examples = kernels.train_words(
                    inputs, outputs, o.dim, tokens[t], *rest, window=o.window, **arguments
                )
            else:
                pairs = kernels.sort_pairs(
                    tokens[t], o.window, seed, BUNDLE, run=bundles_a_run
                ).take(0)
                loss, examples = kernels.train_pairs(
                    inputs, outputs, o.dim, *pairs, *rest, lanes=lanes, **arguments
                )
            results.append((loss, examples, time.thread_time() - begun))

        threads = [threading.Thread(target=run, args=(t,)) for t in range(o.threads)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        figures["wall_s"] += time.perf_counter() - begun
        figures["cpu_s"] += sum(r[2] for r in results)
        figures["tokens"] += sum(len(t) for t in tokens)
        figures["loss"] = sum(r[0] for r in results) / sum(r[1] for r in results)
    seen = len(ids) * o.epochs
    figures["words_per_s"] = seen / figures["wall_s"]
    figures["words_per_cpu_s"] = seen / figures["cpu_s"]
    vectors = np.empty((len(words), o.dim), np.float32)
    kernels.bag_means(inputs, pointers, rows, vectors)
    return vectors, figures


def main() -> None:
    """Parse, train, print one JSON object."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--corpus", type=Path, required=True)
    p.add_argument("--cache", type=Path, help="folder that keeps the tokenised corpus")
    p.add_argument("--similarity", type=Path, nargs="*", default=[])
    p.add_argument("--analogies", type=Path)
    p.add_argument("--subwords", action="store_true")
    p.add_argument("--cbow", action="store_const", const=1, default=0)
    p.add_argument("--nce", action="store_true")
    p.add_argument("--dim", type=int, default=100)
    p.add_argument("--window", type=int, default=5)
    p.add_argument("--negatives", type=int, default=5)
    p.add_argument("--min-count", type=int, default=5)
    p.add_argument("--buckets", type=int, default=2_000_000)
    p.add_argument("--sample", type=float, default=1e-4)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    words, ids = read_corpus(o.corpus, o.min_count, o.cache)
    vectors, figures = train(ids, words, o)
    figures |= {
        "build": kernels.BUILD,
        "quality": quality(words, vectors, o.similarity, o.analogies),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
