"""What a rig does for each kind of fault, and how it sees that it is over where no other part does.

    Fault -> Deeds._kill, _pause, _freeze, ... -> processes, links, the disk

The rest of it is `cluster.Rig`, whose part this is; `schedule.Fault` says what the words mean.
"""

import contextlib
import json
import os
import signal
import subprocess
import time

from faults.proxy import Weather, anyone
from faults.schedule import PLACES, STALL_S
from snailps.transport.handshake import Role

SLOW_BYTES_S, DELAY_S = 300_000, 0.03
CLIENTS = (anyone, lambda hello: hello.role == Role.WORKER, lambda hello: hello.role == Role.SERVER)
FAILED = "CHECKPOINT FAILED"
GRACE_S = 1.0
"""By then the master has been told which stream broke."""
LOST_S = 4.0
"""Who is stopped for longer is lost."""


TOGETHER_S = 0.1
AT_ONCE_S = 0.02
CALM_S = 0.3
TAKEOVER_S = 1.0
STARTING_S = 1.0
JOINING_S = (0.0, 0.0, 0.02, 0.5)
"""How long a process that has registered is left to join, at most."""
REGISTERED = "registered with the master"


class Hang(AssertionError):
    """The cluster gets no further."""


class Deeds:
    """The faults of a rig; each returns when what it did is over, redundancy aside."""

    def _kill(self, victim, fault):
        self.kill(victim)
        self.revive(victim)

    def _pause(self, victim, fault):
        victim.process.send(signal.SIGSTOP)
        self.rest(fault.lasts_s)
        victim.process.send(signal.SIGCONT)

    def _freeze(self, victim, fault):
        self._doomed.add(victim.process)
        victim.process.send(signal.SIGSTOP)
        self.await_lost(victim)
        victim.process.send(signal.SIGCONT)
        self._replace(victim)

    def _isolate(self, victim, fault):
        self.isolate(victim)
        self.rest(fault.lasts_s)
        self.end_isolation(victim)

    def isolate(self, victim):
        """Has the master give up a process whose connections to all others stay."""
        self._doomed.add(victim.process)
        self.proxy.partition([victim.control])
        self.await_lost(victim)

    def end_isolation(self, victim):
        """Lets a process hear that it was given up, and puts another in its place."""
        self.proxy.heal([victim.control])
        self._replace(victim)

    def _replace(self, victim):
        """Waits for the end of a process that was given up; it must not end well."""
        try:
            code = victim.process.wait(self.stall_s)
        except AssertionError as error:
            raise Hang(
                f"{victim.name} was given up and lives on: {error}\n{self.report()}"
            ) from None
        assert code != 0, f"{victim.name} was given up and ended well: {victim.process.stderr}"
        self.revive(victim)

    def _storm(self, victim, fault):
        """A process joins; it, or others, die meanwhile."""
        second = fault.whom.partition("+")[2]
        self.calm()
        role = "worker" if fault.whom == "server+joiner" or fault.index % 2 else "server"
        former = [one for one in self.alive(role) if one is not victim][-1]
        joiner = self.join(former)
        self._await_joining(joiner, fault)
        killed = [victim]
        self.kill(victim)
        if second == "joiner":
            others = [joiner]
        elif second in ("worker", "master") and fault.whom != "master+master":
            others = [one for one in self.alive(second) if one is not joiner]
        else:
            others = []
        if others:
            self.rest(TOGETHER_S * fault.share)
            killed.append(others[fault.index % len(others)])
            self.kill(killed[-1])
        for one in killed:
            self.revive(one)
        if fault.whom == "master+master":
            self.rest(TAKEOVER_S * fault.share)
            self.kill(victim)
            self.revive(victim)
        elif second == "replacement":
            self.await_line(victim.process, REGISTERED)
            self.rest(AT_ONCE_S * fault.share)
            self.kill(victim)
            self.revive(victim)
        self.until(self.is_redundant, f"redundancy after {fault.kind}, and the newcomer")
        self.newcomers.discard(joiner)
        self.dismiss(joiner)

    def calm(self):
        """Waits until every shard has had its standby for a while: nothing moves any more."""
        since = time.monotonic()
        while time.monotonic() - since < CALM_S:
            self._asked = (0.0, None)
            if not self.is_redundant():
                self.until(self.is_redundant, "redundancy before the next fault")
                since = time.monotonic()
            self.rest(CALM_S / 4)

    def _await_joining(self, joiner, fault):
        """Lets a newcomer get somewhere: it starts, has registered, connects, or is done."""
        if fault.index % 4:
            self.await_line(joiner.process, REGISTERED)
            self.rest(JOINING_S[fault.index % 4] * fault.share)
        else:
            self.rest(STARTING_S * fault.share)

    def _stall(self, victim, fault):
        """SIGSTOP for long; it goes on, or is taken for lost and replaced."""
        process = victim.process
        self.calm()
        self._doomed.add(process)
        process.send(signal.SIGSTOP)
        shortest, longest = STALL_S
        seconds = min(self.stall_max_s, shortest + (longest - shortest) * fault.share)
        begin = time.monotonic()
        if "+" in fault.whom:
            self.rest(TOGETHER_S * fault.share)
            other = self.alive("server")[0]
            self.kill(other)
            self.revive(other)
        if seconds > LOST_S and victim is not self.master:
            self.rest(begin + LOST_S - time.monotonic())
            self.await_lost(victim)
        self.rest(begin + seconds - time.monotonic())
        process.send(signal.SIGCONT)
        self.rest(GRACE_S)
        self._asked = (0.0, None)
        if victim is self.master:
            self._doomed.discard(process)
            return
        self.until(
            lambda: process.popen.poll() is not None or self._is_member(process.pid),
            f"{victim.name}, stalled for {seconds:.1f} s, to go on or to end",
        )
        if process.popen.poll() is None:
            self._doomed.discard(process)
        else:
            self._replace(victim)

    def _is_member(self, pid):
        status = self.status()
        return status is not None and pid in self.members()

    def _aim(self, victim, fault):
        place = fault.whom.split(":")[1]
        rare = place.startswith(("yield", "compact"))
        calls = 1 if rare else 1 + fault.bytes % 10
        wish = {**PLACES[place], "call": calls, "passings": calls}
        (self.folder / f"aim-{victim.process.pid}").write_text(json.dumps(wish))
        victim.process.send(signal.SIGUSR1)
        if "yield" in place:  # a new server gets a shard of the one that has two
            other = next(one for one in self.alive("server") if one is not victim)
            self.kill(other)
            self.revive(other)
        self.await_death(victim)

    def _links(self, victim, fault):
        return victim.data if fault.whom == "data" else [victim.control]

    def _cut(self, victim, fault):
        if fault.whom == "data":
            for link in victim.data:
                link.cut(CLIENTS[fault.bytes % 3])
            self.rest(GRACE_S)  # a stream that broke is noticed
            return
        # A node whose connection breaks is taken for lost: it may be taken back, or it is replaced.
        process = victim.process
        self._doomed.add(process)
        victim.control.cut()
        self.until(lambda: process.pid not in self.members() or process.popen.poll() is not None,
                   f"{victim.name} to be missed")  # fmt: skip
        self._replace(victim)

    def _tear(self, victim, fault):
        links = self._links(victim, fault)
        cuts = sum(link.cuts for link in links)
        for link in links:
            link.cut_after(fault.bytes, CLIENTS[fault.index % 3])
        with contextlib.suppress(Hang):  # none of those may send as much
            self.until(lambda: sum(link.cuts for link in links) > cuts, "a frame to be torn", 5.0)
        for link in links:
            link.fuse = None
        self.rest(GRACE_S)  # a stream that broke is noticed

    def _slow(self, victim, fault):
        self._weather(victim, fault, Weather(bytes_per_s=SLOW_BYTES_S))

    def _delay(self, victim, fault):
        self._weather(victim, fault, Weather(delay_s=DELAY_S))

    def _silence(self, victim, fault):
        clients = CLIENTS[fault.bytes % 3] if fault.whom == "data" else anyone
        self._weather(victim, fault, Weather(silent=True, clients=clients))

    def _weather(self, victim, fault, weather):
        for link in self._links(victim, fault):
            link.set(weather)
        self.rest(fault.lasts_s)
        self.proxy.heal(self._links(victim, fault))

    def mount(self, size="16m"):
        """A small disk of its own, `disk`; False where that is not allowed."""
        folder = self.folder / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            return False
        self.disk = folder
        return True

    def _fill(self, victim, fault):
        """Full for a while, and until a checkpoint has failed; what that frees is filled, too."""
        assert self.disk is not None, "mount() first"
        filler, end = self.disk / "filler", time.monotonic() + fault.lasts_s
        before = victim.process.stderr.count(FAILED)

        def has_failed():
            with contextlib.suppress(OSError), open(filler, "ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            return time.monotonic() > end and victim.process.stderr.count(FAILED) > before

        self.until(has_failed, "a checkpoint to fail")
        filler.unlink(missing_ok=True)
