"""Knowledge graphs beside PyKEEN: filtered MRR by seed, triples/s, interleaved.

    PyKEEN's data set -> text -> snailps train kge | train_pykeen.py -> MRR, hits@10, triples/s

Both have the same numbers of dimensions, epochs, negatives, the same loss, margin, temperature,
optimiser and learning rate, which falls in a line to `--lr-end` of it.  What is left: a batch of
256 triples is one step there and 256 here, and here `--shared` triples have the same negatives.
`--peer-optimizer` and `--peer-lr` give the peer others.  The peer lives in an environment of its
own (.bench-venv-graphs, made once: PyTorch is 200 MB).

    python bench/kge.py --data nations,umls,kinships --model transe,complex,rotate --runs 3 --table
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

from words import peers_python

PEER = Path(__file__).parent / "peers" / "train_pykeen.py"
NAMES = {"transe": "TransE", "distmult": "DistMult", "complex": "ComplEx", "rotate": "RotatE"}
OPTIMIZERS = {"adagrad": "Adagrad", "sgd": "SGD"}
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
        "negatives": o.negatives, "shared": o.shared, "workers": o.workers,
        "temperature": o.temperature, "threads": o.threads, "seed": seed, "lr-end": o.lr_end,
        "set": f"optimizer={o.optimizer}",
    }  # fmt: skip
    if o.model in ("transe", "rotate"):  # others read none
        options["margin"] = o.margin
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
        "epochs": o.epochs, "negatives": o.negatives, "lr": o.peer_lr or o.lr,
        "optimizer": o.peer_optimizer or OPTIMIZERS[o.optimizer],
        "temperature": o.temperature, "seed": seed, "lr-end": o.lr_end,
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


def compare(o: argparse.Namespace, data: str, model: str) -> dict[str, Figures]:
    """Summaries of all runs of a data set and a model."""
    o = argparse.Namespace(**{**vars(o), "data": data, "model": model})
    with tempfile.TemporaryDirectory() as work:
        folder = Path(data)
        if not folder.is_dir():
            folder = Path(work)
            output_of([o.peer_python, str(PEER), "write", data, work])
        runs: dict[str, list[Figures]] = {"snailps": [], "pykeen": []}
        for seed in range(1, o.runs + 1):
            turns = [("snailps", ours)] if o.no_peer else [("snailps", ours), ("pykeen", peer)]
            for name, train in turns[:: 1 if seed % 2 else -1]:
                runs[name].append(train(folder, o, seed))
                told = {"data": data, "model": model, "seed": seed, "system": name}
                print(json.dumps(told | runs[name][-1]), file=sys.stderr, flush=True)
    return {name: summary(some) for name, some in runs.items() if some}


def table(found: dict[tuple[str, str], dict[str, Figures]]) -> str:
    """A Markdown table, a row a data set and a model."""
    lines = [
        "| data | model | MRR: snailps | PyKEEN | hits@10: snailps | PyKEEN "
        "| triples/CPU s: snailps | PyKEEN | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (data, model), systems in found.items():
        both = [systems.get(name) for name in ("snailps", "pykeen")]
        cells = [Path(data).name, NAMES[model]]
        cells += [f"{f['mrr']:.3f} ± {f['mrr_deviation']:.3f}" if f else "" for f in both]
        cells += [f"{f['hits_at_10']:.3f}" if f else "" for f in both]
        speeds = [f["triples_per_cpu_s"] if f else 0.0 for f in both]
        cells += [f"{speed:,.0f}" if speed else "" for speed in speeds]
        cells.append(f"{speeds[0] / speeds[1]:.1f}" if speeds[1] else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", help="a Python that has PyKEEN, in place of our own")
    parser.add_argument("--no-peer", action="store_true", help="snailps only, on folders of data")
    parser.add_argument("--data", default="umls", help="of nations, umls, kinships, and folders")
    parser.add_argument("--model", default="rotate", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--negatives", type=int, default=32)
    parser.add_argument("--shared", type=int, default=16)
    parser.add_argument("--margin", type=float, default=6.0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adagrad")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--lr-end", type=float, default=0.0, help="1: constant")
    parser.add_argument("--peer-lr", type=float, default=0.0, help="0: as ours")
    parser.add_argument("--peer-optimizer", default="", help="default: as ours; of torch.optim")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3, help="seeds")
    parser.add_argument("--table", action="store_true", help="Markdown in place of JSON")
    o = parser.parse_args()
    unwritten = [data for data in o.data.split(",") if not Path(data).is_dir()]
    if o.no_peer and unwritten:
        parser.error(f"--no-peer: {', '.join(unwritten)}: not a folder; PyKEEN has the data sets")
    if not o.no_peer:
        o.peer_python = peers_python(o.peer_python, "graphs")
    found = {}
    for data in o.data.split(","):
        for model in o.model.split(","):
            found[data, model] = compare(o, data, model)
            print(table({(data, model): found[data, model]}), file=sys.stderr, flush=True)
    if o.table:
        print(table(found))
        return
    rows = [{"data": data, "model": model, **some} for (data, model), some in found.items()]
    print(json.dumps({"options": vars(o), "found": rows}, indent=1))


if __name__ == "__main__":
    main()
