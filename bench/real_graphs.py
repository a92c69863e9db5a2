"""Two real graphs for bench/kge.py: Debian's packages, and WordNet 3.0.

    apt-cache dumpavail                -> sample of packages -> triples -> FOLDER/debian/*.txt
    /usr/share/wordnet (wordnet-base)  -> pointers, no inverses -> triples -> FOLDER/wordnet/*.txt

Entities have four triples at least; 1,500 triples are held out for each of valid.txt and test.txt,
whose entities are all in train.txt.

    python bench/real_graphs.py FOLDER [--wordnet /usr/share/wordnet]
    python bench/kge.py --no-peer --data FOLDER/debian,FOLDER/wordnet --model rotate,complex --table
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

Triple = tuple[str, str, str]
LEAST, HELD_OUT, PACKAGES = 4, 1500, 22_000
OF_PACKAGES = ("Depends", "Recommends", "Suggests", "Breaks", "Provides", "Enhances")
POINTERS = {
    "@": "hypernym", "@i": "instance_hypernym", "%m": "member_meronym", "%s": "substance_meronym",
    "%p": "part_meronym", "=": "attribute", "+": "derivation", "$": "verb_group", "^": "also",
    "&": "similar", ";c": "domain_topic", ";r": "domain_region", ";u": "domain_usage",
    "*": "entailment", ">": "cause",
}  # fmt: skip


def packages() -> Iterator[Triple]:
    told = subprocess.run(
        ["apt-cache", "dumpavail"], capture_output=True, text=True, check=True
    ).stdout
    for paragraph in told.split("\n\n"):
        lines = (line.split(": ", 1) for line in paragraph.split("\n") if ": " in line)
        fields = {line[0]: line[1] for line in lines if line[0][:1] not in (" ", "\t")}
        if (name := fields.get("Package", "")) == "":
            continue
        for relation in OF_PACKAGES:
            for text in fields.get(relation, "").split(","):
                if other := re.split(r"[ |(:]", text.strip())[0]:
                    yield name, relation.lower(), other
        people = re.sub(r"\s+", "_", fields.get("Maintainer", "").split("<")[0].strip())
        yield name, "section", f"s:{fields.get('Section', '')}"
        yield name, "maintainer", f"m:{people}"
        yield name, "source", f"src:{fields.get('Source', name).split(' ')[0]}"


def sampled(triples: Iterable[Triple]) -> list[Triple]:
    """Triples of a sample of packages with others in it, and with what is no package."""
    every = sorted({*triples})
    heads = sorted({head for head, _, _ in every})
    chosen = {*random.Random(3).sample(heads, min(PACKAGES, len(heads)))}
    return [(h, r, t) for h, r, t in every if h in chosen and (t in chosen or ":" in t)]


def synsets(folder: Path) -> Iterator[Triple]:
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text().split("\n"):
            if line.startswith("  ") or not line:
                continue
            cells = line.split(" | ")[0].split()
            first = 4 + 2 * int(cells[3], 16)
            for at in range(first + 1, first + 1 + 4 * int(cells[first]), 4):
                pointer, offset, kind, _ = cells[at : at + 4]
                if pointer in POINTERS:
                    head, tail = f"{cells[2]}{cells[0]}", f"{kind}{offset}"
                    yield head.replace("s", "a"), POINTERS[pointer], tail.replace("s", "a")


def core(triples: Iterable[Triple]) -> list[Triple]:
    """Triples of entities that have `LEAST` of them."""
    kept = [one for one in triples if one[0] != one[2]]
    while True:
        degrees = Counter(name for head, _, tail in kept for name in (head, tail))
        left = [one for one in kept if min(degrees[one[0]], degrees[one[2]]) >= LEAST]
        if len(left) == len(kept):
            return left
        kept = left


def write(folder: Path, triples: Iterable[Triple]) -> None:
    every = sorted({*triples})
    random.Random(1).shuffle(every)
    seen: set[str] = set()
    train, others = [], []
    for one in every:
        (others if {one[0], one[2]} <= seen else train).append(one)
        seen |= {one[0], one[2]}
    train += others[2 * HELD_OUT :]
    random.Random(2).shuffle(train)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"train": train, "valid": others[HELD_OUT : 2 * HELD_OUT], "test": others[:HELD_OUT]}
    for name, some in parts.items():
        (folder / f"{name}.txt").write_text("".join("\t".join(one) + "\n" for one in some))
    print(f"{folder}: {len(train):,} triples, {len(seen):,} entities")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    o = parser.parse_args()
    write(o.folder / "debian", core(sampled(one for one in packages() if one[0] != one[2])))
    if o.wordnet.is_dir():
        write(o.folder / "wordnet", core({*synsets(o.wordnet)}))


if __name__ == "__main__":
    main()
