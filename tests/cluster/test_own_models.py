"""A model of a user's own: what a run says of it, and what an error at its end costs."""

import re

from processes import run_snailps

MODEL = """
import os

import numpy as np
import snailps


class Mine(snailps.Worker):
    def tables(self):
        return [snailps.Table(name, dim=1, access="add") for name in ("pushed", "forgotten")]

    def train(self, block):
        n = len(block.data.splitlines())
        with open("blocks", "a") as file:
            file.write("block\\n")
        self.push("pushed", np.arange(3, dtype=np.uint64), np.full((3, 1), n, np.float32))
        return {"units": n, "examples": n, "loss": 1.0 * n}

    @classmethod
    def judge(cls, results):
        if not os.path.exists("mended"):
            1 / 0
        return {"test_deviance": 2.5, "rows": results.pull("pushed", [0]), "note": "fine"}
"""


def test_error_of_judge_keeps_the_rows_and_the_next_call_exports_them(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "in.txt").write_text("".join(f"{n}\n" for n in range(2000)))
    conf = "worker_class: mine:Mine\ninput: in.txt\nepochs: 2\noutput: out\n"
    (tmp_path / "job.conf").write_text(conf)
    words = ["local", "-c", "job.conf", "--servers", 1, "--workers", 1]
    failed = run_snailps(*words, cwd=tmp_path, code=None)
    assert failed.returncode == 1
    said = failed.stdout + failed.stderr
    assert re.search(r"Mine\.judge .*ZeroDivisionError: .*mine\.py, line 22, in judge", said), said
    assert "saved: nothing" not in said
    (folder,) = re.findall(r"checkpoint_dir=(\S+)", said)
    assert not (tmp_path / "out.npz").exists()
    trained = (tmp_path / "blocks").read_text()
    (tmp_path / "mended").touch()
    done = run_snailps(*words, "--set", f"checkpoint_dir={folder}", cwd=tmp_path)
    said = done.stdout + done.stderr
    assert (tmp_path / "blocks").read_text() == trained
    assert (tmp_path / "out.npz").exists()
    assert "test deviance 2.5" in said
    assert "note fine" in said
    assert re.search(r"Mine\.train .* has pushed nothing to table 'forgotten'", said), said
    assert "'pushed'" not in said
