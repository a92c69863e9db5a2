"""filtering on a cluster: what its workers keep, and what of it a killed one costs."""

import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import environment

import snailps
from snailps.filtering.job import Command, FilterJob, settings_for
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
    with snailps.local_cluster(workers=2) as cluster:
        done = filtered(folder, "cluster", cluster=cluster)
    assert written(folder, "cluster") == written(folder, "one")
    assert done["rows"] == 200 * FILES
    assert 0 < done["kept"] < done["rows"]


def test_killed_worker_costs_its_task_and_no_byte_differs(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    files = {"hq": str(folder / "hq.bin")}
    command = Command((str(folder / "in"),), "text", files, KEEP, ("hq",), str(folder / "killed"))
    job = FilterJob(command)
    job.begin()
    stuck, killed = folder / "killed" / ".snailps" / "stuck", []

    def kill(status):
        if not killed and stuck.exists() and stuck.read_text().endswith("\n"):
            killed.append(int(stuck.read_text()))
            os.kill(killed[0], signal.SIGKILL)

    with snailps.local_cluster(workers=2) as cluster:
        cluster.run(
            "filter_models:StuckFilter", settings_for(job), input=str(job.results.list_path),
            on_status=kill, quiet=True,
        )  # fmt: skip
    assert killed
    stuck.unlink()
    manifest = job.finish()
    job.close()
    assert manifest["rows"] == 200 * FILES
    assert written(folder, "killed") == written(folder, "one")
    assert sorted(path.name for path in (folder / "killed").glob("[!0-9]*")) == [
        "_manifest.json", "_report.html",
    ]  # fmt: skip
