"""Classes of a script train on a cluster of this machine; those of other hosts may refuse."""

import os
import signal

from processes import PACKAGE, SNAILPS, SUPPORT, Cluster, Process

SCRIPT = """
import sys, time
import numpy as np
import snailps

STEP = 2.0

def scaled(x):
    return x * STEP

class Mine(snailps.Worker):
    def tables(self):
        return [snailps.Table("t", 1)]

    def train(self, block):
        if b"boom" in block.data:
            raise ValueError("planted failure")
        self.push("t", [1], scaled(np.ones((1, 1), np.float32)))
        return {"units": 1, "examples": 1, "loss": 0.5}

if __name__ == "__main__":
    open("boom.txt", "w").write("boom " * 100)
    open("in.txt", "w").write("word " * 100)
    address, secret = sys.argv[1:]
    to = {"secret_file": secret, "timeout_s": 600}
    session = snailps.connect(address, **to) if address else snailps.cluster()
    with session:
        try:
            job = session.run(Mine, {"epochs": 1}, input="in.txt")
            with job.results() as results:
                print(results.pull("t", [1])[0, 0] > 0)
            session.run(Mine, input="boom.txt")
        except snailps.SnailError as error:
            print(error)
            if "planted" in str(error):
                session.run(Mine, {"epochs": 1}, input="in.txt")
            while session.status()["session"]["coming"]:  # else a worker looks for an ended master
                time.sleep(0.05)
"""


def output_of(folder, *arguments):
    (folder / "script.py").write_text(SCRIPT)
    with Process("script", [SNAILPS[0], "script.py", *arguments], cwd=folder) as script:
        assert script.wait() == 0, script.stderr
        return script.stdout


def test_class_of_a_script_trains_and_its_errors_have_its_lines(tmp_path):
    said = output_of(tmp_path, "", "")
    assert said.startswith("True\n")
    assert "Mine.train failed on block 0" in said
    file = tmp_path / "script.py"
    assert f'  File "{file}", line 17, in train\n    raise ValueError("planted failure")' in said
    assert said.count("  File ") == 1


def test_class_of_a_script_is_refused_by_other_hosts_unless_they_accept_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    secret = tmp_path / "secret"
    secret.write_text("correct-horse-battery-staple")
    secret.chmod(0o600)
    refused = "this cluster takes no classes of a notebook or script: put the class into"
    told = "and this worker executes none: set accept_source here"
    for master_accepts, workers_accept, words in (
        ("false", "true", refused),
        ("true", "false", told),
        ("true", "true", "True\n"),
    ):
        common = {"secret_file": secret, "accept_source": workers_accept}
        with Cluster(tmp_path, common, copied=False) as cluster:
            master = cluster.master(f"accept_source={master_accepts}", options=["--session"])
            cluster.nodes()
            assert words in output_of(tmp_path, cluster.address, str(secret))
            master.send(signal.SIGINT)
            master.wait()
