"""docs/checkpoint_format.md says what the code writes: its fields and its worked example."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from snailps import kernels
from snailps.store._store import ShardStore
from snailps.store.checkpoint._sections import FragmentCursor, copy_fragments
from snailps.store.checkpoint.manifest import Manifest
from snailps.store.checkpoint.shard_file import (
    FORMAT,
    FileEntry,
    ShardFile,
    ShardFileWriter,
    new_buffer,
)

DOC = (Path(__file__).resolve().parents[2] / "docs" / "checkpoint_format.md").read_text()
LIFE = 0x0123456789ABCDEF


def listing(name):
    return re.search(rf"```{name}\n(.*?)```", DOC, re.S).group(1)


def pieces():
    """Offset and bytes of each piece of the hex listing."""
    found = {}
    last = None
    for offset, digits in re.findall(
        r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+?)(?:  .*)?$", listing("shard-file"), re.M
    ):
        at = int(offset, 16)
        if last is None or at != last + len(found[last]):
            last = at
            found[last] = b""
        found[last] += bytes.fromhex(digits)
    return found


@pytest.fixture
def written(tmp_path):
    """The file of the example, and its entry."""
    store = ShardStore(1, kernels.row_ops())
    store.own([0])
    store.add_table(1, 2, 0, 0, 0.0, 0, ())
    store.push(1, 3, 9, np.array([7], np.uint64), np.array([[1.5, -2.0]], np.float32))
    writer = ShardFileWriter(tmp_path / "server-1-shard-0.rows", LIFE, 5, 1)
    buffer = new_buffer(4096)
    used, sections = copy_fragments(store, FragmentCursor(store.fragments()), buffer)
    writer.write(buffer, used, sections)
    return tmp_path, writer.close()


def test_title_names_the_format():
    assert DOC.startswith(f"# Checkpoint format, version {FORMAT}\n")


def test_worked_example_is_what_the_code_writes(written):
    folder, entry = written
    data = bytearray((folder / entry.name).read_bytes())
    assert json.loads(listing("entry")) == entry.to_dict()
    for at, piece in pieces().items():
        assert data[at : at + len(piece)].hex(" ") == piece.hex(" ")
        data[at : at + len(piece)] = bytes(len(piece))
    assert not any(data)


def test_worked_example_is_read_back(tmp_path):
    entry = FileEntry.from_dict(json.loads(listing("entry")), "the page")
    data = bytearray(entry.bytes)
    for at, piece in pieces().items():
        data[at : at + len(piece)] = piece
    (tmp_path / entry.name).write_bytes(data)
    file = ShardFile(tmp_path, entry, LIFE, 5, 1)
    ((fragment, section),) = file.sections(np.ones(1, bool))
    assert fragment == 0
    assert section[32:48].view("<u8").tolist() == [3, 9]
    assert section[96:104].view("<u8").tolist() == [7]
    assert section[104:112].view("<f4").tolist() == [1.5, -2.0]


def test_fields_of_the_manifest_are_those_of_the_code():
    rows = DOC.partition("## manifest.json")[2].partition("An entry of")[0]
    named = re.findall(r"^\| `(\w+)` \|", rows, re.M)
    entry = FileEntry("a", 0, 0, 1, 1, 0, 0)
    manifest = Manifest(1, 0, "", 1, (), (entry,), {}, entry)
    assert named == list(json.loads(manifest.to_bytes()))
    told = DOC.partition("An entry of `files` has")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", told) == list(entry.to_dict())
