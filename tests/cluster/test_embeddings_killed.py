"""Knowledge graphs and matrix factorisation while a worker, a server and the master are killed.

One run has all three, with kill -9: synchronous runs end with the same bits as undisturbed ones,
asynchronous ones train on each line of each epoch exactly once, and learn (how well, tests/quality
says).
"""

import contextlib
import functools
import signal
from functools import partial

import pytest
from processes import Gate, run_well
from test_bsp import files_of, kill_who_stands_at
from test_cluster import figures_of
from test_embeddings_cluster import write_graph, write_ratings
from test_master_dies import Mortal

pytestmark = pytest.mark.limit(600)

EPOCHS = 12
MODELS = {
    "graph": (
        partial(write_graph, entities=150),
        {
            "worker_class": "clock_models:GatedGraph", "test": "test.txt", "model": "rotate",
            "dim": 32, "lr": 0.2, "negatives": 16, "block_bytes": 5000,
        },
    ),
    "ratings": (
        write_ratings,
        {
            "worker_class": "clock_models:GatedFactors", "test": "test.csv", "dim": 4,
            "lr": 0.1, "l2": 0.01, "block_bytes": 4000,
        },
    ),
}  # fmt: skip
KILLED_AT = (100, "before"), (103, "after"), (106, "before")
"""Late blocks.  At that to which workers come first a worker is killed, then a server, then the
master."""


def prepare(folder, model, **settings):
    """Writes the lines of a model; the settings of its job."""
    write, job = MODELS[model]
    write(folder)
    common = {"input": "input", "output": "out", "epochs": EPOCHS, "on_node_loss": "recover"}
    return {**common, **job, **settings}


CONSISTENCY = {
    "bsp": {"consistency": "bsp", "micro_batches": 3},
    "async": {"max_steps": 10**6},  # more than there are: else ratings rotate (`test_rotation`)
}


@functools.cache
def undisturbed(base, model):
    """Hashes of the result files and figures of a run in bsp in which no process is killed."""
    folder = base / f"undisturbed-{model}"
    folder.mkdir()
    job = prepare(folder, model, **CONSISTENCY["bsp"])
    master = run_well(folder, {"replication": "sync"}, job, workers=2, servers=2)
    return files_of(folder), figures_of(master)


@contextlib.contextmanager
def met(places):
    """The place at which a worker stands first, which is opened in the end.

    In no fixed order: who stands at a later block may hold an earlier one, prefetched, that a lost
    worker gave back.
    """
    place = Gate.meet_one(places)
    places.remove(place)
    yield place
    place.open()


def killed(folder, model, consistency):
    """The same of a run that loses a worker, then a server, then its master, by kill -9."""
    gates = folder / "gates"
    places = [Gate(gates, number, when) for number, when in KILLED_AT]
    job = prepare(folder, model, gates=str(gates), **CONSISTENCY[consistency])
    lost = {}
    with Mortal(folder, {"replication": "sync"}, job, workers=3, servers=3) as cluster:
        master = cluster.begin()
        servers = [process for process in cluster.processes if process.name.startswith("server")]
        with met(places) as place:
            pid = kill_who_stands_at(place)
            lost[pid] = -signal.SIGKILL
            master.wait_line(rf"process {pid}\) is lost")
        with met(places):
            master.wait_line("every shard has its standby")
            servers[0].send(signal.SIGKILL)
            lost[servers[0].pid] = -signal.SIGKILL
        gone = master.wait_line(rf"process {servers[0].pid}\) is lost")
        # Told when the journal has the loss: before that the next master would await the server.
        # Shards that moved when the cluster began may have had it told before.
        master.wait_line("every shard has its standby again", behind=gone)
        with met(places):
            master = cluster.kill(master)
            master.wait_line("took over from the previous master")
        codes = {process.pid: process.wait() for process in cluster.processes}
        assert {pid: code for pid, code in codes.items() if code} == lost, master.stderr
    return files_of(folder), figures_of(master)


@pytest.mark.long(but=["graph"])
@pytest.mark.parametrize("model", MODELS)
def test_bsp_with_worker_server_and_master_killed_gives_the_same_bits(tmp_path, model):
    plain, expected = undisturbed(tmp_path.parent, model)
    found, figures = killed(tmp_path, model, "bsp")
    assert found["out.tables.npz"] == plain["out.tables.npz"]
    assert figures["test"] == expected["test"]
    assert figures["loss_by_epoch"] == expected["loss_by_epoch"]


@pytest.mark.long(but=["ratings"])
@pytest.mark.parametrize("model", MODELS)
def test_async_with_worker_server_and_master_killed_learns_and_loses_no_line(tmp_path, model):
    _, expected = undisturbed(tmp_path.parent, model)
    _, figures = killed(tmp_path, model, "async")
    for name in ("examples", "blocks", "rows", "epochs"):  # no line is lost, none counts twice
        assert figures[name] == expected[name], name
    assert figures["blocks_per_epoch"] * 7 < KILLED_AT[0][0] < KILLED_AT[2][0] < figures["blocks"]
    # Workers that do not wait for each other never end twice with the same rows: halfway to what
    # untrained models have, a mean reciprocal rank of .04 and an error of 1.1.
    name = {"graph": "mrr", "ratings": "rmse"}[model]
    assert (figures["test"][name] > 0.5) == (model == "graph"), figures["test"]
