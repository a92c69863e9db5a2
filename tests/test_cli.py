"""The command line: help worth reading, errors that name the option, whole runs, exit codes."""

import json
import os
import re
import select
import signal
import socket
import sys
from pathlib import Path

import pytest
from cluster_models import COUNTER, write_numbers
from processes import SNAILPS, Gate, Process, environment, free_port
from texts import write_topics
from typer.testing import CliRunner

from snailps import __version__, kernels, models
from snailps.cli.main import app, main, spread_inputs
from snailps.config.fields import settings_of

COMMANDS = {
    "master": ["--config", "--set", "--json", "worker_class", "Ctrl-C"],
    "server": ["--config", "--set", "master_addr"],
    "worker": ["--config", "--set", "SIGTERM"],
    "local": ["--config", "--servers", "--workers", "--set", "--json"],
    "train": ["fasttext", "word2vec"],
    "demo": ["--output", "--epochs"],
    "nn": ["-k"],
    "similarity": [],
    "analogy": [],
    "vector": [],
    "eval": ["--similarity", "--analogies", "--json"],
}


def call(monkeypatch, capsys, *arguments):
    """`snailps ARGUMENTS` in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["snailps", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    return ended.value.code or 0, told.out, told.err


# --- help -------------------------------------------------------------------------------------


def test_help_names_every_command():
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert {command for command in COMMANDS if re.search(rf"\b{command}\b", told)} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_names_its_options(monkeypatch, capsys, command):
    code, told, _ = call(monkeypatch, capsys, command, "--help")
    assert code == 0
    assert "Usage: snailps " in told
    for part in COMMANDS[command]:
        assert part in told


@pytest.mark.parametrize("name", models.SETTINGS)
def test_help_of_train_has_every_setting_with_its_default(monkeypatch, capsys, name):
    _, told, _ = call(monkeypatch, capsys, "train", name, "--help")
    told = re.sub(r"[\s│]+", " ", told)
    fixed = {"worker_class", *({"minn", "maxn"} if name == "word2vec" else ())}
    for key, setting in settings_of(models.SETTINGS[name]).items():
        flag = f" --{key.replace('_', '-')} "
        assert (flag in told) == (key not in fixed), key
        if key not in fixed and setting.format(setting.default):
            assert f"Default: {setting.format(setting.default)}." in told
    for flag in ("--servers", "--workers", "--threads", "--json", "--json-log"):
        assert f" {flag} " in told


def test_version_tells_version_and_kernels(monkeypatch, capsys):
    code, told, _ = call(monkeypatch, capsys, "--version")
    assert (code, told) == (0, f"snailps {__version__}, kernels {kernels.BUILD}\n")


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("train fasttext --input a", "train fasttext --input a"),
        ("--input a b c --dim 3", "--input a --input b --input c --dim 3"),
        ("--input a b --output o", "--input a --input b --output o"),
        ("--dim 3 --input a --input b c", "--dim 3 --input a --input b --input c"),
        ("--input=a b", "--input=a b"),
        ("nn model word", "nn model word"),
        ("", ""),
    ],
)
def test_spread_inputs_repeats_the_option(given, expected):
    assert spread_inputs(given.split()) == expected.split()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--input in.txt", ["--output is missing", "--help"]),
        ("--output out", ["--input is missing", "--help"]),
        ("--input in.txt --output out --dim many", ["--dim", "many"]),
        ("--input in.txt --output out --dim 0", ["--dim", "1 to 4096"]),
        ("--input in.txt --output out --lr -1", ["--lr", "-1"]),
        ("--input in.txt --output out --model glove", ["--model", "skipgram", "cbow", "glove"]),
        ("--input in.txt --output out --minn 7", ["--minn", "maxn"]),
        ("--input in.txt --output out --formats bin,doc", ["--formats", "doc"]),
        ("--input in.txt --output out --threads x", ["--threads", "x"]),
        ("--input in.txt --output out --optimizer sgd", ["optimizer", "sgd"]),
        ("--input in.txt --output out --dmi 5", ["No such option", "--dmi", "--dim"]),
        ("--input in.txt --output out --servers 0", ["--servers"]),
    ],
)
def test_train_with_wrong_option_names_it(monkeypatch, capsys, options, parts):
    code, out, err = call(monkeypatch, capsys, "train", "fasttext", *options.split())
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    err = re.sub(r"[\s│]+", " ", err)  # boxes and broken lines
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("epochs: 3", [], ["no worker_class", "fasttext.conf"]),
        (f"worker_class: {COUNTER}\nepohcs: 3", [], ["job.conf:2", "did you mean 'epochs'"]),
        (f"worker_class: {COUNTER}\nshard_num: many", [], ["job.conf:2", "shard_num", "many"]),
        (f"worker_class: {COUNTER}", ["--set", "threads"], ["--set threads", "key=value"]),
        (f"worker_class: {COUNTER}", ["--set", "lines=x"], ["--set lines=x", "lines"]),
        (None, [], ["job.conf"]),
    ],
)
def test_local_with_wrong_settings_says_where(monkeypatch, capsys, tmp_path, text, options, parts):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "job.conf").write_text(text)
    code, out, err = call(monkeypatch, capsys, "local", "-c", "job.conf", *options)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for part in ["snailps: error: ", *parts]:
        assert part in err


# --- whole runs -------------------------------------------------------------------------------


class Run(Process):
    """A command that a test runs to its end."""

    def __init__(self, folder, *arguments):
        super().__init__(arguments[0], [*SNAILPS, *map(str, arguments)], cwd=folder)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            print(self.stderr)
        left = self.close()
        assert kind is not None or not left


def test_train_with_several_inputs_and_json_writes_files_and_figures(tmp_path):
    for name in ("a", "b"):
        write_topics(tmp_path / f"{name}.txt", 300)
    options = "--output out --epochs 2 --dim 8 --bucket 500 --min-count 1 --seed 3 --threads 1"
    options += " --servers 2 --workers 2 --json --json-log log.jsonl --formats vec,bin"
    with Run(tmp_path, "train", "fasttext", "--input", "a.txt", "b.txt", *options.split()) as run:
        assert run.wait() == 0, run.stderr
    (line,) = run.stdout.splitlines()
    figures = json.loads(line)
    assert figures["words"] == 2 * 2 * 3300
    assert figures.keys() >= {"words_per_s", "wall_s", "train_loss", "peak_rss_mb"}
    assert (figures["servers"], figures["workers"]) == (2, 2)
    assert figures["files"] == ["out.vec", "out.bin"]
    assert (tmp_path / "out.vec").read_text().split("\n")[0] == "21 8"
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert records[-1]["figures"]["words"] == figures["words"]
    assert not run.errors
    with Run(tmp_path, "nn", "out.bin", "hound", "-k", "3") as run:
        assert run.wait() == 0
    assert len(run.stdout.splitlines()) == 3


def test_train_word2vec_knows_no_subwords(tmp_path):
    write_topics(tmp_path / "a.txt", 300)
    options = "--input a.txt --output out --epochs 1 --dim 8 --threads 1"
    with Run(tmp_path, "train", "word2vec", *options.split()) as run:
        assert run.wait() == 0, run.stderr
        assert run.stdout == ""
    with Run(tmp_path, "vector", "out.bin", "houndish") as run:
        assert run.wait() == 1
        assert len(run.errors) == 1


@pytest.fixture
def conf(tmp_path):
    """A job of ten blocks with a gate before block 2: the options to run it."""
    write_numbers(tmp_path / "in.txt", 1000)
    (tmp_path / "job.conf").write_text(
        f"worker_class: {COUNTER}\ninput: in.txt\noutput: out\nepochs: 1\ngates: gates\n"
    )
    return ["local", "-c", "job.conf"]


def test_local_with_job_runs_it_and_shows_who_works(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf, "--servers", "2", "--json", "--set", "epochs=3") as run:
        gate.meet()
        for name in ("server", "worker"):
            run.wait_line(rf"{name} \d+ \(")
        gate.open()
        assert run.wait() == 0, run.stderr
    assert json.loads(run.stdout)["examples"] == 3000
    assert not run.errors


def test_local_without_json_prints_nothing_on_standard_output(tmp_path, conf):
    with Run(tmp_path, *conf) as run:
        assert run.wait() == 0, run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("setting", "code", "parts"),
    [
        ("input=nowhere.txt", 1, ["nowhere.txt", "does not exist"]),
        ("output=in.txt/out", 2, ["output", "in.txt"]),
        ("json_log=no/such/log", 2, ["json_log", "no/such"]),
    ],
)
def test_local_with_failing_master_gives_one_message_and_its_code(
    tmp_path, conf, setting, code, parts
):
    with Run(tmp_path, *conf, "--set", setting) as run:
        assert run.wait() == code, run.stderr
    assert "Traceback" not in run.stderr
    (error,) = run.errors
    for part in parts:
        assert part in error


def test_local_with_port_in_use_says_so(tmp_path, conf):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Run(tmp_path, *conf, "--set", f"listen_addr=127.0.0.1:{port}") as run:
            assert run.wait() == 1, run.stderr
        assert f"cannot listen on 127.0.0.1:{port}" in run.errors[0]


def test_local_with_killed_worker_ends_and_says_so(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf, "--workers", "2") as run:
        gate.meet()
        pid = int(re.search(r"worker \d+ \(\S+?:(\d+)\)", run.wait_line(r"worker \d+ \("))[1])
        os.kill(pid, signal.SIGKILL)
        gate.open()
        assert run.wait() == 1, run.stderr
        (error,) = run.errors
        assert f"process {pid}) is lost" in error


def test_local_with_sigint_saves_and_exits_130(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf) as run:
        gate.meet()
        run.send(signal.SIGINT)
        run.wait_line("interrupted: finishing")
        gate.open()
        assert run.wait() == 130, run.stderr
    assert (tmp_path / "out.npz").exists()
    assert "what was learnt is saved" in run.stderr
    assert not run.errors


def test_local_when_killed_leaves_no_process(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf) as run:
        gate.meet()
        pids = children_of(run.pid)
        assert len(pids) == 3
        watched = [os.pidfd_open(pid) for pid in pids]
        run.send(signal.SIGKILL)
        run.wait()
        for descriptor in watched:  # readable once the process has ended
            assert select.select([descriptor], [], [], 20)[0]
            os.close(descriptor)
        gate.open()


def children_of(pid):
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, children.read_text().split())
    return found


def test_process_with_environment_and_set_follows_precedence(tmp_path):
    port = free_port()
    (tmp_path / "worker.conf").write_text("init_timeout: 60\nmaster_addr: 127.0.0.1:1\n")
    env = environment(SNAILPS_INIT_TIMEOUT="1", SNAILPS_MASTER_ADDR="127.0.0.1:2")
    command = [*SNAILPS, "worker", "-c", "worker.conf", "--set", f"master_addr=127.0.0.1:{port}"]
    worker = Process("worker", command, cwd=tmp_path, env=env)
    assert worker.wait() == 1
    worker.close()
    assert f"127.0.0.1:{port} within 1 s" in worker.errors[0]
