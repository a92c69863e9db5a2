#!/usr/bin/env python3
"""Sparse models: snailps beside Vowpal Wabbit and scikit-learn, in one run, interleaved.

    data (ctr.py, a9a) -> jobs: every system trains (A B C, C B A, ...) -> speed, memory, quality
                       -> one JSON object a system and job (--json), tables and targets (--table)

Speed is of the whole process, from text to a model on disk; its quality is always given beside it,
judged by the same code for all (judge.py).  README.md here says more.
"""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ctr
from linear_systems import (
    Job,
    ScikitLearn,
    Snailps,
    System,
    VowpalWabbit,
    as_vw,
    forget,
    own_environment,
    run_once,
)
from sparse_report import table, targets
from words import fail, machine, peers_python, say, test_data

JOBS = ("a9a", "ctr", "workers")
A9A_EXAMPLES = 32_561
A9A_FEATURES = 123
A9A_BITS = 18

# Options of each system and job.  Only Vowpal Wabbit's on the click data were tuned, on the
# hold-out file itself (README.md here says what was tried); elsewhere all have their defaults, and
# as many passes as the others.
SNAILPS = {
    "a9a": ("--epochs", "20"),
    "ctr": ("--epochs", "1"),
}
VW = {
    "a9a": ("--passes", "20", "-c", "-k", "--holdout_off"),
    "ctr": (),
}
VW_FTRL = {
    "a9a": ("--ftrl", "--passes", "20", "-c", "-k", "--holdout_off"),
    "ctr": ("--ftrl", "--ftrl_alpha", "0.1", "--l1", "1"),
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--only", default=",".join(JOBS), help="jobs, with commas: " + ", ".join(JOBS))
    add("--examples", type=int, help="of the click data, instead of 5 million (targets: none)")
    add("--a9a", type=Path, help="folder with a9a and a9a.t; default: the one in SNAILPS_DATA")
    add("--data", type=Path, help="folder that keeps the click data; default: made anew each time")
    add("--runs", type=int, default=3, help="runs of each system, interleaved")
    add("--seeds", type=int, default=3, help="how many seeds the job `workers` goes through")
    add("--threads", type=int, default=2, help="of the worker")
    add("--no-snailps", action="store_true", help="peers only")
    add("--no-peers", action="store_true", help="snailps only")
    add("--snailps-args", default="", help="more words for snailps's command lines")
    add("--limit-s", type=float, default=1800.0, help="longest time of one training")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--peers-python", help="a Python that has the peers, instead of .bench-venv")
    add("--json", action="store_true", help="one JSON object a system and job")
    add("--table", action="store_true", help="Markdown tables, and the targets")
    args = parser.parse_args()
    args.only = args.only.split(",")
    unknown = [name for name in args.only if name not in JOBS]
    if unknown:
        fail(f"unknown job {unknown[0]!r}; known: {', '.join(JOBS)}")
    if args.no_snailps and args.no_peers:
        fail("nothing to run: --no-snailps and --no-peers")
    if args.runs < 1 or args.seeds < 1:
        fail("--runs and --seeds: at least 1")
    return args


class Bench:
    """What all jobs share: arguments, folders, how the systems are started."""

    def __init__(self, args: argparse.Namespace, scratch: Path) -> None:
        self.args, self.scratch = args, scratch
        self.data = args.data or scratch
        self.env = {} if args.no_snailps else own_environment(scratch)
        self.python = "" if args.no_peers else peers_python(args.peers_python)

    def snailps(self, name: str) -> list[System]:
        """snailps with the options of a job, unless it is left out."""
        if self.args.no_snailps:
            return []
        words = (*SNAILPS[name], *self.args.snailps_args.split())
        return [Snailps("snailps", words, env=self.env)]

    def vowpal_wabbit(self, name: str, bits: int) -> list[System]:
        """Vowpal Wabbit with its defaults, and with --ftrl."""
        if self.args.no_peers:
            return []
        both = {"vowpal wabbit": VW[name], "vowpal wabbit ftrl": VW_FTRL[name]}
        return [VowpalWabbit(n, o, python=self.python, bits=bits) for n, o in both.items()]

    def in_turns(self, job: Job, systems: list[System], more: Callable | None = None) -> list[dict]:
        """Train all, `runs` times, forth and back; one row a system.

        `more(system, run)` may add to a run what needs its model, before that is removed.
        """
        runs: dict[str, list[dict]] = {system.name: [] for system in systems}
        for run in range(self.args.runs):
            turn = replace(job, seed=1 + run)
            # Forth, then back, so that drift (heat, other load) affects all equally.
            for system in systems if run % 2 == 0 else systems[::-1]:
                figures = run_once(system, turn, self.scratch)
                if more is not None:
                    figures |= more(system, turn, figures)
                forget(figures["prefix"])
                runs[system.name].append(figures)
        return [self.summarise(job, system, runs[system.name]) for system in systems]

    def summarise(self, job: Job, system: System, runs: list[dict]) -> dict:
        """One system's runs as one row: medians, and the mean of the quality."""
        qualities = [run["quality"] for run in runs]
        row = {
            "job": job.name,
            "system": system.name,
            "examples_per_s": round(statistics.median(run["examples_per_s"] for run in runs)),
            "wall_s": round(statistics.median(run["wall_s"] for run in runs), 2),
            **{
                name: round(statistics.fmean(q[name] for q in qualities), 5)
                for name in qualities[0]
            },
            "workers": job.workers,
            "threads": job.threads,
            "examples": job.examples,
            "runs": len(runs),
            "options": " ".join(system.options),
            "examples_per_s_runs": [round(run["examples_per_s"]) for run in runs],
            "log_loss_runs": [round(q["log_loss"], 5) for q in qualities],
        }
        for name, digits in (("correlation", 4), ("slope", 4), ("peak_rss_mb", 1)):
            if name in runs[0]:
                row[name] = round(statistics.median(run[name] for run in runs), digits)
        # The training alone, by the master's clock.
        told = [
            run["told"]["examples_per_s"] for run in runs if "examples_per_s" in run.get("told", {})
        ]
        if told:
            row["training_examples_per_s"] = round(statistics.median(told))
        return row


# --- the jobs -----------------------------------------------------------------------------------


def a9a(bench: Bench, name: str) -> Job | None:
    """A job on a9a; None where the files are not there."""
    folder = bench.args.a9a or test_data("a9a")
    if folder is None:
        say(f"job {name} is left out: no --a9a FOLDER, and SNAILPS_DATA is not set")
        return None
    files = {"train": folder / "a9a", "test": folder / "a9a.t"}
    if not all(path.is_file() for path in files.values()):
        say(f"job {name} is left out: no a9a and a9a.t in {folder} (--a9a FOLDER)")
        return None
    paths = {
        part: {"libsvm": path, "vw": as_vw(path, bench.scratch / f"a9a-{part}.vw")}
        for part, path in files.items()
    }
    return Job(
        name, paths["train"], paths["test"], A9A_EXAMPLES, A9A_FEATURES, bench.args.limit_s,
        threads=bench.args.threads,
    )  # fmt: skip


def job_a9a(bench: Bench) -> list[dict]:
    """a9a: the quality of converged systems; times mean nothing on 32,561 lines."""
    job = a9a(bench, "a9a")
    if job is None:
        return []
    systems = bench.snailps("a9a") + bench.vowpal_wabbit("a9a", A9A_BITS)
    if not bench.args.no_peers:
        systems.append(ScikitLearn("scikit-learn", python=bench.python))
    return bench.in_turns(job, systems)


def click_data(bench: Bench) -> tuple[Job, ctr.Made]:
    """The click data, made if need be, and a job on it."""
    plan = ctr.Plan()
    if bench.args.examples:
        plan = replace(plan, examples=bench.args.examples)
    say(f"click data: {plan.examples:,} examples, features up to {plan.features:,}")
    made = ctr.make(plan, bench.data)
    job = Job(
        "ctr", made.train, made.test, plan.examples, plan.features, bench.args.limit_s,
        threads=bench.args.threads,
    )  # fmt: skip
    return job, made


def job_ctr(bench: Bench) -> list[dict]:
    """Clicks: speed from text of the whole process, log loss, and the planted weights."""
    job, made = click_data(bench)
    bits = (job.features - 1).bit_length()
    truth = made.train["vw"].parent / "truth.npz"

    def planted(system: System, turn: Job, figures: dict) -> dict:
        return ctr.recovered(truth, system.weights(turn, figures["prefix"]))

    rows = bench.in_turns(job, bench.snailps("ctr") + bench.vowpal_wabbit("ctr", bits), planted)
    for row in rows:
        row["best_log_loss"] = round(made.facts["test"]["best_log_loss"], 5)
    return rows


def job_workers(bench: Bench) -> list[dict]:
    """Clicks by 1, 2 and 4 workers of one thread; target: equal losses within noise."""
    job, _ = click_data(bench)
    rows = []
    bench_runs, bench.args.runs = bench.args.runs, bench.args.seeds
    for workers in (1, 2, 4):
        turn = replace(job, name="workers", workers=workers, threads=1)
        rows += bench.in_turns(turn, bench.snailps("ctr"))
    bench.args.runs = bench_runs
    for row in rows:
        losses = row["log_loss_runs"]
        row["log_loss_spread"] = round(max(losses) - min(losses), 5)
    return rows


# --- the end ----------------------------------------------------------------------------------


def main() -> None:
    """All jobs in sequence, then the figures."""
    args = arguments()
    work = {"a9a": job_a9a, "ctr": job_ctr, "workers": job_workers}
    rows = []
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as folder:
        bench = Bench(args, Path(folder))
        for name in args.only:
            rows += work[name](bench)
    verdicts = targets(rows, quick=bool(args.examples))
    about = {"machine": machine(), "date": datetime.date.today().isoformat()}
    if args.json:
        for row in [*rows, *verdicts]:
            print(json.dumps({**row, **about}), flush=True)
    if args.table or not args.json:
        print(table(rows, verdicts), flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
