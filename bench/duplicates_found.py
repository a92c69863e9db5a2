#!/usr/bin/env python3
"""What a search for copies finds and removes on real texts, beside exact truth.

    lists of texts -> all pairs by complete sets: truth
    the same -> snailps.dedup, by three seeds of keys -> precision, recall, removals without a cover

    python bench/duplicates_found.py --table
    python bench/duplicates_found.py --lists planted,manuals --texts 2000 --json

Lists, of what a Debian machine and the corpus have: *planted* (pages of novels, and a copy of each:
words replaced, parts, inside other text), *manuals* (of packages), *licences* (their copyright
files), *headers* (of C), *modules* (of Python installations, PYTHONS).  Equal texts are left out
first.  A text counts where a kept text covers it by truth; it is found where it was removed.
"""

import argparse
import gzip
import json
import random
import sys
from functools import partial
from pathlib import Path

import numpy as np
from words import corpus_of, machine, say

from snailps.duplicates import dedup as dedup_module
from snailps.duplicates._pages import PageKeys, sets_of, shared_grams
from snailps.duplicates.search import batches_of, order_of

LISTS = ("planted", "manuals", "licences", "headers", "modules")
SEEDS = 0, 1, 2
BYTES = 200, 40_000
"""Shorter and longer files are left out."""
RULES = {
    "near >= .85": {"contained": None, "near": 0.85},
    "contained >= .9": {"contained": 0.9, "near": None},
    "contained >= .98": {"contained": 0.98, "near": None},
}
LONGER = 1.3
PAIRS = 1 << 20
"""Pairs that are compared at once."""


def files_of(*patterns: str) -> list[str]:
    """Texts of files, in an order that follows from their paths."""
    paths = sorted({path for pattern in patterns for path in Path("/").glob(pattern)})
    random.Random(1).shuffle(paths)
    texts = []
    for path in paths:
        try:
            if not path.is_file() or path.is_symlink():
                continue
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
        except (OSError, EOFError):
            continue
        if BYTES[0] <= len(data) <= BYTES[1]:
            texts.append(data.decode("utf-8", "replace"))
    return texts


def planted(corpus: Path, count: int) -> list[str]:
    """Pages of the corpus, and as many copies: a third each of words replaced, a part, inside."""
    opener = gzip.open if corpus.suffix == ".gz" else open
    with opener(corpus, "rt", encoding="utf-8", errors="replace") as file:
        words = file.read(count * 8_000).split()
    draw, at, pages = random.Random(2), 0, []
    while len(pages) < count // 2:
        size = draw.randrange(60, 1200)
        pages.append(words[at : at + size])
        at += size
    texts = []
    for page in pages:
        copy = list(page)
        kind = draw.randrange(3)
        if kind == 0:
            for _ in range(max(1, int(len(copy) * draw.choice([0.005, 0.02, 0.05, 0.1])))):
                copy[draw.randrange(len(copy))] = draw.choice(words)
        elif kind == 1:
            begin = draw.randrange(len(copy) // 3)
            copy = copy[begin : begin + int(len(copy) * draw.uniform(0.4, 0.95))]
        else:
            around = draw.choice(pages)
            half = int(len(copy) * draw.uniform(0.02, 0.8))
            copy = around[:half] + copy + around[half : 2 * half]
        texts += [" ".join(page), " ".join(copy)]
    draw.shuffle(texts)
    return texts


def lists(names: list[str], corpus: Path, count: int, pythons: str) -> dict[str, list[str]]:
    """Texts by list, at most so many, no two with equal words."""
    makers = {
        "planted": lambda: planted(corpus, count),
        "manuals": lambda: files_of("usr/share/man/man*/*.gz", "usr/share/doc/*/*.gz"),
        "licences": lambda: files_of("usr/share/doc/*/copyright"),
        "headers": lambda: files_of("usr/include/**/*.h"),
        "modules": lambda: files_of(f"{pythons.lstrip('/')}/**/*.py"),
    }
    found = {}
    for name in names:
        texts = makers[name]()
        alone = dedup_module.dedup(texts, contained=None, near=None).keep
        found[name] = [text for text, stays in zip(texts, alone, strict=True) if stays][:count]
    return found


def truth(texts: list[str], rank: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By rule, the pairs of texts and those before them that cover them; and the lengths' ratio."""
    grams, first = sets_of(*next(iter(one_batch(texts))))
    sizes = np.diff(first)
    order = np.argsort(rank)
    pairs = {rule: ([], []) for rule in RULES}
    rows = max(1, PAIRS // len(texts))
    for begin in range(1, len(texts), rows):
        later = np.arange(begin, min(begin + rows, len(texts)))
        left = np.repeat(order[later], later)
        right = order[np.concatenate([np.arange(at) for at in later])]
        both = shared_grams(grams, first, left, right).astype(np.float64)
        near = both / (sizes[left] + sizes[right] - both) >= 0.85
        share = both / sizes[left]
        for rule, hit in zip(RULES, (near, share >= 0.9, share >= 0.98), strict=True):
            pairs[rule][0].append(left[hit])
            pairs[rule][1].append(right[hit])
    return {rule: tuple(map(np.concatenate, sides)) for rule, sides in pairs.items()}


def one_batch(texts: list[str]):
    """All texts in one buffer."""
    data = [text.encode("utf-8", "replace") for text in texts]
    yield b"".join(data), np.cumsum([0, *map(len, data)])


def ranks(texts: list[str]) -> np.ndarray:
    """Places in the order of the search, the first one 0."""
    words = np.concatenate([PageKeys().of(*batch).words for batch in batches_of(texts)])
    rank = np.empty(len(texts), np.int64)
    rank[np.argsort(order_of(words), kind="stable")] = np.arange(len(texts))
    return rank


def figures(texts: list[str], seed: int, pairs: dict) -> dict[str, dict[str, float]]:
    """By rule: removed, removed without a kept cover, covered by truth and left."""
    dedup_module.PageKeys = partial(PageKeys, seed=seed)
    words = np.array([len(text.split()) for text in texts])
    found = {}
    for rule, bounds in RULES.items():
        keep = dedup_module.dedup(texts, **bounds).keep
        page, cover = pairs[rule]
        kept = keep[cover]
        covered = np.zeros(len(texts), bool)
        covered[page[kept]] = True
        found[rule] = {
            "removed": int((~keep).sum()),
            "without_cover": int((~keep & ~covered).sum()),
            "left": int((keep & covered).sum()),
        }
        if rule == "contained >= .98":
            # Covered by none but texts that are so much longer.
            close = np.zeros(len(texts), bool)
            close[page[kept & (words[cover] < LONGER * words[page])]] = True
            only = covered & ~close
            found["contained >= .98, in texts 1.3 times as long"] = {
                "removed": int((only & ~keep).sum()), "without_cover": 0,
                "left": int((only & keep).sum()),
            }  # fmt: skip
    return found


def main() -> None:
    """Make the lists, their truth, search, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", type=Path, help="default: the one in SNAILPS_DATA")
    add("--lists", default=",".join(LISTS))
    add("--texts", type=int, default=4000, help="of a list, at most: all pairs are compared")
    add("--pythons", default=sys.prefix, help="a folder with Python's modules")
    add("--json", action="store_true")
    add("--table", action="store_true")
    args = parser.parse_args()
    done = {}
    made = lists(args.lists.split(","), corpus_of(args.corpus), args.texts, args.pythons)
    for name, texts in made.items():
        say(f"{name}: {len(texts):,} texts, all pairs")
        pairs = truth(texts, ranks(texts))
        done[name] = {"texts": len(texts), "seeds": [figures(texts, seed, pairs) for seed in SEEDS]}
    if args.json:
        print(json.dumps({"lists": done, "machine": machine()}))
    if args.table:
        print("| list | texts | rule | removed | without a kept cover | recall, by seeds |")
        print("|---|---|---|---|---|---|")
        for name, of_list in done.items():
            for rule in of_list["seeds"][0]:
                seeds = [of_seed[rule] for of_seed in of_list["seeds"]]
                gone, bare, left = (
                    [of_seed[part] for of_seed in seeds]
                    for part in ("removed", "without_cover", "left")
                )
                recalls = [
                    f"{found / (found + missed):.3f}" if found + missed else "-"
                    for found, missed in zip(gone, left, strict=True)
                ]
                cells = (", ".join(map(str, cell)) for cell in (gone, bare, recalls))
                print(f"| {name} | {of_list['texts']:,} | {rule} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
