#!/usr/bin/env python3
"""The main ratios, also of jobs that are one option away, in ten minutes, kept as a history.

    words.py, classifier.py, sparse.py, fits.py, transport.py at small sizes -> ratios
    ratios -> bench/history.jsonl -> docs/bench-history.svg
    a ratio, its best in the history -> red below .9 of that: exit code 1

Each ratio has both of its sides measured in the same run, interleaved, so that runs of different
days and machines may be compared; the only absolute figure kept is the time of a whole job.  Single
ratios differ by a tenth on a noisy machine: a red one says that its script is to be run, at its own
size, before anything is claimed.
"""

import argparse
import datetime
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from curves import Series, chart
from words import ROOT, fail, machine, say

HERE = Path(__file__).parent
HISTORY = HERE.resolve() / "history.jsonl"
PICTURE = ROOT / "docs" / "bench-history.svg"
CORPUS = ROOT.parent / "shared" / "data" / "words" / "text8like.txt.gz"
WORDS_BYTES, JOB_BYTES = 10_000_000, 3_000_000
EXAMPLES = 400_000
CSR_ROWS = 300_000
LINE_WORDS = 30
RED = 0.9
"""A ratio below this share of its best is red; of memory, a ratio above the reciprocal."""
SEVERAL = ("--workers", "4", "--servers", "4", "--threads", "1")
TRANSPORT = ("pull / bare loop", "push add / bare loop", "pull float16 / float32")
"""Begins of the targets of transport.py."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", type=Path, default=CORPUS, help="a text file, .gz or plain")
    add("--peers-python", help="a Python that has the peers, instead of .bench-venv")
    add("--runs", type=int, default=3, help="runs of each system, interleaved")
    add("--draw", action="store_true", help="only draw the history")
    add("--dry", action="store_true", help="keep nothing")
    add("--history", type=Path, default=HISTORY, help="where this run is kept; drawn beside it")
    args = parser.parse_args()
    if not args.draw and not args.corpus.is_file():
        fail(f"no such file: {args.corpus}")
    return args


def rows_of(script: str, *words: str) -> list[dict]:
    """JSON objects that a script of this folder prints."""
    begin_s = time.monotonic()
    command = [sys.executable, str(HERE / script), *words, "--json"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        fail(f"{script} ended with code {done.returncode}")
    say(f"{script} took {time.monotonic() - begin_s:.0f} s")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def begin_of(corpus: Path, size: int, path: Path) -> Path:
    """The first bytes of a text, up to a word's end, as a file."""
    opened = gzip.open if corpus.suffix == ".gz" else open
    with opened(corpus, "rb") as text:
        data = text.read(size)
    path.write_bytes(data[: data.rfind(b" ") + 1])
    return path


def labelled(text: Path, path: Path) -> Path:
    """The words of a text in lines of `LINE_WORDS`, labelled by the length of the first word."""
    words = text.read_bytes().split()
    lines = (words[at : at + LINE_WORDS] for at in range(0, len(words), LINE_WORDS))
    path.write_bytes(b"".join(b"__label__%d %s\n" % (len(w[0]), b" ".join(w)) for w in lines))
    return path


def by_system(rows: list[dict], job: str = "") -> dict[str, dict]:
    """Rows of one job, by system."""
    return {row["system"]: row for row in rows if not job or row.get("job") == job}


def measure(args: argparse.Namespace) -> dict[str, float]:
    """All ratios; names as they are in the history."""
    peers = ["--peers-python", args.peers_python] if args.peers_python else []
    runs = ["--runs", str(args.runs)]
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as folder:
        text = begin_of(args.corpus, WORDS_BYTES, Path(folder) / "text.txt")
        words = ["--corpus", str(text), "--epochs", "1", "--peers", "fasttext", *peers, *runs]
        for name, model in (("subwords", "fasttext"), ("words", "word2vec")):
            row = by_system(rows_of("words.py", *words, "--model", model))
            rates = [row[system]["words_per_s"] for system in ("snailps", "fasttext")]
            found[f"{name}, words/s / fastText"] = rates[0] / rates[1]
            memory = [row[system]["peak_rss_mb"] for system in ("snailps", "fasttext")]
            found[f"{name}, memory / fastText"] = memory[0] / memory[1]
            alone = row["snailps"]["words_per_s"]
            row = by_system(rows_of("words.py", *words, "--model", model, "--peers", "", *SEVERAL))
            found[f"{name}, four workers / one"] = row["snailps"]["words_per_s"] / alone
        row = by_system(rows_of("words.py", *words, "--cbow"))
        rates = [row[system]["words_per_s"] for system in ("snailps", "fasttext")]
        found["CBOW, words/s / fastText"] = rates[0] / rates[1]
        row = by_system(rows_of("words.py", *words, "--cbow", "--peers", "", *SEVERAL))
        found["CBOW, four workers / one"] = row["snailps"]["words_per_s"] / rates[0]
        lines = ["--text", str(labelled(text, Path(folder) / "lines.txt")), "--no-peer", *runs]
        one, four = (
            by_system(rows_of("classifier.py", *lines, *more))["snailps"]["words_per_s"]
            for more in ((), SEVERAL)
        )
        found["classifier, four workers / one"] = four / one
        small = begin_of(args.corpus, JOB_BYTES, Path(folder) / "small.txt")
        job = ["--corpus", str(small), "--epochs", "5", "--peers", "", *runs]
        row = by_system(rows_of("words.py", *job, "--snailps-args=--bucket auto"))
        found["job of 3 MB, s"] = row["snailps"]["wall_s"]
    clicks = ["--only", "ctr", "--examples", str(EXAMPLES), *runs]
    rows = by_system(rows_of("sparse.py", *clicks, *peers), "ctr")
    vowpal = rows["vowpal wabbit"]["examples_per_s"]
    alone = rows["snailps"]["examples_per_s"]
    found["clicks, examples/s / Vowpal Wabbit"] = alone / vowpal
    for name, words in (
        ("clicks, bsp / async", "--consistency bsp"),
        ("clicks, four workers / one", " ".join(SEVERAL)),
    ):
        options = ["--no-peers", f"--snailps-args={words}"]
        rows = by_system(rows_of("sparse.py", *clicks, *options), "ctr")
        found[name] = rows["snailps"]["examples_per_s"] / alone
    [fits] = rows_of("fits.py", "--rows", str(CSR_ROWS), *runs)
    found["CSR, SGDClassifier's time / fit's"] = fits["sgd"]["wall"] / fits["fit"]["wall"]
    found |= small_fits(args.runs)
    [transport] = rows_of("transport.py", "--only", "pull,push,wire", *runs)
    for row in transport["targets"]:
        name = next((name for name in TRANSPORT if row["target"].startswith(name)), None)
        if name is not None and row["value"] is not None:
            found[name] = row["value"]
    return {name: round(value, 3) for name, value in found.items()}


def small_fits(runs: int) -> dict[str, float]:
    """The first and later fits of a small array, beside a Python that imports NumPy."""
    times: dict[str, list[float]] = {"import": [], "first": [], "later": []}
    for _ in range(runs):
        begin_s = time.monotonic()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True)
        times["import"].append(time.monotonic() - begin_s)
        command = [sys.executable, str(HERE / "first_try.py"), "--times"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for name, seconds in json.loads(done.stdout).items():
            times[name].append(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    return {
        f"import of NumPy / {name} small fit": medians["import"] / medians[name]
        for name in ("first", "later")
    }


def red(figures: dict[str, float], before: list[dict]) -> list[str]:
    """Say of each ratio that is below `RED` of its best so far what that was, and when."""
    fallen = []
    for name, value in figures.items():
        runs = [run for run in before if name in run["figures"]]
        if " / " not in name or not runs:
            continue
        sign = -1 if "memory" in name else 1
        best = max(runs, key=lambda run: sign * run["figures"][name])
        share = (value / best["figures"][name]) ** sign
        if share < RED:
            then = f"{best['figures'][name]:.3g}, {best['commit']}, {best['date']}"
            fallen.append(f"{name}: {value:.3g}, {share:.2f} of the best ({then})")
    return fallen


def commit() -> str:
    """The commit of the tree, with a + if the tree has changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def history(file: Path) -> list[dict]:
    """Runs so far, the oldest first: the ones of the repository, then the ones of a file beside."""
    files = dict.fromkeys((HISTORY, file.resolve()))
    lines = [line for name in files if name.is_file() for line in name.read_text().splitlines()]
    return [json.loads(line) for line in lines if line]


def draw(runs: list[dict], picture: Path) -> None:
    """Every ratio over the runs, as multiples of its first value."""
    if not runs:
        fail("no runs in the history")
    names = [name for name in runs[-1]["figures"] if " / " in name and "memory" not in name]
    series = []
    for name in names:
        known = [
            (i + 1, run["figures"][name]) for i, run in enumerate(runs) if name in run["figures"]
        ]
        series.append(Series(name, [(at, value / known[0][1]) for at, value in known]))
    text = chart("Ratios over the runs of bench/quick.py", "run", "of the first run", series)
    picture.write_text(text)


def main() -> None:
    """Measures, keeps, draws, prints."""
    args = arguments()
    picture = PICTURE if args.history.resolve() == HISTORY else args.history.with_suffix(".svg")
    before = history(args.history)
    if args.draw:
        draw(before, picture)
        return
    figures = measure(args)
    run = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "runs": args.runs,
        "figures": figures,
    }
    if not args.dry:
        args.history.parent.mkdir(parents=True, exist_ok=True)
        with open(args.history, "a") as file:
            file.write(json.dumps(run) + "\n")
        draw([*before, run], picture)
    last = before[-1]["figures"] if before else {}
    width = max(map(len, figures))
    for name, value in figures.items():
        change = f"{value / last[name] - 1:+8.0%}" if last.get(name) else ""
        print(f"{name:{width}}  {value:10,.3f}  {change}")
    if lines := red(figures, before):
        print(*(f"red: {line}" for line in lines), sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
