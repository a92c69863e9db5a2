"""Plain Python twins of snailps.data._text and _subwords: slow, short, easy to believe."""

import re
from collections import Counter

import numpy as np
from twins.kernels import GOLDEN, MASK, mix64

SEPARATORS = b" \n\r\t\v\f\0"
SENTENCE_END = b"</s>"


def tokens_of(data: bytes) -> list[bytes]:
    """fastText's tokens: runs of other bytes, and `</s>` for each newline."""
    found = re.findall(rb"[^ \n\r\t\v\f\0]+|\n", data)
    return [SENTENCE_END if token == b"\n" else token for token in found]


def count(data: bytes) -> Counter:
    return Counter(tokens_of(data))


def splitmix64(seed: int, n: int) -> int:
    """The n-th output (from 1) of a SplitMix64 generator."""
    return mix64((seed + n * GOLDEN) & MASK)


def encode(data: bytes, words: list[bytes], keep=None, seed: int = 0) -> tuple[list[int], int]:
    """Ids with -1 behind every sentence, and the number of raw tokens."""
    id_of = {word: i for i, word in enumerate(words)}
    tokens = tokens_of(data)
    stream = splitmix64(seed, 1)
    sentences: list[list[int]] = [[]]
    known = in_line = 0
    for token in tokens:
        word = id_of.get(token)
        if word is None:
            continue
        known += 1
        in_line += 1
        draw = (splitmix64(stream, known) >> 40) / 2**24
        if keep is None or draw < np.float32(keep[word]):
            sentences[-1].append(word)
        if token == SENTENCE_END or in_line > 1024:
            sentences.append([])
            in_line = 0
    return [i for line in sentences if line for i in [*line, -1]], len(tokens)


def ngram_hash(ngram: bytes) -> int:
    h = 2166136261
    for byte in ngram:
        signed = byte - 256 if byte > 127 else byte
        h = ((h ^ (signed & 0xFFFFFFFF)) * 16777619) & 0xFFFFFFFF
    return h


def characters_of(word: bytes) -> list[bytes]:
    """A character is a byte and the continuation bytes behind it, valid UTF-8 or not."""
    return re.findall(rb"[^\x80-\xbf][\x80-\xbf]*", word, re.DOTALL)


def subword_ids(word: bytes, minn: int, maxn: int, bucket: int, nwords: int) -> list[int]:
    if word == SENTENCE_END or maxn == 0:
        return []
    characters = characters_of(b"<" + word + b">")
    last = len(characters)
    return [
        nwords + ngram_hash(b"".join(characters[i : i + n])) % bucket
        for i in range(last)
        for n in range(max(minn, 1), maxn + 1)
        if i + n <= last and not (n == 1 and i in (0, last - 1))
    ]
