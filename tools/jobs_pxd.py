"""Writes snailps/kernels/_jobs.pxd, what Cython must know of the C header beside it.

    _jobs.h -> written -> _jobs.pxd: constants, structs, the table of kernels

The header says everything once; setup.py calls this before Cython runs.  The header keeps to what
is read here: ``#define SNAIL_NAME number``, unnamed enums, and structs ``snail_some_name`` of plain
fields and function pointers, which Cython knows as ``SomeName``.
"""

import re
from pathlib import Path

HEAD = """\
# Made of _jobs.h by tools/jobs_pxd.py, which see.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from snailps.abi._row_ops cimport RowOps
from snailps.abi._wire_types cimport WireOps

cdef extern from "kernels/_jobs.h" nogil:
"""


def written(header: str) -> str:
    """The text of the .pxd.  ValueError: a line that is none of these."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    lines = [
        f'    const int {name} "SNAIL_{name}"'
        for name in re.findall(r"^#define SNAIL_(\w+) +\d+\s*$", text, re.MULTILINE)
    ]
    for names in re.findall(r"^enum \{(.*?)\};", text, re.MULTILINE | re.DOTALL):
        lines.append("    enum:")
        lines += [f'        {name} "SNAIL_{name}"' for name in re.findall(r"SNAIL_(\w+)", names)]
    structs = re.findall(r"^typedef struct \{(.*?)^\} snail_(\w+);", text, re.MULTILINE | re.DOTALL)
    for fields, name in structs:
        lines.append(f'    ctypedef struct {_name_of(name)} "snail_{name}":')
        for field in filter(None, map(str.strip, fields.split(";"))):
            lines += [f"        {line}" for line in _declared(" ".join(field.split()))]
    return HEAD + "\n".join(lines) + "\n"


def _declared(field: str) -> list[str]:
    """A field, or several of one type, as Cython declares them."""
    field = re.sub(r"snail_(\w+)", lambda match: _name_of(match[1]), field)
    if pointer := re.fullmatch(r"(\w+) \(\*(\w+)\)\((.*)\)", field):
        result, name, arguments = pointer.groups()
        arguments = "" if arguments == "void" else re.sub(r" ?\w+(?=,|$)", "", arguments)
        return [f"{result} (*{name})({arguments}) noexcept nogil"]
    plain = re.fullmatch(r"((?:const )?\w+) (\**\w+(?:, \**\w+)*)", field)
    if plain is None:
        raise ValueError(f"_jobs.h: expected a field or a pointer to a function, got {field!r}")
    return [f"{plain[1]} {name}" for name in plain[2].split(", ")]


def _name_of(struct: str) -> str:
    return "".join(word.capitalize() for word in struct.split("_"))


def write(kernels: Path) -> None:
    """Write the .pxd into the folder of the kernels, if it changes: else all is compiled again."""
    path = kernels / "_jobs.pxd"
    text = written((kernels / "_jobs.h").read_text())
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
