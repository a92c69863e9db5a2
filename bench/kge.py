"""Knowledge graphs beside PyKEEN: filtered MRR by seed, triples/s, in turns.

    PyKEEN's data set -> text -> snailps train kge | train_pykeen.py -> MRR, hits@10, triples/s

Both have the same numbers of dimensions, epochs, negatives and the same loss; each its own learning
rate and optimiser (`--lr`, `--peer-lr`), because a batch of 256 triples is one step there and 256
here.  The peer runs in a Python of its own, which has PyKEEN.

    python -m venv pykeen-venv && pykeen-venv/bin/pip install torch==2.13.0 pykeen==1.11.1
    python bench/kge.py --peer-python pykeen-venv/bin/python --data umls --model rotate --runs 3
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PEER = Path(__file__).parent / "peers" / "train_pykeen.py"
NAMES = {"transe": "TransE", "distmult": "DistMult", "complex": "ComplEx", "rotate": "RotatE"}
Figures = dict[str, float]


def output_of(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return done.stdout


def ours(folder: Path, o: argparse.Namespace, seed: int) -> Figures:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = {
        "train": folder / "train.txt", "valid": folder / "valid.txt", "test": folder / "test.txt",
        "output": folder / "out", "model": o.model, "dim": o.dim, "epochs": o.epochs, "lr": o.lr,
        "negatives": o.negatives, "shared": o.shared, "margin": o.margin, "workers": o.workers,
        "temperature": o.temperature, "threads": o.threads, "seed": seed,
    }  # fmt: skip
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "snailps", "train", "kge", *words, "--overwrite", "--json"]
    figures = json.loads(output_of(command).splitlines()[-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "mrr": figures["test"]["mrr"],
        "hits_at_10": figures["test"]["hits_at_10"],
        "triples": figures["examples"],
        "train_s": figures["train_s"],
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def peer(folder: Path, o: argparse.Namespace, seed: int) -> Figures:
    complex_numbers = o.model in ("complex", "rotate")
    options = {
        "model": NAMES[o.model], "dim": o.dim // 2 if complex_numbers else o.dim,
        "epochs": o.epochs, "negatives": o.negatives, "lr": o.peer_lr,
        "optimizer": o.peer_optimizer, "temperature": o.temperature, "seed": seed,
        "margin": o.margin if o.model in ("transe", "rotate") else 0,
        "threads": o.threads * o.workers,
    }  # fmt: skip
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    told = output_of(
        [o.peer_python, str(PEER), "train", str(folder), *words], OMP_NUM_THREADS=str(o.threads)
    )
    found: Figures = json.loads(told.splitlines()[-1])
    return found


def summary(runs: list[Figures]) -> Figures:
    """Mean quality, its spread, and median speeds."""
    scores = [run["mrr"] for run in runs]
    return {
        "mrr": statistics.mean(scores),
        "mrr_deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "hits_at_10": statistics.mean(run["hits_at_10"] for run in runs),
        "triples_per_s": statistics.median(run["triples"] / run["train_s"] for run in runs),
        "triples_per_cpu_s": statistics.median(run["triples"] / run["cpu_s"] for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default="", help="Python with PyKEEN; empty: no peer")
    parser.add_argument("--data", default="umls", help="nations, umls, kinships; or a folder")
    parser.add_argument("--model", choices=NAMES, default="rotate")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--negatives", type=int, default=32)
    parser.add_argument("--shared", type=int, default=16)
    parser.add_argument("--margin", type=float, default=6.0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--peer-lr", type=float, default=0.03)
    parser.add_argument("--peer-optimizer", default="Adam")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(o.data)
        if not folder.is_dir():
            folder = Path(work)
            output_of([o.peer_python, str(PEER), "write", o.data, work])
        runs: dict[str, list[Figures]] = {"snailps": [], "pykeen": []}
        for seed in range(1, o.runs + 1):
            turns = [("snailps", ours), ("pykeen", peer)] if o.peer_python else [("snailps", ours)]
            for name, train in turns[:: 1 if seed % 2 else -1]:
                runs[name].append(train(folder, o, seed))
                print(seed, name, json.dumps(runs[name][-1]), file=sys.stderr, flush=True)
    found = {name: summary(some) for name, some in runs.items() if some}
    print(json.dumps({"options": vars(o), **found}, indent=1))


if __name__ == "__main__":
    main()
