"""The README and the Makefile keep their word: every command, option, target and link exists."""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from cases import each
from test_commands_doc import GROUP, command_of

ROOT = Path(__file__).resolve().parents[2]

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = ("help", "demo", "check", "test", "test-all", "test-arm64", "test-browser", "test-hosts",
           "test-night", "test-wheels", "wheels", "sanitize", "lint", "bench", "clean")  # fmt: skip
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run(*command, **environment):
    """Run a command at the root of the repository, without a terminal."""
    return subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=dict(os.environ, **environment),
        check=False,
    )


def shell_lines(text):
    """Commands of a document's sh blocks, continued lines joined, comments removed."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def table_commands(text):
    """Commands of the README's table: those in backquotes in a row's first column."""
    for command in re.findall(r"^\| `(snailps [^`]*)`", text, re.MULTILINE):
        yield command.split()


SNAILPS_LINES = [
    words for words in (*shell_lines(README), *table_commands(README)) if words[0] == "snailps"
]


@each("words", SNAILPS_LINES)
def test_readme_snailps_command_and_its_options_exist(words):
    command, left = command_of(words[1:])
    assert command is not GROUP, words
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert {word for word in left if word.startswith("-")} <= known


@each("words", [w for w in SNAILPS_LINES if "-c" in w and w[-1] != "FILE"])
def test_readme_conf_file_exists(words):
    assert (ROOT / words[words.index("-c") + 1]).is_file()


def test_readme_table_names_every_command():
    """The other way round: what the command line offers is in the README."""
    offered = {words[1] for words in SNAILPS_LINES}
    assert {name for name, one in GROUP.commands.items() if not one.hidden} <= offered


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake (demo|\w+)`", README))))
def test_readme_make_target_exists(target):
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


def test_readme_session_is_a_real_one():
    assert "<!-- SESSION" not in README, "paste the real output of `make demo` into the README"


@needs_make
def test_make_without_target_lists_all_targets():
    shown = run("make", "--no-print-directory")
    assert shown.returncode == 0, shown.stderr
    for target in TARGETS:
        assert re.search(rf"^ +{target} ", shown.stdout, re.MULTILINE), target


@needs_make
@pytest.mark.parametrize("target", TARGETS)
def test_make_target_can_be_planned(target):
    planned = run("make", "--dry-run", target, "CORPUS=README.md")
    assert planned.returncode == 0, planned.stderr


@needs_make
def test_make_unusable_python_says_what_to_install(tmp_path):
    """A Python without the venv module: one clear message, no environment made."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 'has no module ensurepip'\nexit 1\n")
    python.chmod(0o755)
    made = run("make", f"{tmp_path}/env/.made", f"VENV={tmp_path}/env", f"PYTHON={python}")
    assert made.returncode != 0
    assert "has no module ensurepip" in made.stderr
    assert "apt-get install python3-venv python3-dev gcc g++" in made.stderr
    assert not (tmp_path / "env").exists()


@needs_make
def test_make_no_python_of_that_name_says_so(tmp_path):
    made = run("make", f"{tmp_path}/env/.made", f"VENV={tmp_path}/env", "PYTHON=no-such-python")
    assert made.returncode != 0
    assert "No usable Python 3.10 to 3.14 among: no-such-python" in made.stderr


def test_ci_script_runs_lint_and_tests():
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert "make lint" in text
    assert "make test-all" in text
    assert "make sanitize" in text
    assert "make wheels" in text
    assert "make test-wheels" in text
    assert run("bash", "-n", str(script)).returncode == 0


@functools.cache
def help_of(script):
    return run(sys.executable, script, "--help").stdout


def test_bench_readme_options_exist():
    lines = list(shell_lines((ROOT / "bench" / "README.md").read_text(encoding="utf-8")))
    assert lines
    for words in lines:
        script = next((word for word in words if word.startswith("bench/")), None)
        if script is None:  # it makes the environment of peers
            continue
        if "torch" in script and find_spec("torch") is None:  # an extra
            continue
        shown = help_of(script)
        for option in (word for word in words if word.startswith("--")):
            assert option in shown, words


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--corpus", "no-such-file"], "no such file: no-such-file"),
        (["--corpus", "README.md", "--peers", "glove"], "unknown peer 'glove'"),
        (["--corpus", "README.md", "--peers", "", "--no-snailps"], "nothing to run"),
    ],
)
def test_bench_wrong_arguments_end_with_one_sentence(arguments, expected):
    done = run(sys.executable, "bench/words.py", *arguments)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
