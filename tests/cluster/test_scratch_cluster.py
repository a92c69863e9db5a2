"""files.scratch among processes: one unpacked copy a host."""

import multiprocessing

from test_scratch import TEXT, pack
from waiting import LIMIT_S, until

from snailps.files import scratch as module
from snailps.files.scratch import Scratch


def _unpack_in_child(folder, path, barrier, results):
    unpack = module.pieces_of
    steps = []

    def noted(path):
        steps.append(path)
        return unpack(path)

    module.pieces_of = noted
    scratch = Scratch(folder, 1 << 20)
    barrier.wait(LIMIT_S)
    content = scratch.local(path).read_bytes()
    results.put((len(steps), content == TEXT))
    barrier.wait(LIMIT_S)


def test_local_many_processes_unpack_once(tmp_path):
    packed = pack(tmp_path)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.Queue()
    arguments = (str(tmp_path / "scratch"), packed, barrier, results)
    children = [context.Process(target=_unpack_in_child, args=arguments) for _ in range(4)]
    for child in children:
        child.start()
    found = []
    for _ in children:
        until(lambda: not results.empty(), "a result", over=lambda: "".join(map(_end_of, children)))
        found.append(results.get())
    for child in children:
        child.join(LIMIT_S)
    assert sum(steps for steps, _ in found) == 1
    assert all(right for _, right in found)


def test_clean_after_killed_process_removes_its_copy(tmp_path):
    """The kernel drops the lock of a process however it ends.

    Nothing that outlives a killed process is used here, as events of multiprocessing are: each has
    semaphores with a name in /dev/shm.
    """
    packed = pack(tmp_path)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(
        target=_hold_until_the_end, args=(str(tmp_path / "scratch"), packed, theirs), daemon=True
    )
    child.start()
    theirs.close()
    assert until(ours.poll, "the child's copy", over=lambda: _end_of(child))
    ours.recv()
    scratch = Scratch(str(tmp_path / "scratch"), 1 << 20)
    assert scratch.clean() == 0
    child.kill()
    child.join()
    assert scratch.clean() == len(TEXT)


def _hold_until_the_end(folder, path, connection):
    Scratch(folder, 1 << 20).local(path)
    connection.send("held")
    connection.recv()


def _end_of(child):
    return f"a child has ended with {child.exitcode}" if child.exitcode else ""
