"""docs/sparse_data.md says what the code does: its examples, its message, its hash."""

import re
from pathlib import Path

import pytest

from snailps.data._examples import hash_bytes
from snailps.data.columns import columns_of
from snailps.data.examples import FORMATS, ExampleReader
from snailps.errors import DataError

DOC = (Path(__file__).resolve().parents[2] / "docs" / "sparse_data.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)


def block_with(text):
    (found,) = (block for block in BLOCKS if text in block)
    return found


def test_doc_names_every_format():
    assert re.findall(r"`(\w+)`", DOC.split("| `format` |")[1].split("|")[0]) == list(FORMATS)


def test_doc_example_of_libsvm_can_be_read():
    found = ExampleReader("libsvm").read(block_with("+1 3:1").encode())
    assert found.labels.tolist() == [1, -1, 0.5]
    assert found.ptr.tolist() == [0, 2, 2, 4]


def test_doc_declaration_of_columns_can_be_read():
    declared = block_with("columns: ").removeprefix("columns: ")
    assert [c.name for c in columns_of(declared)] == ["label", "age", "income", "city", "id"]


def test_doc_message_is_what_is_raised():
    with pytest.raises(DataError) as caught:
        ExampleReader("libsvm").read(b"1\n1\n1 1234:nan\n", "clicks/day1.svm")
    assert block_with("clicks/day1.svm").strip() == str(caught.value)


def test_doc_key_is_what_is_computed():
    said = int(re.search(r"# (\d+)\n", block_with("hash_bytes"))[1])
    assert hash_bytes(hash_bytes(0, b"city"), b"Berlin") >> 1 == said
    found = ExampleReader("csv", columns="y:label, city:categorical").read(b"1,Berlin\n")
    assert found.keys.tolist() == [said]
