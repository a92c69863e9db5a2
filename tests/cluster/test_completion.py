"""Completion of command lines in a real bash, by the script that the command prints."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import LIMIT_S, SNAILPS, environment

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
    program = tmp_path / "snailps"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(SNAILPS)} "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", *typed.split()], cwd=tmp_path,
        env=environment(), capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.stderr == ""
    assert expected <= set(done.stdout.split()), done.stdout
    assert all(word.startswith(typed.split()[-1][:2]) for word in done.stdout.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell):
    done = subprocess.run(
        [*SNAILPS, "completion", shell], env=environment(), capture_output=True, text=True,
        timeout=LIMIT_S, check=True, cwd=Path.cwd(),
    )  # fmt: skip
    assert "_SNAILPS_COMPLETE" in done.stdout
