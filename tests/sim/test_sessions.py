"""Tables of a session, of each kind, while its processes are lost or stand still.

    a fault x the message at which it comes x once or twice -> rows, and what a driver hears
    a seed -> steps of a driver, and faults -> the same

The master keeps a journal, unlike in the sessions of `test_sim`: another one takes over.
"""

import random
from dataclasses import replace
from functools import partial

import pytest
from cases import seeds

from tests.sim.cluster import Cluster
from tests.sim.jobs import JobPlan
from tests.sim.lives import PLAIN
from tests.sim.tables import DRAWN, OF_JOB, WHOLE, Known, Tables

BLOCKS = 4
SECOND = "second job's "
"""Of the job whose table is the session's."""
LOADED = "of the job: "
"""Of the rows of a job's own checkpoint, which a driver loads."""
STILL_S = 4.0
"""Less than the limit of heartbeats: nobody is lost."""
STOPPED_S = 45.0
"""Several times that limit. Who stands still himself does not count it against others."""
CHUNK = 10


class Session(Cluster):
    """A session that is taken over. Its driver goes through `steps`, one after the other."""

    steps = WHOLE

    def draw(self, seed):
        self.session = self.lasting = True
        scenario = replace(PLAIN, shards=2, blocks=BLOCKS, think_s=0.1, network=(0.001, 0.002, 0.0))
        return scenario, [JobPlan("async", 0, 1, BLOCKS, 1)]

    def __init__(self, seed):
        super().__init__(seed)
        modules = ("tests.sim.model", "nowhere")
        self.master_settings = replace(self.master_settings, modules=modules)
        self.known = Known(list(self.steps))
        self.deeds = {
            "kill master": self.faults.kill_master,
            "kill server": self._replace_server,
            "kill worker": self.faults.kill_worker,
            "kill driver": self._kill_driver,
            "stand still": partial(self._stand_still, STILL_S),
            "stop all": partial(self._stand_still, STOPPED_S),
            "stop master": self.faults.terminate,
        }
        self.deeds = {name: partial(self._while_all_run, deed) for name, deed in self.deeds.items()}

    def enters(self, step):
        """Its driver begins a step."""

    def wait_for(self, name, number, deed):
        """A fault comes at the n-th message of a kind from now on."""
        self.faults.at_message(name, number, self.deeds[deed])

    def start_driver(self):
        self.driver = Tables(self, self.known, self.driver)
        self.driver.generation = self.generation
        self.nodes.append(self.driver)
        self.driver.start()

    def _while_all_run(self, deed):
        """Does a deed. Who stands still has no limit while the master does, but at another one."""
        living = [process for process in (*self.nodes, self.master) if process.alive]
        return self.master.alive and all(process.runs for process in living) and deed()

    def _replace_server(self):
        is_killed = self.faults.kill_server()
        if is_killed:
            self.faults.start_later(self.start_node, "server")
        return is_killed

    def _kill_driver(self):
        node = self.driver
        if node is None or not node.alive or node.welcome is None:
            return False
        node.hurt = "killed"
        node.die("killed")
        self.faults.start_later(self.start_driver)
        return True

    def _stand_still(self, seconds):
        until = self.world.now + seconds
        for process in (*self.nodes, self.master):
            process.stalled_until = until
        return True


class WithFault(Session):
    """One fault comes at the n-th message of a kind, and perhaps at the next one, too."""

    def __init__(self, deed, at, times):
        name, self._first = at
        self._deed, self._times = deed, times
        stage = next((stage for stage in (SECOND, LOADED) if name.startswith(stage)), "")
        self._name, self._stage = name.removeprefix(stage), stage
        self.steps = OF_JOB if stage == LOADED else WHOLE
        super().__init__(1)
        # So many steps are left as the stage begins.
        self._left = {SECOND: 2, LOADED: len(OF_JOB) - 4}.get(stage)

    def draw(self, seed):
        scenario, (plan,) = super().draw(seed)
        return scenario, [replace(plan, blocks=5 * BLOCKS if self._stage == LOADED else BLOCKS)]

    def begin(self):
        self.start_all()
        if self._left is None:
            self._wait()

    def enters(self, step):
        if len(self.known.steps) == self._left:
            self._left = None
            self._wait()

    def _wait(self):
        for number in range(self._times):
            self.wait_for(self._name, self._first + number, self._deed)


class Drawn(Session):
    """Steps, sizes and faults are drawn from the seed."""

    messages = (
        "Declare", "MakeTables", "Submit", "Lease", "Done", "SaveRows", "Save", "Saved", "LoadRows",
        "Load", "Loaded", "Rejoin", "TakeRoute", "BackUp", "Promote", "Finished", "AskJob",
    )  # fmt: skip

    def __init__(self, seed):
        rng = self._chance = random.Random(f"tables {seed}")
        self.steps = ["make", *(rng.choice(DRAWN) for _ in range(rng.randint(4, 12)))]
        super().__init__(seed)

    def draw(self, seed):
        scenario, (plan,) = super().draw(seed)
        rng = self._chance
        scenario = replace(
            scenario, servers=rng.choice((2, 2, 3)), shards=rng.choice((1, 2)),
            workers=rng.choice((1, 1, 2)), think_s=rng.choice((0.02, 0.1)),
        )  # fmt: skip
        return scenario, [replace(plan, blocks=rng.choice((4, 12, 30)))]

    def begin(self):
        rng = self._chance
        self.start_all()
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
            deed = rng.choice([*self.deeds])
            if rng.random() < 0.4:
                self.faults.at_time(rng.uniform(1.0, 20.0), self.deeds[deed])
            else:
                self.wait_for(rng.choice(self.messages), rng.choice((1, 1, 2, 3, 8)), deed)


CASES = [
    (deed, at, times)
    for deed in ("kill master", "kill server", "kill worker", "kill driver", "stand still",
                 "stop all")
    for at in (("Declare", 1), ("Declare", 3), ("MakeTables", 1), ("Submit", 1), ("Done", 2),
               ("SaveRows", 1), ("Saved", 1), ("LoadRows", 1), ("Load", 1), ("Loaded", 1),
               (f"{SECOND}Done", 1), (f"{SECOND}Done", 3), (f"{LOADED}LoadRows", 1),
               (f"{LOADED}Load", 1), (f"{LOADED}Loaded", 1), (f"{LOADED}Done", 3),
               (f"{LOADED}Done", 30), (f"{LOADED}Saved", 2))
    for times in (1, 2)
]  # fmt: skip


def name_of(part):
    return f"{part[0]} {part[1]}" if isinstance(part, tuple) else None


def failure(outcome):
    return "\n".join([*outcome.problems, *map(str, outcome.recent[-40:])])


@pytest.mark.parametrize(("deed", "at", "times"), CASES, ids=name_of)
def test_each_kind_of_table_has_its_rows_whatever_is_lost(deed, at, times):
    outcome = WithFault(deed, at, times).run()
    assert outcome.faults
    assert not outcome.problems, failure(outcome)


@pytest.mark.parametrize("first", range(0, len(seeds(120)), CHUNK))
def test_rows_of_a_drawn_session_are_known_after_each_step(first):
    failed = []
    for seed in range(first, first + CHUNK):
        outcome = Drawn(seed).run()
        if outcome.problems:
            failed.append(f"seed {seed}: {failure(outcome)}")
    assert not failed, "\n\n".join(failed)
