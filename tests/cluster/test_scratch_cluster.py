"""data.scratch among processes: one unpacked copy a host."""

import multiprocessing

from test_scratch import TEXT, pack

from snailps.data import scratch as module
from snailps.data.scratch import Scratch


def _unpack_in_child(folder, path, barrier, results):
    unpack = module.pieces_of
    steps = []

    def noted(path):
        steps.append(path)
        return unpack(path)

    module.pieces_of = noted
    scratch = Scratch(folder, 1 << 20)
    barrier.wait(150)
    content = scratch.local(path).read_bytes()
    results.put((len(steps), content == TEXT))
    barrier.wait(150)


def test_local_many_processes_unpack_once(tmp_path):
    packed = pack(tmp_path)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.Queue()
    arguments = (str(tmp_path / "scratch"), packed, barrier, results)
    children = [context.Process(target=_unpack_in_child, args=arguments) for _ in range(4)]
    for child in children:
        child.start()
    found = [results.get(timeout=150) for _ in children]
    for child in children:
        child.join(20)
    assert sum(steps for steps, _ in found) == 1
    assert all(right for _, right in found)


def test_clean_after_killed_process_removes_its_copy(tmp_path):
    """The kernel drops the lock of a process however it ends."""
    packed = pack(tmp_path)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    child = context.Process(
        target=_hold_for_ever, args=(str(tmp_path / "scratch"), packed, ready), daemon=True
    )
    child.start()
    assert ready.wait(150)
    scratch = Scratch(str(tmp_path / "scratch"), 1 << 20)
    assert scratch.clean() == 0
    child.kill()
    child.join(20)
    assert scratch.clean() == len(TEXT)


def _hold_for_ever(folder, path, ready):
    Scratch(folder, 1 << 20).local(path)
    ready.set()
    multiprocessing.get_context("spawn").Event().wait(60)
