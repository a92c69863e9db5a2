"""The cluster of those who name none: started once, kept, ended with its process."""

import os
import select
import signal

from processes import LIMIT_S, SNAILPS, Process

SCRIPT = """
import gc, os, sys, threading, time
import snailps
from waiting import until

found = []
def thread_gets(workers=None):
    thread = threading.Thread(target=lambda: found.append(snailps.default_cluster(workers)))
    thread.start()
    thread.join()  # its processes outlive it
    return found.pop()

first = thread_gets()
cluster = snailps.default_cluster()
assert first is cluster
with snailps.cluster(workers=0) as inner:
    assert snailps.default_cluster() is inner
    table = inner.table("w")
    if not os.fork():  # nor does it use or end the one of a block
        assert not inner.is_open
        for use in (inner.status, lambda: table.pull([1])):
            try:
                use()
            except snailps.SnailError as error:
                assert "is a fork" in str(error), error
            else:
                os._exit(3)
        inner.__exit__(None, None, None)
        os._exit(0)
    assert os.wait()[1] == 0
    table.push([1], [1.0])
assert snailps.default_cluster() is cluster
if not os.fork():  # a fork has none, and ends none
    from snailps.local.cluster import _all
    os._exit(len(_all))
assert os.wait()[1] == 0
if sys.argv[1] != "replaced":
    cluster.table("w").push([1], [1.0])
pids = [node["pid"] for node in cluster.status()["nodes"] if node["pid"] != os.getpid()]
print(*pids, file=sys.stderr, flush=True)
if sys.argv[1] == "replaced":
    import snailps.local.cluster as module
    module.FITS_MAX = 1
    assert thread_gets(2) is not cluster
    assert snailps.default_cluster() is not cluster
    assert cluster.is_open  # while anybody has it
    del cluster, first
    gc.collect()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "their end")
    kept = snailps.default_cluster(1)
    kept.table("w")  # stays: this process may want its rows
    assert snailps.default_cluster() is kept
elif sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


def run(tmp_path, how):
    """Exit code of the script, and descriptors of the processes of its first kept cluster."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with Process("script", [SNAILPS[0], "script.py", how], cwd=tmp_path) as script:
        watched = []
        for pid in script.wait_line(r"^\d+ \d+").split():
            try:
                watched.append(os.pidfd_open(int(pid)))
            except ProcessLookupError:
                continue
        return script.wait(), watched


def all_end(watched):
    for descriptor in watched:
        assert select.select([descriptor], [], [], LIMIT_S)[0]
        os.close(descriptor)


def test_default_cluster_is_kept_and_ends_with_python(tmp_path):
    code, watched = run(tmp_path, "ends")
    assert code == 0
    all_end(watched)


def test_default_cluster_of_a_killed_process_leaves_nothing(tmp_path):
    code, watched = run(tmp_path, "killed")
    assert code == -signal.SIGKILL
    all_end(watched)


def test_default_cluster_is_replaced_when_it_holds_too_much(tmp_path):
    code, watched = run(tmp_path, "replaced")
    assert code == 0
    all_end(watched)
