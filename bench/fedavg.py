"""Federated averaging: data per learner and seconds to a loss, by learners and pipelines; speed.

    text -> snailps fedavg prepare -> one run of `snailps train fedavg` a shape
    -> first round at or below each target -> table, ratios to one learner

    python bench/fedavg.py moby                 # 1, 2, 4, 8 learners on moby_dick, 8.4 and 8.14
    python bench/fedavg.py text8                # 1 ... 12 learners on text8like, 8.3
    python bench/fedavg.py text8low             # 7.69, which takes far longer
    python bench/fedavg.py tune moby            # the step sizes and batches tried for each shape
    python bench/fedavg.py speed --torch PYTHON # windows/s of one learner and of a PyTorch loop

Data per learner does not depend on other load; seconds are meaningful only with as many idle cores
as learners.  All learners start from the same weights, with biases of 0.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parent))  # a source tree need not be installed
os.environ["PYTHONPATH"] = os.pathsep.join([str(BENCH.parent), os.environ.get("PYTHONPATH", "")])
SNAILPS = [sys.executable, "-m", "snailps"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Numbers of learners and pipelines, and the settings tuned for them."""

    learners: int
    pipelines: int
    lr: float
    bs: int
    bpe: int

    @property
    def name(self) -> str:
        return f"{self.learners} x {self.pipelines}"


@dataclasses.dataclass(frozen=True)
class Data:
    """A text, how its files are made, and the losses to reach."""

    text: str
    prepare: tuple[str, ...]
    targets: tuple[float, ...]
    rounds: int
    shapes: tuple[Shape, ...]


DATA = {
    "moby": Data(
        "moby_dick/moby_dick.txt",
        ("--test-windows", "1000"),
        (8.4, 8.14),
        400,
        (
            Shape(1, 1, 0.05, 64, 16),
            Shape(2, 1, 0.08, 64, 16),
            Shape(2, 2, 0.08, 64, 16),
            Shape(4, 1, 0.12, 32, 16),
            Shape(4, 4, 0.12, 32, 16),
            Shape(8, 1, 0.16, 32, 8),
            Shape(8, 8, 0.16, 32, 8),
        ),
    ),
    "text8": Data(
        "words/text8like.txt.gz",
        ("--test-windows", "5000", "--max-vocab", "10000"),
        (8.3,),
        400,
        (
            Shape(1, 1, 0.08, 32, 2),
            Shape(2, 1, 0.06, 16, 4),
            Shape(2, 2, 0.06, 16, 4),
            Shape(4, 1, 0.08, 8, 2),
            Shape(4, 4, 0.08, 8, 2),
            Shape(8, 1, 0.08, 8, 2),
            Shape(8, 8, 0.08, 8, 2),
            Shape(12, 1, 0.08, 16, 2),
        ),
    ),
    "text8low": Data(
        "words/text8like.txt.gz",
        ("--test-windows", "5000", "--max-vocab", "10000"),
        (7.69,),
        400,
        (
            Shape(1, 1, 0.01, 64, 64),
            Shape(2, 1, 0.015, 64, 32),
            Shape(2, 2, 0.015, 64, 32),
            Shape(4, 1, 0.02, 64, 32),
            Shape(4, 4, 0.02, 64, 32),
            Shape(8, 1, 0.03, 64, 16),
            Shape(8, 8, 0.03, 64, 16),
            Shape(12, 1, 0.06, 32, 16),
        ),
    ),
}
TRIED_LR = (0.5, 0.71, 1.0, 1.41, 2.0)
"""Times a shape's own step size, by `tune`."""


def prepare(data: Data, source: Path, folder: Path, seed: int) -> dict[str, float]:
    """Makes vocabulary and test windows; its figures."""
    command = [*SNAILPS, "fedavg", "prepare", str(source / data.text), "--into", str(folder)]
    stop_words = ["--stop-words", str(source / "words/stopwords_en.txt")]
    more = ["--seed", str(seed), "--json"]
    done = subprocess.run(
        [*command, *stop_words, *data.prepare, *more], check=True, capture_output=True, text=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def train(data: Data, source: Path, folder: Path, shape: Shape, target: float, seed: int) -> list:
    """One run to the target; its rounds."""
    with tempfile.TemporaryDirectory() as out:
        settings = {
            "input": source / data.text,
            "data-dir": folder,
            "output": f"{out}/run",
            "learners": shape.learners,
            "pipelines": shape.pipelines,
            "lr": shape.lr,
            "bs": shape.bs,
            "bpe": shape.bpe,
            "target": target,
            "rounds": data.rounds,
            "seed": seed,
        }
        options = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        done = subprocess.run(
            [*SNAILPS, "train", "fedavg", "--overwrite", *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        history = Path(f"{out}/run.history.jsonl")
        if not history.exists():
            raise RuntimeError(done.stderr[-2000:])
        return [json.loads(line) for line in history.read_text().splitlines()[1:]]


def reached(rounds: list, target: float) -> tuple[float, float]:
    """Windows per learner and seconds of the first round at or below the target; NaN: never."""
    for line in rounds:
        if line["loss"] <= target:
            return line["windows_per_learner"], line["seconds"]
    return float("nan"), float("nan")


def measure(name: str, source: Path, seeds: int, only: list[int], low: bool, bpe: int) -> dict:
    """All shapes of a text, each with several seeds (order, test windows, first values).

    Seed by seed, alternately forth and back through the shapes: what slows the machine down for
    a while affects all of them.
    """
    data = DATA[name]
    targets = data.targets if low else data.targets[:1]
    shapes = [
        dataclasses.replace(shape, bpe=bpe or shape.bpe)
        for shape in data.shapes
        if not only or shape.learners in only
    ]
    found: dict[str, dict[float, list[tuple[float, float]]]] = {
        shape.name: {target: [] for target in targets} for shape in shapes
    }
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            figures = prepare(data, source, Path(folder) / str(seed), seed)
            print(f"seed {seed}: {figures}", flush=True)
        for seed in range(1, seeds + 1):
            for shape in shapes if seed % 2 else shapes[::-1]:
                rounds = train(data, source, Path(folder) / str(seed), shape, targets[-1], seed)
                told = {target: reached(rounds, target) for target in targets}
                for target in targets:
                    found[shape.name][target].append(told[target])
                print(f"seed {seed}: {shape}: {told}", flush=True)
    report(found, targets)
    return {key: {str(t): value for t, value in runs.items()} for key, runs in found.items()}


def report(found: dict, targets: tuple[float, ...]) -> None:
    """A table: medians over the seeds, and ratios to one learner."""
    base = found.get("1 x 1")
    print("learners x pipelines | target | windows per learner | times less | s | times less")
    for name, runs in found.items():
        for target in targets:
            windows, seconds = (
                statistics.median(column) for column in zip(*runs[target], strict=True)
            )
            less = ["-", "-"]
            if base is not None:
                pairs = zip(zip(*base[target], strict=True), (windows, seconds), strict=True)
                less = [f"{statistics.median(column) / own:.2f}" for column, own in pairs]
            print(
                f"{name} | {target} | {windows:,.0f} | {less[0]} | {seconds:.2f} | {less[1]}",
                flush=True,
            )


def tune(name: str, source: Path, only: list[int], low: bool, bs: list[int]) -> None:
    """Windows per learner for step sizes (and batches) round each shape's own."""
    data = DATA[name]
    targets = data.targets if low else data.targets[:1]
    with tempfile.TemporaryDirectory() as folder:
        prepare(data, source, Path(folder), 1)
        for shape in data.shapes:
            if only and shape.learners not in only:
                continue
            for size in bs or [shape.bs]:
                for factor in TRIED_LR:
                    bpe = max(1, shape.bpe * shape.bs // size)
                    tried = dataclasses.replace(
                        shape, lr=round(shape.lr * factor, 4), bs=size, bpe=bpe
                    )
                    rounds = train(data, source, Path(folder), tried, targets[-1], 1)
                    print(tried, [reached(rounds, target) for target in targets], flush=True)


def speed(source: Path, torch_python: str, seconds: float) -> dict:
    """Windows/s of one learner's steps on one thread, and of a PyTorch loop on one and on two."""
    from snailps.models.fedavg.learner import Learner
    from snailps.models.fedavg.prepare import prepare as make
    from snailps.models.fedavg.settings import FedAvgSettings, read_test, read_vocab

    result = {}
    with tempfile.TemporaryDirectory() as folder:
        stop_words = source / "words/stopwords_en.txt"
        make(
            [str(source / DATA["moby"].text)],
            Path(folder),
            stop_words=stop_words,
            test_windows=64 * 64,
        )
        words = read_vocab(folder)
        windows = read_test(folder, words, 5)
        for bs in (16, 64, 256):
            batches = [windows[at : at + bs] for at in range(0, len(windows), bs)]
            learner = Learner(len(words), FedAvgSettings(bs=bs, bpe=len(batches)))
            base = learner.network
            best, until = 0.0, time.monotonic() + seconds
            while time.monotonic() < until:
                take = iter(batches)
                begin = time.perf_counter()
                learner.train(base, lambda take=take: next(take), 0, layers=(0,))
                best = max(best, len(windows) / (time.perf_counter() - begin))
            result[f"snailps, bs {bs}"] = round(best)
            if torch_python:
                np.save(f"{folder}/windows.npy", windows)
                for threads in (1, 2):
                    done = subprocess.run(
                        [
                            torch_python, str(BENCH / "peers" / "train_cbow_torch.py"),
                            f"{folder}/windows.npy", str(len(words)), str(bs), str(threads),
                            str(seconds),
                        ],
                        check=True, capture_output=True, text=True,
                        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                    )  # fmt: skip
                    for how, rate in json.loads(done.stdout).items():
                        result[f"torch {how}, {threads} thread(s), bs {bs}"] = round(rate)
    for key, value in result.items():
        print(f"{key}: {value:,} windows/s", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=[*DATA, "tune", "speed"])
    parser.add_argument("name", nargs="?", choices=sorted(DATA), default="moby")
    parser.add_argument("--data", type=Path, default=BENCH.parent.parent / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learners", type=int, nargs="*", default=[], help="only these shapes")
    parser.add_argument("--bs", type=int, nargs="*", default=[], help="batch sizes to tune over")
    parser.add_argument("--bpe", type=int, default=0, help="batches a round, for all shapes")
    parser.add_argument("--high", action="store_true", help="only the first target")
    parser.add_argument("--torch", default="", help="a Python that has torch")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    if not options.data.exists():
        sys.exit(f"skipped: no data at {options.data}")
    if options.part == "speed":
        result: object = speed(options.data, options.torch, options.seconds)
    elif options.part == "tune":
        tune(options.name, options.data, options.learners, not options.high, options.bs)
        return
    else:
        low = not options.high
        only, bpe = options.learners, options.bpe
        result = measure(options.part, options.data, options.seeds, only, low, bpe)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
