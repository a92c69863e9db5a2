"""The README and the Makefile keep their word: every command, option, target and link exists."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from cases import each
from test_commands_doc import GROUP, command_of
from waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = ("help", "demo", "check", "test", "test-all", "test-arm64", "test-browser", "test-debian",
           "test-hosts", "test-night", "test-wheels", "wheels", "sanitize", "lint", "bench",
           "clean")  # fmt: skip
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


SNAILPS_LINES = [words for words in shell_lines(README) if words[0] == "snailps"]


@each("words", SNAILPS_LINES)
def test_readme_snailps_command_and_its_options_exist(words):
    command, left = command_of(words[1:])
    assert command is not GROUP, words
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert {word for word in left if word.startswith("-")} <= known


@each("words", [w for w in SNAILPS_LINES if "-c" in w and w[-1] != "FILE"])
def test_readme_conf_file_exists(words):
    assert (ROOT / words[words.index("-c") + 1]).is_file()


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


@needs_make
def test_make_clean_names_what_it_removes_and_leaves_what_users_have_made(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    theirs = ["out/corpus.bin", "out/corpus.checkpoints/m", "collected/node1/out/m.vec", "data/x.c"]
    built = ["build/x", "dist/x.whl", ".venv/x", "snailps/_text.c", "snailps/_kernels_avx2.pyx"]
    for name in [*theirs, *built, "snailps/_kernels.pyx"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    made = subprocess.run(
        ["make", "clean"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for name in (".venv", "build", "dist", "snailps/_kernels_avx2.pyx"):
        assert f"removing {name}\n" in made.stdout
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*theirs, "snailps/_kernels.pyx", "Makefile"}


# --- .ci/run --------------------------------------------------------------------------------------

MAKE = """#!/bin/bash
echo "$$ $PPID" >>"$CALLS"
echo "asked for $1"
if [ "$1" = "$HANGS" ]; then
    if [ -n "$STUBBORN" ]; then sleep 600 & wait; fi # a child that ignores SIGINT
    exec sleep 600
fi
if [ "$1" = "$FAILS" ]; then echo "why $1 fails"; exit 7; fi
"""


@pytest.fixture
def ci(tmp_path):
    """Begins .ci/run where `make` fails or hangs at a target, and all that it installs is there."""
    programs, started = tmp_path / "bin", []
    programs.mkdir()
    for name in ("make", "python3", "tmux"):
        (programs / name).write_text(MAKE if name == "make" else "#!/bin/sh\n")
        (programs / name).chmod(0o755)

    def begin(fails="", hangs="", stubborn=""):
        environ = dict(os.environ, CC="true", CXX="true", FAILS=fails, HANGS=hangs)
        environ["STUBBORN"] = stubborn
        environ.update(CALLS=str(tmp_path / "calls"), TMPDIR=str(tmp_path))
        environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
        output = (tmp_path / "output").open("w")
        started.append(
            subprocess.Popen(
                ROOT / ".ci" / "run", env=environ, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
                # As nohup leaves it, a shell ignores it whatever it traps.
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )
        )  # fmt: skip
        output.close()
        return started[-1]

    yield begin
    for one in started:
        if one.poll() is None:
            one.kill()
            one.wait()


def blocks(output):
    """Headers of the steps, and what each wrote."""
    parts = re.split(
        r"^=== (.*) \(\d+ s since the start\)\n", output.read_text(), flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@needs_make
def test_demo_compiles_for_this_machine_alone_and_tests_for_all():
    for target, alone in ((".venv/.made-run", True), (".venv/.made-lint,test", False)):
        planned = run("make", "-n", "-W", "setup.py", target).stdout
        assert "setup.py -q build_ext --inplace" in planned
        assert ("SNAILPS_BUILD=here" in planned) == alone


TARGETS_OF_CI = {
    "install": ".venv/.made-lint,test", "demo": "demo", "test": "test-all",
    "rooms": "test-rooms", "numbers": "test-numbers", "torch": "test-torch", "lint": "lint",
    "hosts": "test-hosts", "browser": "test-browser",
    "wheels": "wheels", "test-wheels": "test-wheels", "sanitize": "sanitize",
}  # fmt: skip


def test_ci_runs_all_steps_and_shows_each_as_a_block(ci, tmp_path):
    assert ci().wait(LIMIT_S) == 0
    found = blocks(tmp_path / "output")
    assert list(found) == [*TARGETS_OF_CI, "done"]
    for step, target in TARGETS_OF_CI.items():
        assert found[step].startswith(f"asked for {target}\n=== {step} took "), step
    assert not list(tmp_path.glob("tmp.*"))


@pytest.mark.parametrize("target", ["lint", "test-wheels"])
def test_ci_goes_on_after_a_failed_step_and_ends_with_its_words_and_code(ci, tmp_path, target):
    assert ci(fails=target).wait(LIMIT_S) == 7
    assert list(blocks(tmp_path / "output")) == [*TARGETS_OF_CI, "done"]
    _, _, end = (tmp_path / "output").read_text().partition("=== FAILED: ")
    assert end.startswith(f"{target}, with 7; ")
    assert f"asked for {target}\nwhy {target} fails\n" in end


def test_ci_ends_where_nothing_can_be_installed(ci, tmp_path):
    assert ci(fails=".venv/.made-lint,test").wait(LIMIT_S) == 7
    assert list(blocks(tmp_path / "output")) == ["install", "done"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("target", [".venv/.made-lint,test", "test-all", "test-hosts"])
def test_ci_that_is_ended_leaves_no_process(ci, tmp_path, target, signum):
    """One that ignores SIGINT is waited for before it is sent SIGTERM."""
    ignores = target == "test-hosts" and signum == signal.SIGTERM
    process = ci(hangs=target, stubborn="yes" if ignores else "")
    until(
        lambda: f"asked for {target}\n" in written_by_lanes(tmp_path),
        "the step hangs",
        over=lambda: "the run has ended" if process.poll() is not None else "",
    )
    process.send_signal(signum)
    assert process.wait(LIMIT_S) == 128 + signum
    for pid in (tmp_path / "calls").read_text().split():
        assert not Path(f"/proc/{pid}").exists(), pid
    assert not list(tmp_path.glob("tmp.*"))


def written_by_lanes(folder):
    return "".join(path.read_text() for path in folder.glob("tmp.*/*") if path.is_file())


HELP = """
import contextlib, io, json, runpy, sys
sys.path.insert(0, "bench")
told = {}
for script in sys.argv[1:]:
    sys.argv, text = [script, "--help"], io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    told[script] = text.getvalue()
print(json.dumps(told))
"""


def test_bench_readme_options_exist():
    """In one process: what they import takes half a second."""
    asked = {}
    for words in shell_lines((ROOT / "bench" / "README.md").read_text(encoding="utf-8")):
        script = next((word for word in words if word.startswith("bench/")), None)
        if script is None:  # it makes the environment of peers
            continue
        needs_torch = "\nimport torch\n" in (ROOT / script).read_text(encoding="utf-8")
        if needs_torch and find_spec("torch") is None:  # an extra
            continue
        asked.setdefault(script, set()).update(word for word in words if word.startswith("--"))
    done = run(sys.executable, "-c", HELP, *asked)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert asked
    for script, options in asked.items():
        assert {option for option in options if option not in told[script]} == set(), script


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


@pytest.mark.parametrize("script", ["quick", "predict", "filter"])
def test_bench_without_a_corpus_says_how_to_name_one(script, monkeypatch):
    monkeypatch.delenv("SNAILPS_DATA", raising=False)
    done = run(sys.executable, f"bench/{script}.py")
    assert done.returncode == 1
    assert done.stderr == (
        "bench: no corpus: give --corpus FILE, or set SNAILPS_DATA to the folder of the test data\n"
    )


@needs_make
def test_make_bench_without_a_corpus_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv("SNAILPS_DATA", raising=False)
    planned = run("make", "-n", "bench").stdout
    assert '"no corpus: make bench CORPUS=FILE, or set SNAILPS_DATA"' in planned
