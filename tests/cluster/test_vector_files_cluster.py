"""Writers of vectors on a full disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_vector_files import KINDS


@pytest.mark.long
@KINDS
def test_writers_on_full_disk_leave_nothing_and_say_what_to_do(tmp_path, kind):
    """A file size limit makes write() itself fail half-way, as a full disk does."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np, test_vector_files as t
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
rows = np.ones((500_000, 4), np.float32)
words = [b"w%d" % i for i in range(500_000)]
t.write_any({kind!r}, {str(tmp_path / "m")!r}, words, [rows[:250_000], rows[250_000:]])
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=150
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "ModelWriteError" in last
    assert "file size limit" in last
    assert "raise the limit (ulimit -f) or choose another disk" in last
    assert list(tmp_path.iterdir()) == []
