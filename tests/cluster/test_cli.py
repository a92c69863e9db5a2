"""The command line: help worth reading, errors that name the option, whole runs, exit codes."""

import contextlib
import json
import math
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from cluster_models import COUNTER, write_numbers
from processes import LIMIT_S, SNAILPS, Gate, Process, environment, free_port
from texts import write_topics
from typer.testing import CliRunner

import snailps
from snailps import __version__, kernels, models
from snailps.cli import main as cli
from snailps.cli.printing import print_json
from snailps.cli.train import separate
from snailps.config.fields import settings_of
from snailps.local.launcher import MasterEnded

COMMANDS = {
    "master": ["--config", "--set", "--json", "--json-log", "worker_class", "Ctrl-C"],
    "server": ["--config", "--set", "master_addr"],
    "worker": ["--config", "--set", "SIGTERM"],
    "status": ["--config", "--set", "--json", "--watch", "waits"],
    "doctor": ["--config", "--set", "--wait", "--hosts", "--rows", "--json"],
    "local": ["--config", "--servers", "--workers", "--set", "--json", "--json-log"],
    "train": ["fasttext", "word2vec", "classifier", "logistic", "sparse_net", "fedavg"],
    "demo": ["--output", "--epochs", "--set"],
    "nn": ["-k"],
    "similarity": [],
    "analogy": [],
    "vector": [],
    "predict": ["-k", "--threshold", "--metrics", "--json"],
    "test": ["-k", "--threshold", "--json"],
    "eval": ["--similarity", "--analogies", "--verbose", "--json"],
}


def call(monkeypatch, capsys, *arguments):
    """`snailps ARGUMENTS` in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["snailps", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    return ended.value.code or 0, told.out, told.err


# --- help -------------------------------------------------------------------------------------


def test_help_names_every_command():
    told = CliRunner().invoke(cli.app_for(), ["--help"], env={"COLUMNS": "200"}).output
    assert {command for command in COMMANDS if re.search(rf"\b{command}\b", told)} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_names_its_options(monkeypatch, capsys, command):
    code, told, _ = call(monkeypatch, capsys, command, "--help")
    assert code == 0
    assert "Usage: snailps " in told
    for part in COMMANDS[command]:
        assert part in told
    if command != "train":
        assert f"For example: snailps {command}" in told
    assert told.count("<bool>") <= 1  # Typer's own --help


@pytest.mark.parametrize("name", models.SETTINGS)
def test_help_of_train_has_every_setting_with_its_default(monkeypatch, capsys, name):
    _, told, _ = call(monkeypatch, capsys, "train", name, "--help")
    told = re.sub(r"[\s│]+", " ", told)
    judged = "test" in settings_of(models.SETTINGS[name])
    assert ("--train,--input " in told) == judged
    told = told.replace("--train,--input ", "--input ")
    fixed = {"worker_class", *({"minn", "maxn"} if name == "word2vec" else ())}
    for key, setting in settings_of(models.SETTINGS[name]).items():
        flag = f" --{key.replace('_', '-')} "
        assert (flag in told) == (key not in fixed), key
        flags = ("fresh",)  # a flag needs no value, and no default
        if key not in (*fixed, *flags) and setting.format(setting.default):
            assert f"Default: {setting.format(setting.default)}." in told
        if key not in fixed and setting.choices:
            assert f"{flag}{'|'.join(setting.choices)} " in told
    for flag in ("--servers", "--workers", "--threads", "--json", "--json-log", "--set"):
        assert f" {flag} " in told
    example = "--train train.svm --test test.svm" if judged else "--input corpus.txt"
    example = {
        "mlp": "--train train-images-idx3-ubyte.gz --test t10k-images-idx3-ubyte.gz",
        "fedavg": "--input corpus.txt --data-dir data",
    }.get(name, example)
    assert f"For example: snailps train {name} {example} --output out/" in told
    assert "--input PATH... Required. " in told
    assert f"--output PATH Required{', unless --test is given' if judged else ''}. " in told


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
        ("--train a b --test c d", "--train a --train b --test c --test d"),
        ("--labels a b --test-labels c", "--labels a --labels b --test-labels c"),
        ("nn model word", "nn model word"),
        ("", ""),
    ],
)
def test_spread_inputs_repeats_the_option(given, expected):
    assert cli.spread_inputs(given.split()) == expected.split()


def test_train_with_commas_between_paths_separates_them_where_all_are_there(
    tmp_path, monkeypatch, capsys
):
    for name in ("a.svm", "b.svm", "c,d.svm"):
        (tmp_path / name).write_text("1 1:1\n")
    monkeypatch.chdir(tmp_path)
    assert separate("input", ["a.svm,b.svm", "c,d.svm"]) == ["a.svm", "b.svm", "c,d.svm"]
    given = "train logistic --train a.svm,gone --output o --class-weights 1"
    code, _, told = call(monkeypatch, capsys, *given.split())
    assert code == 2
    assert "--input: not found: a.svm,gone. Several paths are several words" in told
    given = "train logistic --train a.svm --output o --class-weights 1"
    _, _, told = call(monkeypatch, capsys, *given.split())
    assert "--class-weights: class_weights: expected 2 numbers" in told


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
        ("--input in.txt --output out --set dim", ["--set dim: expected key=value"]),
        ("--input in.txt --output out --set dim=x", ["--set dim=x: dim: expected", "'x'"]),
        ("--input in.txt --output out --set dmi=5", ["--set dmi=5", "did you mean 'dim'?"]),
        ("--input in.txt --output out --set shard_num=x", ["--set shard_num=x: shard_num"]),
        ("--set input=in.txt", ["--output is missing"]),
        (
            "--input in.txt --output out --set worker_class=a:B",
            ["--set worker_class=a:B: worker_class is always", "`snailps train fasttext`"],
        ),
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


@pytest.mark.parametrize("command", ["local", "master"])
def test_json_log_option_names_the_file(monkeypatch, capsys, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    write_numbers(tmp_path / "in.txt", 10)
    (tmp_path / "job.conf").write_text(f"worker_class: {COUNTER}\ninput: in.txt\n")
    options = ["-c", "job.conf", "--set", f"master_addr=127.0.0.1:{free_port()}"]
    with Run(tmp_path, command, *options, "--json-log", "no/such, log") as run:
        assert run.wait() == 2
    (error,) = run.errors
    assert "json_log: cannot write no/such, log" in error


class NoLauncher:
    """Takes the place of `Launcher`: starts nothing, keeps the settings it would start with."""

    given: ClassVar[list[str]] = []
    children = ()
    address = ""

    def __init__(self, config, overrides, **options):
        self.given[:] = overrides

    def start(self, give_up):
        raise MasterEnded(7)

    def poll(self):
        return 7

    def end(self, limit_s):
        pass

    def output(self):
        return ""


@pytest.mark.parametrize(
    ("command", "text", "environ", "missing"),
    [
        *(
            (command, "", environ, missing)
            for command in ("local", "train")
            for environ, missing in (
                ({}, None),
                ({"SNAILPS_THREADS": "3"}, "threads"),
                ({"SNAILPS_SHARD_NUM": "1"}, "shard_num"),
                ({"SNAILPS_LOG_LEVEL": "debug"}, "log_level"),
            )
        ),
        ("local", "async_channel_thread_num: 3", {}, "threads"),
        ("local", "log_level: error", {}, "log_level"),
    ],
)
def test_local_defaults_give_way_to_what_is_set(
    monkeypatch, capsys, tmp_path, command, text, environ, missing
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("snailps.cli.local.Launcher", NoLauncher)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if command == "local":
        (tmp_path / "job.conf").write_text(f"worker_class: {COUNTER}\n{text}\n")
        code, _, err = call(monkeypatch, capsys, "local", "-c", "job.conf")
    else:
        code, _, err = call(
            monkeypatch, capsys, "train", "word2vec", "--input", "a", "--output", "b"
        )
    assert code == 7, err
    keys = [pair.partition("=")[0] for pair in NoLauncher.given]
    for key in ("threads", "shard_num", "log_level"):
        assert (key in keys) == (key != missing)


SETS = ["--set", "dim=7", "--set", "heartbeat_timeout=3", "--set", "input=a, b"]


@pytest.mark.parametrize("command", ["local", "train", "demo"])
def test_set_wins_wherever_a_cluster_is_started(monkeypatch, capsys, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("snailps.cli.local.Launcher", NoLauncher)
    monkeypatch.setenv("SNAILPS_DIM", "4")
    sets = SETS if command != "demo" else SETS[:-2]
    job = tmp_path / "job.conf"
    job.write_text("worker_class: snailps.models.word_vectors:WordVectors\ndim: 5\noutput: b\n")
    options = {
        "local": ["local", "-c", str(job), *sets],
        "train": ["train", "word2vec", "--dim", "5", "--output", "b", *sets],
        "demo": ["demo", "--epochs", "1", *sets],
    }
    if command == "demo":
        monkeypatch.setattr("snailps.cli.demo.write_prose", lambda path: 1)
    code, _, err = call(monkeypatch, capsys, *options[command])
    assert code == 7, err
    assert NoLauncher.given[-len(sets) // 2 :] == sets[1::2]


def test_cluster_on_this_machine_says_once_what_has_no_effect(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("snailps.cli.local.Launcher", NoLauncher)
    text = "num_iters: 3\nzlib: 1\nbucket: 5\nshard_num: 1\nasync_channel_thread_num: 1\n"
    (tmp_path / "job.conf").write_text(f"worker_class: {COUNTER}\n{text}")
    code, _, err = call(monkeypatch, capsys, "local", "-c", "job.conf", "--set", "hidden=3")
    assert code == 7
    for line in (
        "job.conf:2: num_iters is called epochs here",
        "job.conf:3: zlib has no effect",
        "job.conf:6: async_channel_thread_num is called threads",
        "--set hidden=3: hidden has no effect in this job",
        "job.conf: not read by this job, but bucket from",
    ):
        assert err.count(line) == 1, line
    assert "shard_num" not in err


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("train word2vec --input a --output b --set minn=3", "minn is always 0"),
        ("demo --set formats=text", "formats is always bin with `snailps demo`"),
        ("demo --set input=other.txt", "input is always"),
    ],
)
def test_set_of_what_makes_a_command_what_it_is_is_refused(monkeypatch, capsys, command, word):
    monkeypatch.setattr("snailps.cli.local.Launcher", NoLauncher)
    monkeypatch.setattr("snailps.cli.demo.write_prose", lambda path: 1)
    code, _, err = call(monkeypatch, capsys, *command.split())
    assert code == 2
    assert word in err


def test_print_json_writes_null_for_what_is_no_number(capsys):
    print_json({"a": math.nan, "b": [1.5, math.inf], "c": {"d": -math.inf, "e": (0,)}, "f": "NaN"})
    assert json.loads(capsys.readouterr().out) == {
        "a": None, "b": [1.5, None], "c": {"d": None, "e": [0]}, "f": "NaN",
    }  # fmt: skip


# --- interrupts before anything is there ------------------------------------------------------

SLOW_IMPORT = """
import runpy, sys
slow, pipe = sys.argv[1:]
class Gate:
    def find_spec(self, name, path=None, target=None):
        if name == slow:
            print("importing", file=sys.stderr, flush=True)
            open(pipe).read()
sys.meta_path.insert(0, Gate())
sys.argv = ["snailps", "local"]
runpy.run_module("snailps", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["snailps.cli.entry", "snailps.cli.main", "typer", "numpy"])
def test_command_interrupted_while_importing_ends_silently(tmp_path, module):
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", SLOW_IMPORT, module, "pipe"]
    run = Process("snailps", command, cwd=tmp_path)
    try:
        run.wait_line("importing")
        run.send(signal.SIGINT)
        assert run.wait() == 130
        assert (run.stderr, run.stdout) == ("importing", "")
    finally:
        run.close()


def test_package_imports_its_names_when_they_are_asked_for():
    code = "import sys, snailps; print('numpy' in sys.modules, snailps.Worker.__module__, "
    code += "set(snailps.__all__) <= set(dir(snailps)), hasattr(snailps, 'Wroker'))"
    run = Process("python", [sys.executable, "-c", code], cwd=Path.cwd())
    assert run.wait() == 0, run.stderr
    run.close()
    assert run.stdout == "False snailps.api.worker True False\n"
    for name in snailps.__all__:
        assert getattr(snailps, name) is not None


def test_worker_interrupted_before_the_master_is_there_says_so(tmp_path):
    address = f"master_addr=127.0.0.1:{free_port()}"
    with Run(tmp_path, "worker", "--set", address) as run:
        run.wait_line("waiting for the master")
        run.send(signal.SIGINT)
        assert run.wait() == 130
    assert run.lines[-1] == "snailps: worker: SIGINT before the cluster was formed"


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
    with Run(tmp_path, *conf, "--workers", "2", "--set", "on_node_loss=stop") as run:
        gate.meet()
        pid = int(re.search(r"worker \d+ \(\S+?:(\d+)\)", run.wait_line(r"worker \d+ \("))[1])
        gone = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        # Else a worker that has no block could be gone later than the job is done.
        assert select.select([gone], [], [], LIMIT_S)[0]
        os.close(gone)
        gate.open()
        assert run.wait() == 1, run.stderr
        (error,) = run.errors
        assert f"process {pid}) is lost" in error


def test_local_with_killed_master_says_so_in_one_line(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf, "--set", "on_node_loss=stop") as run:
        gate.meet()
        os.kill(child_of(run.pid, "master"), signal.SIGKILL)
        gate.open()
        assert run.wait() == 1, run.stderr
        (error,) = run.errors
        assert "the master was killed by SIGKILL" in error
        assert "Traceback" not in run.stderr


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


def test_local_interrupted_before_the_master_listens_ends_soon(tmp_path, conf):
    # However late the signal is, the cluster is not formed: its worker waits for a greeting.
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        host, port = dumb.getsockname()
        with Run(tmp_path, *conf, "--set", f"advertise_addr={host}:{port}") as run:
            while not children_of(run.pid):
                assert run.popen.poll() is None
            run.send(signal.SIGINT)
            assert run.wait() == 130, run.stderr
    assert "Traceback" not in run.stderr
    assert "nothing was saved" in run.stderr
    assert not run.errors


def test_local_interrupted_while_forming_ends_soon(tmp_path, conf):
    with socket.create_server(("127.0.0.1", 0)) as dumb:  # the worker waits for its greeting
        host, port = dumb.getsockname()
        with Run(tmp_path, *conf, "--set", f"advertise_addr={host}:{port}") as run:
            run.wait_line("forming")
            run.send(signal.SIGINT)
            assert run.wait() == 130, run.stderr
    assert "Traceback" not in run.stderr
    assert "interrupted while forming; nothing was saved" in run.stderr
    assert not run.errors


def test_local_with_master_that_stalls_says_so_and_goes_on(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    secret = tmp_path / "a secret"
    secret.write_text("s" * 20)
    secret.chmod(0o600)
    with Run(tmp_path, *conf, "--json", "--set", f"secret_file={secret}") as run:
        gate.meet()
        master = child_of(run.pid, "master")
        run.wait_line("worker .*training")
        words = shlex.split(run.wait_line("look closer").partition("snailps ")[2])
        words[words.index("--watch")] = "--json"
        looked = subprocess.run(
            [*SNAILPS, *words], env=environment(), capture_output=True, text=True, timeout=LIMIT_S
        )
        assert json.loads(looked.stdout)["phase"] == "training", looked.stderr
        os.kill(master, signal.SIGSTOP)
        run.wait_line("the master does not answer")
        os.kill(master, signal.SIGCONT)
        gate.open()
        assert run.wait() == 0, run.stderr
    assert json.loads(run.stdout)["examples"] == 1000
    assert not run.errors


def test_local_with_master_that_hangs_ends_at_the_third_interrupt(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf) as run:
        gate.meet()
        run.wait_line("worker .*training")
        os.kill(child_of(run.pid, "master"), signal.SIGSTOP)
        while run.popen.poll() is None:  # signals in a row may count as one
            run.send(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.popen.wait(0.2)
        assert run.wait() == 130, run.stderr
        gate.open()
    assert "Traceback" not in run.stderr
    assert "interrupted and ended by force; nothing was saved" in run.stderr


def test_local_with_failing_worker_gives_one_error_and_its_traceback(tmp_path, conf):
    with Run(tmp_path, *conf, "--workers", "2", "--set", "fails_on=3") as run:
        assert run.wait() == 1
    (error,) = run.errors
    assert "planted failure" in error
    assert re.search(r"^worker \d: Traceback", run.stderr, re.MULTILINE)  # of the user's code


def child_of(pid, role):
    (found,) = [
        child
        for child in children_of(pid)
        if role in Path(f"/proc/{child}/cmdline").read_text().split("\0")
    ]
    return found


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
            assert select.select([descriptor], [], [], LIMIT_S)[0]
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
