"""What docs/duplicates.md defines, written down word for word, without the kernel's tricks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import zip_longest

ALL = 2**64 - 1
NO_KEY = ALL
SCRIPTS = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF), (0x3005, 0x3005),
    (0x3007, 0x3007), (0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F),
    (0x0E00, 0x0EFF), (0x1780, 0x17FF), (0x19E0, 0x19FF), (0x1000, 0x109F), (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
)  # fmt: skip
LETTERS = "".join(f"{chr(first)}-{chr(last)}" for first, last in SCRIPTS)
PARTS = re.compile(f"([{LETTERS}]+)")


def words(text: bytes) -> list[bytes]:
    """Runs of letters, digits and bytes above 127; a character a word in scripts without spaces."""
    found = []
    for run in re.findall(rb"[0-9A-Za-z\x80-\xff]+", text):
        for part in PARTS.split(run.lower().decode("utf-8", "surrogateescape")):
            if PARTS.fullmatch(part):
                found += [part[at : at + 2] for at in range(len(part))]
            elif part:
                found.append(part)
    return [word.encode("utf-8", "surrogateescape") for word in found]


def fold(a: int, b: int) -> int:
    product = a * b
    return product & ALL ^ product >> 64


def turned(x: int, bits: int) -> int:
    return (x << bits | x >> 64 - bits) & ALL


def mix(z: int) -> int:
    z &= ALL
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & ALL
    z = (z ^ z >> 27) * 0x94D049BB133111EB & ALL
    return z ^ z >> 31


def mix32(x: int) -> int:
    x &= 2**32 - 1
    x = (x ^ x >> 16) * 0x7FEB352D & 2**32 - 1
    x = (x ^ x >> 15) * 0x846CA68B & 2**32 - 1
    return x ^ x >> 16


def word_hash(word: bytes) -> int:
    value = 0x9E3779B97F4A7C15 ^ len(word)
    for at in range(0, len(word), 16):
        first, second = (int.from_bytes(word[at + k : at + k + 8], "little") for k in (0, 8))
        is_last = at + 16 >= len(word)
        value = fold(
            value ^ first, (0xE7037ED1A0B428DB if is_last else 0xA0761D6478BD642F) ^ second
        )
    return value


def hashes(text: bytes) -> list[int]:
    return [word_hash(word) for word in words(text)]


def exact(text: bytes) -> list[int]:
    first, second, found = 0x9E3779B97F4A7C15, 0, hashes(text)
    for word, after in zip_longest(found[::2], found[1::2], fillvalue=0):
        product = (first ^ word) * (0xD6E8FEB86659FD93 ^ after)
        first = product & ALL ^ product >> 64
        second = (turned(second, 29) + product) & ALL
    return [mix(first ^ len(found)), mix(second + len(found))] if found else [0, 0]


def grams(text: bytes) -> list[int]:
    """Of each three words in a row; of all words where there are one or two."""
    found = hashes(text)
    runs = [found[at : at + 3] for at in range(len(found) - 2)] or [found] * bool(found)
    return [(sum(turned(word, 21 * at) for at, word in enumerate(run)) & ALL) >> 32 for run in runs]


def gram_set(text: bytes) -> list[int]:
    return sorted(set(grams(text)))


def step(bin: int, bins: int) -> int:
    """How far an empty bin looks each time: to every other bin before it comes back."""
    found = mix(bin) % (bins - 1) + 1
    while math.gcd(found, bins) != 1:
        found = found + 1 if found + 1 < bins else 1
    return found


def bins(values: Sequence[int], count: int, seed: int) -> list[int]:
    factor, term = mix(mix(seed) + 1) & 2**32 - 1 | 1, mix(mix(seed) + 2) & 2**32 - 1
    least: dict[int, int] = {}
    for value in values:
        bin, rest = divmod((value * factor + term) % 2**32 * count, 2**32)
        least[bin] = min(rest & ~1, least.get(bin, 2**32))
    found = []
    for bin in range(count):
        looks = 0
        while (bin + looks * step(bin, count)) % count not in least if count > 1 else False:
            looks += 1
        full = least[(bin + looks * step(bin, count)) % count if count > 1 else bin]
        found.append(mix32(full + looks) if looks else full)
    return found


def band_keys(text: bytes, bands: int, rows: int, seed: int) -> list[int]:
    if not (values := grams(text)):
        return [NO_KEY] * bands
    found, least = [], bins(values, bands * rows, seed)
    for band in range(bands):
        value = 0x9E3779B97F4A7C15 * (band + 1) & ALL
        own = least[band * rows : (band + 1) * rows]
        for row in range(0, rows, 2):
            pair = sum(value << 32 * at for at, value in enumerate(own[row : row + 2]))
            value = fold(value ^ pair, 0xA0761D6478BD642F + row)
        found.append(mix(value))
    return found


def window_sum(run: Sequence[int]) -> int:
    total = 0
    for word in run:
        total = (total * 0x9E3779B97F4A7C15 + word) & ALL
    return total


def window_keys(text: bytes, windows: int, size: int, seed: int) -> list[int]:
    found = hashes(text)
    order = mix(mix(seed) + 3)
    sums = {window_sum(found[at : at + size]) ^ order for at in range(len(found) - size + 1)}
    keys = [mix(value + size) for value in sorted(sums)[:windows]]
    return keys + [NO_KEY] * (windows - len(keys))


def covered(
    text: bytes, lines: Sequence[bytes], size: int, shortest: int
) -> tuple[float, list[int]]:
    """Share of words inside windows of lines; whether each line is the first with one of them."""
    owner: dict[tuple[bytes, ...], int] = {}
    for number, line in enumerate(lines):
        found = words(line)
        length = min(size, len(found))
        for at in range(len(found) - length + 1 if length >= shortest else 0):
            owner.setdefault(tuple(found[at : at + length]), number)
    found, inside, hits = words(text), set(), [0] * len(lines)
    for length in range(shortest, size + 1):
        for at in range(len(found) - length + 1):
            number = owner.get(tuple(found[at : at + length]))
            if number is not None:
                inside.update(range(at, at + length))
                hits[number] = 1
    return len(inside) / len(found) if found else 0.0, hits
