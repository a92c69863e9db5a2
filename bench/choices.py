"""Recommendations from choices on real data, beside implicit: recall, NDCG, processor seconds.

    lists of Debian's packages, MovieLens -> pairs, a part held out -> a text of lines, a CSR matrix
    snailps train mf --loss als | implicit's ALS -> rows -> best items of each user -> figures

Sets: *packages* (a package: the names in its Depends and Recommends; one held out a user), *tags*
(a package: its debtags; a fifth held out), *films* (a user of MovieLens 100k: films with 4 and 5
stars; a fifth held out), users with five items at least.  One evaluation for all: the ten best
items of each user, except items that the user has in the training.  Recall is
hits / min(10, held out), NDCG by the same length; means over users.  A held-out item without any
training pair is missed.

Processor seconds count all threads and processes: `cpu_s` of the whole command (for implicit
reading its matrix and the fit), `fit_cpu_s` of the peer's fit alone.  Systems are interleaved
(A B B A).

    apt-get update; python bench/choices.py --data sets --peer-python peers-venv/bin/python
    python bench/choices.py --data sets --films u.data --factors 32 --splits 3
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PEER = Path(__file__).parent / "peers" / "fit_choices.py"
LISTS = Path("/var/lib/apt/lists")
TOP, LEAST = 10, 5
BATCH = 500
Users = dict[str, list[str]]
Figures = dict[str, Any]


# ---- data ----------------------------------------------------------------------------------------


def packages() -> tuple[Users, Users]:
    """Names that each package needs, and its tags, by the lists that apt has."""
    files = sorted(LISTS.glob("*_dists_*_main_binary-*_Packages*"), key=lambda p: -p.stat().st_size)
    if not files:
        sys.exit(f"{LISTS} has no lists of packages: run apt-get update")
    read = ["/usr/lib/apt/apt-helper", "cat-file", str(files[0])]
    text = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    needs: Users = {}
    tags: Users = {}
    for entry in re.sub(r"\n[ \t]+", " ", text).split("\n\n"):
        field = dict(line.split(": ", 1) for line in entry.split("\n") if ": " in line)
        if "Package" not in field:
            continue
        wanted = re.split(r"[,|]", f"{field.get('Depends', '')},{field.get('Recommends', '')}")
        names = {part.split()[0].split(":")[0] for part in wanted if part.split()}
        needs.setdefault(field["Package"], sorted(names))
        marks = {part.strip() for part in field.get("Tag", "").split(",")} - {""}
        tags.setdefault(field["Package"], sorted(marks))
    return needs, tags


def films(path: Path) -> Users:
    """Films that each user gave 4 or 5 stars, of MovieLens's u.data."""
    users: Users = {}
    for line in path.read_text().splitlines():
        user, film, stars = line.split("\t")[:3]
        if float(stars) >= 4:
            users.setdefault(user, []).append(film)
    return users


class Split:
    """Pairs of a set, and those held out: one a user (share 0) or a share of each user's."""

    def __init__(self, folder: Path, name: str, users: Users, share: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        users = {user: items for user, items in users.items() if len(items) >= LEAST}
        self.users = list(users)
        self.items = sorted(set().union(*users.values()))
        number = {item: place for place, item in enumerate(self.items)}
        self.train: list[np.ndarray] = []
        self.held: list[np.ndarray] = []
        for items in users.values():
            order = rng.permutation([number[item] for item in items])
            out = max(1, round(share * len(order)))
            self.held.append(order[:out])
            self.train.append(np.sort(order[out:]))
        self.folder = folder / f"{name}-{seed}"
        self.folder.mkdir(parents=True, exist_ok=True)
        for file, pairs in (("train.txt", self.train), ("test.txt", self.held)):
            lines = (
                f"{user}\t{self.items[item]}\n"
                for user, of_user in zip(self.users, pairs, strict=True)
                for item in of_user
            )
            (self.folder / file).write_text("".join(lines))
        ptr = np.concatenate(([0], np.cumsum(list(map(len, self.train)))))
        np.savez(self.folder / "train.npz", ptr=ptr, items=np.concatenate(self.train),
                 shape=[len(self.users), len(self.items)])  # fmt: skip

    def figures(self, users: np.ndarray, items: np.ndarray) -> Figures:
        """Recall and NDCG at `TOP` of rows of all users and items; one of NaN is in no list."""
        gains = 1 / np.log2(np.arange(TOP) + 2)
        recall, ndcg = [], []
        for first in range(0, len(users), BATCH):
            scores = users[first : first + BATCH] @ items.T
            scores[np.isnan(scores)] = -np.inf
            for row, score in enumerate(scores, first):
                score[self.train[row]] = -np.inf
                best = np.argpartition(-score, TOP)[:TOP]
                hits = np.isin(best[np.argsort(-score[best])], self.held[row])
                most = min(TOP, len(self.held[row]))
                recall.append(hits.sum() / most)
                ndcg.append(hits @ gains / gains[:most].sum())
        return {"recall": float(np.mean(recall)), "ndcg": float(np.mean(ndcg))}


# ---- systems -------------------------------------------------------------------------------------


def timed(command: list[str], **environment: str) -> tuple[str, Figures]:
    """Standard output of a command, and its seconds: wall, and of all processors."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begin
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, {"cpu_s": cpu, "wall_s": wall}


def ours(split: Split, o: argparse.Namespace, *more: str) -> Figures:
    output = split.folder / "out"
    words = ["--train", split.folder / "train.txt", "--output", output, "--dim", o.factors]
    words += ["--threads", o.threads, "--workers", o.workers, "--loss", "als", *more]
    command = [sys.executable, "-m", "snailps", "train", "mf", *map(str, words)]
    printed, seconds = timed([*command, "--overwrite", "--json"])
    with np.load(f"{output}.npz") as model:
        rows = []
        for kind, names in (("users", split.users), ("items", split.items)):
            trained_names = model[kind].tobytes().decode().split("\n")
            number = {name: i for i, name in enumerate(trained_names)}
            numbers = [number.get(name, len(trained_names)) for name in names]
            lacking = np.full((1, model[f"{kind}.rows"].shape[1]), np.nan, np.float32)
            rows.append(np.vstack((model[f"{kind}.rows"], lacking))[numbers])
    trained = json.loads(printed.splitlines()[-1])
    return {**seconds, "train_s": trained["train_s"], **split.figures(*rows)}


def implicit(alpha: float, regularization: float) -> Callable[..., Figures]:
    def fit(split: Split, o: argparse.Namespace) -> Figures:
        options = {"factors": o.factors, "alpha": alpha, "regularization": regularization}
        options |= {"iterations": o.iterations, "threads": o.threads}
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        threads = {"OMP_NUM_THREADS": str(o.threads), "OPENBLAS_NUM_THREADS": "1"}
        printed, seconds = timed([o.peer_python, str(PEER), str(split.folder), *words], **threads)
        with np.load(split.folder / "peer.npz") as rows:
            figures = split.figures(rows["users"], rows["items"])
        return {**seconds, **json.loads(printed.splitlines()[-1]), **figures}

    return fit


def systems(o: argparse.Namespace) -> dict[str, Callable[..., Figures]]:
    found: dict[str, Callable[..., Figures]] = {"snailps": ours}
    if o.peer_python:
        for pair in o.peers.split(","):
            alpha, _, regularization = pair.partition("/")
            found[f"implicit, alpha {alpha}, regularization {regularization or '.01'}"] = implicit(
                float(alpha), float(regularization or 0.01)
            )
    return found


def sets(o: argparse.Namespace) -> Iterator[tuple[str, Users, float]]:
    wanted = o.sets.split(",")
    if {"packages", "tags"} & {*wanted}:
        needs, tags = packages()
        if "packages" in wanted:
            yield "packages", needs, 0.0
        if "tags" in wanted:
            yield "tags", tags, 0.2
    if o.films:
        yield "films", films(o.films), 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder for the sets")
    parser.add_argument("--sets", default="packages,tags")
    parser.add_argument("--films", type=Path, help="u.data of MovieLens 100k; default: no films")
    parser.add_argument("--peer-python", default="", help="Python with implicit; empty: none")
    parser.add_argument("--peers", default="1,10,40", help="alpha or alpha/regularization of each")
    parser.add_argument("--iterations", type=int, default=15, help="of implicit")
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--splits", type=int, default=3)
    o = parser.parse_args()
    for name, users, share in sets(o):
        found: dict[str, list[Figures]] = {}
        for seed in range(1, o.splits + 1):
            split = Split(o.data, name, users, share, seed)
            for system, run in list(systems(o).items())[:: 1 if seed % 2 else -1]:
                figures = run(split, o)
                found.setdefault(system, []).append(figures)
                print(name, seed, system, json.dumps(figures), file=sys.stderr, flush=True)
        pairs = sum(map(len, split.train))
        print(f"{name}: {len(split.users):,} x {len(split.items):,}, {pairs:,} pairs")
        for system, runs in found.items():
            keys = [key for key in ("recall", "ndcg", "cpu_s", "fit_cpu_s") if key in runs[0]]
            means = {  # other load can only add seconds
                key: min(run[key] for run in runs)
                if key.endswith("_s")
                else float(np.mean([run[key] for run in runs]))
                for key in keys
            }
            print(f"  {system}: " + ", ".join(f"{key} {value:.4g}" for key, value in means.items()))


if __name__ == "__main__":
    main()
