"""store._store where memory runs out, or is made while the store ends."""

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from stores import make_store, some_keys

STATM = Path("/proc/self/statm")


@pytest.mark.long
@pytest.mark.skipif(not STATM.exists(), reason="reads Linux's /proc/self/statm")
def test_store_dropped_while_its_next_memory_is_made_gives_back_all():
    """Stores end at different moments of the thread that touches their next region."""
    mapped = []
    for _ in range(2):
        for count in range(20_000, 60_000, 2_000):
            store = make_store(4, 50)
            store.push(0, 1, 1, some_keys(count), np.ones((count, 50), np.float32))
            del store
        mapped.append(int(STATM.read_text().split()[0]) * resource.getpagesize())
    assert mapped[1] < mapped[0] + (8 << 20)  # 20 regions of 2 MiB or more, were they kept


def test_store_without_memory_reports_it_and_keeps_its_rows():
    """In a process of its own, under a limit on address space."""
    script = """
        import resource
        import numpy as np
        from snailps import kernels
        from snailps.store._store import ShardStore

        store = ShardStore(4, kernels.row_ops())
        store.own(range(4))
        store.add_table(0, 100, 0, 1, 0.5, 7, (0, 0, 0, 0))
        keys = np.arange(1000, dtype=np.uint64)
        ones = np.ones((1000, 100), np.float32)
        step = np.uint64(1000)
        store.push(0, 1, 1, keys, ones)
        first = store.pull(0, keys)
        pages = int(open("/proc/self/statm").read().split()[0])
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (48 << 20), limits[1]))
        seq = 1
        try:
            while True:
                seq += 1
                store.push(0, 1, seq, keys + np.uint64(seq - 1) * step, ones)
        except MemoryError as error:
            text = str(error)
        rows = store.rows(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        assert "no memory for a row of table 0" in text, text
        assert 50_000 < rows < 200_000, rows
        assert np.array_equal(store.pull(0, keys), first)
        found = store.keys(0)
        assert len(np.unique(found)) == len(found) == rows
        fresh = ShardStore(4, kernels.row_ops())
        fresh.own(range(4))
        fresh.add_table(0, 100, 0, 1, 0.5, 7, (0, 0, 0, 0))
        assert np.array_equal(store.pull(0, found), fresh.pull(0, found) + 1)
        assert store.push(0, 1, seq + 1, keys, ones) == 1000
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
