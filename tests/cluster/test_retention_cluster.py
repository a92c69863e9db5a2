"""A session's table that admits and limits rows, with real servers, one of them killed."""

import os
import signal

import numpy as np
from waiting import copied, until

import snailps
from snailps import kernels
from snailps.api.tables import Table
from snailps.store._store import ShardStore

FRAG_NUM = 64
OPTIONS = {
    "access": "rowwise_adagrad", "lr": 0.1, "init": "uniform", "admit_after": 2,
    "admit_bytes": 1 << 16, "rows_max": 3200, "age_max": 6400,
}  # fmt: skip


def reference():
    """A store that executes the same pushes as the servers."""
    store = ShardStore(FRAG_NUM, kernels.row_ops())
    store.own(range(FRAG_NUM))
    store.add_table(0, *Table("ids", 4, **OPTIONS).store_arguments())
    return store


def table_status(cluster, rows):
    """What the status says of the table once servers have told so many rows."""

    def found():
        tables = cluster.status()["tables"]  # as old as the servers' last reports
        return tables[0] if tables and tables[0]["rows"] == rows else None

    return until(found, lambda: f"{rows} rows in {cluster.status()['tables']}")


def test_ids_are_admitted_and_go_to_the_bit_when_a_server_is_killed_with_9():
    store, rng = reference(), np.random.default_rng(3)
    with snailps.local_cluster(
        servers=3, workers=0, replication="sync", on_node_loss="recover", frag_num=FRAG_NUM
    ) as cluster:
        table = cluster.table("ids", 4, **OPTIONS)
        victim = next(n["pid"] for n in cluster.status()["nodes"] if n["role"] == "server")
        copied(cluster)
        for step in range(40):
            if step == 20:
                os.kill(victim, signal.SIGKILL)
            keys = rng.permutation(np.unique(rng.zipf(1.1, 1500) % 20_000)).astype(np.uint64)
            values = rng.normal(size=(len(keys), 4)).astype(np.float32)
            scale = np.float32(1 / (1 + step))
            table.push(keys, values, lr_scale=scale)
            store.push(0, 1, step + 1, keys, values, lr_scale=scale)
        every = np.arange(20_000, dtype=np.uint64)
        assert np.array_equal(table.pull(every), store.pull(0, every))
        found, expected = table_status(cluster, store.rows(0)), store.stats()["tables"][0]
    assert found["name"] == "ids"
    assert 2000 < found["rows"] <= 3200
    assert expected["evicted"] > 500
    assert expected["expired"] > 100
    assert 0 < found["refused"] <= expected["refused"]  # of the servers that have it now
