"""Memory of a save and of a restore, as the system counts it: of some pieces, not of fragments."""

import json
import os
import subprocess
import sys
from pathlib import Path

from waiting import LIMIT_S

TESTS = Path(__file__).resolve().parents[1]


def test_save_and_restore_take_memory_of_some_pieces_however_large_a_fragment_is(tmp_path):
    paths = [TESTS / "unit", TESTS / "support", TESTS.parent]
    ran = subprocess.run(
        [sys.executable, "-m", "checkpoint_peak", str(tmp_path / "saved")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["sections"] >= 24  # of 2 fragments of 12 MB
    assert found["save"] < 4 * found["piece"] < found["rows"] / 5
    assert found["load"] < 4 * found["piece"]
