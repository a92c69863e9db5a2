"""Slow twins of the parsers of sparse examples: regular expressions, Fractions, lists."""

import math
import re
from fractions import Fraction

import numpy as np
from twins.kernels import GOLDEN, MASK, hash_key, mix64

NUMBER = rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
WHOLE = rb"[0-9]+"
ENTRY = rb"(?:%s:)?%s:%s" % (WHOLE, WHOLE, NUMBER)
SHAPES = {
    name: re.compile(
        rb"[ \t]*(?P<label>%s)(?P<qid>[ \t]+qid:(?P<query>%s))?(?P<entries>(?:[ \t]+%s)*)"
        rb"(?:[ \t]+(?:#.*)?)?" % (NUMBER, WHOLE, entry),
        re.DOTALL,
    )
    for name, entry in {
        "libsvm": rb"%s:%s" % (WHOLE, NUMBER),
        "libffm": rb"%s:%s:%s" % (WHOLE, WHOLE, NUMBER),
    }.items()
}
LARGEST = np.finfo(np.float32).max


class Malformed(Exception):
    """A line is not what the format says."""


def real(text):
    """The float32 nearest to a decimal number, by exact arithmetic; ties to even."""
    if not re.fullmatch(NUMBER, text):
        raise Malformed
    digits, _, exponent = text.lower().partition(b"e")
    sign = -1.0 if text.startswith(b"-") else 1.0
    if not digits.strip(b"+-.0"):
        return np.float32(sign * 0.0)
    power = int(exponent or b"0")
    if abs(power) > 2000:
        # Far outside, as long as a number has no thousands of digits.
        if power > 0:
            raise Malformed
        return np.float32(sign * 0.0)
    exact = Fraction(digits.strip(b"+-").decode()) * Fraction(10) ** power
    if exact >= Fraction(float(LARGEST)) + Fraction(2) ** 103:
        raise Malformed
    near = np.float32(min(float(exact), float(LARGEST)))
    close = [near, np.nextafter(near, np.float32(0)), np.nextafter(near, LARGEST)]
    best = min(close, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.uint32)) & 1))
    return np.float32(sign) * best


def label_of(text):
    """The float64 nearest to a number that a float32 has room for."""
    real(text)
    return float(text)


def whole(text, most):
    if int(text) > most:
        raise Malformed
    return int(text)


def hash_text(seed, text):
    h = (seed + len(text) * GOLDEN) & MASK
    for i in range(0, max(len(text), 1), 8):
        h = mix64(h ^ int.from_bytes(text[i : i + 8], "little"))
    return h


def lines_of(text):
    """Lines without what ends them."""
    lines = text.split(b"\n")
    return [line.removesuffix(b"\r") for line in (lines if lines[-1] else lines[:-1])]


def entries_of(line, format, hash_bits):
    """(label, keys, values, fields) of a line; None if it has no example."""
    if not line.strip(b" \t") or line.lstrip(b" \t").startswith(b"#"):
        return None
    found = SHAPES[format].fullmatch(line)
    if not found:
        raise Malformed
    keys, values, fields = [], [], []
    for entry in found["entries"].split():
        *field, key, value = entry.split(b":")
        if field:
            fields.append(whole(field[0], 2**31 - 1))
        index = whole(key, 2**63 - 1)
        keys.append(hash_key(index) >> (64 - hash_bits) if hash_bits else index)
        values.append(real(value))
    sums = {}  # of the values of an index that the line repeats, in one field
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        of = (key, fields[place] if fields else 0)
        sums[of] = sums[of] + value if of in sums else value
    most = float(np.finfo(np.float32).max)
    values = [float(np.float32(min(most, max(-most, value)))) for value in sums.values()]
    return (
        label_of(found["label"]), [key for key, _ in sums], values,
        [field for _, field in sums] if fields else [],
    )  # fmt: skip


def cells_of(line, separator, quotes):
    """The cells of a row, without the spaces round them."""
    cells, at = [], 0
    while True:
        while line[at : at + 1] == b" ":
            at += 1
        if quotes and line[at : at + 1] == b'"':
            found = re.compile(rb'"((?:[^"]|"")*)" *', re.DOTALL).match(line, at)
            if not found:
                raise Malformed
            cells.append(found[1].replace(b'""', b'"'))
            at = found.end()
            if at < len(line) and line[at : at + 1] != separator:
                raise Malformed
        else:
            stop = line.find(separator, at)
            stop = len(line) if stop < 0 else stop
            cells.append(line[at:stop].rstrip(b" "))
            at = stop
        if at == len(line):
            return cells
        at += 1


def row_of(line, format, columns, hash_bits):
    """The same of a row of a table; columns are ``(name, kind, argument)``."""
    if not line:
        return None
    cells = cells_of(line, {"csv": b",", "tsv": b"\t"}[format], format == "csv")
    if len(cells) != len(columns):
        raise Malformed
    shift = 64 - (hash_bits or 63)
    label, keys, values, fields, field = None, [], [], [], -1
    for cell, (name, kind, argument) in zip(cells, columns, strict=True):
        if kind == "label":
            label = label_of(cell)
        if kind in ("label", "ignore"):
            continue
        field += 1
        if not cell:
            continue
        seed = hash_text(0, name.encode())
        value = np.float32(1)
        if kind == "categorical":
            key = hash_text(seed, cell)
        elif kind == "hashed":
            bucket = hash_text(seed, cell) >> (64 - argument)
            key = hash_text(seed, bucket.to_bytes(8, "little"))
        else:
            log, bounds = argument
            value = real(cell)
            if log:
                value = np.float32(math.copysign(math.log1p(abs(float(value))), value))
            key = hash_text(seed, b"")
            if bounds:
                bucket = sum(float(value) >= bound for bound in bounds)
                key, value = hash_text(seed, str(bucket).encode()), np.float32(1)
        keys.append(key >> shift)
        values.append(value)
        fields.append(field)
    return label, keys, values, fields


def examples_of(text, format, *, columns=(), hash_bits=0):
    """([(label, keys, values, fields)], numbers of malformed lines, from 1)."""
    examples, bad = [], []
    for number, line in enumerate(lines_of(text), 1):
        try:
            found = (
                row_of(line, format, columns, hash_bits)
                if columns
                else entries_of(line, format, hash_bits)
            )
        except Malformed:
            bad.append(number)
        else:
            if found:
                examples.append(found)
    return examples, bad
