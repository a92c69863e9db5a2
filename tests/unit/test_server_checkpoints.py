"""Checkpoints at a server: its core with real shards and files, without threads or sockets."""

import errno
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
from shards import ADD, JOB, ZEROS, push_frame
from turned_shard import NONCE, TurnedShard

from snailps.abi.key_hash import fragment_of
from snailps.config import ServerSettings
from snailps.errors import CheckpointError, ClusterError, ConnectionLost
from snailps.node.effects import Answering, Tick, Work, WorkDone
from snailps.node.limits import STOP_S
from snailps.server import checkpoints
from snailps.server import effects as fx
from snailps.server import events as ev
from snailps.server.checkpoint_io import ServerCheckpointFiles
from snailps.server.core import ServerCore
from snailps.store.checkpoint import shard_file
from snailps.store.checkpoint.disk import Disk
from snailps.store.checkpoint.folder import BEGUN, CheckpointFolder, write_course
from snailps.store.checkpoint.manifest import Manifest
from snailps.store.checkpoint.shard_file import FileEntry
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages as m
from snailps.transport.frame import encode_frame
from snailps.transport.handshake import Channel, Hello, Role

FRAG_NUM, LIFE, SHARDS = 16, 7, 2
KEYS = np.arange(300, dtype=np.uint64)
WORKER = Hello(Channel.DATA, Role.WORKER, NONCE, 1, 1, JOB)
ENDPOINTS = [("here", 7001 + i) for i in range(SHARDS)]


class House:
    """A server's core that is obeyed at once: shards run in this thread, works when they come."""

    def __init__(self, disk=None):
        self.now, self.call = 10.0, 0
        self.shards, self.threads, self.answers, self.told = {}, {}, {}, []
        self.held_works, self.holds = [], False
        files = ServerCheckpointFiles(LIFE, FRAG_NUM, disk or Disk())
        self.core = ServerCore(
            ServerSettings(),
            m.Welcome(1, 1, LIFE, FRAG_NUM, 1.0, 10.0),
            files,
            endpoints=ENDPOINTS,
            own_rss_mb=lambda: 1.0,
            load_method=lambda table: None,
        )
        shards = [ShardAddress(1, *endpoint) for endpoint in ENDPOINTS]
        self.route = Route.build(1, shards, FRAG_NUM)
        self.order(m.TakeRoute(self.route.to_dict()))
        for shard in self.shards.values():
            shard.add_table(1, 4, ADD, ZEROS, 0.0, 5, (0.0,))

    def feed(self, event):
        todo = [event]
        while todo:
            for effect in self.core.handle(todo.pop(0), self.now):
                todo += self.perform(effect)

    def perform(self, effect):
        if isinstance(effect, Answering):
            self.answers[effect.call] = effect.answer
        elif isinstance(effect, fx.Note):
            self.told.append(effect.message)
        elif isinstance(effect, fx.StartShard):
            made = self.threads[effect.shard] = TurnedShard(FRAG_NUM, staged_bytes_max=1 << 20)
            self.shards[effect.shard] = made.shard
            return [WorkDone(effect.shard, ENDPOINTS[effect.listener])]
        elif isinstance(effect, fx.Post):
            return [self.post(effect)]
        elif isinstance(effect, Work):
            if self.holds:
                self.held_works.append(effect)
            else:
                return [self.work(effect)]
        return []

    def post(self, effect):
        shard = self.shards.get(effect.shard)
        if shard is None:
            return WorkDone(effect.post, error=ConnectionLost("gone"))
        try:
            return WorkDone(effect.post, effect.do(shard))
        except Exception as error:
            return WorkDone(effect.post, error=error)

    def work(self, effect):
        try:
            return WorkDone(effect.number, effect.run())
        except Exception as error:
            return WorkDone(effect.number, error=error)

    def order(self, message):
        self.call += 1
        self.feed(ev.Ordered(self.call, message))
        return self.answers.get(self.call)

    def finish(self):
        """Works and time go on until nothing is under way."""
        self.holds = False
        while self.held_works:
            self.feed(self.work(self.held_works.pop(0)))
        while self.core.checkpoints.running:
            assert self.core.due < float("inf")
            self.now = max(self.now, self.core.due)
            self.feed(Tick())

    def push(self, seq=1):
        """A push to all keys."""
        owner = self.route.owner[fragment_of(KEYS, FRAG_NUM)]
        for number, handle in self.core.host.primaries.items():
            mine = KEYS[owner == number]
            groups = {f: mine[fragment_of(mine, FRAG_NUM) == f].tolist() for f in range(FRAG_NUM)}
            groups = {f: keys for f, keys in groups.items() if keys}
            keys = np.concatenate(list(groups.values())).astype(np.float32)
            values = np.repeat(keys[:, None], 4, axis=1)
            frame = push_frame(groups, values, seq)
            pipe, _ = self.threads[handle].connect(WORKER, 0.0)
            pipe.send(encode_frame(frame))
            self.threads[handle].settle(0.0)
            pipe.close()

    def rows(self):
        return sum(shard.store.stats()["rows"] for shard in self.shards.values())


@pytest.fixture
def folder(tmp_path):
    made = CheckpointFolder(tmp_path / "saved")
    made.take()
    yield made
    made.release()


def begin(folder, number=1):
    """The folder of a new checkpoint, as the master makes it, and the order to save."""
    part = folder.begin(number)
    (part / BEGUN).write_text(f"{LIFE:016x}\n")
    return part, m.Save(number, str(part))


def complete(folder, part, saved):
    entries = tuple(FileEntry.from_dict(item, "here") for item in saved.files)
    course = write_course(part, b"x")
    (part / BEGUN).unlink()
    manifest = Manifest(saved.number, LIFE, "now", FRAG_NUM, (), entries, {}, course)
    return folder.complete(part, manifest)


def ordered(folder, disk=None, **changes):
    """A server with rows that is ordered to save them: it, and the folder of the checkpoint."""
    house = House(disk)
    house.push()
    part, order = begin(folder)
    assert isinstance(house.order(replace(order, **changes)), m.Ok)
    return house, part


def saved_at(folder):
    """A server that has saved its rows, what it told, and the finished checkpoint."""
    house, part = ordered(folder)
    house.finish()
    (saved,) = house.told
    return house, saved, complete(folder, part, saved)


def test_saved_rows_are_restored_at_another_server(folder):
    other = House()
    house, saved, path = saved_at(folder)
    assert (saved.number, saved.text, len(saved.files)) == (1, "", SHARDS)
    assert house.core.checkpoints.done_bytes > 0
    assert isinstance(other.order(m.Load(1, str(path), [[1, 1]])), m.Ok)
    other.finish()
    assert other.told == [m.Loaded(1, len(KEYS))]
    assert other.rows() == house.rows() == len(KEYS)


def test_restored_rows_are_told_once_the_standbys_have_them(folder):
    (_, _, path), other, held = saved_at(folder), House(), []
    perform = other.perform

    def withhold(effect):
        if isinstance(effect, fx.Post) and effect.at_standby:
            assert effect.shard in other.shards
            held.append(effect)
            return []
        return perform(effect)

    other.perform = withhold
    other.order(m.Load(1, str(path), [[1, 1]]))
    assert other.told == []
    assert other.rows() == len(KEYS)
    assert sorted(effect.shard for effect in held) == sorted(other.shards)
    for effect in held:
        other.feed(other.post(effect))
    assert other.told == [m.Loaded(1, len(KEYS))]


def test_folder_that_is_not_the_masters_is_refused(folder, tmp_path):
    house = House()
    part, order = begin(folder)
    assert "not visible from here" in str(house.order(replace(order, folder=str(tmp_path / "x"))))
    (part / BEGUN).write_bytes(b"\xff\xfe")
    refused = house.order(order)
    assert isinstance(refused, CheckpointError)
    assert "not the folder that the master made" in str(refused)


class Full(Disk):
    """A disk that takes nothing any more after some writes."""

    def __init__(self, writes):
        self.writes = writes

    def write(self, file, data, at):
        self.writes -= 1
        if self.writes < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(file, data, at)


@pytest.mark.parametrize("writes", range(6))
def test_full_disk_is_told_and_leaves_no_file(folder, writes):
    house, part = ordered(folder, Full(writes))
    house.finish()
    (saved,) = house.told
    assert (saved.files, "is full" in saved.text) == ([], True)
    if writes < 4:  # the index of the first file is closed before that of the second fails
        assert [path.name for path in part.iterdir()] == [BEGUN]


def test_damaged_section_is_told(folder):
    house, saved, path = saved_at(folder)
    file = path / saved.files[0]["name"]
    data = bytearray(file.read_bytes())
    data[4096 + 40] ^= 1
    file.write_bytes(data)
    house.order(m.Load(1, str(path), [[1, 1]]))
    house.finish()
    assert "is damaged" in house.told[-1].text


def test_cancelled_save_reports_nothing_and_orders_wait_for_its_end(folder):
    house = House()
    house.push()
    part, order = begin(folder)
    house.holds = True
    assert house.order(order) is None  # the folder is looked at
    house.feed(house.work(house.held_works.pop(0)))
    assert isinstance(house.answers[house.call], m.Ok)
    stop = house.call + 1
    assert house.order(m.StopSaving()) is None
    again = house.call + 1
    assert house.order(m.StopSaving()) is None  # in sequence
    house.finish()
    assert house.told == []
    assert isinstance(house.answers[stop], m.Ok)
    assert isinstance(house.answers[again], m.Ok)
    assert [path.name for path in part.iterdir()] == [BEGUN]


def test_save_is_refused_before_the_one_that_was_given_up_has_ended(folder):
    house = House()
    house.push()
    _, order = begin(folder)
    house.holds = True
    house.order(order)
    house.feed(house.work(house.held_works.pop(0)))
    stop = house.call + 1
    house.order(m.StopSaving())
    house.now += STOP_S
    house.feed(Tick())
    assert isinstance(house.answers[stop], m.Ok)
    refused = house.order(order)
    assert isinstance(refused, ClusterError)
    assert "still working on another checkpoint" in str(refused)
    house.finish()
    assert isinstance(house.order(order), m.Ok)


def test_restore_after_one_that_was_given_up_waits_for_its_disk(folder):
    """It was refused, or took the report of the first as its own: the newest checkpoint was passed
    over where a disk took over 3 s for a read."""
    _, _, path = saved_at(folder)
    house, load = House(), m.Load(1, str(path), [[1, 1]])
    house.holds = True
    house.order(load)
    house.feed(house.work(house.held_works.pop(0)))  # opened; a read of each shard is under way
    stop = house.call + 1
    house.order(m.StopSaving())
    house.now += STOP_S
    house.feed(Tick())
    assert isinstance(house.answers[stop], m.Ok)
    again = house.call + 1
    assert house.order(load) is None
    house.finish()
    assert isinstance(house.answers[again], m.Ok)
    assert (house.told, house.rows()) == ([m.Loaded(1, len(KEYS))], len(KEYS))


@pytest.mark.parametrize("waits", [False, True])
def test_restore_that_waits_for_a_disk_does_not_keep_a_server_from_its_end(folder, waits):
    _, _, path = saved_at(folder)
    house, load = House(), m.Load(1, str(path), [[1, 1]])
    house.holds = True
    house.order(load)
    house.feed(house.work(house.held_works.pop(0)))
    house.order(m.StopSaving())
    house.now += STOP_S
    house.feed(Tick())
    if waits:
        house.order(load)
    house.feed(ev.End())
    house.order(load)
    house.now += STOP_S
    house.feed(Tick())
    assert house.core.over


def test_save_of_a_clock_waits_until_the_shards_are_there(folder):
    house, _ = ordered(folder, clock=1)
    for _ in range(3):
        house.now = house.core.due
        house.feed(Tick())
    assert house.told == []
    for shard in house.shards.values():
        shard.seal(0, 0, 1, 1)
        assert shard.clock() == 1
    house.finish()
    assert house.told[0].text == ""


def test_save_of_a_clock_that_ends_before_all_is_copied_is_no_checkpoint(folder):
    """The master withholds a slot of that clock; rows of two clocks are none of either."""
    house = House()
    house.push()
    _, order = begin(folder)
    house.holds = True
    house.order(replace(order, clock=0))
    while not house.core.checkpoints.done_bytes:
        house.feed(house.work(house.held_works.pop(0)))
    for shard in house.shards.values():
        shard.seal(0, 0, 1, 1)
    house.finish()
    (saved,) = house.told
    assert saved.files == []
    assert "rows were to be copied at clock 0, and it is 1 by now" in saved.text


def test_shard_that_is_lost_fails_the_save(folder):
    house = House()
    _, order = begin(folder)
    del house.shards[max(house.shards)]
    house.order(order)
    house.finish()
    assert house.told == [m.Saved(1, [], "gone")]


def test_end_waits_for_the_save_it_cancels(folder):
    house = House()
    _, order = begin(folder)
    house.holds = True
    house.order(order)
    house.feed(house.work(house.held_works.pop(0)))
    house.feed(ev.End())
    assert not house.core.over
    house.finish()
    assert house.core.over


# --- fragments of several sections --------------------------------------------------------------


MANY = np.arange(4000, dtype=np.uint64)


@pytest.fixture
def split(monkeypatch):
    """Fragments of about 250 rows, and sections of about 160."""
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "KEYS", MANY)
    for place in (checkpoints, shard_file):
        monkeypatch.setattr(place, "BATCH_BYTES", 4096)


def counts_in(house):
    """How often each key of a server was pushed: a push adds the key's own number."""
    found = np.zeros(len(MANY))
    for shard in house.shards.values():
        keys = shard.store.keys(1)
        found[keys.astype(np.int64)] = shard.store.pull(1, keys)[:, 2] / np.maximum(keys, 1)
    return found[1:]


@pytest.mark.parametrize("seed", range(4))
def test_rows_saved_between_pushes_have_all_of_before_and_none_of_after(folder, split, seed):
    house, random_, seq = House(), random.Random(seed), 2
    house.push(1)
    house.push(2)
    part, order = begin(folder)
    house.holds = True
    house.order(order)
    while house.held_works or house.core.checkpoints.running:
        for _ in range(random_.randrange(3)):
            seq += 1
            house.push(seq)
        if house.held_works:
            at = random_.randrange(len(house.held_works))  # lanes work in any order
            house.feed(house.work(house.held_works.pop(at)))
        else:
            house.now = max(house.now, house.core.due)
            house.feed(Tick())
    (saved,) = house.told
    assert not saved.text
    assert sum(file["sections"] for file in saved.files) > 1.5 * FRAG_NUM
    path = complete(folder, part, saved)
    house.push(seq + 1)
    other = House()
    other.order(m.Load(1, str(path), [[1, 1]]))
    other.finish()
    assert other.told == [m.Loaded(1, len(MANY))]
    counts = counts_in(other)
    assert counts.min() >= 2
    assert counts.max() <= seq
    assert len(np.unique(counts)) > 3  # rows are of different moments
    assert (counts == counts.astype(int)).all()  # and each is whole


def test_server_killed_amid_a_fragment_leaves_the_checkpoint_before_it(folder, split):
    house, _, path = saved_at(folder)
    before = house.rows()
    house.push(2)
    part, order = begin(folder, 2)
    house.holds = True
    house.order(order)
    while not any(file.stat().st_size > 4096 for file in part.iterdir()):
        house.feed(house.work(house.held_works.pop(0)))
    # killed: nothing more is done, closed or removed
    assert [(one.number, one.state) for one in folder.found()] == [(1, "good"), (2, "unfinished")]
    other = House()
    other.order(m.Load(1, str(path), [[1, 1]]))
    other.finish()
    assert (other.told, other.rows()) == ([m.Loaded(1, len(MANY))], before)
    assert set(counts_in(other)) == {1}


def test_second_restore_has_nothing_of_the_first_which_failed(folder, split):
    """The newest checkpoint is damaged, and had keys that the one before it lacks."""
    house, _, path = saved_at(folder)
    for shard in house.shards.values():
        assert shard.store.delete(1, shard.store.keys(1)[::2]) > 0
    part, order = begin(folder, 2)
    house.order(order)
    house.finish()
    older = complete(folder, part, house.told[-1])
    left = house.rows()
    file = path / house.told[0].files[0]["name"]
    data = bytearray(file.read_bytes())
    data[-8192] ^= 1  # in its last section
    file.write_bytes(data)
    other = House()
    other.order(m.Load(1, str(path), [[1, 1]]))
    other.finish()
    assert "is damaged" in other.told[-1].text
    assert other.rows() > left
    other.order(m.Load(2, str(older), [[1, 1]]))
    other.finish()
    assert (other.told[-1], other.rows()) == (m.Loaded(2, left), left)
