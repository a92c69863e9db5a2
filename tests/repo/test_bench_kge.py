"""bench/kge.py: what it needs is asked for before anything is trained."""

import subprocess
import sys

from processes import LIMIT_S, PACKAGE


def test_data_set_of_the_peer_without_the_peer_is_refused_in_a_sentence():
    command = [sys.executable, str(PACKAGE / "bench" / "kge.py"), "--no-peer", "--data", "umls"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert "umls: not a folder; PyKEEN has the data sets" in done.stderr
    assert "Traceback" not in done.stderr
