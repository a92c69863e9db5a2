"""Cost of the master's journal during a job, and duration of a takeover from it.

    python bench/journal.py --facts 2000000 --servers 100 --shards 8 --workers 1000 --json
    python bench/journal.py --facts 2000000 --grown 0         # never compacted, for comparison

Job, leases, position and journal are the master's own code; the script simulates workers and
servers, which lease, finish and report blocks as fast as the master accepts it.  `write` leaves the
journal as kill -9 of the master does.  The takeover is another process, which reads and replays it
as `snailps master` does, and reports for how long it could not have answered, and its memory.
"""

import argparse
import json
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from snailps import JobSettings, Worker
from snailps.config import RawConfig
from snailps.config.settings import MasterSettings
from snailps.master import journal as module
from snailps.master.context import Context
from snailps.master.effects import Fact, Outbox
from snailps.master.job.beginning import prepare
from snailps.master.job.controller import JobController
from snailps.master.job.job import Job
from snailps.master.job.present import JobHooks
from snailps.master.job.record import JobRecord
from snailps.master.job.state import pack
from snailps.master.journal import Journal
from snailps.master.life import COMMAND
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import JobPhase, Reach
from snailps.master.takeover import first_fact, journal_path, unended
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages

FRAG_NUM = 1024
BLOCK_BYTES = 100
EPOCHS = 10
LIMIT_S = 3600


class Counted(Worker):
    """A model that is never run: the script sends its workers' messages."""


class Rows:
    """Orders to servers, which are not sent."""

    clocks_set, expiring, moving = True, False, False

    def __getattr__(self, name):
        return lambda *arguments, **named: None


class Out(Outbox):
    """Effects of the master's parts: facts go to the journal, answers to the script."""

    def __init__(self, journal):
        super().__init__(kept=True)
        self.journal = journal.note

    def reply(self, call, answer):
        call(answer)

    def send(self, peer, message):
        pass

    def put(self, effect):
        pass


class Side:
    """A master's job, members, position and journal, without connections."""

    def __init__(self, folder, settings):
        raw = RawConfig.from_mapping(
            {
                "worker_class": "journal:Counted", "input": str(folder / "in.txt"),
                "output": str(folder / "out"), "block_bytes": str(BLOCK_BYTES),
                "epochs": str(EPOCHS), "frag_num": str(FRAG_NUM), **settings,
            },
            "bench",
        )  # fmt: skip
        self.settings = raw.build(MasterSettings, also_known=(JobSettings,))
        self.job = Job(raw, (JobSettings, MasterSettings), time.monotonic())
        self.journal = Journal(journal_path(self.settings, JobRecord(self.job)))

    def open(self, life, past=None):
        """The members and the course of a life."""
        context = Context(self.settings, Out(self.journal), life, time.monotonic())
        lifecycle = SimpleNamespace(fail=_fail)
        facts = past.facts if past is not None else ()
        self.members = Membership(context, _fail, _fail, facts)
        self.controller = JobController(
            context, SimpleNamespace(files=None, reader=SimpleNamespace(looks=())),
            self.members, lifecycle, Rows(), SimpleNamespace(sum=lambda counter: 0),
            JobHooks(_fail, _fail, _fail), _fail, past,
        )  # fmt: skip
        self.controller.leases.job, self.controller.present.phase = self.job, JobPhase.READY


def _fail(text, *_):
    raise SystemExit(f"the job failed: {text}")


def write(folder, facts, *, servers, shards, workers, port, settings=None, seed=1):
    """Runs a job until its journal has had this many facts, and leaves it; returns figures.

    Parameters
    ----------
    folder : Path
        Gets the input and ``out.journal``.
    facts : int
    servers, shards, workers : int
        Servers, shards a server, workers.
    port : int
        Port in the servers' addresses: a takeover checks whether it answers.
    settings : dict, optional
        Of the job.
    """
    blocks = -(-facts // 2 // EPOCHS) + 2 * workers
    line = b"a line of text as a model may read it, and another one that makes it " + b"longer " * 4
    data = (line + b"\n") * (blocks * BLOCK_BYTES // len(line) + 1)
    (folder / "in.txt").write_bytes(data)
    side = Side(folder, settings or {})
    prepare(side.job, workers)
    side.journal.take()
    side.open(7)
    side.journal.begin(
        [
            first_fact(7, JobRecord(side.job), FRAG_NUM, time.time()),
            Fact(*side.members.numbers.keep()),
        ]
    )
    side.journal.keep_base(pack(JobRecord(side.job).base()))
    nodes = [
        Member(number, role, f"host{number}", number, number, [], reach=Reach.READY)
        for number, role in enumerate(["server"] * servers + ["worker"] * workers, 1)
    ]
    for member in nodes:
        side.members.all[member.number] = member
        side.members.note_member(member)
    places = [ShardAddress(s, "127.0.0.1", port) for s in range(1, servers + 1)] * shards
    side.members.take(Route.build(1, places, max(FRAG_NUM, len(places))))
    members = nodes[servers:]
    numbers = [member.number for member in members]
    side.journal.note("train", {"nodes": numbers, "at": time.time(), "restored": 0})
    side.controller.training.begin(side.job, numbers, None, time.monotonic())
    return {"blocks": side.job.schedule.size, **_train(side, members, facts, random.Random(seed))}


def _train(side, members, facts, chance):
    """Leases and finishes blocks, makes them durable, until there are this many facts."""
    leases, journal, count = side.controller.leases, side.journal, 0
    held = {member.number: [] for member in members}
    got, steps, stalls, compactions, bytes_max = [], [], [], 0, 0
    begin, clock, cpu = time.perf_counter(), time.perf_counter, time.process_time()
    while count < facts:
        member = chance.choice(members)
        mine = held[member.number]
        start = clock()
        if not mine:  # else it waits for others, which progress meanwhile
            leases.lease(member, messages.Lease("train"), got.append, time.monotonic())
            leases._asking.clear()
            leases._refused.clear()
            mine += [lease.number for lease in got]
            got.clear()
            continue
        figures = {"loss": chance.random(), "examples": 50.0, "lr": 0.05}
        number = mine.pop(0)
        done = messages.Done("train", number, 1000, chance.random(), figures)
        leases.done(member, done, lambda answer: None, time.monotonic())
        leases.durable(member, messages.Durable([number]), time.monotonic())
        count += 2
        if journal.is_long:
            at, compactions = time.thread_time(), compactions + 1
            journal.compact(side.controller.training.snapshot(time.monotonic()))
            stalls.append(time.thread_time() - at)
        steps.append(clock() - start)
        if count % 10_000 == 0:
            bytes_max = max(bytes_max, (journal.path / module.FACTS).stat().st_size)
    spent = clock() - begin
    if journal._compactor is not None:
        journal._compactor.join()
    journal.close()
    held_mb = sum(file.stat().st_size for file in journal.path.iterdir()) / 1e6
    return {
        "facts": count,
        "us_per_block": round(spent / (count / 2) * 1e6, 1),
        "cpu_us_per_block": round((time.process_time() - cpu) / (count / 2) * 1e6, 1),
        "block_ms_p999": round(float(np.quantile(steps, 0.999)) * 1e3, 3),
        "block_ms_max": round(max(steps) * 1e3, 2),
        "compactions": compactions,
        "snapshot_cpu_ms_max": round(max(stalls, default=0.0) * 1e3, 2),
        "facts_mb_max": round(bytes_max / 1e6, 1),
        "journal_mb": round(held_mb, 1),
        "writer_rss_mb": _rss_mb(),
    }


def take_over(folder, settings=None):
    """Reads and replays a journal as a starting master does; seconds of each step, memory."""
    begin, cpu = time.perf_counter(), time.process_time()
    side = Side(folder, settings or {})
    past = unended(side.journal, JobRecord(side.job), FRAG_NUM, COMMAND)
    if past is None:
        raise SystemExit("there is no run to take over")
    count = len(past.facts)
    side.open(past.facts[0].data["cluster_id"], past)
    side.journal.go_on([Fact(*side.members.numbers.keep())])
    del past
    read = time.perf_counter()
    prepare(side.job, len(side.members.nodes("worker")))  # beside the loop, in a master
    prepared = time.perf_counter()
    side.controller.opening.recovery.go_on(side.job, time.monotonic())
    end = time.perf_counter()
    side.journal.close()
    return {
        "facts_replayed": count,
        "read_s": round(read - begin, 3),
        "prepare_s": round(prepared - read, 3),
        "replay_s": round(end - prepared, 3),
        "takeover_s": round(end - begin, 3),
        "takeover_cpu_s": round(time.process_time() - cpu, 3),
        "blocks_done": side.job.schedule.finished,
        "takeover_rss_mb": _rss_mb(),
    }


def _rss_mb():
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def main():
    """Writes a journal, has another process take it over, prints the figures of both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--facts", type=int, default=2_000_000)
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--shards", type=int, default=8, help="of a server")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--consistency", default="async", choices=["async", "ssp", "bsp"])
    parser.add_argument("--grown", type=int, default=module.GROWN_BYTES, help="0: never compacted")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--take-over", help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = {"consistency": options.consistency}
    if options.consistency == "bsp":
        settings["micro_batches"] = str(options.workers)
    if options.take_over:
        print(json.dumps(take_over(Path(options.take_over), settings)))
        return
    module.GROWN_BYTES = options.grown or 1 << 62
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as server:
        size = {"servers": options.servers, "shards": options.shards, "workers": options.workers}
        port = server.getsockname()[1]
        figures = {**size, "consistency": options.consistency}
        figures |= write(Path(name), options.facts, port=port, settings=settings, **size)
        command = [sys.executable, str(Path(__file__).resolve()), "--take-over", name]
        command += ["--consistency", options.consistency, "--workers", str(options.workers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
        figures |= json.loads(done.stdout)
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{key:20} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
