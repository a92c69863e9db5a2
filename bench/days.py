"""Recommendations period by period, on real dated choices: training on beside training anew.

    choices with times, in order -> a first part, then periods of --days
    lines of a period -> snailps train mf --continue-from the model before -> a model
                                    the choices of the next period -> recall, NDCG of its lists

Sets: ratings with a time (4 and 5 stars; u.data or ratings.csv of MovieLens), or a git repository,
whose authors choose the files that they change, each counted once.  Chains: *anew* trains on all
lines so far (*anew:N*: N epochs), *N* continues its own model of the period before with the lines
of the period alone, N epochs; *never* keeps the first model.

A period is judged by the users who have a line so far and choose, in the next period, items that
have one: the ten best items that the user does not have yet; recall is
hits / min(10, chosen).  A user or an item that the model does not know is missed.  Means over
users and periods, and over the differences to the first chain their standard error.  Processor
seconds count all threads and processes of a command.  The chains of a period run one after the
other, in turn from the first and from the last.

    python bench/days.py --data folder --ratings u.data --days 7
    python bench/days.py --data folder --repository rails --days 60 --chains anew,1,6
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from choices import BATCH, TOP, timed

DAY_S = 86400
NEVER = "never"
Lines = list[tuple[str, str]]
Choice = tuple[float, str, str]
"""Time, user, item."""
Rows = tuple[dict[str, int], np.ndarray]


def rated(path: Path) -> list[Choice]:
    """Films with 4 and 5 stars."""
    choices = []
    for line in path.read_text().splitlines():
        cells = line.replace(",", "\t").split("\t")
        if cells[0].isdigit() and int(cells[0]) > 0 and float(cells[2]) >= 4:
            choices.append((float(cells[3]), f"u{cells[0]}", f"i{cells[1]}"))
    return sorted(choices)


def changed(repository: Path) -> list[Choice]:
    """Files that authors changed, when they did it first."""
    words = ["git", "-C", str(repository), "log", "--no-merges", "--no-renames", "--name-only"]
    log = subprocess.run([*words, "--format=@%at%x09%ae"], capture_output=True, check=True).stdout
    authors: dict[str, str] = {}
    choices: dict[tuple[str, str], float] = {}
    time, author = 0.0, ""
    for line in log.decode(errors="replace").splitlines():
        if line.startswith("@"):
            when, _, name = line[1:].partition("\t")
            time, author = float(when), authors.setdefault(name, f"u{len(authors)}")
        elif line:
            pair = author, line.replace("\t", " ")
            choices[pair] = min(time, choices.get(pair, time))
    return sorted((time, *pair) for pair, time in choices.items())


def periods(choices: list[Choice], share: float, days: float) -> list[Lines]:
    """Split choices: a share of all at first, then period by period; empty periods are left out."""
    first = int(share * len(choices))
    begin = choices[first][0]
    parts: dict[int, Lines] = {-1: [pair for _, *pair in choices[:first]]}  # type: ignore[misc]
    for time, user, film in choices[first:]:
        parts.setdefault(int((time - begin) / (days * DAY_S)), []).append((user, film))
    return [parts[number] for number in sorted(parts)]


class Chain:
    """Models of one kind of training, period after period."""

    def __init__(self, folder: Path, name: str, o: argparse.Namespace) -> None:
        self.name, self._folder, self._o = name, folder, o
        self._sides: list[Rows] = []
        self.cpu_s: list[float] = []
        self.recall: list[np.ndarray] = []
        self.ndcg: list[np.ndarray] = []

    def train(self, number: int, all_lines: Path, new_lines: Path) -> None:
        if number and self.name == NEVER:
            return
        output = self._folder / f"{self.name}-{number}"
        words = ["--output", output, "--dim", self._o.dim, "--threads", self._o.threads]
        words += ["--workers", self._o.workers, "--loss", "als", "--overwrite", "--json"]
        kind, _, epochs = self.name.partition(":")
        on = number > 0 and kind != "anew"
        words += ["--train", new_lines if on else all_lines]
        words += ["--l2", self._o.l2] if self._o.l2 else []
        words += ["--epochs", epochs] if epochs else []
        if on:
            words += ["--epochs", self.name]
            words += ["--continue-from", f"{self._folder / f'{self.name}-{number - 1}'}.npz"]
        command = [sys.executable, "-m", "snailps", "train", "mf", *map(str, words)]
        _, seconds = timed(command, self._folder / "log")
        if number:
            self.cpu_s.append(seconds["cpu_s"])
        with np.load(f"{output}.npz") as model:
            self._sides = []
            for side in ("users", "items"):
                names = model[side].tobytes().decode().split("\n")
                self._sides.append(({name: i for i, name in enumerate(names)},
                                    model[f"{side}.rows"]))  # fmt: skip

    def judge(self, seen: dict[str, set[str]], chosen: dict[str, set[str]]) -> None:
        (users, user_rows), (items, item_rows) = self._sides
        gains = 1 / np.log2(np.arange(TOP) + 2)
        recall, ndcg, asked = [], [], sorted(chosen)
        for first in range(0, len(asked), BATCH):
            batch = asked[first : first + BATCH]
            scores = user_rows[[users.get(user, 0) for user in batch]] @ item_rows.T
            for user, score in zip(batch, scores, strict=True):
                score[[items[item] for item in seen[user] if item in items]] = -np.inf
                best = np.argpartition(-score, TOP)[:TOP]
                best = best[np.argsort(-score[best])] if user in users else best[:0]
                wanted = [items[item] for item in chosen[user] if item in items]
                hits, most = np.isin(best, wanted), min(TOP, len(chosen[user]))
                recall.append(hits.sum() / most)
                ndcg.append(hits @ gains[: len(hits)] / gains[:most].sum())
        self.recall.append(np.array(recall))
        self.ndcg.append(np.array(ndcg))


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(f"{user}\t{film}\n" for user, film in lines))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder for lines and models")
    parser.add_argument("--ratings", type=Path, help="file of user, item, stars, time")
    parser.add_argument("--repository", type=Path, help="of git, in the place of ratings")
    parser.add_argument("--days", type=float, default=7, help="length of a period")
    parser.add_argument("--first", type=float, default=0.5, help="share of the first training")
    parser.add_argument("--chains", default="anew,1,2,6,never", help="anew, never, or epochs")
    parser.add_argument("--dim", default="auto", help="factors; each chain keeps its first model's")
    parser.add_argument("--l2", type=float, default=0.0, help="of all chains; 0: auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    o = parser.parse_args()
    o.data.mkdir(parents=True, exist_ok=True)
    choices = rated(o.ratings) if o.ratings else changed(o.repository)
    parts = periods(choices, o.first, o.days)
    chains = [Chain(o.data, name, o) for name in o.chains.split(",")]
    lines: Lines = []
    seen: dict[str, set[str]] = {}
    films: set[str] = set()
    for number, (new, later) in enumerate(itertools.pairwise(parts)):
        lines += new
        for user, film in new:
            seen.setdefault(user, set()).add(film)
            films.add(film)
        chosen: dict[str, set[str]] = {}
        for user, film in later:
            if user in seen and film in films - seen[user]:
                chosen.setdefault(user, set()).add(film)
        texts = write(o.data / "all.txt", lines), write(o.data / "new.txt", new)
        for chain in chains[:: 1 if number % 2 else -1]:
            chain.train(number, *texts)
            if number and chosen:
                chain.judge(seen, chosen)
        row = {chain.name: f"{chain.recall[-1].mean():.4f}" for chain in chains if chain.recall}
        counts = {"lines": len(lines), "new": len(new), "judged": len(chosen)}
        print(number, json.dumps(counts | row), file=sys.stderr, flush=True)
    print(f"{len(parts) - 1} periods, {len(parts[0]):,} lines at first, {len(lines):,} at last")
    for chain in chains:
        texts = []
        for what, figures in (("recall", "recall"), ("NDCG", "ndcg")):
            of_chain = np.concatenate(getattr(chain, figures))
            apart = of_chain - np.concatenate(getattr(chains[0], figures))
            error = apart.std() / len(apart) ** 0.5
            texts.append(f"{what} {of_chain.mean():.4f} ({apart.mean():+.4f} +- {error:.4f})")
        seconds = np.mean(chain.cpu_s or [0])
        print(f"  {chain.name}: {', '.join(texts)}, cpu_s a period {seconds:.2f}")
    print(f"  {len(of_chain):,} lists each")


if __name__ == "__main__":
    main()
