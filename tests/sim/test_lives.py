"""Lives of clusters are as `lives/*.txt` have them: what a master takes, and wants done."""

import logging

import pytest

from tests.sim import lives


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("path", sorted(lives.FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_life_is_as_it_is_written(path):
    """If a change is meant: ``python -m tests.sim --lives --rewrite``, and read the diff."""
    _, commands, log = lives.read(path)
    lived, problems = lives.live(commands)
    assert not problems
    assert lived == log
