"""A filter that searches for copies, and what is killed of it: the same bytes."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import killed_filter
import pytest
from filter_models import note
from near_copies import corpus
from processes import environment
from waiting import copied

import snailps
from snailps.errors import ClusterError


def test_filter_killed_at_each_file_goes_on_to_the_same_bytes(tmp_path):
    texts, _ = corpus(7, pages=20)
    (tmp_path / "in").mkdir()
    for file in range(2):
        rows = [{"n": at, "text": texts[at]} for at in range(file, len(texts), 2)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "in" / f"{file}.jsonl").write_text(lines)
    folders = [str(tmp_path / name) for name in ("in", "whole", "out")]
    result = subprocess.run(
        [sys.executable, killed_filter.__file__, *folders], env=environment(),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    names = result.stdout.split()
    # The command and its tasks; keys of two files, each with a record; what was found, with a
    # record; two outputs, each with a record; the report, the manifest.
    assert len(names) == 2 * (2 + 4 + 2 + 4 + 2), names
    assert names[::2] == names[1::2]
    assert len({*names}) == 14
    outputs = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert outputs == ["0.jsonl", "1.jsonl", "_manifest.json", "_report.html"]
    for name in outputs[:2]:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    found, wanted = (
        json.loads(Path(tmp_path, folder, "_manifest.json").read_text())
        for folder in ("out", "whole")
    )
    assert found["copies"] == wanted["copies"]
    assert found["refused"] == wanted["refused"]
    assert found["kept"] < found["rows"]


FILES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files with copies, in one file and across them, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("copies")
    texts, _ = corpus(8, pages=40)
    (folder / "in").mkdir()
    for file in range(FILES):
        rows = [{"n": at, "text": texts[at]} for at in range(file, len(texts), FILES)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "in" / f"{file}.jsonl").write_text(lines)
    searched(folder, "one")
    return folder


def searched(folder, name, cluster=None):
    manifest = snailps.filter(
        folder / "in", output=folder / name, keep=killed_filter.KEEP, column="text",
        add=["dup.of", "dup.contained", "dup.near"], threads=1, cluster=cluster,
    )  # fmt: skip
    assert manifest["copies"]["removed"] > 0
    return [(folder / name / f"{file}.jsonl").read_bytes() for file in range(FILES)]


class Killing:
    """A session in whose search a worker waits in one pass, until `kill` has had its process id."""

    def __init__(self, cluster, model, output, kill):
        self._cluster, self._model, self._kill = cluster, model, kill
        self._output, self.killed = output, False

    def run(self, model, settings, *, input):
        def on_status(status):
            path = note(self._output)
            if not self.killed and path.exists() and (text := path.read_text()).endswith("\n"):
                self.killed = True
                self._kill(int(text))
                path.write_text("")

        if settings.get("searched"):  # a search; the worker that waits is in one of its two jobs
            model = f"filter_models:{self._model}"
        self._cluster.run(model, settings, input=input, on_status=on_status, quiet=True)


def kill_a_server(cluster):
    nodes = cluster.status()["nodes"]
    os.kill(next(n["pid"] for n in nodes if n["role"] == "server"), signal.SIGKILL)


OVER_KEYS = "StuckNoting", "StuckPushing", "StuckPulling"
PASSES = *OVER_KEYS, "StuckReading", "StuckComparing"


@pytest.mark.parametrize("model", PASSES)
@pytest.mark.parametrize("role", ["worker", "server"])
def test_process_killed_in_a_pass_of_a_search_costs_no_byte(folder, monkeypatch, role, model):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    name = f"{role}-{model}"
    with snailps.local_cluster(servers=2, workers=2) as cluster:
        copied(cluster)

        def kill(pid):
            kill_a_server(cluster) if role == "server" else os.kill(pid, signal.SIGKILL)

        session = Killing(cluster, model, folder / name, kill)
        assert searched(folder, name, session) == searched(folder, "one")
        assert session.killed


@pytest.mark.parametrize("model", PASSES)
def test_lost_server_without_standby_ends_a_search_which_goes_on_with_the_keys(
    folder, monkeypatch, model
):
    """The same command makes the passes over the keys again; no text is read for keys again."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    name = f"alone-{model}"

    def keys():
        files = (folder / name / ".snailps" / "copies").glob("*.keys")
        return {path.name: path.stat().st_ino for path in files}

    with snailps.local_cluster(servers=1, workers=2, log=io.StringIO()) as cluster:
        session = Killing(cluster, model, folder / name, lambda pid: kill_a_server(cluster))
        with pytest.raises(ClusterError, match="server"):
            searched(folder, name, session)
    before = keys()
    assert len(before) == FILES

    class Session:
        def run(self, model, settings, *, input):
            cluster.run(model, settings, input=input)
            assert keys() == before

    with snailps.local_cluster(servers=1, workers=1) as cluster:
        assert searched(folder, name, Session()) == searched(folder, "one")
