"""Near-duplicates by definition: sets of strings, all pairs; and corpora with planted copies.

Independent of `snailps.duplicates` but for the keys, which a caller may give.
"""

import random
import re
from collections import defaultdict
from typing import NamedTuple

NO_KEY = 2**64 - 1


def words_of(text):
    """Words of a text of ASCII alone."""
    return re.findall("[a-z0-9]+", text.lower())


def grams_of(text):
    words = words_of(text)
    size = min(len(words), 3)
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1) if size}


class Cover(NamedTuple):
    """What the kept ones among a text's candidates have of it."""

    contained: float = 0.0
    near: float = 0.0
    exact: bool = False
    of: int = -1


def place_of(texts, number):
    """Place in the order: the longest first, then the first."""
    return -len(words_of(texts[number])), number


def anchors_by_keys(texts, keys):
    """By text: for each of its keys, the first text in the order that has it; and equal texts."""
    first = {}
    for number, row in enumerate(keys):
        for key in {*row} - {NO_KEY}:
            other = first.setdefault(key, number)
            first[key] = min(number, other, key=lambda at: place_of(texts, at))
    equal = {}
    for number, text in enumerate(texts):
        equal.setdefault(tuple(words_of(text)), number)
    return [
        {first[key] for key in {*row} - {NO_KEY}} | ({equal[tuple(words)]} if words else set())
        for row, words in zip(keys, map(words_of, texts), strict=True)
    ]


def every_text_before(texts):
    """By text, all others with a word: what a search that misses none would compare it with."""
    return [{at for at, text in enumerate(texts) if words_of(text)} if words_of(one) else set()
            for one in texts]  # fmt: skip


def covers_of(texts, candidates, is_covered):
    """`Cover` of each text, and whether it is kept; one text after the other, in the order."""
    grams = [*map(grams_of, texts)]
    covers, kept = {}, {}
    for number in sorted(range(len(texts)), key=lambda at: place_of(texts, at)):
        best, near, exact = Cover(), 0.0, False
        for other in sorted(candidates[number], key=lambda at: place_of(texts, at)):
            if not kept.get(other) or place_of(texts, other) >= place_of(texts, number):
                continue
            both = len(grams[number] & grams[other])
            jaccard = both / len(grams[number] | grams[other])
            shares = both / len(grams[number]), jaccard
            near = max(near, jaccard)
            exact = exact or words_of(texts[number]) == words_of(texts[other])
            if best.of < 0 or shares > (best.contained, best.near):
                best = Cover(*shares, False, other)
        covers[number] = best._replace(near=near, exact=exact)
        kept[number] = not is_covered(covers[number])
    return [covers[at] for at in range(len(texts))], [kept[at] for at in range(len(texts))]


def corpus(seed, pages=60, length=120):
    """Random texts with planted copies, and by number of a copy its original and kind."""
    draw = random.Random(seed)
    vocabulary = [f"w{number}" for number in range(3000)]

    def text(words):
        return draw.choices(vocabulary, k=words)

    originals = [text(draw.randrange(length // 2, 2 * length)) for _ in range(pages)]
    rows = [(" ".join(words), "") for words in originals]
    for number, words in enumerate(originals):
        kind = ("equal", "replaced", "part", "inside", "repeated")[number % 5]
        copy = list(words)
        if kind == "equal":
            rows.append((", ".join(copy).upper() + "!", f"{number} {kind}"))
            continue
        if kind == "replaced":
            copy[len(copy) // 2] = "another"
        elif kind == "part":
            copy = copy[len(copy) // 10 :]
        elif kind == "inside":
            copy = text(length // 3) + copy + text(length // 3)
        else:
            copy += copy[-30:]
        rows.append((" ".join(copy), f"{number} {kind}"))
    rows += [(word, "") for word in ("", "?!", "one", "one", "two words", "Two Words.", "a b c")]
    draw.shuffle(rows)
    planted = defaultdict(list)
    for at, (_, what) in enumerate(rows):
        if what:
            planted[what.split()[1]].append(at)
    return [text for text, _ in rows], planted
