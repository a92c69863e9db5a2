"""What tests of shards, and of the master's core, share.

Nothing of the package is imported here at once: `--without` comes afterwards.
"""

import pytest


@pytest.fixture
def shard():
    """One shard with table 1, of four floats a row."""
    from shards import ADD, ZEROS, Shards

    with Shards(1) as made:
        made.add_table(1, 4, ADD, ZEROS)
        yield made


@pytest.fixture
def cluster():
    """The same, of a kind that can have standbys."""
    from replicas import Replicas
    from shards import ADD, ZEROS

    with Replicas() as made:
        made.add_table(1, 4, ADD, ZEROS)
        yield made


@pytest.fixture
def make_job(tmp_path):
    """Makes jobs at a master, with settings; `make_job.values` are those that all have."""
    from cluster_models import COUNTER, write_numbers

    from snailps.config import JobSettings, MasterSettings, RawConfig
    from snailps.master.job.job import Job

    write_numbers(tmp_path / "in.txt", 100)

    def make(**settings):
        raw = RawConfig.from_mapping({**make.values, **settings}, "test")
        return Job(raw, (JobSettings, MasterSettings), 100.0)

    make.values = {
        "worker_class": COUNTER, "input": str(tmp_path / "in.txt"), "block_bytes": "50",
    }  # fmt: skip
    return make


@pytest.fixture
def float32_products(monkeypatch):
    """Products of float32: what two ways of summing change in a last bit, a rounding to 16 bits
    would change two hundred times as much."""
    monkeypatch.setattr("snailps.kernels.narrow_pays", lambda: False)
