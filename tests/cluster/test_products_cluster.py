"""Products at the shards: a worker that dies, and batches of many parts."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from products import Reference, batch
from shards import (
    ADAGRAD,
    ADD,
    LIMIT_S,
    UNIFORM,
    ZEROS,
    Shards,
)  # fmt: skip
from test_products import HYPER, close, rng, rows_of, train


def test_batch_of_many_parts_is_as_the_reference():
    reference = Reference(5000, 400, ADAGRAD, HYPER, state=1)
    with Shards(2) as cluster:
        cluster.add_table(1, 400, ADAGRAD, UNIFORM, 0.1, 5, hyper=HYPER)
        client = cluster.client()
        train(client, [batch(rng(n), 300, 5000, 60) for n in range(2)], 400, reference)
        assert close(rows_of(client, 5000, 400), reference.rows[:, :400], 1e-3)
        assert cluster.stats("products") > 20


# --- a worker that dies --------------------------------------------------------------------------

WORKER = """
import sys
import numpy as np
from shards import JOB, LIMIT_S
from snailps import kernels
from snailps.transport.client._client import Client
from snailps.transport.control import dial
from snailps.transport.handshake import Channel, Role

ports, incarnation = [int(port) for port in sys.argv[1].split(",")], int(sys.argv[2])

def connect(index):
    sock = dial(("127.0.0.1", ports[index]), Channel.DATA, Role.WORKER, peer_name="shard",
                limit_s=LIMIT_S, incarnation=incarnation, job=JOB,
                give_up=lambda: False)
    sock.setblocking(False)
    return sock.detach()

owner = np.repeat(np.arange(len(ports)), 64 // len(ports)).astype(np.uint32)
client = Client(connect, ["shard"] * len(ports), owner, 1, JOB, incarnation, LIMIT_S,
                kernels.wire_ops())
client.start()
keys, ptr = np.arange(400, dtype=np.uint64), np.arange(401, dtype=np.int64)
ones = np.ones((400, 400), np.float32)
while True:
    forward = client.forward_async(1, ptr, keys, None, 400)
    coming = client.forward_async(1, ptr, keys, None, 400)
    forward.wait()
    client.backward_async(forward, ones).wait()
    coming.wait()
    client.backward_async(coming, ones).wait()
    print("two", flush=True)
"""


def test_killed_worker_loses_no_step_that_was_answered_and_leaves_nothing_half_done():
    """SIGKILL in the middle, twice: every row has the steps that were answered, or one more."""
    with Shards(2) as cluster:
        assert np.array_equal(cluster.route.owner, np.repeat(np.arange(2), 32))
        cluster.add_table(1, 400, ADD, ZEROS)
        client = cluster.client(99)
        had = np.zeros((400, 1))
        for life in range(2):
            ports = ",".join(map(str, cluster.ports))
            worker = subprocess.Popen(
                [sys.executable, "-c", WORKER, ports, str(life + 1)],
                stdout=subprocess.PIPE, cwd=Path(__file__).parents[1] / "support",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )  # fmt: skip
            try:
                for _ in range(3):
                    assert worker.stdout.readline() == b"two\n"
            finally:
                worker.kill()
                answered = worker.stdout.read().count(b"two")
                worker.wait(LIMIT_S)
                worker.stdout.close()
            cluster.until("connections", lambda n: n == 2)  # this test's own client
            rows = rows_of(client, 400, 400)
            steps = rows[:, :1] - had
            assert (rows == rows[:, :1]).all()  # a row is stepped as a whole
            assert len(np.unique(steps)) <= 2  # at most: one shard had the last batch, one not
            assert steps.min() >= 2 * (3 + answered)
            assert steps.max() <= 2 * (3 + answered) + 2
            had = rows[:, :1].copy()
