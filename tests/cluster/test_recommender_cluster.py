"""`snailps.recommender`: recommendations by the rows of a running training, also after losses."""

import signal

import numpy as np
import pytest
from processes import LIMIT_S, Cluster, Gate
from waiting import until

import snailps
from snailps.data.name_columns import NameCounts, Names
from snailps.errors import ClusterError, UnknownWord
from snailps.models.embeddings.least_squares import NewRows, solver_of
from snailps.models.embeddings.mf import ITEM, USER, MatrixFactorization
from snailps.models.embeddings.settings import MfSettings
from snailps.models.embeddings.worker import TABLE

GATE = 24
"""Number of an entry behind those of lines and of Gram matrices: rows have been solved."""


def choices(users=40, items=25):
    rng = np.random.default_rng(3)
    pairs = {(int(rng.integers(users)), int(rng.zipf(1.5)) % items) for _ in range(400)}
    return [(f"u{user}", f"i{item}") for user, item in sorted(pairs)]


def names_of(pairs):
    counts = NameCounts(2)
    for kind in (USER, ITEM):
        counts.add(kind, [pair[kind].encode() for pair in pairs])
    return Names(counts.dump())


def test_recommendations_of_a_training_are_those_of_its_rows_and_outlive_losses(tmp_path):
    pairs = choices()
    (tmp_path / "input").write_text("".join(f"{user}\t{item}\n" for user, item in pairs))
    gate = Gate(tmp_path / "gates", GATE, "before")
    job = {
        "worker_class": "clock_models:GatedFactors", "input": "input", "output": "out", "dim": 5,
        "epochs": 20, "gates": str(tmp_path / "gates"),
    }  # fmt: skip
    settings = {"replication": "sync", "on_node_loss": "recover"}
    with Cluster(tmp_path, settings, job=job, servers=2, workers=1) as cluster:
        master = cluster.master()
        servers, workers = cluster.nodes()
        gate.meet()
        options = {"max_age_s": 0.0, "timeout_s": 5, "init_timeout": LIMIT_S}
        with (
            snailps.reader(cluster.address, TABLE, **options) as rows,
            snailps.recommender(cluster.address, unreachable="stale", **options) as shop,
        ):
            names = names_of(pairs)
            sides = [
                rows.pull(MatrixFactorization.keys_of_kind(kind, len(names.names[kind])))
                for kind in (USER, ITEM)
            ]
            items = [name.decode() for name in names.names[ITEM]]

            def best(row, without):
                values = sides[ITEM] @ row
                ordered = [(items[at], values[at]) for at in np.argsort(-values, kind="stable")]
                return [
                    (name, pytest.approx(value, abs=1e-5))
                    for name, value in ordered
                    if name not in without
                ][:5]

            solver = solver_of(MfSettings(loss="als", dim=5), names)
            row = NewRows(sides[ITEM], solver).solve(names.numbers(ITEM, [b"i1", b"i2"]))
            has = [item for user, item in pairs if user == "u3"]
            of_user = best(sides[USER][names.names[USER].index(b"u3")], has)
            of_new = best(row, ("i1", "i2"))

            def answers():
                return shop.recommend("u3", 5), shop.recommend(items=["i1", "i2"], k=5)

            assert answers() == (of_user, of_new)
            with pytest.raises(UnknownWord, match="'u99' is none of its"):
                shop.recommend("u99")
            until(lambda: "every shard has its standby" in master.stderr)
            servers[0].send(signal.SIGKILL)
            assert answers() == (of_user, of_new)
            master.wait_line(rf"process {servers[0].pid}\) is lost")
            until(lambda: shop.refresh() is None and shop.age_s < LIMIT_S)
            assert answers() == (of_user, of_new)
            master.send(signal.SIGKILL)
            assert answers() == (of_user, of_new)
            servers[1].send(signal.SIGKILL)
            servers[1].wait()
            assert answers() == (of_user, of_new)
            with pytest.raises(ClusterError):
                shop.refresh()
        for process in workers:
            process.send(signal.SIGKILL)
