"""Files that a stranger can hand over are data: none of them chooses a module that is imported.

`FILES` lists every kind of file that is read.  Each case writes one which names the module `evil`
wherever the format has room for a name, or holds a pickle that imports it, and opens it in each way
that there is.
"""

import contextlib
import json
import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from test_checkpoint_files import FRAG_NUM, LIFE, make_store, write_store

import snailps
from snailps import Table, models
from snailps.api.class_loading import admit
from snailps.cli import checkpoint as checkpoint_cli
from snailps.cli import jobs
from snailps.data.array_files import read_array
from snailps.data.example_files import example_files
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, SnailError
from snailps.estimators.loading import load
from snailps.files.model_file import header_of, write_model
from snailps.files.scratch import Scratch
from snailps.local.offline_export import CheckpointSource, export, open_results
from snailps.local.session_tables import ClusterSource
from snailps.master.effects import Fact
from snailps.master.job.state import unpack
from snailps.master.journal import Journal
from snailps.master.takeover import FORMAT
from snailps.models.embeddings import files as embeddings
from snailps.models.embeddings.settings import MfSettings
from snailps.models.fedavg.plotting import read_history
from snailps.models.mlp import files as nets
from snailps.models.packed_tables import read_packed
from snailps.models.sparse.export import read_npz
from snailps.node.run_registry import RunRegistry, birth_of
from snailps.serving.row_reader import RowReader
from snailps.store.checkpoint.folder import CheckpointFolder, verify, write_course
from snailps.store.checkpoint.manifest import Manifest
from snailps.vectors.evaluate import evaluate_analogies
from snailps.vectors.query import Vectors

NAME = "evil:Any"
CLASSES = {"worker_class": NAME, "access": NAME, "class": NAME, "estimator": NAME, "stages": NAME}


class Looks:
    """A finder of modules that finds none, and notes each look for `evil`."""

    def __init__(self):
        self.wanted = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "evil":
            self.wanted.append(name)


@pytest.fixture
def looks(monkeypatch, tmp_path):
    """A folder with a module `evil` in it, which is the current one; who looks for it."""
    (tmp_path / "evil.py").write_text("raise AssertionError('evil is executed')\n")
    monkeypatch.chdir(tmp_path)
    found = Looks()
    monkeypatch.setattr(sys, "meta_path", [found, *sys.meta_path])
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    return found


class Evil:
    """What imports `evil` when it is unpickled."""

    def __reduce__(self):
        return __import__, ("evil",)


def objects():
    """A .npy of Python objects: its content is a pickle."""
    path = Path("objects.npy")
    np.save(path, np.array([Evil()], object), allow_pickle=True)
    return path.read_bytes()


def model(read, **more):
    """A .npz whose settings name the class, and one with a pickle in every array that is read."""
    arrays = {
        "keys": np.arange(2, dtype=np.uint64), "rows": np.ones((2, 3), np.float32),
        "estimator": header_of(CLASSES), **more,
    }  # fmt: skip
    for name, kept in (("a.npz", CLASSES), ("b.npz", {"worker_class": models.CLASSES["fm"]})):
        write_model(name, {"about": header_of({**kept, "stages": NAME, "access": NAME}), **arrays})
    with zipfile.ZipFile("c.npz", "w") as archive:
        for name in ("about", *arrays, "words", "vectors", NAME):
            archive.writestr(f"{name}.npy", objects())
    return [lambda at=at: read(at) for at in ("a.npz", "b.npz", "c.npz")]


def vectors():
    Path("a.vec").write_text(f"2 2\n{NAME} 1 2\nevil 3 4\n")
    Path("b.bin").write_bytes(b"2 2\nevil:Any " + bytes(8) + b"\nevil " + bytes(8) + b"\n")
    Path("c.ftz").write_bytes(b"\xba\x16\x4f\x2f" + b"evil:Any\0" * 99)
    Path("d.model").write_bytes(pickle.dumps(Evil()))
    Path("e.txt").write_text(f"{NAME} 1 2\n")
    head = json.dumps({NAME: {"dtype": NAME, "shape": [1], "data_offsets": [0, 4]}}).encode()
    Path("f.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    Path("g.npy").write_bytes(objects())
    return [lambda at=at: load(at) for at in sorted(Path().glob("?.*"))]


def examples():
    Path("a.libsvm").write_text("1 evil:1\n")
    Path("b.csv").write_text(f"label,{NAME}\n1,{NAME}\n")
    Path("c.jsonl").write_text(json.dumps({"label": 1, NAME: NAME, **CLASSES}) + "\n")
    Path("d.npy").write_bytes(objects())
    Path("e.pkl").write_bytes(pickle.dumps(Evil()))
    with zipfile.ZipFile("f.npz", "w") as archive:
        for name in ("X", "y", "data", "indices", "indptr", "shape", "format"):
            archive.writestr(f"{name}.npy", objects())
    Path("g.mx").write_bytes(b"\x93SNAILX\n" + b"evil:Any" * 20)
    Path("h.parquet").write_bytes(b"PAR1" + b"evil:Any" * 20 + b"PAR1")
    names = sorted(map(str, Path().glob("?.*")))
    return [
        *(lambda at=at: list(example_files([at]).pieces()) for at in names),
        *(lambda at=at: read_array(at, Scratch("", 0)) for at in names),
    ]


def manifest_of(tables, worker_class=NAME, **settings):
    """A checkpoint of a store with these tables; the folder that has it."""
    folder = CheckpointFolder(Path("out.checkpoints").absolute())
    folder.take()
    part = folder.begin(1)
    store = make_store(range(FRAG_NUM), tables={})
    for number, table in tables.items():
        store.add_table(number, *table.store_arguments())
    entry = write_store(part / "server-1-shard-0.rows", store)
    told = tuple({"number": n, "table": table.to_dict()} for n, table in tables.items())
    about_job = {"progress": 1.0, "worker_class": worker_class, "settings": settings}
    course = write_course(part, json.dumps(CLASSES).encode())
    made = Manifest(1, LIFE, "now", FRAG_NUM, told, (entry,), about_job, course)
    folder.complete(part, made)
    folder.release()
    return folder.path


def checkpoint():
    tables = {1: Table("plain", 2), 2: Table("rows", 2, access=NAME)}
    path = manifest_of(tables)
    one = path / "checkpoint-000001"
    settings = snailps.JobSettings(output="out")
    return [
        lambda: snailps.open_checkpoint(path)["rows"],
        lambda: snailps.open_checkpoint(path)["plain"].pull([1]),
        lambda: snailps.open_checkpoint(path, modules=["evi", "evil.Any"])["rows"],
        lambda: snailps.open_checkpoint(path, modules="evil2")["rows"],
        lambda: snailps.open_checkpoint(path).tensor("rows", (2, 2)),
        lambda: verify(one),
        lambda: CheckpointFolder(path).found(),
        lambda: CheckpointSource(one),
        lambda: open_results(one, settings),
        lambda: export(one, "out"),
        lambda: checkpoint_cli.list_(path),
        lambda: checkpoint_cli.verify_(path),
        lambda: checkpoint_cli.export_(path, "out"),
        lambda: checkpoint_cli.export_(path, "out", tables=True),
    ]


def checkpoint_of_a_model_of_snailps():
    one = manifest_of(
        {1: Table("plain", 2)}, models.CLASSES["fedavg"], stages=NAME, input="in.txt",
        continue_from=NAME,
    )  # fmt: skip
    return [lambda: export(one / "checkpoint-000001", "out")]


def course():
    return [lambda: unpack(json.dumps(CLASSES).encode()), lambda: unpack(pickle.dumps(Evil()))]


def journal():
    """Only `unended` uses it, for a job whose class is the one that the user has set."""
    made = Journal(Path("out.journal").absolute())
    made.take()
    table = Table("rows", 2, access=NAME).to_dict()
    made.begin([
        Fact("cluster", {"cluster_id": 1, "at": 0.0, "format": FORMAT, "job": CLASSES}),
        Fact("table", {"number": 1, "table": table, "of_job": True}),
    ])  # fmt: skip
    made.close()
    again = Journal(made.path)

    def read():
        again.take()
        again.read()
        again.close()

    return [read]


def run():
    """Its command is shown, and not run."""
    born = birth_of(os.getpid())
    places = [Path("runs").absolute()]
    places[0].mkdir(mode=0o700)
    told = {"number": 1, "pid": os.getpid(), "born": born, "model": NAME, "command": NAME}
    (places[0] / "1.json").write_text(json.dumps({**told, **CLASSES, "config": NAME}))
    registry = RunRegistry(places)
    return [lambda: [jobs.ended_lines(one, registry) for one in registry.runs()]]


def texts():
    Path("vocab.txt").write_text(f"{NAME} 5\n")
    Path("questions.txt").write_text(f": evil\n{NAME} {NAME} {NAME} {NAME}\n")
    rounds = {"round": 1, "loss": 1, "windows_per_learner": 1, "seconds": 1}
    Path("history.jsonl").write_text(f"{json.dumps(CLASSES)}\n{json.dumps(rounds)}\n")
    Path("words.json").write_text(json.dumps(CLASSES))
    return [
        lambda: Vocabulary.from_bytes(pickle.dumps(Evil())),
        lambda: evaluate_analogies(Vectors(["evil", "b"], np.eye(2)), "questions.txt"),
        lambda: read_history(Path("history.jsonl")),
        lambda: load("vocab.txt"),
        lambda: load("words.json"),
    ]


FILES = {
    "model of any kind, .npz": lambda: model(load),
    "model of sparse examples, .npz": lambda: model(read_npz),
    "net, .npz": lambda: model(nets.read_npz, global_step=np.ones(1)),
    "packed tables, .npz": lambda: model(read_packed),
    "embeddings, .npz": lambda: model(lambda at: embeddings.read(at, "a model", MfSettings, ())),
    "vectors, .vec .bin .ftz .safetensors .npy, pickles": vectors,
    "examples: lines, tables, arrays, matrix files": examples,
    "checkpoint": checkpoint,
    "checkpoint of a model of snailps": checkpoint_of_a_model_of_snailps,
    "snapshot of a job": course,
    "journal": journal,
    "run of this machine": run,
    "vocabulary, questions, history": texts,
}


@pytest.mark.parametrize("kind", FILES)
def test_file_that_names_a_module_imports_nothing(looks, kind, capsys):
    opened = FILES[kind]()
    path = list(sys.path)
    for way in opened:
        with contextlib.suppress(SnailError, SystemExit):
            way()
    assert looks.wanted == []
    assert "evil" not in sys.modules
    assert sys.path == path


class Named:
    """The rows of a table that a cluster names."""

    table = Table("rows", 3, access=NAME)

    declared: ClassVar = []

    def all_tables(self):
        return {"rows": (1, self.table)}

    def has_declared(self, table):
        return table in self.declared


def test_cluster_that_names_a_module_has_its_readers_import_nothing(looks):
    path = list(sys.path)
    with pytest.raises(ConfigError, match=r"'rows': evil:.* reader\(..., modules=\['evil'\]\)"):
        RowReader(Named(), "first", ())
    with pytest.raises(ConfigError, match=r"'rows': evil:.* import evil in this process first"):
        ClusterSource(Named(), state=True)
    assert ClusterSource(Named()).tables == {"rows": Named.table}
    RowReader(Named(), "stale", ())
    assert looks.wanted == []
    assert sys.path == path
    Named.declared = [Named.table]  # this process has named it itself
    assert ClusterSource(Named(), state=True).tables == {"rows": Named.table}
    Named.table = Table("rows", 3, access="python_methods:Momentum", lr=0.1)
    assert RowReader(Named(), "first", ["python_methods"])._first.pull(np.arange(2)).shape == (2, 3)
    assert sys.path == path


def test_pickle_of_these_tests_does_import(looks):
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(pickle.dumps(Evil()))
    assert looks.wanted == ["evil"]


def test_checkpoint_imports_a_module_that_its_reader_names(looks, monkeypatch):
    path = manifest_of({1: Table("rows", 3, access="python_methods:Momentum", lr=0.1)})
    before = list(sys.path)
    with pytest.raises(ConfigError, match=r"open_checkpoint\(..., modules=\['python_methods'\]\)"):
        snailps.open_checkpoint(path)["rows"]
    saved = snailps.open_checkpoint(path, modules=["python_methods"])
    assert saved["rows"].pull([3]).tolist() == [[6.0, 6.0, 6.0]]
    assert sys.path == before
    with pytest.raises(ConfigError, match="No module named 'evil'"):
        admit(NAME, "a file", ["evil"])
    assert looks.wanted == ["evil"]


@pytest.mark.parametrize("module", ["snailps.cli.entry", "snailps.filtering.worker", "snailpsx"])
def test_file_may_name_models_of_the_package_and_nothing_else_of_it(module):
    """A stranger's file decides what is named: the package has modules that are no models."""
    admit("snailps.models.word_vectors:WordVectors", "a file", [])
    with pytest.raises(ConfigError, match="Evil is a class of your own"):
        admit(f"{module}:Evil", "a file", [])
