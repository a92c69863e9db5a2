"""What safety costs while nothing dies, and what a move does to the speed: parts of recovery.py.

    price    fastText with replication none, sync, sync, none, ...    -> words/s, their ratio
    moves    status, a few times a second -> words/s before, while a server joins, while it drains
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from consistency import Setup, run
from recovery import spread_of, words_of
from words import ROOT, fail, say

sys.path.insert(0, str(ROOT))
from snailps.cli.status import ask
from snailps.errors import SnailError
from snailps.roles.launcher import Launcher

STEP_S = 0.25
WINDOW_S = 1.0
"""Over which a rate is taken: blocks are done one by one."""
CALM_S, AFTER_S, LIMIT_S = 15.0, 8.0, 120.0
DIP = 0.7
"""Below this share of the rate before, it is a dip."""


def _job(corpus, args):
    return {
        "worker_class": "snailps.models.word_vectors:WordVectors", "input": corpus,
        "epochs": args.epochs, "formats": "vec",
    }  # fmt: skip


# --- price ---------------------------------------------------------------------------------------


def price(args):
    """Words a second without and with standbys, in turns A B B A; medians and their ratio."""
    found = {"none": [], "sync": []}
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as name:
        corpus = words_of(args, Path(name))
        order = [kind for turn in range(args.runs) for kind in ("none", "sync")[:: -1 if turn % 2 else 1]]
        for index, kind in enumerate(order):
            figures = run(
                Setup(args.workers, args.servers),
                {**_job(corpus, args), "replication": kind, "output": Path(name) / f"{index}"},
            )
            found[kind].append(figures["words_per_s"])
            say(f"price: {index + 1}/{len(order)} {kind}: {figures['words_per_s']:.0f} words/s")
    medians = {kind: statistics.median(rates) for kind, rates in found.items()}
    ratio = round(medians["sync"] / medians["none"], 3)
    return {
        "part": "price", "servers": args.servers, "workers": args.workers,
        "words_per_s": medians, "runs": found, "ratio": ratio,
        "targets": [("price: sync / none >= 0.7", ratio, ratio >= 0.7)],
    }  # fmt: skip


# --- moves ---------------------------------------------------------------------------------------


class Speed:
    """Samples of units done; rates over windows."""

    def __init__(self, address):
        self._address = address
        self.samples = []  # (when, units)
        self.status = None

    def sample(self, seconds):
        """Looks for so long; what the master last said."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self.status = ask(self._address, 5.0)
            except SnailError:
                self.status = None
            if self.status is not None and self.status["phase"] == "training":
                self.samples.append((time.monotonic(), self.status["units"]))
            time.sleep(STEP_S)
        return self.status

    def rates(self, begin, end):
        """Units a second in each window that lies between two moments."""
        found = []
        inside = [one for one in self.samples if begin <= one[0] <= end]
        for when, units in inside:
            later = next((one for one in inside if one[0] >= when + WINDOW_S), None)
            if later is not None:
                found.append((when, (later[1] - units) / (later[0] - when)))
        return found


def moves(args):
    """A server joins a running job and is drained again; the dips in words/s, and how long."""
    found = []
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as name:
        corpus = words_of(args, Path(name))
        for index in range(args.runs):
            found.append(_moves_once(args, corpus, Path(name)))
            say(f"moves: {index + 1}/{args.runs} {found[-1]}")
    row = {"part": "moves", "servers": args.servers, "workers": args.workers, "runs": found}
    row["targets"] = []
    for what in ("join", "drain"):
        row[f"{what}_s"] = spread_of([one[what]["took_s"] for one in found])
        dips = [one[what]["dip_s"] for one in found]
        row["targets"].append((f"moves: {what}: seconds under {DIP} of the speed < 5", dips, max(dips) < 5))
    return row


def _moves_once(args, corpus, folder):
    lines = []
    sets = [
        "listen_addr=127.0.0.1:0", "log_level=info", "threads=1", "shard_num=2",
        "on_node_loss=recover", f"replication={args.replication}", f"output={folder / 'out'}",
        "fresh=true", "epochs=1000", "block_bytes=40000",
        *(f"{k}={v}" for k, v in _job(corpus, args).items() if k != "epochs"),
    ]  # fmt: skip
    launcher = Launcher(None, ["master_addr=127.0.0.1:16831", *sets], servers=args.servers,
                        workers=args.workers, on_line=lambda who, line: lines.append(line))  # fmt: skip
    extra = None
    try:
        launcher.start()
        speed = Speed(launcher.address)
        _until(speed, lambda s: s["phase"] == "training" and _settled(s), "redundancy at the start", lines)
        speed.sample(3.0)
        calm = _span(speed, CALM_S)
        command = [sys.executable, "-m", "snailps"]
        settings = ["--set", f"master_addr={launcher.address}"]
        more = ["--set", "shard_num=2", "--set", "on_node_loss=recover"]
        begin = time.monotonic()
        extra = subprocess.Popen([*command, "server", *settings, *more], cwd=ROOT, stderr=subprocess.PIPE)
        _until(speed, lambda s: _servers(s) == args.servers + 1 and _settled(s), "the server to join", lines)
        joined_s = time.monotonic() - begin
        speed.sample(AFTER_S)
        join = _dip(speed, calm, begin)
        number = max(node["id"] for node in speed.status["nodes"] if node["role"] == "server")
        begin = time.monotonic()
        drain = subprocess.run([*command, "cluster", "drain", str(number), *settings], cwd=ROOT,
                               capture_output=True, text=True, check=False)  # fmt: skip
        if drain.returncode:
            fail(f"drain: {drain.stderr}")
        _until(speed, lambda s: _servers(s) == args.servers and _settled(s), "the server to leave", lines)
        drained_s = time.monotonic() - begin
        code = extra.wait(30)
        speed.sample(AFTER_S)
        left = _dip(speed, calm, begin)
    finally:
        if launcher.poll() is None:
            launcher.interrupt()
            launcher.interrupt()
        launcher.end()
        if extra is not None and extra.poll() is None:
            extra.kill()
    return {
        "words_per_s": round(calm),
        "noise": _dip(speed, calm, begin=0, end=speed.samples[0][0] + CALM_S),
        "join": {"took_s": round(joined_s, 2), **join},
        "drain": {"took_s": round(drained_s, 2), "code": code, **left},
    }


def _span(speed, seconds):
    """The median rate of some seconds from now on."""
    begin = time.monotonic()
    speed.sample(seconds)
    return statistics.median(rate for _, rate in speed.rates(begin, time.monotonic()))


def _dip(speed, calm, begin, end=float("inf")):
    """How deep the rate fell, and for how long it was below `DIP`."""
    rates = speed.rates(begin, end)
    low = [rate for _, rate in rates if rate < DIP * calm]
    return {
        "lowest": round(min(rate for _, rate in rates) / calm, 2),
        "dip_s": round(len(low) * STEP_S, 2),
    }


def _settled(status):
    return all(shard["state"] in ("ready", "none") for shard in status["shards"])


def _servers(status):
    return sum(node["role"] == "server" and node["state"] != "gone" for node in status["nodes"])


def _until(speed, condition, what, lines):
    end = time.monotonic() + LIMIT_S
    while True:
        status = speed.sample(STEP_S)
        if status is not None and condition(status):
            return
        if time.monotonic() > end:
            fail(f"moves: waited {LIMIT_S:g} s for {what}:\n" + "\n".join(lines[-20:]))
