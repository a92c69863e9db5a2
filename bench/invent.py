"""A corpus with millions of different words, made of a smaller one.

    text of a-z -> characters' habits (order 3) -> words that never were, few often, most rarely
                -> mixed into the text, three times over -> a file

So n-grams are shared as in real words, and counts follow a power law.  The invented words lie
everywhere alike, where a real text repeats rare ones nearby: a block has more different words than
one of a real text of that vocabulary, which makes this the hard case for memory.
"""

from pathlib import Path

import numpy as np

LETTERS = 27  # a-z and the border of a word, 0
LONGEST = 24
SHARE = 0.22  # invented tokens for each one of the text
TOGETHER = 1_000_000
OFFSET = 50.0  # of the ranks in the power law


def invent(corpus: Path, words: int, out: Path, seed: int = 1) -> None:
    """Writes three copies of `corpus`, with `words` invented words among its own."""
    rng = np.random.default_rng(seed)
    text = corpus.read_bytes().split()
    known = set(text)
    names = _invented(known, words, rng)
    ranks = np.arange(1, words + 1)
    weights = 1.0 / (ranks + OFFSET)
    counts = np.maximum(1, weights / weights.sum() * 3 * SHARE * len(text)).astype(np.int64)
    ids = np.repeat(ranks - 1, counts)
    rng.shuffle(ids)
    places = np.sort(rng.integers(0, 3 * len(text), len(ids)))
    with open(out, "wb") as file:
        for third in range(3):
            mine = slice(*np.searchsorted(places, [third * len(text), (third + 1) * len(text)]))
            _write_mixed(file, text, places[mine] - third * len(text), ids[mine], names)


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
