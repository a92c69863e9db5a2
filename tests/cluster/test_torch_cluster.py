"""Torch modules on the rows of real servers: they learn, travel together, and outlive a server."""

import os
import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from waiting import copied

import snailps
from snailps.errors import MisuseError
from snailps.torch import Embedding, EmbeddingBagCollection

DIM, LR = 4, 0.5


@pytest.fixture(scope="module")
def cluster():
    with snailps.local_cluster(servers=2, workers=0, shard_num=1) as made:
        yield made


def batches(count, tables=3, ids=50, size=32):
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(ids, (size, tables), generator=draw) for _ in range(count)]


def test_what_is_only_read_makes_no_row(cluster, tmp_path):
    ours = Embedding(DIM, "only-read", cluster=cluster)
    ours.eval()(torch.arange(1000))
    with torch.no_grad():
        ours.train()(torch.arange(1000))
    ours(torch.tensor([7, 1 << 41])).sum().backward()
    ours.flush()
    assert keys_at_servers(cluster, "only-read", tmp_path) == [7, 1 << 41]


def keys_at_servers(cluster, name, folder):
    (path,) = cluster.export(folder / "rows", "npz", tables=[name])
    with np.load(path) as tables:
        return tables[f"{name}.keys"].tolist()


def test_modules_without_a_cluster_take_that_of_the_block_and_name_their_tables(tmp_path):
    with snailps.local_cluster(workers=0) as inner:
        first, second = Embedding(DIM), Embedding(DIM)
        assert [one.tables[0].name for one in (first, second)] == ["embedding0", "embedding1"]
        first(torch.tensor([1])).sum().backward()
        first.flush()
        assert keys_at_servers(inner, "embedding0", tmp_path) == [1]


def test_bags_of_a_batch_leave_in_one_packet_a_server(cluster):
    ours = EmbeddingBagCollection(DIM, [f"one{i}" for i in range(26)], cluster=cluster)
    ids = batches(1, tables=26)[0]
    ours(ids).sum().backward()
    ours.flush()
    before = cluster.counters()
    ours(ids)
    spent = {name: value - before[name] for name, value in cluster.counters().items()}
    assert spent["rows_pulled"] == sum(len(ids[:, i].unique()) for i in range(26))


def test_training_outlives_a_server_killed_with_9():
    """As if nothing had happened: SGD on integers adds up to the bit."""
    with snailps.local_cluster(
        servers=3, workers=0, replication="sync", on_node_loss="recover"
    ) as cluster:
        ours = EmbeddingBagCollection(
            DIM, 3, optimizer="sgd", lr=1.0, init="zeros", staleness=2, cluster=cluster
        )
        pushed = [np.zeros(50) for _ in range(3)]
        victim = next(n["pid"] for n in cluster.status()["nodes"] if n["role"] == "server")
        copied(cluster)
        for step, ids in enumerate(batches(40)):
            if step == 15:
                os.kill(victim, signal.SIGKILL)
            ours(ids).sum().backward()
            for i in range(3):
                pushed[i] += np.bincount(ids[:, i].numpy(), minlength=50)
        ours.flush()
        with torch.no_grad():
            rows = ours(torch.arange(50).view(-1, 1).expand(50, 3))
        for i in range(3):
            assert np.array_equal(rows[:, i, 0].numpy(), -pushed[i])


def test_saved_module_is_refused_in_a_cluster_without_its_rows(cluster, tmp_path):
    ours = Embedding(DIM, "saved", lr=LR, cluster=cluster)
    assert not cluster.has_rows("saved")
    ours(torch.arange(5)).sum().backward()
    ours.flush()
    assert cluster.has_rows("saved")
    torch.save(ours, tmp_path / "saved.pt")
    with snailps.connect(cluster.address) as again:
        loaded = torch.load(tmp_path / "saved.pt", weights_only=False)
        assert torch.equal(loaded.eval()(torch.arange(5)), ours.eval()(torch.arange(5)))
        assert loaded.exchange.rows is not ours.exchange.rows
        assert not again.has_rows("nobody's")
    with (
        snailps.local_cluster(workers=0),
        pytest.raises(MisuseError, match="rows of table 'saved' were trained, and this cluster"),
    ):
        torch.load(tmp_path / "saved.pt", weights_only=False)
