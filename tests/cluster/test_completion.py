"""Completion of command lines in a real bash, by the script that the command prints."""

import json
import shlex
import shutil
import subprocess
from dataclasses import asdict

import pytest
from processes import LIMIT_S, SNAILPS, environment, run_snailps

from snailps.node.run_registry import Run

SCRIPT = """
PATH=$PWD:$PATH
eval "$(snailps completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_snailps_completion snailps
printf '%s\\n' "${COMPREPLY[@]}"
"""

ASKED = [
    ("snailps tra", {"train"}),
    ("snailps train fa", {"fasttext"}),
    ("snailps train fasttext --overw", {"--overwrite"}),
    ("snailps local --set checkpoint_", {"checkpoint_dir=", "checkpoint_interval="}),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(("typed", "expected"), ASKED)
def test_bash_completes_commands_models_options_and_settings(tmp_path, typed, expected):
    found = completed(tmp_path, typed.split())
    assert expected <= found, found
    assert all(word.startswith(typed.split()[-1][:2]) for word in found)


def completed(folder, words):
    """What bash offers for the last of these words."""
    program = folder / "snailps"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(SNAILPS)} "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", *words], cwd=folder,
        env=environment(), capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("command", ["status", "ui"])
def test_bash_completes_the_numbers_of_runs(tmp_path, monkeypatch, command):
    folder = tmp_path / "runtime" / "snailps"
    folder.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder.parent))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where runs are looked for, too
    for number in (7, 12):
        run = Run(number=number, pid=1, model="fm", output="/out/x", ended=1.0, started=0.5)
        (folder / f"{number}.json").write_text(json.dumps(asdict(run)))
    assert completed(tmp_path, ["snailps", command, ""]) == {"7", "12"}
    assert completed(tmp_path, ["snailps", command, "1"]) == {"12"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell):
    assert "_SNAILPS_COMPLETE" in run_snailps("completion", shell).stdout
