"""The DLRM of torch_dlrm.py as a job of workers, and its runs on simulated hosts.

    clicks -> arrays in files, a line a batch -> Job on leased blocks -> AUC at the master
    --hosts 1,2 -> hosts.made -> that job on so many hosts, interleaved -> examples/s, ratio

Batches are drawn before and read from mapped files, as rows by number, so that hosts neither draw
nor parse.  `hosts.py` owns hosts: quotas, namespaces, counters.
"""

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from host_figures import figures_of, numbers_in
from hosts import FORM_S, Hosts, command_line, made, rights
from torch import nn
from torch_dlrm import Clicks, Dlrm, auc, say

from snailps.api.block import Block
from snailps.api.results import Results
from snailps.config import setting
from snailps.torch import EmbeddingBagCollection, TorchSettings, Worker

HERE = Path(__file__).parent
ARRAYS = ("ids", "dense", "labels")
LINE_BYTES = 8
"""Of a batch's number, with its end of line."""
BLOCK_BATCHES = 8
TESTED = 20
"""Batches that are held out."""


@dataclass(frozen=True, slots=True)
class Settings(TorchSettings):
    """Of `Job`."""

    arrays: str = setting("", help="Folder of the drawn batches.", when="Always.")
    batch: int = setting(2048, help="Examples of a batch.", when="As they were drawn.", low=1)
    dim: int = setting(16, help="Width of the embeddings.", when="Always.", low=1)
    lr: float = setting(0.02, help="Step size of the tables.", when="Always.", low=1e-9, high=10.0)
    step_lag: int = setting(1, help="`staleness` of the embeddings.", when="Always.", low=0)


class Net(nn.Module):
    """Tables and dense part."""

    def __init__(self, tables: int, settings: Settings) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            settings.dim, tables, lr=settings.lr, staleness=settings.step_lag
        )
        self.dense = Dlrm(tables, settings.dim)


class Job(Worker):
    """The DLRM; a line of the input is the number of a batch."""

    Settings = Settings
    settings: Settings

    def setup(self) -> None:
        """Maps the files."""
        super().setup()
        self.arrays = mapped(self.settings.arrays)

    def model(self) -> nn.Module:
        """Tables of the drawn ids, and the dense part."""
        return Net(mapped(self.settings.arrays)[0].shape[1], self.settings)

    def batches(self, block: Block) -> Iterator[tuple[torch.Tensor, ...]]:
        """Each line's rows of the files."""
        for line in block.data.split():
            yield rows_of(self.arrays, int(line), self.settings.batch)

    def ahead(self, batch: tuple[torch.Tensor, ...]) -> None:
        """Starts the pull of the next batch."""
        self.net.bags.prefetch(batch[0])

    def loss(self, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, int]:
        """Mean over the batch."""
        ids, dense, labels = batch
        logits = self.net.dense(dense, self.net.bags(ids))
        return F.binary_cross_entropy_with_logits(logits, labels), len(labels)

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """AUC of the batches after the trained ones."""
        settings: Settings = results.settings  # type: ignore[assignment]
        arrays = mapped(settings.arrays)
        steps = len(arrays[0]) // settings.batch - TESTED
        net = cls.trained(results)
        scores, truth = [], []
        with torch.no_grad():
            for number in range(steps, steps + TESTED):
                ids, dense, labels = rows_of(arrays, number, settings.batch)
                embedded = np.stack([
                    results.pull(table.name, column.numpy().astype(np.uint64))
                    for table, column in zip(net.bags.tables, ids.unbind(1), strict=True)
                ], 1)  # fmt: skip
                scores.append(net.dense(dense, torch.from_numpy(embedded)).numpy())
                truth.append(labels.numpy())
        return {"test": {"auc": auc(np.concatenate(scores), np.concatenate(truth))}}


def mapped(folder: str) -> list[np.ndarray]:
    """Ids (n, tables), dense features and labels, from files."""
    return [np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ARRAYS]


def rows_of(arrays: list[np.ndarray], number: int, size: int) -> tuple[torch.Tensor, ...]:
    """A batch: ids, dense features, labels."""
    part = slice(number * size, (number + 1) * size)
    ids, dense, labels = (np.array(one[part]) for one in arrays)
    return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(dense), torch.from_numpy(labels)


def draw(args: argparse.Namespace, folder: Path) -> None:
    """Writes the batches to files, and a line for each that is trained on, in any order."""
    clicks, steps = Clicks(args), args.examples // args.batch
    rows = (steps + TESTED) * args.batch
    first = clicks.batch(0)
    arrays = [
        np.lib.format.open_memmap(
            folder / f"{name}.npy", "w+", np.int32 if name == "ids" else np.float32,
            (rows, *one.shape[1:]),
        )
        for name, one in zip(ARRAYS, first, strict=True)
    ]  # fmt: skip
    for number in range(steps + TESTED):
        for array, one in zip(arrays, clicks.batch(number), strict=True):
            array[number * args.batch : (number + 1) * args.batch] = one.numpy()
    lines = [f"{number:{LINE_BYTES - 1}d}\n" for number in range(steps)]
    random.Random(1).shuffle(lines)
    (folder / "input").write_text("".join(lines))


def settings_of(args: argparse.Namespace, hosts: Hosts, folder: Path, seed: int) -> dict:
    """Settings of all processes of one run."""
    return {
        "worker_class": "torch_dlrm_job:Job", "input": f'"{folder / "input"}"', "output": "",
        "arrays": f'"{folder}"', "batch": args.batch, "dim": args.dim, "lr": args.lr,
        "step_lag": args.staleness, "dense_lr": 0.02, "dense_staleness": args.dense_staleness,
        "block_bytes": BLOCK_BATCHES * LINE_BYTES,
        "epochs": 1, "seed": seed,
        "master_addr": f"{hosts.network.sides[0].address}:{hosts.port}", "insecure": "true",
        "expected_node_num": 2 * hosts.number, "expected_servers": hosts.number, "shard_num": 1,
        "replication": args.replication,
        "threads": args.threads, "init_timeout": FORM_S, "master_time_out": FORM_S,
    }  # fmt: skip


def on_hosts(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs the job on each number of hosts, interleaved; medians, beside the first number's.

    Parameters
    ----------
    args : argparse.Namespace
        The command line of torch_dlrm.py; `hosts` is a list of numbers.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])
    )
    options = command_line().parse_args([])
    options.link, options.core, options.period_ms = args.link, args.core, args.period_ms
    options.hosts, options.cores = args.hosts, []
    rights(options)
    runs: dict[int, list[dict[str, Any]]] = {number: [] for number in args.hosts}
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as scratch:
        drawn = Path(scratch, "drawn")
        drawn.mkdir()
        draw(args, drawn)
        for run in range(args.runs):
            for number in args.hosts if run % 2 == 0 else args.hosts[::-1]:
                folder = Path(scratch, f"{number}-{run}")
                folder.mkdir()
                with made(options, number, folder) as hosts:
                    hosts.start(settings_of(args, hosts, drawn, 1 + run))
                    told = hosts.run(args.limit_s)
                    began = hosts.training_began(told)
                    found = figures_of(told, hosts.samples, began, cores=number * args.core)
                found["auc"] = numbers_in(told["test"])["auc"]
                runs[number].append(found)
                say(
                    f"{number} hosts: {found['units_per_s']:,.0f} examples/s, AUC "
                    f"{found['auc']:.5f}, {found['cpu_us_per_unit']['all']:.2f} us an example, "
                    f"quota used {found['quota_used'] or 0:.2f}"
                )
    return [summary(runs, number) for number in args.hosts]


def summary(runs: dict[int, list[dict[str, Any]]], number: int) -> dict[str, Any]:
    """Medians of the runs on this many hosts."""
    own, first = runs[number], next(iter(runs.values()))

    def middle(name: str) -> float:
        return statistics.median(one[name] for one in own)

    ratios = [a["units_per_s"] / b["units_per_s"] for a, b in zip(own, first, strict=True)]
    return {
        "hosts": number,
        "examples_per_s": round(middle("units_per_s")),
        "ratio": round(statistics.median(ratios), 3),
        "auc": round(middle("auc"), 5),
        "cpu_us_per_example": {
            role: round(statistics.median(one["cpu_us_per_unit"][role] for one in own), 2)
            for role in ("all", "worker", "server")
        },
        "wire_bytes_per_example": own[0].get("wire_bytes_per_unit"),
        "quota_used": own[0]["quota_used"],
        "others_cores": round(max(one["others_cores"] for one in own), 2),
    }
