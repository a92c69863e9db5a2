"""One rank of two under ssp, for tests of a loss: rank 1 of the first start kills itself.

RANK and WORLD_SIZE in the environment; HOST:PORT STEP [CLOCK] -> a JSON line on standard output

Ranks wait for each other so many seconds of their own time as `TIMEOUT_S`; the size of the file
CLOCK is what they are ahead.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import snailps
from snailps.torch import Embedding, dense, sync

STEPS = 60
TIMEOUT_S = 1000.0
"""So that no load makes a rank too late."""


def let_pass(clock):
    """Has waits for other ranks live in the time of a clock; nothing else does."""
    clock_of_process = dense.awake_s
    dense.awake_s = lambda: clock_of_process() + Path(clock).stat().st_size


def main(address, dies_at, clock=None):
    if clock:
        let_pass(clock)
    rank, start = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(rank)
    with snailps.connect(address, timeout_s=600) as cluster:
        users = Embedding(4, "users", lr=0.1, cluster=cluster)
        top = nn.Linear(4, 1)
        kept = sync(top, "top", mode="ssp", staleness=2, timeout_s=TIMEOUT_S, cluster=cluster)
        draw = torch.Generator().manual_seed(100 + rank)
        losses = []
        for step in range(STEPS):
            if rank == 1 and start == 0 and step == int(dies_at):
                os.kill(os.getpid(), signal.SIGKILL)
            ids = torch.randint(20, (32,), generator=draw)
            loss = (top(users(ids)).squeeze(1) - (ids % 5).float() / 5).square().mean()
            loss.backward()
            losses.append(loss.item())
        users.flush()
        kept.close()
    told = {"rank": rank, "start": start, "first": losses[0], "last": losses[-1]}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
