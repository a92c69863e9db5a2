"""data.stdlib_prose: the demo's text out of Python's own library."""

import asyncio
import re
from pathlib import Path

import pytest

from snailps.data.stdlib_prose import write_prose
from snailps.errors import DataError

MODULE = '''"""First sentence here. Another one: with more words!

>>> code_is_left_out(1)
A new paragraph with Capitals
"""
# A comment of several
#   lines; it goes on.
def f():
    """Docstring of the function."""
    x = "# too short"  # behind code, left out
# A comment of several
#   lines; it goes on.
'''


@pytest.fixture
def library(tmp_path):
    root = tmp_path / "library"
    (root / "package" / "tests").mkdir(parents=True)
    (root / "pydoc_data").mkdir()
    (root / "module.py").write_text(MODULE)
    (root / "broken.py").write_text('"""A docstring that is lost."""\ndef (')
    (root / "latin.py").write_bytes(b'"""A text that is not UTF-8: \xff"""')
    (root / "package" / "tests" / "test_it.py").write_text('"""Tests are left out."""')
    (root / "pydoc_data" / "topics.py").write_text('topics = {"x": "Help on a topic."}')
    return root


def test_write_prose_small_library_known_answer(library, tmp_path):
    out = tmp_path / "prose.txt"
    assert write_prose(str(out), library=str(library)) == 27
    assert out.read_text() == (
        "first sentence here\n"
        "with more words\n"
        "a new paragraph with capitals\n"
        "docstring of the function\n"
        "a comment of several lines\n"
        "it goes on\n"
        "help on a topic\n"
    )


def test_write_prose_limit_ends_before_the_sentence_that_exceeds_it(library, tmp_path):
    out = tmp_path / "prose.txt"
    assert write_prose(str(out), 36, library=str(library)) == 6
    assert out.read_text() == "first sentence here\nwith more words\n"


def test_write_prose_of_a_real_package_is_much_text_and_repeatable(tmp_path):
    library = str(Path(asyncio.__file__).parent)
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    words = write_prose(str(one), 20_000, library=library)
    assert write_prose(str(two), 20_000, library=library) == words > 2_400
    text = one.read_bytes()
    assert text == two.read_bytes()
    assert 19_000 < len(text) <= 20_000
    assert re.fullmatch(rb"([a-z]+( [a-z]+)*\n)+", text)
    assert len(text.split()) == words


def test_write_prose_without_sources_is_data_error(tmp_path):
    with pytest.raises(DataError, match=r"found no prose .*a text of your own"):
        write_prose(str(tmp_path / "out.txt"), library=str(tmp_path))


def test_write_prose_unwritable_path_is_data_error(library, tmp_path):
    with pytest.raises(DataError, match=r"cannot write .*No such file"):
        write_prose(str(tmp_path / "missing" / "out.txt"), library=str(library))
