"""The simulated disk of checkpoints: what a power cut leaves, and who has a folder."""

from pathlib import Path

import pytest

from snailps.store.checkpoint.disk import read_file, write_at, write_file
from snailps.store.checkpoint.lock import FolderTaken
from tests.sim.memory_disk import PAGE, MemoryDisk, PowerCut, View
from tests.sim.scheduler import Process, World

TOP = Path("/top")


@pytest.fixture
def disk():
    return MemoryDisk(World(1))


def view(disk, name="p"):
    seen = View(disk, Process(disk.world, name, name))
    seen.lock(TOP)
    return seen


def test_power_cut_leaves_what_was_synced_under_a_name_that_was_synced(disk):
    seen = view(disk)
    write_file(seen, TOP / "a", b"x" * 3 * PAGE)
    seen.sync_folder(TOP)
    seen.rename(TOP / "a", TOP / "b")
    seen.sync_folder(TOP)
    disk.lose_power()
    assert seen.names(TOP) == ["b"]
    assert read_file(seen, TOP / "b") == b"x" * 3 * PAGE


def test_power_cut_may_take_names_and_pages_that_were_not_synced(disk):
    outcomes = set()
    for _ in range(60):
        seen = view(disk)
        disk.root = type(disk.root)()
        disk.locks.clear()
        seen.lock(TOP)
        file = seen.create(TOP / "a")
        write_at(seen, file, b"x" * 2 * PAGE, 0)
        disk.lose_power()
        names = seen.names(TOP)
        outcomes.add(read_file(seen, TOP / "a") if names else None)
    assert None in outcomes
    assert any(data is not None and data.strip(b"x") for data in outcomes)
    assert any(data is not None and len(data) < 2 * PAGE for data in outcomes)


def test_rename_is_whole_or_did_not_happen(disk):
    for _ in range(20):
        disk.root = type(disk.root)()
        disk.locks.clear()
        seen = view(disk)
        write_file(seen, TOP / "a", b"x")
        seen.sync_folder(TOP)
        seen.rename(TOP / "a", TOP / "b")
        disk.lose_power()
        assert seen.names(TOP) in (["a"], ["b"])


def test_folder_belongs_to_one_process_until_that_dies(disk):
    first = Process(disk.world, "first", "h1")
    other = View(disk, Process(disk.world, "other", "h2"))
    View(disk, first).lock(TOP)
    with pytest.raises(FolderTaken, match="first"):
        other.lock(TOP)
    first.die("killed")
    other.unlock(other.lock(TOP))
    view(disk, "third")


def test_call_in_which_the_power_is_cut_kills_its_caller(disk):
    process = Process(disk.world, "p", "h")
    seen = View(disk, process)
    seen.lock(TOP)
    disk.on_cut, disk.cut_in = lambda: process.die("cut"), 2
    seen.make_folder(TOP / "a")
    with pytest.raises(PowerCut):
        seen.make_folder(TOP / "b")
    with pytest.raises(PowerCut):
        seen.remove(TOP / "a")
    assert view(disk, "q").names(TOP) == ["a"]


def test_full_disk_takes_nothing_and_a_flipped_bit_stays(disk):
    seen = view(disk)
    seen.make_folder(TOP / "a")
    write_file(seen, TOP / "a" / "f", b"\0" * 9)
    assert disk.flip_bit(TOP / "a")
    assert sum(read_file(seen, TOP / "a" / "f")).bit_count() == 1
    disk.full_until = disk.world.now + 1
    with pytest.raises(OSError, match="No space"):
        write_file(seen, TOP / "a" / "g", b"1")
    assert seen.free_bytes(TOP) == 0
