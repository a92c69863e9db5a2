#!/usr/bin/env python3
"""The same DLRM in plain PyTorch and with its tables on servers, in one run, interleaved.

    planted clicks -> plain: EmbeddingBag(sparse=True), torch's Adagrad, one process
                   -> ours: EmbeddingBagCollection of a local cluster, this process its one worker
        -> examples/s, processor time an example, AUC -> one JSON object (--json) or a table
    --transport: the rows/s of pulls and pushes through the modules, beside the client's own
    --hosts 1,2: ours as a job on simulated hosts (torch_dlrm_job.py)

26 tables of width 16 (--tables, --dim), 13 dense features, dot interactions; the dense part and its
optimiser are torch's in both, so that the tables alone differ.  README.md here says more.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
import torch.nn.functional as F
from torch import nn

import snailps
from snailps.torch import EmbeddingBagCollection

DENSE = 13
EXPONENT = 1.05
TARGETS = {"examples_per_s": 0.9, "auc_difference": 0.001, "pull": 0.9, "push": 0.9}


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


class Clicks:
    """Planted clicks, drawn batch by batch: each id has a weight, each dense feature, too.

    An id of a table is drawn by a power law; its weight is a function of the id, so that nothing of
    the size of a table is stored.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.scales = np.random.default_rng(7).normal(0, 0.25, DENSE).astype(np.float32)

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids (batch, tables), dense features and labels: the same whenever it is asked for."""
        args = self.args
        rng = np.random.default_rng([11, number])
        power = 1.0 - EXPONENT
        drawn = 1 + rng.random((args.batch, args.tables)) * ((args.ids + 1) ** power - 1)
        ids = np.minimum(drawn ** (1 / power) - 1, args.ids - 1).astype(np.int64)
        mixed = (ids + 1 + np.arange(args.tables) * args.ids).astype(np.uint64)
        mixed = (mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
        weights = (mixed.astype(np.float32) / np.float32(1 << 24) - 0.5) * 1.5
        x = rng.standard_normal((args.batch, DENSE)).astype(np.float32)
        logit = weights.sum(1) + x @ self.scales - 1.0
        labels = rng.random(args.batch) < 1 / (1 + np.exp(-logit))
        return torch.from_numpy(ids), torch.from_numpy(x), torch.from_numpy(labels).float()


class Dlrm(nn.Module):
    """Bottom network, dot products of all pairs of embeddings, top network."""

    def __init__(self, tables: int, dim: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + dim, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Logits (batch,) of dense features and embeddings (batch, tables, dim)."""
        low = self.bottom(dense)
        all_ = torch.cat([low.unsqueeze(1), embedded], 1)
        dots = torch.bmm(all_, all_.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([low, dots], 1)).squeeze(1)


class Plain:
    """Tables of this process; torch's sparse gradients and its Adagrad."""

    def __init__(self, args: argparse.Namespace, cluster: snailps.Cluster) -> None:
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(args.ids, args.dim, mode="sum", sparse=True) for _ in range(args.tables)
        )
        # The first values that ours begin with: what is pulled makes no row.
        first = EmbeddingBagCollection(
            args.dim, [f"first-{i}" for i in range(args.tables)], lr=args.lr, cluster=cluster
        ).eval()
        with torch.no_grad():
            for part in torch.arange(args.ids).split(10_000):
                rows = first(part.unsqueeze(1).expand(-1, args.tables))
                for i, bag in enumerate(self.bags):
                    bag.weight[part] = rows[:, i]
        self.stepper = torch.optim.Adagrad(self.bags.parameters(), lr=args.lr)

    def ahead(self, ids: torch.Tensor) -> None:
        """Nothing to fetch."""

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings (batch, tables, dim)."""
        return torch.stack([bag(ids[:, i : i + 1]) for i, bag in enumerate(self.bags)], 1)

    def step(self) -> None:
        """After backward."""
        self.stepper.step()
        self.stepper.zero_grad()

    def flush(self) -> None:
        """Nothing is under way."""


class Ours:
    """Tables of a cluster."""

    turns = 0

    def __init__(self, args: argparse.Namespace, cluster: snailps.Cluster) -> None:
        Ours.turns += 1
        names = [f"t{Ours.turns}-{i}" for i in range(args.tables)]
        self.bags = EmbeddingBagCollection(
            args.dim, names, lr=args.lr, staleness=args.staleness, cluster=cluster
        )

    def ahead(self, ids: torch.Tensor) -> None:
        """Starts the next pull."""
        self.bags.prefetch(ids)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings (batch, tables, dim)."""
        return self.bags(ids)

    def step(self) -> None:
        """Backward has pushed."""

    def flush(self) -> None:
        """Waits until all is stepped."""
        self.bags.flush()


SYSTEMS: dict[str, Callable[..., Plain | Ours]] = {"plain": Plain, "ours": Ours}


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the curve: the chance that a click scores above another line."""
    ranks = np.empty(len(scores))
    order = np.argsort(scores, kind="stable")
    ranks[order] = np.arange(1, len(scores) + 1)
    clicks = int(labels.sum())
    return float(
        (ranks[labels > 0].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(labels) - clicks))
    )


def servers_s(cluster: snailps.Cluster) -> float:
    """Processor time of the servers so far, seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for node in cluster.status()["nodes"]:
        if node["role"] == "server":
            fields = Path(f"/proc/{node['pid']}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def train(args: argparse.Namespace, name: str, cluster: snailps.Cluster) -> dict[str, float]:
    """One run of a system: its speed, processor time and AUC."""
    torch.manual_seed(1)
    clicks, net = Clicks(args), Dlrm(args.tables, args.dim)
    tables = SYSTEMS[name](args, cluster)
    stepper = torch.optim.Adagrad(net.parameters(), lr=0.02)
    steps = args.examples // args.batch
    spent_s = before_s = 0.0
    cpu_s, served_s = 0.0, servers_s(cluster)
    for group in groups(steps):
        batches = [clicks.batch(number) for number in group]  # not timed: no system reads input
        before_s, before_cpu = time.perf_counter(), time.process_time()
        for place, (ids, dense, labels) in enumerate(batches):
            embedded = tables.embed(ids)
            if place + 1 < len(batches):
                tables.ahead(batches[place + 1][0])
            loss = F.binary_cross_entropy_with_logits(net(dense, embedded), labels)
            loss.backward()
            tables.step()
            stepper.step()
            stepper.zero_grad()
        tables.flush()
        spent_s += time.perf_counter() - before_s
        cpu_s += time.process_time() - before_cpu
    served_s = servers_s(cluster) - served_s
    scores, truth = [], []
    with torch.no_grad():
        for number in range(steps, steps + max(20, steps // 20)):
            ids, dense, labels = clicks.batch(number)
            scores.append(net(dense, tables.embed(ids)).numpy())
            truth.append(labels.numpy())
    done = steps * args.batch
    return {
        "examples_per_s": done / spent_s,
        "cpu_us_per_example": 1e6 * cpu_s / done,
        "servers_cpu_us_per_example": 1e6 * served_s / done if name == "ours" else 0.0,
        "auc": auc(np.concatenate(scores), np.concatenate(truth)),
    }


def groups(steps: int, size: int = 50) -> Iterator[range]:
    """Steps in groups whose batches are drawn before they are timed."""
    for start in range(0, steps, size):
        yield range(start, min(steps, start + size))


def transport(args: argparse.Namespace, cluster: snailps.Cluster) -> dict[str, float]:
    """Rows/s of pulls and pushes through a module, and of the client alone, interleaved."""
    n, rng = args.rows, np.random.default_rng(3)
    keys = rng.integers(0, 1 << 63, n).astype(np.uint64)
    table = cluster.table("direct", args.dim, access="adagrad", lr=0.01)
    module = snailps.torch.Embedding(args.dim, "through-torch", staleness=0, cluster=cluster)
    values = np.full((n, args.dim), 0.01, np.float32)
    table.push(keys, values)
    out, gradient = np.empty_like(values), torch.from_numpy(values)
    times: dict[str, list[float]] = {}
    for turn in range(args.runs * 5 + 1):
        shuffled = rng.permutation(keys)
        ids = torch.from_numpy(shuffled.view(np.int64))
        embedded: list[torch.Tensor] = []
        acts: dict[str, Callable[[], object]] = {
            "pull": lambda k=shuffled: table.pull(k, out),
            "pull_torch": lambda i=ids, e=embedded: e.append(module(i)),
            "push": lambda k=shuffled: table.push(k, values),
            "push_torch": lambda e=embedded: e[0].backward(gradient),
        }
        for name, act in acts.items():
            before_s = time.perf_counter()
            act()
            if turn:  # the first one makes the rows
                times.setdefault(name, []).append(time.perf_counter() - before_s)
    return {f"{name}_rows_per_s": n / statistics.median(each) for name, each in times.items()}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--examples", type=int, default=5_000_000, help="of each run")
    add("--batch", type=int, default=2048)
    add("--tables", type=int, default=26)
    add("--dim", type=int, default=16)
    add("--ids", type=int, default=100_000, help="of each table; plain PyTorch allocates all")
    add("--lr", type=float, default=0.02, help="of the tables")
    add("--staleness", type=int, default=1)
    add("--threads", type=int, default=1, help="of PyTorch")
    add("--servers", type=int, default=1)
    add("--runs", type=int, default=3, help="runs of each system, interleaved")
    add("--transport", action="store_true", help="rows/s through PyTorch instead of training")
    add("--rows", type=int, default=100_000, help="of a request of --transport")
    add(
        "--hosts", help="numbers of simulated hosts, as 1,2: a server and a worker on each; as root"
    )
    add("--dense-staleness", type=int, default=0, help="of the job on hosts: 0 or 1")
    add("--replication", choices=("none", "sync", "async"), default="none", help="on hosts")
    add("--core", type=float, default=0.45, help="share of a core of each host; 0: no limit")
    add("--period-ms", type=float, default=10.0, help="in which a host may use its share")
    add("--link", default="none", help="of hosts: loopback; none: wires without a limit; 1000mbit")
    add("--limit-s", type=float, default=7200.0, help="longest time of a run on hosts")
    add("--json", action="store_true")
    args = parser.parse_args()
    args.hosts = [int(number) for number in args.hosts.split(",")] if args.hosts else []
    return args


def main() -> None:
    """Runs all, compares, prints."""
    args = arguments()
    torch.set_num_threads(args.threads)
    if args.hosts:
        from torch_dlrm_job import on_hosts

        for row in on_hosts(args):
            print(json.dumps(row), flush=True)
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in SYSTEMS}
    figures: dict[str, object] = {"torch": torch.__version__, "snailps": snailps.__version__}
    with snailps.local_cluster(servers=args.servers, workers=0, shard_num=1) as cluster:
        if args.transport:
            found = transport(args, cluster)
            figures |= {name: round(value) for name, value in found.items()}
            for what in ("pull", "push"):
                through = found[f"{what}_torch_rows_per_s"]
                figures[f"{what}_ratio"] = round(through / found[f"{what}_rows_per_s"], 3)
        else:
            for run in range(args.runs):
                for name in list(SYSTEMS) if run % 2 == 0 else reversed(SYSTEMS):
                    runs[name].append(train(args, name, cluster))
                    told = ", ".join(f"{k} {v:,.4g}" for k, v in runs[name][-1].items())
                    say(f"{name}: {told}")
            for name, each in runs.items():
                for key in each[0]:
                    value = statistics.median(one[key] for one in each)
                    figures[f"{name}_{key}"] = round(value, 5 if key == "auc" else 1)
            speed = [runs[name] for name in ("ours", "plain")]
            ratios = [
                a["examples_per_s"] / b["examples_per_s"] for a, b in zip(*speed, strict=True)
            ]
            figures["examples_per_s_ratio"] = round(statistics.median(ratios), 3)
            differences = [a["auc"] - b["auc"] for a, b in zip(*speed, strict=True)]
            figures["auc_difference"] = round(statistics.median(differences), 5)
    figures["settings"] = {k: v for k, v in vars(args).items() if k != "json"}
    if args.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:40} {value}")


if __name__ == "__main__":
    main()
