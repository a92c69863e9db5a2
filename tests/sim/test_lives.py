"""Lives of clusters are as `lives/*.txt` have them: what a master takes, and wants done."""

import logging

import pytest

from tests.sim import lives
from tests.support.without import is_there


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def can_live(path):
    """Whether the options of a life's job are there: ``rounds=3``, or ``figures=0.5``."""
    text = path.read_text().partition("----\n")[0]
    options = {
        "rounds=": "rounds", "chunks=": "rotation", "ranges=": "ranges",
        "figures=": "tests_in_training",
    }  # fmt: skip
    return all(is_there(option) for word, option in options.items() if f" {word}" in text)


LIVES = [path for path in sorted(lives.FOLDER.glob("*.txt")) if can_live(path)]


@pytest.mark.parametrize("path", LIVES, ids=lambda path: path.stem)
def test_life_is_as_it_is_written(path):
    """If a change is meant: ``python -m tests.sim --lives --rewrite``, and read the diff."""
    _, commands, log = lives.read(path)
    lived, problems = lives.live(commands)
    assert not problems
    assert lived == log
