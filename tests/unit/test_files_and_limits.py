"""Before a command does anything: it never replaces what it reads, whatever --overwrite says; a
path that the system refuses is one line; limits of a machine are kept."""

import os

import pytest
from test_cli import call

from snailps import cluster, connect, quantize
from snailps.config import JobSettings, RawConfig
from snailps.config.files import read_conf
from snailps.config.output import make_folder, refuse_sources
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import files_of
from snailps.master.job.job import Job
from snailps.master.takeover import check_results, named_sources
from snailps.models import CLASSES

LONG = "n" * 300  # no file system of ours takes such a name


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("m.npz", "m.bin", "data.txt", "more.txt"):
        (tmp_path / name).write_text(f"{name}: what its owner has\n")
    (tmp_path / "link.ftz").symlink_to("m.bin")
    os.link(tmp_path / "more.txt", tmp_path / "twin.txt")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "vocab.txt").write_text("d/vocab.txt: what its owner has\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "recommend m.npz --output m.npz",
        "recommend m.npz --known data.txt --known more.txt --output more.txt",
        "recommend m.npz --only data.txt --output data.txt",
        "recommend m.npz --only more.txt --output twin.txt",
        "predict m.bin --input data.txt --output data.txt",
        "quantize m.bin --output link.ftz",
        "quantize m.bin --output link.ftz --test m.bin",
        "autotune --input m.bin --validation data.txt --output m",
        "autotune --input data.txt --validation m.bin --output m",
        "fedavg prepare d/vocab.txt --into d",
        "fedavg prepare data.txt --stop-words d/vocab.txt --into d",
        "fedavg plot data.txt more.txt --into more.txt",
    ],
)
def test_command_never_replaces_what_it_reads(here, monkeypatch, capsys, words):
    code, out, errors = call(
        monkeypatch, capsys, *words.split(), *([] if words[:8] == "autotune" else ["--overwrite"])
    )
    assert (code, out) == (2, "")
    assert "is read here, too" in errors
    assert "name another output" in errors
    for path in here.rglob("*.*"):
        if path.name not in ("link.ftz", "twin.txt"):
            assert path.read_text() == f"{path.relative_to(here)}: what its owner has\n"


def test_quantize_in_python_never_replaces_its_text(here):
    with pytest.raises(ConfigError, match=r"link.ftz is read here, too \(m.bin\)"):
        quantize("data.txt", "link.ftz", cutoff=1, retrain="m.bin")


def job(model, **settings):
    return Job(RawConfig.from_mapping({"worker_class": CLASSES[model], **settings}, "the test"))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("fasttext", {"input": "m.vec", "output": "m"}),
        ("fasttext", {"input": "in.txt", "pretrained": "m.vec", "output": "m", "dim": "2"}),
        ("logistic", {"input": "in.txt", "test": "in.txt, m.npz", "output": "m.npz"}),
        ("kge", {"input": "in.txt", "valid": "m.npz", "output": "m.npz"}),
        ("mf", {"input": "in.txt, m.npz", "output": "m"}),
    ],
)
def test_job_never_replaces_what_it_reads(tmp_path, monkeypatch, model, settings):
    monkeypatch.chdir(tmp_path)
    for name in ("in.txt", "m.npz"):
        (tmp_path / name).write_text("1 1:1\n0 2:1\n" if model == "logistic" else "a b 1\n")
    (tmp_path / "m.vec").write_text("1 2\na .5 .5\n")
    its = job(model, **settings, overwrite="true")
    with pytest.raises(ConfigError, match="is read here, too"):
        check_results(its.model.cls, its.settings, takes_over=False)


def test_job_never_replaces_files_of_its_folders_and_patterns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.vec").write_text("a b c\n" * 9)
    for given in ("*.vec", "."):
        its = job("word2vec", input=given, output="m", overwrite="true")
        check_results(its.model.cls, its.settings, takes_over=False)  # which looks at names alone
        with pytest.raises(ConfigError, match=r"output: m.vec is read here, too"):
            its.input.find()
    its = job("word2vec", input=".", output="other", overwrite="true")
    its.input.find()


def test_job_may_replace_the_model_that_it_continues(tmp_path):
    model = str(tmp_path / "m.npz")
    (tmp_path / "m.npz").write_bytes(b"a model")
    its = JobSettings(input=("in.txt",), output=model, checkpoint_dir="c")
    assert named_sources(its) == ["c", "in.txt", ""]  # and no output
    refuse_sources([model], named_sources(its))


def test_urls_folders_and_missing_files_are_no_sources(tmp_path):
    (tmp_path / "x").write_text("x")
    refuse_sources([tmp_path / "x"], ["s3://b/x", tmp_path, "", "\0", LONG, tmp_path / "gone"])
    refuse_sources(["", tmp_path, tmp_path / "gone"], ["", tmp_path, tmp_path / "gone"])


@pytest.mark.parametrize(
    "words",
    [
        f"checkpoint list {LONG}",
        f"checkpoint verify {LONG}",
        f"tls init {LONG}",
        f"fedavg prepare {LONG} --into new",
        f"filter --input data.txt --model a={LONG} --keep a.p>.5 --output out",
        f"local -c {LONG}",
    ],
)
def test_path_that_the_system_refuses_is_one_line(here, monkeypatch, capsys, words):
    code, out, errors = call(monkeypatch, capsys, *words.split())
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("snailps: error: ")
    assert LONG in errors
    assert "File name too long" in errors


def test_input_that_cannot_be_looked_at_is_an_error_of_data():
    for name in (LONG, f"{LONG}/x", f"{LONG}*"):
        with pytest.raises(DataError, match=LONG):
            files_of([name])


def test_settings_of_a_path_that_cannot_be_looked_at_are_refused(tmp_path):
    (tmp_path / "loop.conf").symlink_to("loop.conf")
    (tmp_path / "importer.conf").write_text(f"import {LONG}\n")
    for path, why in (
        (tmp_path / "loop.conf", "symbolic links"),
        (tmp_path / LONG, "File name too long"),
        (tmp_path / "importer.conf", "importer.conf:1: cannot read"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_conf(path)
    with pytest.raises(ConfigError, match=r"output: x: cannot write in .*File name too long"):
        make_folder(tmp_path / LONG, "output: x", "output")


def test_cluster_of_more_processes_than_a_machine_bears_is_refused_before_it_starts():
    for given in ({"servers": 65}, {"servers": 10**9}, {"workers": 257}):
        with pytest.raises(ConfigError, match="at most 64 servers and 256 workers on one machine"):
            cluster(**given)


def test_what_an_argument_of_connect_sets_is_no_setting_of_it():
    for name, instead in (("init_timeout", "timeout_s"), ("master_addr", "address")):
        with pytest.raises(ConfigError, match=rf"connect\({name}\): {instead} sets it here"):
            connect("127.0.0.1:1", **{name: "1"})
