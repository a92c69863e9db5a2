#!/usr/bin/env python3
"""A corpus with millions of different words, made of a smaller one.

    text of a-z -> characters' habits (order 3) -> words that never were, few often, most rarely
                -> mixed into the text, several times over -> a file

    python bench/invent.py --corpus text8.gz --words 1000000 --megabytes 1000 --out large.txt

So n-grams are shared as in real words, and counts follow a power law.  The invented words lie
everywhere alike, where a real text repeats rare ones nearby: a block has more different words than
one of a real text of that vocabulary, which makes this the hard case for memory.
"""

import argparse
import gzip
import sys
from pathlib import Path

import numpy as np

LETTERS = 27  # a-z and the border of a word, 0
LONGEST = 24
SHARE = 0.22  # invented tokens for each one of the text
TOGETHER = 1_000_000
OFFSET = 50.0  # of the ranks in the power law
COPIES = 3
LENGTH = 9.5  # of an invented word and its space, on average


def invent(corpus: Path, words: int, out: Path, seed: int = 1, copies: int = COPIES) -> None:
    """Writes copies of `corpus`, with `words` invented words among its own."""
    invent_words(corpus.read_bytes().split(), words, out, seed, copies)


def invent_words(
    text: list[bytes], words: int, out: Path, seed: int = 1, copies: int = COPIES
) -> None:
    """Writes copies of a text, with `words` invented words among its own."""
    rng = np.random.default_rng(seed)
    names = _invented(set(text), words, rng)
    ranks = np.arange(1, words + 1)
    weights = 1.0 / (ranks + OFFSET)
    counts = np.maximum(1, weights / weights.sum() * copies * SHARE * len(text)).astype(np.int64)
    ids = np.repeat(ranks - 1, counts)
    rng.shuffle(ids)
    places = np.sort(rng.integers(0, copies * len(text), len(ids)))
    with open(out, "wb") as file:
        for begin in range(0, copies * len(text), len(text)):
            mine = slice(*np.searchsorted(places, [begin, begin + len(text)]))
            _write_mixed(file, text, places[mine] - begin, ids[mine], names)


def copies_for(megabytes: float, text_bytes: int, words: int) -> int:
    """Number of copies of a text, with invented words, that have about this size."""
    return max(1, round(megabytes * 1e6 / (text_bytes + SHARE * words * LENGTH)))


def _write_mixed(file, text: list[bytes], places: np.ndarray, ids: np.ndarray, names: list) -> None:
    """The text with an invented word before each of these places."""
    begin = 0
    for at in range(0, len(ids), 1 << 17):
        some = slice(at, at + (1 << 17))
        parts: list[bytes] = []
        for place, i in zip(places[some].tolist(), ids[some].tolist(), strict=True):
            parts += text[begin:place]
            parts.append(names[i])
            begin = place
        file.write(b" ".join(parts) + b" ")
    file.write(b" ".join(text[begin:]) + b" ")


def _invented(known: set[bytes], words: int, rng: np.random.Generator) -> list[bytes]:
    """This many unknown words, most of them of four letters or more."""
    habits = np.cumsum(_habits(sorted(known)), axis=1)
    found: dict[bytes, None] = {}
    while len(found) < words:
        for word in _drawn(habits, rng):
            if word not in known:
                found[word] = None
    names = list(found)
    rng.shuffle(names)
    return names[:words]


def _habits(words: list[bytes]) -> np.ndarray:
    """Frequency of each letter after each three, float64 (27^3, 27)."""
    fitting = [word for word in words if len(word) <= LONGEST]
    letters = np.zeros((len(fitting), LONGEST + 4), np.int64)
    for row, word in zip(letters, fitting, strict=True):
        row[3 : 3 + len(word)] = np.frombuffer(word, np.uint8) - 96
    seen = np.zeros((LETTERS**3, LETTERS))
    lengths = np.array([len(word) for word in fitting])
    for at in range(3, LONGEST + 4):
        rows = letters[at - 3 <= lengths]
        before = (rows[:, at - 3] * LETTERS + rows[:, at - 2]) * LETTERS + rows[:, at - 1]
        np.add.at(seen, (before, rows[:, at]), 1)
    return seen


def _drawn(habits: np.ndarray, rng: np.random.Generator) -> list[bytes]:
    """Different words drawn from these frequencies, sorted."""
    letters = np.zeros((TOGETHER, LONGEST), np.uint8)
    before = np.zeros(TOGETHER, np.int64)
    alive = np.arange(TOGETHER)
    for at in range(LONGEST):
        sums = habits[before[alive]]
        drawn = (sums <= rng.random((len(alive), 1)) * sums[:, -1:]).sum(axis=1)
        letters[alive, at] = np.where(drawn, drawn + 96, 0)
        before[alive] = before[alive] % LETTERS**2 * LETTERS + drawn
        alive = alive[drawn > 0]
    whole = (letters[:, 3] > 0) & (letters[:, -1] == 0)
    return np.unique(letters[whole].view(f"S{LONGEST}").ravel()).tolist()


def _read(corpus: Path) -> bytes:
    with gzip.open(corpus) if corpus.suffix == ".gz" else open(corpus, "rb") as file:
        return file.read()


def main() -> None:
    """Makes a corpus, and a text that is not in it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", action="append", required=True, type=Path, help="a text of a-z, also .gz")
    add("--words", type=int, default=1_000_000, help="words to invent")
    add("--megabytes", type=float, default=1000.0, help="of the result, about")
    add("--seed", type=int, default=1)
    add("--out", required=True, type=Path)
    add("--held-out", type=Path, help="file for the end of each corpus, which --out then lacks")
    add("--held-share", type=float, default=0.01, help="how much of each corpus that is")
    args = parser.parse_args()
    for corpus in args.corpus:
        if not corpus.is_file():
            sys.exit(f"bench: no such file: {corpus}")
    text: list[bytes] = []
    held: list[bytes] = []
    for corpus in args.corpus:
        words = _read(corpus).split()
        end = len(words) - (int(args.held_share * len(words)) if args.held_out else 0)
        text += words[:end]
        held.append(b" ".join(words[end:]))
    if args.held_out:
        args.held_out.write_bytes(b"\n".join(held) + b"\n")
    copies = copies_for(args.megabytes, sum(map(len, text)) + len(text), len(text))
    invent_words(text, args.words, args.out, args.seed, copies)
    size = args.out.stat().st_size / 1e6
    print(f"bench: {args.out}: {size:,.0f} MB, {copies} copies", file=sys.stderr)


if __name__ == "__main__":
    main()
