"""The files of the page, for the server of the page and for reports."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SCRIPTS = ("curves.js", "cluster.js", "words.js", "page.js")
"""Scripts in order of dependence: each uses the ones before it."""


@cache
def static(name: str) -> bytes:
    return Path(__file__).with_name("static").joinpath(name).read_bytes()
