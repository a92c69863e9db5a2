"""Recognises the small texts that Git LFS and git-annex put in the place of a large file.

A repository that was cloned without them has a pointer wherever it has data or a model.
Must not open files: the caller hands over its first `POINTER_BYTES`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

POINTER_BYTES = 64
"""First bytes of a file that suffice to recognise a pointer."""


class Pointer(NamedTuple):
    """A kind of pointer: what messages call it, how it begins, and how the file is fetched."""

    name: str
    begin: bytes
    cure: str

    def __str__(self) -> str:
        return f"{self.name}: {self.cure}"


POINTERS = (
    Pointer(
        "a pointer of Git LFS in the place of the file",
        rb"version https://(git-lfs|hawser)\.github\.com/spec/",
        "fetch the file, by git lfs pull",
    ),
    Pointer(
        "a pointer of git-annex in the place of the file",
        rb"/annex/objects/[A-Z0-9_]+-",
        "fetch the file, by git annex get",
    ),
)
_COMPILED = tuple((pointer, re.compile(pointer.begin)) for pointer in POINTERS)


def pointer_of(head: bytes) -> Pointer | None:
    """The kind of pointer that a file with these first bytes is; None: it is none."""
    return next((pointer for pointer, begin in _COMPILED if begin.match(head)), None)
