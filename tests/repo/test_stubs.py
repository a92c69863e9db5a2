"""`tools/stubs.py` writes types from .pyx and .pxd; what it writes is built, not committed."""

import ast
import re
import runpy
import subprocess
from pathlib import Path

import pytest
import skips

import snailps.estimators

ROOT = Path(__file__).resolve().parents[2]
PYX = '''\
import threading
from libc.stdint cimport uint8_t, uint64_t
from snailps.store._store cimport ShardStore
from snailps.store._inner import Shown

LIMIT = 4
SIZE: int = threading.active_count()
_HIDDEN = 1

cdef class Rows:
    """Rows of a shard.

    More of it.
    """

    cdef int64_t secret
    cdef readonly double seconds
    cdef public list names  # type: list[str]  # in order

    def __cinit__(self, ShardStore store not None, float scale=1.5, *, bint last=False):
        pass

    def __dealloc__(self):
        pass

    def find(self, const uint64_t[::1] keys not None, float[:, ::1] rows=None,
             said: snailps.errors.SnailError | None = None) -> tuple[int, NDArray[np.bool_]]:
        """Copy rows, by `snailps.kernels.row_ops`."""

    @property
    def limit(self) -> int:
        return 1

    @limit.setter
    def limit(self, value: int):
        pass

    cdef int hidden(self):
        return 0


def read(const uint8_t[::1] text, hint):
    pass


def _private():
    pass
'''
PXD = """\
cdef class Rows:
    cdef readonly object first  # type: bytes
"""
STUB = '''\
from numpy.typing import NDArray
from snailps.errors import SnailError
from snailps.store._inner import Shown as Shown
from snailps.store._store import ShardStore
from typing_extensions import Buffer
import numpy as np
LIMIT: int
SIZE: int

class Rows:
    """Rows of a shard."""
    @property
    def first(self) -> bytes: ...
    @property
    def seconds(self) -> float: ...
    names: list[str]
    def __init__(self, store: ShardStore, scale: float = 1.5, *, last: bool = False) -> None: ...
    def find(self, keys: NDArray[np.uint64], rows: NDArray[np.float32] | None = None, \
said: SnailError | None = None) -> tuple[int, NDArray[np.bool_]]:
        """Copy rows, by `row_ops`."""
    @property
    def limit(self) -> int: ...
    @limit.setter
    def limit(self, value: int) -> None: ...
def read(text: Buffer, hint): ...
'''


@pytest.fixture(scope="module")
def stubs():
    return runpy.run_path(str(ROOT / "tools" / "stubs.py"))


def test_no_stub_is_in_git():
    if skips.is_no_clone():
        pytest.skip("no git here: this is no clone, or there is no program to ask")
    words = ["git", "ls-files", "--", "*.pyi"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == ""


def test_stub_has_what_python_sees_of_a_compiled_module(stubs, tmp_path):
    """`hint` has no type: mypy refuses that, so that an annotation is not forgotten."""
    (tmp_path / "_rows.pyx").write_text(PYX)
    (tmp_path / "_rows.pxd").write_text(PXD)
    stubs["write_compiled"](tmp_path)
    ours = ast.parse((tmp_path / "_rows.pyi").read_text())
    assert ast.unparse(ours) == ast.unparse(ast.parse(STUB))


def test_stub_is_written_again_when_its_header_has_changed(stubs, tmp_path):
    (tmp_path / "_rows.pyx").write_text(PYX)
    stubs["write_compiled"](tmp_path)
    stub = tmp_path / "_rows.pyi"
    assert "first" not in stub.read_text()
    (tmp_path / "_rows.pxd").write_text(PXD)
    stubs["write_compiled"](tmp_path)
    assert "def first(self) -> bytes" in stub.read_text()


def test_stub_of_estimators_types_each_constructor(stubs):
    found = {
        node.name: node
        for node in ast.parse(stubs["estimators"]()).body
        if isinstance(node, ast.ClassDef)
    }
    assert sorted(found) == sorted(snailps.estimators.__all__)
    for name, node in found.items():
        constructor = node.body[-1]
        assert isinstance(constructor, ast.FunctionDef)
        names = [parameter.arg for parameter in constructor.args.kwonlyargs]
        assert names == list(getattr(snailps.estimators, name).parameters.defaults)


FROM_THE_END = re.compile(r"\[(?:[^\[\]]*:)?\s*-\w|:\s*-\w[^\[\]]*\]")


def test_compiled_modules_index_nothing_from_its_end():
    """They are compiled with wraparound=False: what a negative index means is not defined."""
    for sample in ("a[-1]", "a[1:-n]", "a[-n:]", "a[f[0]:-1]"):
        assert FROM_THE_END.search(sample), sample
    assert not FROM_THE_END.search("a[i - 1] + b[:n - 1]")
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "snailps").rglob("*.pyx"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FROM_THE_END.search(re.sub(r"#.*|\[::-1\]|\[-scale, scale\)", "", line))
    ]
    assert not lines
