"""What tests of shards share."""

import pytest
from replicas import Replicas
from shards import ADD, ZEROS, Shards


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
