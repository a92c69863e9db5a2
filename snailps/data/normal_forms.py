"""How the words of a text are normalised: the parts that a user may ask for, and their order.

    "lower,nfkc" -> normal_parts -> "nfkc,lower" -> mask_of -> bits in a model's file -> parts_of
    words -> Conversion -> their Unicode form, case and digits

`_normaliser` does the same for ASCII without the GIL, and replaces addresses.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Literal

PARTS = MappingProxyType(
    {
        "nfc": "Unicode's form NFC: an accent and its letter are one character",
        "nfkc": "Unicode's form NFKC: also ligatures, wide letters and other variants",
        "lower": "lower case",
        "casefold": "lower case, also of letters without one: ß becomes ss",
        "digits": "each digit becomes 0",
        "urls": "web addresses become <url>, mail addresses <email>",
    }
)
"""Parts in the order in which they act, and what they do.  A part's bit in a file is its place."""
_ALTERNATIVES = (("nfc", "nfkc"), ("lower", "casefold"))
_DIGIT = re.compile(r"\d")


def normal_parts(text: str) -> str:
    """Check a list of parts, separated by commas, and write it in the order of `PARTS`.

    Raises ValueError, with what is expected.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise ValueError(f"expected parts of {', '.join(PARTS)}, separated by commas")
    for either, other in _ALTERNATIVES:
        if either in names and other in names:
            raise ValueError(f"expected either {either} or {other}, which contains it")
    return ",".join(name for name in PARTS if name in names)


def mask_of(parts: str) -> int:
    """Write parts as bits."""
    names = parts.split(",")
    return sum(1 << place for place, name in enumerate(PARTS) if name in names)


def parts_of(mask: int) -> str:
    """Read parts from bits; ValueError: a bit has no part."""
    if mask >> len(PARTS):
        raise ValueError(f"unknown parts: bits {mask:#x}")
    return ",".join(name for place, name in enumerate(PARTS) if mask >> place & 1)


def conversion(parts: str) -> Callable[[bytes], bytes] | None:
    """Return what converts words of any letters, except addresses; None: they stay as they are.

    Invalid UTF-8 stays as it is.  Each word's form depends on the word alone.
    """
    names = set(parts.split(",")) - {"", "urls"}
    return partial(_converted, names) if names else None


def _converted(names: set[str], words: bytes) -> bytes:
    text = words.decode("utf-8", "surrogateescape")
    form: Literal["NFC", "NFKC"] = "NFKC" if "nfkc" in names else "NFC"
    has_form = not names.isdisjoint(("nfc", "nfkc"))
    if has_form:
        text = unicodedata.normalize(form, text)
    if not names.isdisjoint(("lower", "casefold")):
        text = text.casefold() if "casefold" in names else text.lower()
        if has_form:  # lower case of some letters is not in the form
            text = unicodedata.normalize(form, text)
    if "digits" in names:
        text = _DIGIT.sub("0", text)
    return text.encode("utf-8", "surrogateescape")
