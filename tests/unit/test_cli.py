"""The command line: help worth reading, errors that name the option."""

import errno
import io
import json
import math
import os
import re
import sys
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import ClassVar

import pytest
import typer
from cluster_models import COUNTER
from typer.testing import CliRunner

from snailps import __version__, kernels, models
from snailps.cli import local, page_process
from snailps.cli import main as cli
from snailps.cli.entry import open_streams
from snailps.cli.jobs import only_one
from snailps.cli.local import without_effect
from snailps.cli.printing import print_json
from snailps.cli.status import screen_of
from snailps.cli.train import separate
from snailps.config import ClusterSettings, RawConfig, WorkerSettings
from snailps.config.fields import settings_of
from snailps.errors import CheckpointError, ConfigError
from snailps.local.launcher import MasterEnded
from snailps.store.checkpoint.folder import Checkpoint

COMMANDS = {
    "master": ["--config", "--set", "--json", "--json-log", "worker_class", "Ctrl-C"],
    "server": ["--config", "--set", "master_addr"],
    "worker": ["--config", "--set", "SIGTERM"],
    "status": ["--config", "--set", "--json", "--watch", "waits"],
    "doctor": ["--config", "--set", "--wait", "--hosts", "--rows", "--json"],
    "local": ["--config", "--servers", "--workers", "--set", "--json", "--json-log"],
    "train": ["fasttext", "word2vec", "classifier", "logistic", "sparse_net", "fedavg"],
    "completion": ["bash|zsh|fish"],
    "demo": ["--output", "--epochs", "--set"],
    "nn": ["-k"],
    "similarity": [],
    "analogy": [],
    "vector": ["--sentences", "--ngrams"],
    "dump": ["args|dict|input|output"],
    "predict": [
        *("-k", "--threshold", "--input", "--output", "--format", "--column", "--threads"),
        *("--overwrite", "--metrics", "--json"),
    ],
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


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (errno.ENOSPC, "cannot write standard output, or a file: No space left on device\n"),
        (errno.EPIPE, ""),
    ],
)
def test_output_that_takes_nothing_ends_in_a_sentence_or_silently(monkeypatch, capsys, error, told):
    def print_version(*_, **__):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(cli, "app_for", print_version)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    expected = told and f"snailps: error: {told}"
    assert call(monkeypatch, capsys, "--version") == (1, "", expected)


def test_settings_that_a_local_cluster_sets_itself_are_said_to_have_no_effect():
    raw = RawConfig.load(
        None,
        environ={"SNAILPS_MASTER_ADDR": "node1:16831"},  # no remark: not for this command
        overrides=["master_addr=node1:1", "expected_node_num=9", "dim=8"],
    )
    assert without_effect(raw) == [
        "--set master_addr=node1:1: not used: a cluster on this machine chooses master_addr "
        "itself, as the master takes any free port",
        "--set expected_node_num=9: not used: a cluster on this machine chooses expected_node_num "
        "itself, as --servers and --workers determine it",
    ]


# --- help -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["master", "doctor", "cluster drain"])
def test_help_breaks_lines_only_where_the_terminal_ends(words):
    told = CliRunner().invoke(
        cli.app_for(words.split()), [*words.split(), "--help"], env={"COLUMNS": "80"}
    )
    lines = [line.strip() for line in told.output.split("Options")[0].splitlines()]
    for line, following in pairwise(lines):
        if line and following and not line.startswith("Usage"):
            assert len(f"{line} {following.split()[0]}") > 76, line


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
    _, told, _ = call(monkeypatch, capsys, "train", name, "--help-all")
    told = re.sub(r"[\s│]+", " ", told)
    judged = "test" in settings_of(models.SETTINGS[name])
    names = "--train,--input " if judged else "--input,--train "
    assert names in told
    told = told.replace(names, "--input ")
    fixed = {"worker_class", *({"minn", "maxn"} if name == "word2vec" else ())}
    fixed |= {key for key, one in settings_of(models.SETTINGS[name]).items() if one.hidden}
    for key, setting in settings_of(models.SETTINGS[name]).items():
        flag = f" --{key.replace('_', '-')} "
        assert (flag in told) == (key not in fixed), key
        flags = ("fresh", "overwrite")  # a flag needs no value, and no default
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
        "kge": "--train train.txt --test test.txt",
        "mf": "--train ratings.csv --test held-out.csv",
    }.get(name, example)
    assert f"For example: snailps train {name} {example} --output out/" in told
    assert "--input PATH... Required. " in told
    assert f"--output PATH Required{', unless --test is given' if judged else ''}. " in told


@pytest.mark.parametrize("name", models.SETTINGS)
def test_short_help_of_train_is_a_screen_of_groups_with_a_line_an_option(monkeypatch, capsys, name):
    code, told, _ = call(monkeypatch, capsys, "train", name, "--help")
    lines = told.splitlines()
    assert code == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    groups = [line[:-1] for line in lines if re.fullmatch(r"[A-Z]\w+:", line)]
    assert groups == ["Basics", "Model", "Stopping", "Checkpoints", "Cluster"]
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", told, re.MULTILINE)
    assert {"--output", "--epochs", "--max-seconds", "--workers", "--overwrite"} <= {*options}
    epochs = settings_of(models.SETTINGS[name])["epochs"]
    assert re.search(rf"--epochs INT .* \[{epochs.format(epochs.default)}\]$", told, re.MULTILINE)
    left = int(re.search(r"^(\d+) more options, .* --help-all$", lines[-1])[1])
    assert left + len(options) == len(options_of(name))


def options_of(name):
    """The options of `snailps train NAME` but for those that show its help."""
    command = typer.main.get_command(cli.app_for(["train", name])).commands["train"].commands[name]
    return [one for one in command.params if "--help" not in one.opts and not one.hidden]


@pytest.mark.parametrize(("words", "expected"), [
    ("trian", "there is no command 'trian'; did you mean train? snailps --help"),
    ("nn", "MODEL is missing. snailps nn --help"),
    ("completion", "error: bash|zsh|fish is missing. snailps completion --help"),
    ("nn m -k", "-k: expected a value, got none."),
    ("nn m -k 0", "-k: expected at least 1; got '0'. snailps nn --help"),
    ("similarity m a b c", "expected fewer words; 'c' is more than the command takes."),
    ("train kge a b", "'a b' is more than the command takes; did you mean --input a? snailps"),
    ("eval m --oov no", "--oov: expected one of"),
    ("local -c a --workers=900", " 256; got '900'."),
])  # fmt: skip
def test_wrong_usage_is_one_line_with_the_help_to_read(monkeypatch, capsys, words, expected):
    code, told, err = call(monkeypatch, capsys, *words.split())
    assert (code, told) == (2, "")
    assert err.startswith("snailps: error: ")
    assert expected in err
    assert err.count("\n") == 1


def test_empty_word_too_many_is_told_as_any_other(monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "train", "kge", "")
    assert code == 2
    assert "expected fewer words; '' is more than the command takes. snailps" in err


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
        ("predict m.bin --input a b", "predict m.bin --input a --input b"),
        ("predict -k 3 m.bin --input a b", "predict -k 3 m.bin --input a --input b"),
        ("predict --input a m.bin", "predict --input a m.bin"),
        (
            "predict --json --k=3 m.bin --input a b",
            "predict --json --k=3 m.bin --input a --input b",
        ),
        ("local -- program --input a b", "local -- program --input a b"),
        ("local --set a=b -- p --test a b --", "local --set a=b -- p --test a b --"),
        ("nn model word", "nn model word"),
        ("", ""),
    ],
)
def test_spread_inputs_repeats_the_option(given, expected):
    assert cli.spread_inputs(given.split()) == expected.split()


def test_words_of_a_command_beside_a_cluster_stay_as_they_are(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(local, "run_beside", lambda words, *_, **given: ran.append(words) or 0)
    words = ["python", "p.py", "--input", "a", "b", "--test", "c", "d", "--help-all", "--fresh"]
    assert call(monkeypatch, capsys, "local", "--servers", "2", "--", *words)[0] == 0
    assert ran == [words]


def test_train_with_commas_between_paths_separates_them_where_all_are_there(
    tmp_path, monkeypatch, capsys
):
    for name in ("a.svm", "b.svm", "c,d.svm"):
        (tmp_path / name).write_text("1 1:1\n")
    monkeypatch.chdir(tmp_path)
    assert separate("input", ["a.svm,b.svm", "c,d.svm"]) == ["a.svm", "b.svm", "c,d.svm"]
    assert separate("input", ["*.svm,b.svm", "s3://b/x,s3://b/y"]) == [
        "*.svm", "b.svm", "s3://b/x", "s3://b/y",
    ]  # fmt: skip
    given = "train logistic --train a.svm,gone --output o --class-weights 1"
    code, _, told = call(monkeypatch, capsys, *given.split())
    assert code == 2
    assert "--input: not found: gone, one of the paths in a.svm,gone. Separate several" in told
    given = "train logistic --train a.svm --output o --class-weights 1"
    _, _, told = call(monkeypatch, capsys, *given.split())
    assert "--class-weights: expected 2 numbers" in told


def test_train_leaves_what_the_input_is_like_for_the_master_to_say(
    tmp_path, monkeypatch, capsys, caplog
):
    (tmp_path / "x.svm").write_text("0 1:1\n" * 400_000)
    asked = []
    monkeypatch.setattr("snailps.models.sparse.sample.LABELS_BYTES", 0)
    monkeypatch.setattr("snailps.cli.train.run_local", lambda *_, **given: asked.append(given) or 0)
    monkeypatch.chdir(tmp_path)
    words = ["train", "logistic", "--train", "x.svm", "--output", "o"]
    code, _, told = call(monkeypatch, capsys, *words)
    assert (code, len(asked), told, caplog.messages) == (0, 1, "", [])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--input in.txt", ["--output is missing", "--help"]),
        ("--output out", ["--input is missing", "--help"]),
        ("--input in.txt --output=", ["--output: expected a path, got nothing"]),
        ("--input in.txt --output out --set output=", ["--set output=: expected a path"]),
        ("--input in.txt --output out --formats=", ["formats: expected bin", "got nothing"]),
        ("--input in.txt --output out --dim many", ["--dim", "many"]),
        ("--input in.txt --output out --dim 0", ["--dim", "1 to 4096"]),
        ("--input in.txt --output out --lr -1", ["--lr", "-1"]),
        ("--input in.txt --output out --model glove", ["--model", "skipgram", "cbow", "glove"]),
        ("--input in.txt --output out --minn 7", ["--minn", "maxn"]),
        ("--input in.txt --output out --formats bin,doc", ["--formats", "doc"]),
        ("--input in.txt --output out --threads x", ["--threads", "x"]),
        ("--input in.txt --output out --optimizer sgd", ["optimizer", "sgd"]),
        ("--input in.txt --output out --dmi 5", ["there is no option --dmi; did you mean --dim?"]),
        ("--input in.txt --output out --held-out .1", ["no option --held-out. snailps train fast"]),
        ("--input in.txt --output out --servers 0", ["--servers"]),
        ("--input in.txt --output out --set dim", ["--set dim: expected key=value"]),
        ("--input in.txt --output out --set dim=x", ["--set dim: expected", "'x'"]),
        ("--input in.txt --output out --set dmi=5", ["--set dmi=5", "did you mean 'dim'?"]),
        ("--input in.txt --output out --set shard_num=x", ["--set shard_num: expected"]),
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


def test_path_of_a_user_that_is_not_known_is_no_run(monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "status", "~nosuch/x")
    assert (code, "no run '~nosuch/x'" in err) == (2, True)


@pytest.mark.parametrize("command", ["status", "ui"])
def test_setting_that_is_unknown_is_told_and_no_other_job_shown(monkeypatch, capsys, command):
    monkeypatch.setattr("snailps.cli.ui.PageServer", None)  # which would serve for ever
    code, out, err = call(monkeypatch, capsys, command, "--set", "master_adr=1")
    assert (code, out) == (2, "")
    assert "unknown setting 'master_adr'; did you mean 'master_addr'?" in err


def test_page_of_a_run_that_is_over_before_it_has_begun_is_not_missed(monkeypatch):
    ready, end = os.pipe()

    class Page:
        """A process that says nothing until it is ended."""

        def __init__(self, command, **given):
            self.stdout = os.fdopen(ready)

        def terminate(self):
            os.close(end)

    said = []
    monkeypatch.setattr(page_process.subprocess, "Popen", Page)
    page = page_process.PageProcess("127.0.0.1:1", ClusterSettings())
    page.report(said.append)
    reader = next(one for one in threading.enumerate() if one.name == "page")
    process = page._process
    process.wait = lambda limit_s: reader.join(limit_s)
    page.close()
    process.stdout.close()
    assert said == []


def test_checkpoint_whose_bytes_are_damaged_gives_way_to_an_older_one(
    monkeypatch, capsys, tmp_path
):
    written, damaged = [__file__], ["2", "3"]
    overwrites = []

    def export(path, output, overwrite, **given):
        overwrites.append(overwrite)
        if path.name in damaged:
            raise CheckpointError(f"{path}: fragment 3 is damaged")
        return written

    found = [Checkpoint(number, tmp_path / f"{number}", "good") for number in (1, 2, 3)]
    monkeypatch.setattr("snailps.cli.checkpoint.found_at", lambda path: found)
    monkeypatch.setattr("snailps.cli.checkpoint.export", export)
    words = ["checkpoint", "export", f"{tmp_path}", "--output", f"{tmp_path}/x"]
    code, out, err = call(monkeypatch, capsys, *words)
    assert (code, out) == (0, f"{__file__}\n")
    assert "checkpoint 3 is damaged, checkpoint 2 is exported instead: " in err
    assert "checkpoint 2 is damaged, checkpoint 1 is exported instead: " in err
    # What an export has left of a damaged one is its own.
    assert overwrites == [False, True, True]
    written, damaged[:] = [], []  # by a class that writes nothing: no reason to try others
    assert call(monkeypatch, capsys, *words)[:2] == (0, "")
    assert len(overwrites) == 4
    damaged[:] = ["2", "3"]
    found[:] = found[1:]
    code, _, err = call(monkeypatch, capsys, *words)
    assert (code, "2: fragment 3 is damaged" in err) == (CheckpointError.exit_code, True)


def test_status_is_lines_where_a_terminal_moves_no_cursor(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with screen_of(as_json=False) as (_, say):
        say("waiting")
    assert capsys.readouterr().out == "waiting\n"


@pytest.mark.parametrize(
    "words",
    [
        "tls init /proc/x",
        "tls init {file}/x",
        "fedavg prepare {file} --into /proc/x",
    ],
)
def test_folder_that_cannot_be_made_is_a_line(monkeypatch, capsys, tmp_path, words):
    file = tmp_path / "c.txt"
    file.write_text("a b c d e\n" * 2000)
    code, _, err = call(monkeypatch, capsys, *(word.format(file=file) for word in words.split()))
    assert (code, err.count("\n")) == (2, 1)
    assert "folder: cannot write in" in err


def test_closed_streams_are_taken_before_a_socket_gets_their_descriptors(monkeypatch, tmp_path):
    ascii_out = io.TextIOWrapper(io.BytesIO(), "ascii")
    for name, stream in {"stdin": None, "stdout": ascii_out, "stderr": None}.items():
        monkeypatch.setattr(sys, name, stream)
    open_streams()
    with sys.stdin as into, sys.stderr as errors:
        assert into.read() == ""
        assert errors.write("nothing is there to read it") > 0
        assert os.get_inheritable(errors.fileno())
    ascii_out.write("w\xf6rd")
    ascii_out.seek(0)
    assert ascii_out.read() == "w\\xf6rd"


def test_one_of_several_runs_is_named_by_the_user():
    runs = [SimpleNamespace(number=number, address=f"a:{number}") for number in (1, 2)]
    assert only_one([], "") is None
    assert only_one(runs[:1], "") is runs[0]
    with pytest.raises(ConfigError, match=r"^2 jobs .* \(1 at a:1, 2 at a:2\): say 2 or a:2$"):
        only_one(runs, "say {0.number} or {0.address}")


def test_files_of_a_checkpoint_need_a_name(monkeypatch, capsys, tmp_path):
    code, _, err = call(monkeypatch, capsys, "checkpoint", "export", f"{tmp_path}", "--output=")
    assert (code, "--output: expected" in err, "got nothing" in err) == (2, True, True)


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("epochs: 3", [], ["no worker_class", "fasttext.conf"]),
        (f"worker_class: {COUNTER}\nepohcs: 3", [], ["job.conf:2", "did you mean 'epochs'"]),
        (f"worker_class: {COUNTER}\nshard_num: many", [], ["job.conf:2", "shard_num", "many"]),
        (f"worker_class: {COUNTER}", ["--set", "threads"], ["--set threads", "key=value"]),
        (f"worker_class: {COUNTER}", ["--set", "lines=x"], ["--set lines: expected", "'x'"]),
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


class NoLauncher:
    """Takes the place of `Launcher`: starts nothing, keeps the settings it would start with."""

    given: ClassVar[list[RawConfig]] = []
    children = ()
    address = ""
    secret = b""
    output = ""

    def __init__(self, raw, **options):
        self.given[:] = [raw]

    def start(self, give_up):
        raise MasterEnded(7)

    def poll(self):
        return 7

    def end(self, limit_s):
        pass


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
    monkeypatch.setattr("snailps.local.run.Launcher", NoLauncher)
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
    (raw,) = NoLauncher.given
    for key in ("threads", "shard_num", "log_level"):
        entry = raw.explicit(key, WorkerSettings)
        assert (entry.origin == f"--set {key}") == (key != missing)


SETS = ["--set", "dim=7", "--set", "heartbeat_timeout=3", "--set", "input=a, b"]


@pytest.mark.parametrize("command", ["local", "train", "demo"])
def test_set_wins_wherever_a_cluster_is_started(monkeypatch, capsys, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("snailps.local.run.Launcher", NoLauncher)
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
    given = [f"{entry.key}={entry.value}" for entry in NoLauncher.given[0].entries]
    assert given[-len(sets) // 2 :] == sets[1::2]


def test_option_that_is_short_for_a_setting_sets_it(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("snailps.local.run.Launcher", NoLauncher)
    (tmp_path / "job.conf").write_text(f"worker_class: {COUNTER}\n")
    train = ["train", "word2vec", "--input", "a", "--output", "b"]
    for command in (["local", "-c", "job.conf"], train):
        options = ["--json-log", "a #b", "--fresh", "--set", "epochs=2"]
        code, _, err = call(monkeypatch, capsys, *command, *options)
        assert code == 7, err
        (raw,) = NoLauncher.given
        values = {name: raw.explicit(name) for name in ("json_log", "fresh", "epochs")}
        assert [entry.value for entry in values.values()] == ["a #b", "true", "2"]
        assert raw.explicit("overwrite") is raw.explicit("tensorboard") is None


def test_cluster_on_this_machine_says_once_what_has_no_effect(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("snailps.local.run.Launcher", NoLauncher)
    (tmp_path / "common.conf").write_text("bucket: 5\n")
    text = "num_iters: 3\nzlib: 1\nimport common.conf\nshard_num: 1\nasync_channel_thread_num: 1\n"
    (tmp_path / "job.conf").write_text(f"worker_class: {COUNTER}\n{text}")
    refused = call(monkeypatch, capsys, "local", "-c", "job.conf", "--set", "hidden=3")
    assert refused[0] == 2
    assert "--set hidden=3: Counter has no setting hidden, which is of another model" in refused[2]
    code, _, err = call(monkeypatch, capsys, "local", "-c", "job.conf")
    assert code == 7
    for line in (
        "job.conf:2: num_iters is called epochs here",
        "job.conf:3: zlib has no effect",
        "job.conf:6: async_channel_thread_num is called threads",
        "common.conf: not read by this job: bucket",
    ):
        assert err.count(line) == 1, line
    assert "shard_num" not in err


def test_job_that_goes_on_from_a_file_may_set_what_that_file_reads(monkeypatch, capsys, tmp_path):
    """`negatives` are read with `loss: softmax`, which only the file has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("snailps.local.run.Launcher", NoLauncher)
    text = "worker_class: snailps.models.embeddings.mf:MatrixFactorization\nnegatives: 9\n"
    (tmp_path / "job.conf").write_text(text)
    code, _, err = call(monkeypatch, capsys, "local", "-c", "job.conf")
    assert (code, "negatives has no effect with loss: auto" in err) == (2, True)
    goes_on = ["local", "-c", "job.conf", "--set", "continue_from=before.npz"]
    assert call(monkeypatch, capsys, *goes_on)[0] == 7  # as far as the launcher


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("train word2vec --input a --output b --set minn=3", "minn is always 0"),
        ("demo --set formats=text", "formats is always bin in `snailps demo`"),
        ("demo --set input=other.txt", "input is always"),
    ],
)
def test_set_of_what_makes_a_command_what_it_is_is_refused(monkeypatch, capsys, command, word):
    monkeypatch.setattr("snailps.local.run.Launcher", NoLauncher)
    monkeypatch.setattr("snailps.cli.demo.write_prose", lambda path: 1)
    code, _, err = call(monkeypatch, capsys, *command.split())
    assert code == 2
    assert word in err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_command_without_memory_says_so_in_a_line(monkeypatch, capsys, error, said):
    def fail(words):
        raise error

    monkeypatch.setattr(cli, "app_for", fail)
    code, out, shown = call(monkeypatch, capsys, "status")
    assert (code, out) == (1, "")
    assert shown.startswith(f"snailps: error: {said}")
    assert "ulimit -v" in shown
    assert shown.count("\n") == 1


def test_print_json_writes_null_for_what_is_no_number(capsys):
    print_json({"a": math.nan, "b": [1.5, math.inf], "c": {"d": -math.inf, "e": (0,)}, "f": "NaN"})
    assert json.loads(capsys.readouterr().out) == {
        "a": None, "b": [1.5, None], "c": {"d": None, "e": [0]}, "f": "NaN",
    }  # fmt: skip


class Ended:
    """In the place of a run of processes: it has ended at once, with `figures`."""

    launcher, interrupts, stops = SimpleNamespace(address=""), 0, 0
    figures: ClassVar = {}

    def __init__(self, *_, **__):
        pass

    def start(self):
        pass

    def stop(self):
        type(self).stops += 1
        return SimpleNamespace(code=0, figures=self.figures)

    def interrupt(self, *_):
        pass


def run_ended(monkeypatch, **figures):
    monkeypatch.setattr(Ended, "stops", 0)
    monkeypatch.setattr(Ended, "figures", figures)
    monkeypatch.setattr(local, "ClusterProcesses", Ended)
    values = {"worker_class": "snailps.models.sparse.linear:Linear", "input": "x"}
    raw = RawConfig.from_mapping(values, "--{key}")
    return local.run_local(raw, servers=1, workers=1, as_json=False)


def test_error_of_the_display_is_the_one_that_is_shown(monkeypatch):
    def broken(*_, **__):
        raise OSError("no terminal")

    monkeypatch.setattr("snailps.cli.progress.Progress", broken)
    with pytest.raises(OSError, match="no terminal"):
        run_ended(monkeypatch)
    assert Ended.stops == 1


@pytest.mark.parametrize("name", ["not_tested", "not_calibrated"])
def test_what_was_asked_for_and_not_done_is_not_code_0(monkeypatch, capsys, name):
    done = {"peak_rss_mb": 1.0, "ended_by": "epochs", "epochs": 1}
    assert run_ended(monkeypatch, **done) == 0
    assert run_ended(monkeypatch, **done, **{name: "the file is gone"}) == 2
    assert f"{name.replace('_', ' ')}: the file is gone" in capsys.readouterr().err
