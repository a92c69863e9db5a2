#!/usr/bin/env python3
"""Kills of any process: lost pushes, hangs, durations.

    count    random kills of servers, workers and the master while pushes are counted
    train    the same while fastText trains; its result compared with an undisturbed run
    every    every other fault of tests/faults while pushes are counted
    storm    kills of one or two processes while another one joins, and stalls of 1 to 20 s between
    session  kills of a session's master, servers and drivers while these push what is counted
             -> one JSON object a part (--json), targets (--table)

One kill at a time, the next when all processes have joined and every shard has its standby.
What replication costs, and what moves do to the speed, is measured by failover.py, a thousand nodes
at one master by nodes.py.  README.md here says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from words import HERE, ROOT, corpus_of, fail, machine, say, test_data

sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]
from faults.cluster import JobOver, Rig  # noqa: E402
from faults.schedule import (  # noqa: E402
    AIMS,
    CONTROL,
    CUT_OVERS,
    FREEZES,
    ISOLATIONS,
    KILLS,
    LINKS,
    MANIFESTS,
    MASTER_AIMS,
    PAUSES,
    STALLS,
    STORMS,
    Schedule,
)
from faults.session import SESSION_KILLS, SessionRig  # noqa: E402

HEARTBEAT_TIMEOUT_S = 4
STALL_S = 90.0
RUN = 25
"""Faults in one run of the counting job, after which the counts are checked."""
OTHERS = (
    *PAUSES, *FREEZES, *ISOLATIONS, *LINKS, *CONTROL, *AIMS, *CUT_OVERS, *MASTER_AIMS, *MANIFESTS
)  # fmt: skip


class Training(Rig):
    """The same for a job of fastText, which ends by itself."""

    counted = "blocks"
    ends = True

    def __init__(self, folder, corpus, epochs, settings=None, job=None, **named):
        self._text = {"input": str(corpus), "epochs": epochs}
        self._blocks = 0
        super().__init__(folder, settings, job, **named)

    def _job(self, block_num, shards):
        return {
            "worker_class": "snailps.models.word_vectors:WordVectors", "output": "out",
            "formats": "vec", **self._text,
        }  # fmt: skip

    def progress(self):
        """Blocks done, as the master last reported; a killed master reports nothing."""
        status = self.status()
        if status is not None and status["phase"] == "training":
            self._blocks = max(self._blocks, status["blocks"]["done"])
        return self._blocks

    def figures(self):
        """Figures that the master printed at the end."""
        return json.loads(self.master.process.stdout.strip().splitlines()[-1])


class Toll:
    """Totals of a part's runs; prints the progress.

    Parameters
    ----------
    name : str
    goal : int
        Kills.
    """

    def __init__(self, name, goal, begin):
        self.name, self.goal, self.begin = name, goal, begin
        self.events, self.reports = [], []
        self.acknowledged = self.in_flight = self.applied = self.lost = self.wrong = self.hangs = 0

    def tell(self, rig):
        """A line after each kill."""
        done = len(self.events) + len(rig.events)
        spent_s = time.monotonic() - self.begin
        left_s = spent_s / max(1, done) * (self.goal - done)
        event = rig.events[-1]
        took = (
            "not repaired"
            if event.repaired_s is None
            else f"repaired after {event.repaired_s:.1f} s"
        )
        say(f"{self.name}: {done}/{self.goal} {event.fault.kind}, {took}; {left_s:.0f} s left")

    def failed(self, error):
        """Records a run that failed."""
        self.hangs += 1
        self.reports.append(str(error))
        say(f"{self.name}: FAILED\n{error}")

    def figures(self):
        """All totals."""
        by = Counter(event.fault.kind for event in self.events)
        servers = [event for event in self.events if event.fault.kind == "kill server"]
        return {
            "kills": sum(event.fault.kills for event in self.events),
            "by_kind": dict(by),
            "hangs": self.hangs,
            **spread("repaired_s", self.events),
            **spread("resume_s", self.events, "resumed_s"),
            **spread("server_noticed_s", servers, "noticed_s"),
            **spread("server_pulled_s", servers, "pulled_s"),
        }


def spread(name, events, attribute=None):
    """Median and maximum of a figure of events."""
    found = [getattr(event, attribute or name) for event in events]
    found = [value for value in found if value is not None]
    if not found:
        return {}
    return {
        f"{name}_median": round(statistics.median(found), 3),
        f"{name}_max": round(max(found), 3),
    }


def hurt(rig, schedule, toll):
    """Performs kills and replacements with messages; True if nothing failed."""
    perform = rig.perform

    def told(number, fault):
        perform(number, fault)
        toll.tell(rig)

    rig.perform = told
    try:
        rig.form(STALL_S)
        rig.run(schedule)
        if rig.ends:
            rig.wait_over()
        else:
            rig.finish(STALL_S)
    except JobOver:
        rig.end(STALL_S)
    except AssertionError as error:
        toll.failed(error)
        toll.events += rig.events
        for process in rig.cluster.processes:
            process.close()
        return False
    toll.events += rig.events
    return True


class Scratch(tempfile.TemporaryDirectory):
    """A folder for one run, as a path."""

    def __enter__(self):
        return Path(super().__enter__())


# --- kills while counting ------------------------------------------------------------------------


def count(args):
    """Counted pushes under kills."""
    goal = math.ceil(args.kills / 2) if "train" in args.parts else args.kills
    return counted(args, "count", goal, KILLS)


def every(args):
    """Counted pushes under all other faults."""
    return counted(args, "every", args.faults, OTHERS)


def storm(args):
    """Counted pushes under kills of several processes while others join, and stalls."""
    # Each round of kinds has as many kills as these; the last round may be a part.
    kinds = (*STORMS, *STALLS)
    probe = Schedule(args.seed, len(kinds), kinds)
    faults = math.ceil(args.kills * len(kinds) / sum(fault.kills for fault in probe))
    return counted(args, "storm", faults, kinds)


def session(args):
    """Counted pushes of drivers under kills of all that a session is of."""
    return counted(args, "session", args.kills, SESSION_KILLS)


def counted(args, part, goal, kinds):
    """Counted pushes under faults, in runs of `RUN`, so that each can be repeated by its seed."""
    toll = Toll(part, goal, time.monotonic())
    job = {"window": 8, "own": 2, "shared": 64, "dim": 16, "pushes": 4, "pause": 0.01}
    if part == "every":
        job["checkpoint_interval"] = 1
    run = restarts = 0
    while len(toll.events) < goal and toll.hangs < 5:
        number = min(RUN, goal - len(toll.events))
        schedule = Schedule(args.seed + run, number, kinds, every=args.every)
        run += 1
        say(f"{part}: run {run}, {str(schedule).splitlines()[0]}")
        with Scratch(prefix="snailps-bench-") as folder:
            settings = {"replication": args.replication, "shard_num": args.shards,
                        "heartbeat_timeout": HEARTBEAT_TIMEOUT_S}  # fmt: skip
            size = {"servers": args.servers, "shard_num": args.shards, "stall_s": STALL_S}
            if part == "session":
                rig = SessionRig(folder, settings, job, drivers=args.workers, **size)
            else:
                rig = Rig(folder, settings, job, workers=args.workers, **size)
            try:
                with rig:
                    good = hurt(rig, schedule, toll)
                    if good:
                        verdict = rig.verdict()
            except AssertionError as error:
                toll.failed(error)
                continue
            restarts += rig.restarts
            if not good:
                continue
        toll.acknowledged += verdict.acknowledged
        toll.in_flight += verdict.in_flight
        toll.applied += verdict.applied
        toll.lost += len(verdict.lost)
        toll.wrong += sum(len(getattr(verdict, name)) for name in verdict.FAULTS) - len(
            verdict.lost
        )
        if not verdict.good:
            toll.reports.append(f"{verdict}\n{schedule}")
            say(f"{part}: {verdict}\n{schedule}")
    return {
        "part": part, "servers": args.servers, "shards": args.servers * args.shards,
        "workers": args.workers, "replication": args.replication, "runs": run, "seed": args.seed,
        **toll.figures(), "lost_pushes": toll.lost, "other_faults": toll.wrong,
        "newcomers_restarted": restarts,
        "acknowledged": toll.acknowledged, "in_flight": toll.in_flight,
        "in_flight_applied": toll.applied, "reports": toll.reports,
    }  # fmt: skip


# --- kills while training ------------------------------------------------------------------------


def train(args):
    """FastText under kills, and the same undisturbed: loss, similarity, words a second."""
    goal = args.kills // 2 if "count" in args.parts else args.kills
    toll = Toll("train", goal, time.monotonic())
    pairs = test_data("words/EN-WS-353-ALL.txt")
    quality = [pairs] if pairs and pairs.exists() else []
    fair = foul = None
    run = 0
    with Scratch(prefix="snailps-bench-") as scratch:
        corpus = words_of(args, scratch)
        fair = trained(args, scratch / "fair", corpus, Schedule(0, 0, KILLS), None, quality)
        found = []
        while len(toll.events) < goal and toll.hangs < 5:
            schedule = Schedule(
                args.seed + 1000 + run, goal - len(toll.events), KILLS, every=args.blocks
            )
            run += 1
            foul = trained(args, scratch / f"foul-{run}", corpus, schedule, toll, quality)
            found += [foul] if foul else []
    return {
        "part": "train", "servers": args.servers, "shards": args.servers * args.shards,
        "workers": args.workers, "replication": args.replication, "runs": run, "seed": args.seed,
        **toll.figures(), "undisturbed": fair, "disturbed": found, "reports": toll.reports,
    }  # fmt: skip


def words_of(args, scratch):
    """The corpus: the first bytes of a plain or packed text."""
    import gzip

    source = corpus_of(args.corpus)
    with (gzip.open if source.suffix == ".gz" else open)(source, "rb") as file:
        text = file.read(int(args.mb * 1e6))
    path = scratch / "corpus.txt"
    path.write_bytes(text[: text.rfind(b" ")] + b"\n")
    return path


def trained(args, folder, corpus, schedule, toll, quality, **job):
    """One training; loss, quality and words a second, None if it failed."""
    folder.mkdir()
    rig = Training(
        folder, corpus, args.epochs, {"replication": args.replication, "shard_num": args.shards},
        job, servers=args.servers, workers=args.workers, shard_num=args.shards, stall_s=STALL_S,
    )  # fmt: skip
    try:
        with rig:
            if not hurt(rig, schedule, toll or Toll("undisturbed", 0, time.monotonic())):
                return None
            figures = rig.figures()
    except AssertionError as error:
        (toll or Toll("undisturbed", 0, time.monotonic())).failed(error)
        return None
    from words import judge

    scores = judge(argparse.Namespace(similarity=quality, analogies=None), folder / "out.vec")
    return {
        "kills": len(rig.events), "train_loss": figures["train_loss"], "quality": scores,
        "words_per_s": round(figures["words_per_s"]), "train_s": round(figures["train_s"], 1),
    }  # fmt: skip


# --- all parts -----------------------------------------------------------------------------------

PARTS = {"count": count, "train": train, "every": every, "storm": storm, "session": session}


WRONG = ("lost_pushes", "other_faults", "hangs")
"""Counts of a part; one that is not 0 is this command's exit code 1."""


def targets(row):
    """Targets of a part, and its results."""
    asked = [(name, 0) for name in WRONG if name in row]
    judged = [
        (f"{row['part']}: {name} = {goal}", row[name], row[name] == goal) for name, goal in asked
    ]
    if "server_noticed_s_max" in row and "server_pulled_s_max" in row:
        late = row["server_noticed_s_max"]
        judged.append((f"{row['part']}: server's death noticed <= 1 s", late, late <= 1))
        pulls = row["server_pulled_s_max"]
        judged.append((f"{row['part']}: pulls again <= 2 s later", pulls, pulls <= late + 2))
    return judged


def main() -> None:
    """Runs the parts and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--parts", default="count,train", help="with commas")
    add("--kills", type=int, default=200, help="shared by count and train, if both are run")
    add("--faults", type=int, default=100, help="of every")
    add("--seed", type=int, default=1)
    add("--every", type=int, default=150, help="acknowledged pushes between two kills, mean")
    add("--blocks", type=int, default=8, help="blocks between two kills of train, mean")
    add("--servers", type=int, default=2)
    add("--workers", type=int, default=2)
    add("--shards", type=int, default=1, help="of each server")
    add("--replication", default="sync")
    add("--corpus", type=Path, help="a text, plain or .gz; default: the one in SNAILPS_DATA")
    add("--mb", type=float, default=8.0, help="use its first MB only")
    add("--epochs", type=int, default=3)
    add("--json", action="store_true", help="one JSON object a part")
    add("--table", action="store_true", help="targets, in Markdown")
    args = parser.parse_args()
    say(machine())
    wrong = 0
    for name in args.parts.split(","):
        if name not in PARTS:
            fail(f"--parts: unknown {name!r}; known: {', '.join(PARTS)}")
        row = PARTS[name](args) | {"machine": machine()}
        wrong += sum(row.get(what, 0) for what in WRONG)
        if args.json:
            print(json.dumps(row), flush=True)
        if args.table:
            print("| target | value | met |", "|---|---|---|", sep="\n")
            print(
                "\n".join(f"| {text} | {value} | {met} |" for text, value, met in targets(row)),
                flush=True,
            )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    assert HERE.name == "bench"
    main()
