"""What tests of shards share; log handlers end with their test."""

import logging

import pytest
from replicas import Replicas
from shards import ADD, ZEROS, Shards


@pytest.fixture(autouse=True)
def log_handlers():
    """A command adds a handler to the log, for a stream that pytest closes with its test."""
    log = logging.getLogger("snailps")
    before, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:] = before
    log.setLevel(level)
    log.propagate = propagate


@pytest.fixture
def shard():
    """One shard with table 1, of four floats a row."""
    with Shards(1) as made:
        made.add_table(1, 4, ADD, ZEROS)
        yield made


@pytest.fixture
def cluster():
    """The same, of a kind that can have standbys."""
    with Replicas() as made:
        made.add_table(1, 4, ADD, ZEROS)
        yield made
