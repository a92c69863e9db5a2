"""Recommendations from choices on real data, beside implicit: recall, NDCG, processor seconds.

    lists of Debian's packages, MovieLens -> pairs, a part held out -> a text of lines, a CSR matrix
    snailps train mf --loss als | implicit's ALS -> rows -> best items of each user -> figures

Sets: *packages* (a package: the names in its Depends and Recommends; one held out a user), *tags*
(a package: its debtags; a fifth held out), *films* (a user of MovieLens 100k: films with 4 and 5
stars; a fifth held out), users with five items at least.  One evaluation for all: the ten best
items of each user, except items that the user has in the training.  Recall is
hits / min(10, held out), NDCG by the same length; means over users.  A held-out item without any
training pair is missed.

`--grow` makes larger sets of these: the Kronecker product with a small matrix of skewed counts, so
that degrees keep a heavy tail on both sides; names are the real ones with a number.

Processor seconds count all threads and processes: `cpu_s` of the whole command (for implicit
reading its matrix and the fit), `fit_cpu_s` of the peer's fit alone, of snailps the whole command
less another one of `START_LINES` lines.  `peak_mb` is the memory of all processes (PSS).  Compiled
modules are cached on both sides, as pip leaves them.  Systems are interleaved (A B B A).

    apt-get update; python bench/choices.py --data sets --peer-python peers-venv/bin/python
    python bench/choices.py --data sets --films u.data --dim 32 --factors 32 --splits 3
    python bench/choices.py --data sets --sets packages --grow 47 --threads 2 --splits 1 --peers 40
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import watch

PEER = Path(__file__).parent / "peers" / "fit_choices.py"
LISTS = Path("/var/lib/apt/lists")
TOP, LEAST = 10, 5
BATCH = 500
JUDGED = 10_000
"""Most users, drawn, whose lists are judged."""
START_LINES = 20
"""Lines of a training that is nothing but the start of its processes, and their end."""
LIMIT_S = 7200.0
KEYS = ("recall", "ndcg", "cpu_s", "fit_cpu_s", "wall_s", "peak_mb")
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


def grown(users: Users, factor: int, seed: int = 1) -> Users:
    """The Kronecker product of a set with a matrix of `factor` ones: so many times its pairs."""
    if factor == 1:
        return users
    side = 1
    while side * side < 1.3 * factor:
        side += 1
    rng = np.random.default_rng(seed)
    weights = (np.arange(side) + 1.0) ** -0.5
    chances = np.outer(weights, weights).ravel()
    ones = np.zeros(side * side, bool)
    ones[rng.choice(len(ones), factor, replace=False, p=chances / chances.sum())] = True
    items = sorted(set(itertools.chain.from_iterable(users.values())))
    copies = [{item: f"{item}~{copy}" for item in items} for copy in range(side)]  # texts, once
    whole = {
        f"{user}~{copy}": [copies[other][item] for other in np.flatnonzero(row) for item in of_user]
        for copy, row in enumerate(ones.reshape(side, side))
        if row.any()
        for user, of_user in users.items()
    }
    names = list(whole)
    return {names[place]: whole[names[place]] for place in rng.permutation(len(names))}


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
            with open(self.folder / file, "w") as lines:
                lines.writelines(
                    f"{user}\t{self.items[item]}\n"
                    for user, of_user in zip(self.users, pairs, strict=True)
                    for item in of_user
                )
        with open(self.folder / "train.txt") as lines:
            (self.folder / "start.txt").write_text("".join(itertools.islice(lines, START_LINES)))
        judged = rng.permutation(len(self.users))[:JUDGED]
        self.judged = np.sort(judged)
        ptr = np.concatenate(([0], np.cumsum(list(map(len, self.train)))))
        np.savez(self.folder / "train.npz", ptr=ptr, items=np.concatenate(self.train),
                 shape=[len(self.users), len(self.items)])  # fmt: skip

    def figures(self, users: np.ndarray, items: np.ndarray) -> Figures:
        """Recall and NDCG at `TOP` of rows of all users and items; one of NaN is in no list."""
        gains = 1 / np.log2(np.arange(TOP) + 2)
        recall, ndcg = [], []
        for first in range(0, len(self.judged), BATCH):
            rows = self.judged[first : first + BATCH]
            scores = users[rows] @ items.T
            scores[np.isnan(scores)] = -np.inf
            for row, score in zip(rows, scores, strict=True):
                score[self.train[row]] = -np.inf
                best = np.argpartition(-score, TOP)[:TOP]
                hits = np.isin(best[np.argsort(-score[best])], self.held[row])
                most = min(TOP, len(self.held[row]))
                recall.append(hits.sum() / most)
                ndcg.append(hits @ gains / gains[:most].sum())
        return {"recall": float(np.mean(recall)), "ndcg": float(np.mean(ndcg))}


# ---- systems -------------------------------------------------------------------------------------


def timed(command: list[str], log: Path, **environment: str) -> tuple[Figures, Figures]:
    """The last line of a command's output; its seconds, wall and of all processors; its memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seen = watch.run(
        command, log=log, limit_s=LIMIT_S, ends_at_result=False, env={**os.environ, **environment}
    )
    if seen.code:
        sys.exit(f"{' '.join(command)} failed:\n{log.read_text()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    printed = json.loads(seen.rows[-1][1])
    return printed, {"cpu_s": cpu, "wall_s": seen.wall_s, "peak_mb": seen.peak_mb}


def trained(split: Split, o: argparse.Namespace, lines: str, *more: str) -> tuple[Figures, Figures]:
    """Train on a file of the split's folder: what the program printed, and what it took."""
    words = ["--train", split.folder / lines, "--output", split.folder / "out", "--dim", o.dim]
    words += ["--threads", o.threads, "--workers", o.workers, "--loss", "als", *more]
    command = [sys.executable, "-m", "snailps", "train", "mf", *map(str, words)]
    return timed([*command, "--overwrite", "--json"], split.folder / "log")


def ours(split: Split, o: argparse.Namespace, *more: str) -> Figures:
    trained(split, o, "start.txt")  # whose modules are compiled where none were
    _, start = trained(split, o, "start.txt", *more)
    printed, figures = trained(split, o, "train.txt", *more)
    with np.load(split.folder / "out.npz") as model:
        rows = []
        for kind, names in (("users", split.users), ("items", split.items)):
            trained_names = model[kind].tobytes().decode().split("\n")
            number = {name: i for i, name in enumerate(trained_names)}
            numbers = [number.get(name, len(trained_names)) for name in names]
            lacking = np.full((1, model[f"{kind}.rows"].shape[1]), np.nan, np.float32)
            rows.append(np.vstack((model[f"{kind}.rows"], lacking))[numbers])
    figures["fit_cpu_s"] = figures["cpu_s"] - start["cpu_s"]
    return {**figures, "train_s": printed["train_s"], **split.figures(*rows)}


def implicit(alpha: float, regularization: float) -> Callable[..., Figures]:
    def fit(split: Split, o: argparse.Namespace) -> Figures:
        options = {"factors": o.factors, "alpha": alpha, "regularization": regularization}
        options |= {"iterations": o.iterations, "threads": o.threads}
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        threads = {"OMP_NUM_THREADS": str(o.threads), "OPENBLAS_NUM_THREADS": "1"}
        command = [o.peer_python, str(PEER), str(split.folder), *words]
        printed, seconds = timed(command, split.folder / "log", **threads)
        with np.load(split.folder / "peer.npz") as rows:
            figures = split.figures(rows["users"], rows["items"])
        return {**seconds, **printed, **figures}

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
    parser.add_argument("--dim", default="auto", help="factors of snailps")
    parser.add_argument("--factors", type=int, default=64, help="of implicit")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--grow", type=int, default=1, help="times the pairs of each set")
    o = parser.parse_args()
    for name, users, share in sets(o):
        by_system: dict[str, list[Figures]] = {}
        for seed in range(1, o.splits + 1):
            split = Split(o.data, name, grown(users, o.grow), share, seed)
            for system, run in list(systems(o).items())[:: 1 if seed % 2 else -1]:
                figures = run(split, o)
                by_system.setdefault(system, []).append(figures)
                print(name, seed, system, json.dumps(figures), file=sys.stderr, flush=True)
        pairs = sum(map(len, split.train))
        print(f"{name}: {len(split.users):,} x {len(split.items):,}, {pairs:,} pairs")
        for system, runs in by_system.items():
            keys = [key for key in KEYS if key in runs[0]]
            means = {  # other load can only add seconds
                key: min(run[key] for run in runs)
                if key.endswith(("_s", "_mb"))
                else float(np.mean([run[key] for run in runs]))
                for key in keys
            }
            print(f"  {system}: " + ", ".join(f"{key} {value:.4g}" for key, value in means.items()))


if __name__ == "__main__":
    main()
