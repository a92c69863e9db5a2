"""A filter that searches for copies, and what is killed of it: the same bytes."""

import io
import json
import os
import shutil
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


@pytest.mark.parametrize("earlier", [False, True])
def test_filter_killed_at_each_file_goes_on_to_the_same_bytes(tmp_path, earlier):
    texts, _ = corpus(7, pages=20)
    old, texts = (texts[:20], texts[20:]) if earlier else ([], texts)
    for name, of_dump in (("in", texts), ("old", old)):
        (tmp_path / name).mkdir()
        for file in range(2):
            rows = [{"n": at, "text": of_dump[at]} for at in range(file, len(of_dump), 2)]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / name / f"{file}.jsonl").write_text(lines)
    folders = [str(tmp_path / name) for name in ("in", "whole", "out", "old")[: 3 + earlier]]
    result = subprocess.run(
        [sys.executable, killed_filter.__file__, *folders], env=environment(),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    names = result.stdout.split()
    # The command and its tasks; keys of two files, each with a record; what was found, with a
    # record; two outputs, each with a record; the report, the manifest.  With an index: the places
    # of old covers, the sets of two outputs, a segment.
    files = 2 + 4 + 2 + 4 + 2 + (1 + 2 + 1) * earlier
    assert len(names) == 2 * files, names
    assert names[::2] == names[1::2]
    assert len({*names}) == files
    outputs = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert outputs == ["0.jsonl", "1.jsonl", "_manifest.json", "_report.html"]
    indexes = [sorted((tmp_path / f"{name}-index").glob("*")) for name in ("out", "whole")]
    for path, other in zip(*indexes, strict=True):
        assert path.name == other.name
        assert path.read_bytes() == other.read_bytes()
    assert len(indexes[0]) == 3 * earlier  # two segments, and the lock
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
    """Files with copies, in one file, across them, and of an earlier dump, which is in an index;
    and what one process makes of them."""
    folder = tmp_path_factory.mktemp("copies")
    texts, _ = corpus(8, pages=50)
    for dump, of_dump in (("in", texts[:80]), ("earlier", texts[80:])):
        (folder / dump).mkdir()
        for file in range(FILES):
            rows = [{"n": at, "text": of_dump[at]} for at in range(file, len(of_dump), FILES)]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / dump / f"{file}.jsonl").write_text(lines)
    filtered(folder, "earlier", "earlier-out", "index")
    searched(folder, "one")
    return folder


def filtered(folder, dump, output, index, cluster=None):
    return snailps.filter(
        folder / dump, output=folder / output, keep=killed_filter.KEEP, column="text",
        add=["dup.of", "dup.contained", "dup.near"], threads=1, cluster=cluster,
        against=folder / index,
    )  # fmt: skip


def searched(folder, name, cluster=None):
    """Bytes of the outputs, and of the segment that is appended to a copy of the index."""
    index = folder / f"{name}-index"
    if not index.exists():
        shutil.copytree(folder / "index", index)
    copies = filtered(folder, "in", name, index.name, cluster)["copies"]
    assert copies["removed"] > copies["removed_by_index"] > 0
    outputs = [(folder / name / f"{file}.jsonl").read_bytes() for file in range(FILES)]
    return outputs, next(index.glob("000002-*.pages")).read_bytes()


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
