"""Loss of rotating workers by the order of their checkouts, in one thread: the same in each run.

The trainers and kernels are the program's, tables are in memory, and a list decides which worker
trains its next turn.  Hours on one core; smaller with --texts, --models and so on.

    python bench/rotation_orders.py --texts ids --models cbow --workers 4,8 --write orders.md
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from rotating import MemoryTables, MemoryWorker  # noqa: E402
from workers_in_order import (  # noqa: E402
    Order,
    in_turns,
    lockstep,
    losses_in_order,
    seeded,
    stalled,
)

from snailps.data._text import WordCounter  # noqa: E402
from snailps.data.vocabulary import Vocabulary  # noqa: E402
from snailps.models.word_vectors import WordVectors, WordVectorSettings  # noqa: E402

WORDS_A_LINE = 8
ORDERS: dict[str, Order] = {
    "turns": in_turns,
    "lockstep": lockstep,
    "stalled": stalled,
    "random": seeded(1),
}


def near(names: list[bytes], lines: int, seed: int) -> Iterator[list[bytes]]:
    """Lines of words that are next to each other in a list."""
    rng = np.random.default_rng(seed)
    at = rng.integers(len(names), size=(lines, 1)) + rng.integers(30, size=(lines, WORDS_A_LINE))
    for line in at % len(names):
        yield [names[word] for word in line]


def spelled(num: int, seed: int, letters: str = "etaoinshrdlu") -> list[bytes]:
    """Words of two to nine letters."""
    rng = np.random.default_rng(seed)
    found: set[str] = set()
    while len(found) < num:
        found.add("".join(rng.choice(list(letters), rng.integers(2, 10))))
    return [word.encode() for word in sorted(found)]


def ids(lines: int) -> Iterator[list[bytes]]:
    """Names that begin alike."""
    yield from near([b"item%04d" % number for number in range(3000)], lines, 1)


def prose(lines: int) -> Iterator[list[bytes]]:
    """Words by Zipf's law, with neighbours."""
    names, rng = spelled(3000, 1), np.random.default_rng(2)
    rank = np.arange(1, len(names) + 1)
    heavy = rng.choice(len(names), size=(lines, WORDS_A_LINE // 2), p=1 / rank / (1 / rank).sum())
    for line, others in zip(near(names, lines, 3), heavy, strict=True):
        yield [*line[: WORDS_A_LINE // 2], *(names[word] for word in others)]


def every(lines: int) -> Iterator[list[bytes]]:
    """One word is in every line."""
    for line in near(spelled(1000, 1), lines, 4):
        yield [b"always", *line[1:]]


def hundred(lines: int) -> Iterator[list[bytes]]:
    """A hundred words: too few to rotate."""
    yield from near(spelled(100, 1), lines, 5)


def languages(lines: int) -> Iterator[list[bytes]]:
    """Two, of other letters."""
    both = near(spelled(1000, 1), lines // 2, 6), near(spelled(1000, 1, "bcfgjkmpqvwxyz"), lines, 7)
    for one, other in zip(*both, strict=False):
        yield one
        yield other


TEXTS: dict[str, Callable[[int], Iterator[list[bytes]]]] = {
    one.__name__: one for one in (prose, ids, every, hundred, languages)
}


def settings_of(model: str, lr: float) -> WordVectorSettings:
    """Small ones; "cbow+" is CBOW with subwords."""
    grams = {"minn": 3, "maxn": 6} if model.endswith("+") else {"minn": 0, "maxn": 0}
    common = {"dim": 16, "window": 3, "min_count": 1, "sample": 0.0, "bucket": 20_000}
    return WordVectorSettings(model=model.rstrip("+"), lr=lr, **common, **grams)  # type: ignore[arg-type]


def loss_of(
    settings: WordVectorSettings, data: bytes, workers: int, order: Order, epochs: int
) -> float | None:
    """Loss of the last epoch; None if this many workers do not rotate."""
    counter = WordCounter()
    counter.count(data)
    words = Vocabulary.from_counter(counter, 1)
    rotation = WordVectors.rotation(settings, len(data), max(2, workers), words.to_bytes())
    if rotation is None or rotation.most_parts < workers:
        return None
    tables = MemoryTables(settings, len(words))
    made = [MemoryWorker(settings, words, tables) for _ in range(workers)]
    try:
        return losses_in_order(made, [[data]], order, epochs)[-1]
    except RuntimeError:  # the program ends with the same error
        return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", default=",".join(TEXTS), help="kinds of text")
    parser.add_argument("--models", default="skipgram,cbow,skipgram+,cbow+", help="+: subwords")
    parser.add_argument("--workers", default="2,3,4,8", help="compared with one worker")
    parser.add_argument("--rates", default="1,2,4", help="times the default learning rate")
    parser.add_argument("--orders", default=",".join(ORDERS), help="who trains its next turn")
    parser.add_argument("--lines", type=int, default=30_000, help="of each text, 8 words a line")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--write", type=Path, help="a file for the table, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    orders = options.orders.split(",")
    rows = [
        f"| text, model | rate | workers | one worker | {' | '.join(orders)} |",
        "|" + "---|" * (4 + len(orders)),
    ]
    print(*rows, sep="\n")
    began = time.monotonic()
    for text in options.texts.split(","):
        data = b"".join(b" ".join(line) + b"\n" for line in TEXTS[text](options.lines))
        for model in options.models.split(","):
            for times in map(float, options.rates.split(",")):
                settings = settings_of(model, times * WordVectorSettings().rate)
                alone = loss_of(settings, data, 1, in_turns, options.epochs)
                for workers in map(int, options.workers.split(",")):
                    losses = [
                        loss_of(settings, data, workers, ORDERS[order], options.epochs)
                        for order in orders
                    ]
                    if alone is None or None in losses:
                        continue
                    cells = [f"{loss:.3f}" for loss in (alone, *losses) if loss is not None]
                    rows.append(
                        f"| {text}, {model} | {times:g} | {workers} | {' | '.join(cells)} |"
                    )
                    print(rows[-1], flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    if options.write:
        options.write.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
