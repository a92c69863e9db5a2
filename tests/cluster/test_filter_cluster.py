"""filtering on a cluster: what its workers keep, and what of it a killed one costs."""

import io
import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filter_models import note
from processes import environment, members_of
from waiting import copied

import snailps
from snailps.errors import ClusterError
from snailps.filtering.job import FilterCommand, FilterJob, settings_for
from snailps.vectors.fasttext_bin import BinHeader, write_bin

FILES = 6
KEEP = 'hq["__label__plus"] >= .6 and n != 7'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier, files of texts, and what one process keeps of them."""
    folder = tmp_path_factory.mktemp("filter")
    header = BinHeader(dim=2, model="supervised", loss="softmax", min_count=1)
    write_bin(
        folder / "hq.bin", header, [b"</s>", b"up", b"down"], [3, 2, 1],
        [np.array([[0, 0], [3, 0], [0, 3]], np.float32)],
        [np.array([[1, 0.2], [0.1, 1]], np.float32)],
        [b"__label__plus", b"__label__minus"], [2, 1],
    )  # fmt: skip
    (folder / "in").mkdir()
    for number in range(FILES):
        texts = [["up", "down", "up up", None][(at + number) % 4] for at in range(200)]
        table = pa.table({"text": texts, "n": range(200)})
        pq.write_table(table, folder / "in" / f"{number}.parquet", row_group_size=50)
    filtered(folder, "one")
    return folder


def filtered(folder, name, **options):
    return snailps.filter(
        folder / "in", output=folder / name, models={"hq": folder / "hq.bin"}, keep=KEEP,
        column="text", add=["hq"], **options,
    )  # fmt: skip


def written(folder, name):
    files = sorted((folder / name).glob("*.parquet"))
    assert len(files) == FILES
    return [file.read_bytes() for file in files]


def test_workers_of_a_cluster_write_what_one_process_does(folder):
    scores = folder / "scores"
    with snailps.local_cluster(workers=2) as cluster:
        done = filtered(folder, "cluster", cluster=cluster, keep_scores=scores)
        assert written(folder, "cluster") == written(folder, "one")
        assert done["rows"] == 200 * FILES
        assert 0 < done["kept"] < done["rows"]
        assert done["scored"] == {"hq": 150 * FILES - 4}  # row 7 is asked of no model
        again = filtered(folder, "again", cluster=cluster, keep_scores=scores)
    assert again["scored"] == {"hq": 0}
    assert written(folder, "again") == written(folder, "one")


def without_copies(folder, name, **options):
    """The condition has a model, copies and benchmarks."""
    (folder / "evals.txt").write_text("up down up down up down up down\n")
    snailps.filter(
        folder / "in", output=folder / name, models={"hq": folder / "hq.bin"}, column="text",
        keep=f"{KEEP} and not dup.exact and bench.overlap < .5", add=["dup.of", "hq"],
        benchmarks=folder / "evals.txt", **options,
    )  # fmt: skip
    return written(folder, name)


def test_workers_search_for_copies_and_write_what_one_process_does(folder):
    with snailps.local_cluster(workers=2) as cluster:
        found = without_copies(folder, "copies", cluster=cluster)
    assert found == without_copies(folder, "copies-one")
    assert_clean(folder / "copies")


@pytest.mark.parametrize("phase", ["reading", "writing"])
def test_killed_worker_costs_a_search_for_copies_no_byte(folder, monkeypatch, phase):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    killed = []

    class Session:
        """In this phase the first worker is killed with its file written, but not there yet."""

        def run(self, model, settings, *, input):
            def on_status(status):
                path = note(folder / f"killed-{phase}")
                if not killed and path.exists() and (text := path.read_text()).endswith("\n"):
                    killed.append(int(text))
                    os.kill(int(text), signal.SIGKILL)
                    path.write_text("")

            jobs = {"pairs": "reading", "writing": "writing"}
            if jobs.get(settings.get("phase", "writing")) == phase:
                model = "filter_models:StuckWriting"
            cluster.run(model, settings, input=input, on_status=on_status, quiet=True)

    with snailps.local_cluster(workers=2) as cluster:
        found = without_copies(folder, f"killed-{phase}", cluster=Session())
    assert len(killed) == 1
    assert found == without_copies(folder, f"unkilled-{phase}")
    assert_clean(folder / f"killed-{phase}")


class Filtering:
    """A filter on a cluster whose first worker waits until `kill` was called with its process id.

    What one process has written is what it has to write, too.
    """

    def __init__(self, folder, name, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        self.folder, self.name, self.killed = folder, name, False
        files = {"hq": str(folder / "hq.bin")}
        inputs = (str(folder / "in"),)
        self.scores = folder / f"{name}-scores"
        command = FilterCommand(
            inputs, "text", files, KEEP, ("hq",), str(folder / name), str(self.scores)
        )
        self.job = FilterJob(command)
        self.job.begin()

    def run(self, cluster, model, kill):
        def on_status(status):
            path = note(self.folder / self.name)
            if not self.killed and path.exists() and (text := path.read_text()).endswith("\n"):
                self.killed = True
                assert sum(status["blocks"].values()) == FILES  # what a status counts
                assert status["loss"] is None
                kill(int(text))
                path.write_text("")

        cluster.run(
            f"filter_models:{model}", settings_for(self.job),
            input=str(self.job.results.list_path), on_status=on_status, quiet=True,
        )  # fmt: skip

    def assert_whole(self):
        assert self.killed
        manifest = self.job.finish()
        self.job.close()
        assert manifest["rows"] == 200 * FILES
        assert written(self.folder, self.name) == written(self.folder, "one")
        assert_clean(self.folder / self.name)
        done = filtered(self.folder, f"{self.name}-again", keep_scores=self.scores)
        assert done["scored"] == {"hq": 0}
        assert written(self.folder, f"{self.name}-again") == written(self.folder, "one")
        assert not list(self.scores.glob(".*.part"))


def assert_clean(folder):
    """No hidden file is left, and nothing but outputs."""
    assert sorted(path.name for path in folder.glob("[!0-9]*")) == [
        "_manifest.json", "_report.html",
    ]  # fmt: skip


@pytest.mark.parametrize("model", ["StuckFilter", "StuckWriting"])
def test_killed_worker_costs_its_task_and_no_byte_differs(folder, monkeypatch, model):
    filtering = Filtering(folder, f"worker-{model}", monkeypatch)
    with snailps.local_cluster(workers=2) as cluster:
        filtering.run(cluster, model, lambda pid: os.kill(pid, signal.SIGKILL))
    filtering.assert_whole()


def test_killed_server_costs_no_byte(folder, monkeypatch):
    filtering = Filtering(folder, "server", monkeypatch)
    with snailps.local_cluster(servers=2, workers=2) as cluster:
        copied(cluster)

        def kill(pid):
            nodes = cluster.status()["nodes"]
            os.kill(next(n["pid"] for n in nodes if n["role"] == "server"), signal.SIGKILL)

        filtering.run(cluster, "StuckWriting", kill)
    filtering.assert_whole()


def test_killed_master_ends_the_run_which_goes_on_by_the_same_command(folder, monkeypatch):
    filtering = Filtering(folder, "master", monkeypatch)
    with snailps.local_cluster(workers=2, log=io.StringIO()) as cluster:
        processes = [child.process for child in members_of(cluster)]
        with pytest.raises(ClusterError, match=r"^the master .* was ended by SIGKILL"):
            filtering.run(cluster, "StuckWriting", lambda pid: processes[0].kill())
    assert [process.poll() is None for process in processes] == [False] * 4
    filtering.job.close()
    with snailps.local_cluster(workers=1) as cluster:
        done = filtered(folder, "master", cluster=cluster)
    assert done["rows"] == 200 * FILES
    assert written(folder, "master") == written(folder, "one")
    assert_clean(folder / "master")
