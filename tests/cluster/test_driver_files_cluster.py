"""A job whose data only its Python process has, on a cluster of other processes."""

import re
import signal
import sys

import pytest
import session_models as models
from idx_files import pictures
from processes import LIMIT_S, SNAILPS, Cluster, Process, environment, free_port
from test_trust import secret_file
from waiting import until

import snailps
from snailps.data.matrix_sources import rows_source
from snailps.data.matrix_writer import spool_rows, write_matrix
from snailps.data.spool import spool_text
from snailps.errors import ConfigError

LINES = 600_000
DRIVER = """
import sys
import snailps
from snailps.data.spool import spool_text
from session_models import Sleeps

lines = ["one two three four five"] * int(sys.argv[3])
made = snailps.connect(sys.argv[1], secret_file=sys.argv[2], timeout_s=600)
with made, spool_text(lines, "own") as data:
    made.run(Sleeps, {"epochs": 1000, "block_bytes": "64K"}, input=data)
"""


class Session(Cluster):
    """A session's master, a server and two workers, in folders of their own, with a secret."""

    def __init__(self, folder):
        self.secret = secret_file(folder)
        # Workers begin anew by their command line: these are no copies of another process.
        super().__init__(folder, {"secret_file": self.secret}, workers=2, copied=False)

    def begin(self):
        self.port = free_port()
        self.start("master", f"listen_addr={self.address}", options=["--session"], told=False)
        self.start("server")
        for number in range(self.workers):
            cwd = self.folder / f"worker{number}"
            cwd.mkdir()
            self.start("worker", cwd=cwd, env=environment(TMPDIR=str(cwd)))  # its scratch, too

    def connect(self):
        return snailps.connect(self.address, secret_file=self.secret, timeout_s=LIMIT_S)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with (
        pytest.MonkeyPatch.context() as patch,
        Session(tmp_path_factory.mktemp("nodes")) as session,
    ):
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        session.begin()
        yield session
        with session.connect() as made:
            made.shut_down()


def trains(made, folder, lines=LINES):
    with spool_text((f"a{i} b c" for i in range(lines)), str(folder / "own")) as data:
        settings = {"epochs": 2, "output": str(folder / "out")}
        job = made.run(models.Lines, settings, input=data, timeout_s=LIMIT_S)
    assert job.figures["lines"] == 2 * lines
    assert job.settings.input[0].startswith("driver:127.0.0.1:")
    return job


def test_data_of_the_driver_alone_trains(session, tmp_path):
    with session.connect() as made:
        trains(made, tmp_path)
        assert list(session.folder.rglob("*.spool")) == []
        with pytest.raises(ConfigError, match="names data that a Python process has"):
            made.train(models.Lines, input="driver:127.0.0.1:9/ab/7")


def test_models_that_look_at_the_data_first_train_on_a_drivers(session, tmp_path):
    """Word vectors survey it, sparse models read its head, and their test data at the end."""
    own = str(tmp_path / "own")
    lists = [["one", "two", f"word{i % 5}"] for i in range(3000)]
    with session.connect() as made, spool_text(lists, own) as data:
        words = "snailps.models.word_vectors:WordVectors"
        settings = {"dim": 4, "epochs": 1, "output": str(tmp_path / "words")}
        made.run(words, settings, input=data, timeout_s=LIMIT_S)
    assert set(snailps.load(str(tmp_path / "words.vec")).words) >= {"one", "two", "word4"}
    rows = [{"a": i % 3, "b": 1 - i % 2} for i in range(2000)]
    labels = [i % 2 for i in range(2000)]
    lines = [f"{i % 2} 1:{i % 3} 2:{1 - i % 2}" for i in range(2000)]
    for data in [spool_rows(rows_source(rows), labels, own), spool_text(lines, own)]:
        with session.connect() as made, data:
            settings = {"epochs": 3, "test": data, "output": str(tmp_path / "out")}
            linear = "snailps.models.sparse.linear:Linear"
            job = made.run(linear, settings, input=data, timeout_s=LIMIT_S)
        assert job.figures["test"]["auc"] == 1.0


def test_dense_model_learns_from_a_drivers_data_what_it_learns_from_a_file(session, tmp_path):
    images, labels = pictures(400, seed=1)
    write_matrix(tmp_path / "matrix", images, labels, dense=True)
    settings = {
        "hidden": 8, "batch_size": 32, "micro_batches": 2, "consistency": "bsp", "epochs": 2,
        "output": str(tmp_path / "out"),
    }  # fmt: skip
    found = []
    source = rows_source(images, dense=True)
    with spool_rows(source, labels, str(tmp_path / "own")) as spooled:
        for data in [spooled, str(tmp_path / "matrix")]:
            with session.connect() as made:
                own = {**settings, "test": data}
                job = made.run("snailps.models.mlp:Mlp", own, input=data, timeout_s=LIMIT_S)
            found.append((job.figures["train_loss"], job.figures["test"]))
    assert found[0] == found[1]


def test_killed_driver_fails_its_job_only(session, tmp_path):
    command = [sys.executable, "-c", DRIVER, session.address, session.secret, str(LINES)]
    with Process("driver", command, cwd=tmp_path) as driver, session.connect() as made:
        driver.until(lambda: made.status()["progress"] > 0.0, "progress")
        driver.send(signal.SIGKILL)
        driver.wait()
        until(lambda: made.status()["phase"] == "idle", "the end of its job")
        said = made.status()["message"]
        # Of a worker that had reached it, or of one that was about to.
        has_ended = (
            r"the Python process that has the data (\(127.*\) has|cannot be .* it has) ended"
        )
        assert re.search(has_ended, said), said
        trains(made, tmp_path, 1000)
        assert list(session.folder.rglob("*.spool")) == []


def test_data_of_a_driver_is_refused_in_a_file(tmp_path):
    job = {"worker_class": "session_models:Lines", "input": "driver:127.0.0.1:9/ab/7"}
    (tmp_path / "job.conf").write_text("".join(f"{k}: {v}\n" for k, v in job.items()))
    with Process(
        "master", [*SNAILPS, "master", "-c", "job.conf"], cwd=tmp_path, copied=True
    ) as master:
        assert master.wait() == 2
        assert "names data that a Python process has" in master.stderr
