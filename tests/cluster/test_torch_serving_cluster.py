"""Torch modules served from what real processes trained: by readers, and from a checkpoint."""

import pytest
from cluster_models import gated_job
from processes import Cluster, Gate

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import signal

import snailps
from snailps.errors import ConfigError
from snailps.torch import Embedding, EmbeddingBag, EmbeddingBagCollection


def test_module_of_readers_gives_what_was_trained():
    with snailps.local_cluster(servers=2, workers=0) as cluster:
        names = ["users", "items"]
        trained = EmbeddingBagCollection(8, names, lr=0.5, cluster=cluster)
        ids = torch.tensor([[1, 5], [2**40, 5], [-3, 7]])
        for _ in range(3):
            (trained(ids) - 1).square().sum().backward()
        trained.flush()
        readers = [snailps.reader(cluster.address, name) for name in names]
        try:
            served = EmbeddingBagCollection.from_readers(*readers)
            assert torch.equal(served(ids), trained.eval()(ids))
        finally:
            for reader in readers:
                reader.close()


def test_module_of_a_checkpoint_needs_no_cluster(tmp_path):
    gate = Gate(tmp_path / "gates", 6)
    job = {**gated_job(tmp_path), "checkpoint_interval": 10_000}
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(gate)
        master.send(signal.SIGINT)
        master.wait_line("interrupted: finishing")
        gate.open()
        cluster.codes()
    bag = EmbeddingBag.from_checkpoint(tmp_path / "out.checkpoints", "counts", mode="sum")
    saved = snailps.open_checkpoint(tmp_path / "out.checkpoints")
    assert bag(torch.arange(50).view(1, -1)).item() == 1000 * saved.progress
    assert Embedding.from_checkpoint(saved, "counts")(torch.tensor([77])).item() == 0
    with pytest.raises(ConfigError, match=r"no table 'users' in .*: there are counts"):
        Embedding.from_checkpoint(saved, "users")
