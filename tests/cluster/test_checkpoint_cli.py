"""``snailps checkpoint``: list, verify and export, on checkpoints of a real training."""

import json
import re
import signal
import subprocess

import numpy as np
import pyarrow.parquet as pq
import pytest
from cluster_models import COUNTER, write_numbers
from processes import Cluster, Gate
from safetensors.numpy import load_file
from test_cli import call
from test_failures import INTERRUPTED
from texts import write_topics

from snailps import open_checkpoint
from snailps.store.checkpoint.folder import CheckpointFolder
from snailps.vectors.fasttext_bin import read_header

LINES, ROWS = 1000, 50
OWN = ("--allow-module", "cluster_models")


@pytest.fixture
def snailps(monkeypatch, capsys):
    """Runs a command here: (code, lines of standard output, standard error)."""

    def run(*words, cwd):
        monkeypatch.chdir(cwd)
        code, out, err = call(monkeypatch, capsys, *map(str, words))
        return code, out.splitlines(), err

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with two checkpoints of a training that ended, and its result.

    Checkpoints of interrupted runs: what these have is certain, to the block.
    """
    folder = tmp_path_factory.mktemp("trained")
    write_numbers(folder / "in.txt", LINES, ROWS)
    job = {
        "worker_class": COUNTER, "input": "in.txt", "output": "out", "epochs": 1,
        "gates": str(folder / "gates"), "checkpoint_interval": 10_000,
    }  # fmt: skip
    for number in (3, 6):
        gate = Gate(folder / "gates", number)
        with Cluster(folder, job=job, servers=2) as cluster:
            master, *_ = cluster.started_at(gate)
            master.send(signal.SIGINT)
            master.wait_line("interrupted: finishing")
            gate.open()
            assert cluster.codes() == [INTERRUPTED, 0, 0, 0], master.stderr
    with Cluster(folder, job=job, servers=2) as cluster:
        assert cluster.run()[0] == [0] * 4
    return folder


@pytest.fixture
def saved(trained, tmp_path):
    """A copy of the checkpoints, to be damaged."""
    subprocess.run(["cp", "-r", trained / "out.checkpoints", tmp_path / "saved"], check=True)
    return CheckpointFolder(tmp_path / "saved")


def test_list_shows_each_checkpoint(snailps, trained):
    code, lines, _ = snailps("checkpoint", "list", "out.checkpoints", cwd=trained)
    assert code == 0
    rows = [line.split("\t") for line in lines]
    assert [row[1] for row in rows] == ["good", "good"]
    assert float(rows[1][3]) == pytest.approx(0.7, abs=0.01)
    assert [row[4] for row in rows] == ["50", "50"]
    assert rows[0][6] == COUNTER


def test_list_as_json_and_of_damaged_ones_says_why(snailps, saved, tmp_path):
    first, second = saved.found()
    (first.path / "manifest.json").write_text("{}")
    (saved.path / "checkpoint-000099.part").mkdir()
    code, lines, _ = snailps("checkpoint", "list", saved.path, "--json", cwd=tmp_path)
    assert code == 0
    found = json.loads(lines[0])["checkpoints"]
    assert [one["state"] for one in found] == ["damaged", "good", "unfinished"]
    assert "manifest.json" in found[0]["why"]
    assert found[1]["number"] == second.number


def test_verify_of_good_ones_ends_with_0_and_of_a_damaged_row_with_1(snailps, saved, tmp_path):
    assert snailps("checkpoint", "verify", saved.path, cwd=tmp_path)[0] == 0
    newest = saved.found()[-1]
    file = next(newest.path.glob("*.rows"))
    data = bytearray(file.read_bytes())
    data[4096 + 40] ^= 4
    file.write_bytes(data)
    code, lines, _ = snailps("checkpoint", "verify", newest.path, cwd=tmp_path)
    assert code == 1
    (row,) = (line.split("\t") for line in lines)
    assert row[1] == "damaged"
    assert file.name in row[-1]


def test_export_writes_the_model_as_it_was(snailps, trained, tmp_path):
    folder = trained / "out.checkpoints"
    words = ("checkpoint", "export", folder, "--output", "early")
    code, lines, error = snailps(*words, cwd=tmp_path)
    assert (code, lines) == (2, [])
    assert "cluster_models:Counter is a class of your own" in error
    code, lines, error = snailps(*words, *OWN, cwd=tmp_path)
    assert (code, lines) == (0, ["early.npz"]), error
    with np.load(tmp_path / "early.npz") as tables:
        assert tables["counts.keys"].tolist() == list(range(ROWS))
        assert tables["counts.rows"].sum() == LINES * 7 / 10


def test_export_past_a_damaged_one_says_which_is_written(snailps, saved, tmp_path):
    first, second = saved.found()
    (second.path / "manifest.json").write_text("{}")
    words = ("checkpoint", "export", saved.path, "--output", "a", *OWN)
    code, lines, error = snailps(*words, cwd=tmp_path)
    assert (code, lines) == (0, ["a.npz"]), error
    said = f"checkpoint {second.number} is damaged, checkpoint {first.number} is exported instead: "
    assert error.startswith(said)
    assert "manifest.json" in error


def test_export_of_one_and_of_its_tables_only(snailps, trained, tmp_path):
    first = CheckpointFolder(trained / "out.checkpoints").found()[0]
    words = ("checkpoint", "export", first.path, "--output", "a", "--tables")
    assert snailps(*words, cwd=tmp_path)[:2] == (0, ["a.npz"])
    with np.load(tmp_path / "a.npz") as tables:
        assert tables["counts.rows"].sum() == LINES * first.manifest.job["progress"]


def test_rows_are_read_by_key_from_the_newest_one(trained):
    saved = open_checkpoint(trained / "out.checkpoints")
    assert saved.progress == pytest.approx(0.7, abs=0.01)
    assert len(saved["counts"]) == ROWS
    assert saved["counts"].pull(range(ROWS + 5)).sum() == LINES * saved.progress


@pytest.mark.parametrize("format", ["npz", "safetensors", "parquet"])
def test_export_of_tables_in_a_format_tells_sizes_and_replaces_if_asked(
    snailps, trained, tmp_path, format
):
    first = CheckpointFolder(trained / "out.checkpoints").found()[0]
    words = ("checkpoint", "export", first.path, "--output", "a", "--format", format)
    name = "a.counts.parquet" if format == "parquet" else f"a.{format}"
    code, lines, error = snailps(*words, "--state", cwd=tmp_path)
    assert (code, lines) == (0, [name]), error
    assert re.fullmatch(rf"wrote {name} \([0-9.]+ MB\)\n", error)
    counted = {
        "npz": lambda path: np.load(path)["counts.rows"],
        "safetensors": lambda path: load_file(path)["counts.rows"],
        "parquet": lambda path: np.stack(pq.read_table(path)["row"].to_numpy()),
    }[format](tmp_path / name)
    assert len(counted) == ROWS
    assert counted.sum() == LINES * first.manifest.job["progress"]
    code, _, error = snailps(*words, cwd=tmp_path)
    assert code == 2
    assert "To replace it, add --overwrite" in error
    assert snailps(*words, "--overwrite", cwd=tmp_path)[:2] == (0, [name])


def test_export_refuses_options_of_tables_without_a_format(snailps, trained, tmp_path):
    words = ("checkpoint", "export", trained / "out.checkpoints", "--output", "a", "--state")
    code, _, error = snailps(*words, cwd=tmp_path)
    assert (code, error) == (
        2, "snailps: error: --table and --state choose what tables are written: add --format\n",
    )  # fmt: skip


def test_export_of_word_vectors_gives_their_files(snailps, tmp_path):
    write_topics(tmp_path / "text.txt")
    gate = Gate(tmp_path / "gates", 6, "before")
    job = {
        "worker_class": "clock_models:GatedWords", "input": "text.txt", "output": "out",
        "gates": str(tmp_path / "gates"), "formats": "bin, vec", "dim": 10, "epochs": 3,
        "min_count": 1, "checkpoint_interval": 0.1, "checkpoints_kept": 1,
    }  # fmt: skip
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(gate)
        master.wait_line(r"checkpoint \d+: ")
        gate.open()
        assert cluster.codes() == [0, 0, 0], master.stderr
    words = ("checkpoint", "export", "out.checkpoints", "--output", "early")
    words = (*words, "--allow-module", "clock_models")
    code, lines, error = snailps(*words, cwd=tmp_path)
    assert (code, sorted(lines)) == (0, ["early.bin", "early.vec"]), error
    early, late = ((tmp_path / f"{name}.vec").read_text().split("\n") for name in ("early", "out"))
    assert early[0] == late[0]  # as many words, as wide
    rows = {read_header(tmp_path / f"{name}.bin").bucket for name in ("early", "out")}
    assert len(rows) == 1  # of n-grams, as the survey found
    assert max(rows) < 10_000


@pytest.mark.parametrize("command", ["list", "verify", "export"])
def test_command_on_a_folder_that_is_none_says_so(snailps, tmp_path, command):
    more = ["--output", "x"] if command == "export" else []
    code, _, error = snailps("checkpoint", command, "nowhere", *more, cwd=tmp_path)
    assert code == 2
    assert error == "snailps: error: nowhere: no such folder; check the path\n"


def test_verify_on_a_folder_without_checkpoints_says_so(snailps, tmp_path):
    code, _, error = snailps("checkpoint", "verify", tmp_path, cwd=tmp_path)
    assert code == 2
    assert "no checkpoints here" in error
