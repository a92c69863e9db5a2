"""The counting harness over a session: its master, servers and drivers are killed.

    SessionRig(folder).form().run(schedule).finish() -> tables exported -> Verdict, as of a job
    python -m faults.session ADDRESS JOB             one driver: counted pushes until it is enough

Nothing trains here: each driver pushes to a table of the session, as a loop of PyTorch does.
"""

import json
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from processes import LIMIT_S, Process, environment

import snailps
from faults.cluster import Place, Rig, _program
from faults.counting import TABLE, Counted, CountedSettings
from snailps.config import RawConfig
from snailps.errors import ClusterError

SESSION_KILLS = ("kill master", "kill server", "kill driver")
AGAIN_S = 0.2


class SessionRig(Rig):
    """The same as `Rig` with drivers in the place of a job and its workers."""

    at_work = "idle"

    def __init__(self, folder, settings=None, job=None, *, servers=2, drivers=2, own=None, **named):
        super().__init__(folder, settings, job, servers=servers, workers=0, **named)
        self.enough = folder / "enough"
        self.job |= {"enough": str(self.enough), "input": "", "output": ""}
        kept = {"journal_dir": "journal", **(own or {})}
        self.cluster.write("job.conf", kept, "common.conf")
        self.places += [Place("driver", number) for number in range(1, drivers + 1)]

    def _start_master(self):
        self.master.process = self.cluster.master(
            port=self.cluster.port, options=("--session",), **_program(self.master, self.folder)
        )

    def _start(self, place):
        if place.role != "driver":
            super()._start(place)
            return
        address = f"127.0.0.1:{place.control.address[1]}"
        plain = {key: str(value) for key, value in self.job.items()}
        place.process = Process(
            f"driver {place.number}",
            [sys.executable, "-m", "faults.session", address, json.dumps(plain)],
            cwd=self.folder, env=environment(),
        )  # fmt: skip
        self.cluster.processes.append(place.process)

    def all_have_pushed(self):
        """Whether each driver has had a push acknowledged."""
        return super().all_have_pushed("driver")

    def finish(self, limit_s=LIMIT_S):
        """Has the drivers come to an end, reads the tables, and ends the session."""
        drivers = [place for place in self.places if place.role == "driver"]
        self._doomed |= {place.process for place in self.places}
        self.enough.touch()
        for place in drivers:
            code = place.process.wait(limit_s)
            assert code == 0, f"{place.name}: code {code}\n{self.report()}"
        with snailps.connect(self.cluster.address, timeout_s=limit_s) as cluster:
            cluster.export(self.folder / "out", "npz", tables=[TABLE])
        self._doomed.add(self.master.process)
        self.master.process.send(signal.SIGINT)
        return self.end(limit_s)


class Driven(Counted):
    """`Counted` in a driver: its rows are those of a table of the session."""

    def __init__(self, settings, table):
        self.settings, self._table = settings, table
        self.setup()

    def pull(self, table, keys):
        return self._table.pull(keys)

    def push_async(self, table, keys, values):
        return self._table.push_async(keys, values)


def drive(address, plain):
    """Pushes until it is enough."""
    settings = RawConfig.from_mapping(plain, "the rig").build(CountedSettings)
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            cluster = snailps.connect(
                address, timeout_s=LIMIT_S, request_timeout=10 * LIMIT_S,
                heartbeat_timeout=10 * LIMIT_S,
            )  # fmt: skip
            break
        except ClusterError:  # its master is killed just now
            if time.monotonic() > until:
                raise
            time.sleep(AGAIN_S)
    with cluster:
        driven = Driven(settings, cluster.table(TABLE, dim=settings.dim, wire="float32"))
        number = 0
        while not Path(settings.enough).exists():
            driven.train(SimpleNamespace(number=number))
            number += 1
        driven.finish()


if __name__ == "__main__":
    drive(sys.argv[1], json.loads(sys.argv[2]))
