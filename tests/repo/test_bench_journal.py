"""bench/journal.py: a journal is written, compacted and taken over, and every figure is there."""

import json
import subprocess
import sys

import pytest
from processes import LIMIT_S, PACKAGE, environment


@pytest.mark.parametrize("consistency", ["async", "ssp", "bsp"])
def test_journal_of_the_benchmark_is_taken_over_with_every_block(consistency):
    command = [sys.executable, str(PACKAGE / "bench" / "journal.py"), "--json"]
    command += ["--facts", "2000", "--servers", "3", "--shards", "2", "--workers", "4"]
    command += ["--grown", "20000", "--consistency", consistency]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["facts"] == 2000
    assert figures["blocks_done"] == 1000
    assert figures["compactions"] >= 1
    assert figures["facts_replayed"] < 2000
