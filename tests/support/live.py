"""A live master and a live shard behind a secret, and an honest client, for tests that attack.

Live(folder) -> processes -> addresses to attack, `serve` for honest work, memory of both
"""

import contextlib
import itertools
import threading
from pathlib import Path

import numpy as np
from processes import LIMIT_S, Cluster

from snailps.api.tables import Table
from snailps.config import ClusterSettings, RawConfig
from snailps.local.driver import Driver

SECRET = "correct-horse-battery-staple"


class Live:
    """A cluster of one master and one server with one shard, waiting for jobs.

    Attributes
    ----------
    addresses : dict
        Addresses of "master" and "shard".
    victim : int
        Number of a table that may be written to.
    job : int
        The cluster id, which peers send in their handshake.
    """

    def __init__(self, folder, *, copied=True, **settings):
        file = folder / "secret"
        file.write_text(SECRET)
        file.chmod(0o600)
        settings = {"secret_file": file, "replication": "none", "log_level": "warning", **settings}
        self._cluster = Cluster(folder, settings, workers=0, copied=copied)
        self.processes = {}
        try:
            self.processes["master"] = self._cluster.master(options=["--session"])
            self.processes["shard"] = self._cluster.start("server")
            raw = {"master_addr": self._cluster.address, "secret_file": str(file)}
            self._driver = Driver(RawConfig.from_mapping(raw, "test").build(ClusterSettings))
            self.job = self._driver.join().job
            assert self._driver.routed.wait(LIMIT_S)
            self._driver.declare(Table("victim", 4, access="add"))
            self.victim = self._driver.all_tables()["victim"][0]
            self._driver.declare(Table("honest", 4, access="add"))
        except BaseException:
            self._cluster.close(check=False)
            raise
        shard = self._driver._follower.links.route.shards[0]
        self.addresses = {
            "master": ("127.0.0.1", self._cluster.port),
            "shard": (shard.host, shard.port),
        }
        self._served = itertools.count(1)

    def serve(self):
        """Makes an honest round: a status, a push and a pull, which must be right."""
        number = next(self._served) % 1000
        keys = np.arange(number << 20, (number << 20) + 8, dtype=np.uint64)
        values = np.full((8, 4), float(number), np.float32)
        before = self._driver.pull("honest", keys)
        self._driver.push("honest", keys, values)
        assert np.array_equal(self._driver.pull("honest", keys) - before, values)
        assert self._driver.status()["phase"] == "idle"
        return number

    def memory_mb(self):
        """Resident memory of master and server together."""
        total_mb = 0.0
        for process in self.processes.values():
            status = Path(f"/proc/{process.pid}/status").read_text()
            total_mb += int(status.split("VmRSS:")[1].split()[0]) / 1000
        return total_mb

    def descriptors(self):
        """Open descriptors of master and server."""
        return sum(len(list(Path(f"/proc/{p.pid}/fd").iterdir())) for p in self.processes.values())

    def refusals(self):
        """Lines of both logs that say who was refused."""
        return [line for p in self.processes.values() for line in p.lines if "refused" in line]

    def close(self):
        """Ends the cluster, which must still end by itself."""
        try:
            self._driver.shut_down()
            self._driver.close()
            codes = self._cluster.codes()
            assert codes == [0, 0], [p.lines[-9:] for p in self.processes.values()]
            for process in self.processes.values():
                _, broken, words = process.stderr.partition("Traceback")
                assert not broken, words[:4000]
        finally:
            self._cluster.close(check=False)


@contextlib.contextmanager
def served(live):
    """Works honestly until the end; a list of its rounds, with the error, if any, at its end."""
    over, failed, count = threading.Event(), [], []

    def serve():
        try:
            count.append(live.serve())  # once at least, however late this thread begins
            while not over.is_set():
                count.append(live.serve())
        except BaseException as error:
            failed.append(error)
            count.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield count
    finally:
        over.set()
        thread.join(LIMIT_S)
    assert not failed, failed
    assert not thread.is_alive()
    assert count
