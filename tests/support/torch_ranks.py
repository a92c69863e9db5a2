"""One rank of a training under torchrun, for tests: joins the cluster, trains, tells its losses.

torchrun torch_ranks.py HOST:PORT async|ssp|bsp|ddp -> a JSON line on standard output

HOST:PORT of "": the cluster beside which it runs.
"""

import json
import os
import sys

import torch
from torch import nn

import snailps
from snailps.torch import Embedding, sync

STEPS = 60


def main(address, mode):
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)  # the first values of rank 0 count
    torch.distributed.init_process_group("gloo")
    with snailps.connect(address, timeout_s=600) as cluster:
        users = Embedding(4, f"users-{mode}", lr=0.1, staleness=0, cluster=cluster)
        top = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
        kept = stepper = None
        if mode == "ddp":
            top = nn.parallel.DistributedDataParallel(top)
            stepper = torch.optim.Adagrad(top.parameters(), lr=0.1)
        else:
            kept = sync(top, f"top-{mode}", mode=mode, lr=0.1, cluster=cluster)
        draw = torch.Generator().manual_seed(100 + rank)
        losses = []
        for _ in range(STEPS):
            ids = torch.randint(20, (32,), generator=draw)
            loss = (top(users(ids)).squeeze(1) - (ids % 5).float() / 5).square().mean()
            loss.backward()
            if stepper is not None:
                stepper.step()
                stepper.zero_grad()
            losses.append(loss.item())
        users.flush()
        if kept is not None:
            kept.close()
        torch.distributed.barrier()  # all have pushed what they had
        if kept is not None:
            kept.pull()
        # Means and variances, too; DDP makes those of ranks equal at the next forward only.
        values = top.parameters() if mode == "ddp" else top.state_dict().values()
        total = sum(float(one.detach().double().sum()) for one in values)
        told = {"rank": rank, "first": losses[0], "last": losses[-1], "sum": total}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


main(*sys.argv[1:])
