"""`make test-night` resumes, keeps what came out, and says what it could not run."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import each

from tests.night import __main__ as night
from tests.night import rounds

ROOT = Path(__file__).resolve().parents[2]


def all_parts():
    return night.parts(["pytest"], ["tests/unit"], 1)


def part(folder, name, then=""):
    """A part that leaves a line each time it is run."""
    code = f"open({str(folder / 'log')!r}, 'a').write({name + ' '!r}); {then}"
    return night.Part(name, 1, (sys.executable, "-c", code))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(night, "KEPT", tmp_path / "night")
    monkeypatch.setattr(night, "tree", lambda: "abc")
    return tmp_path / "night" / "abc"


def test_parts_have_names_of_their_own_and_less_than_40_minutes():
    parts = all_parts()
    assert len({one.name for one in parts}) == len(parts)
    assert all(0 < one.minutes < 40 for one in parts)
    assert sum(one.is_meant(["rounds"]) for one in parts) == len(rounds.NAMES) == 28


def test_run_goes_on_where_the_last_one_ended(kept, tmp_path):
    parts = [
        part(tmp_path, "good"),
        part(tmp_path, "group/bad", "raise SystemExit(3)"),
        part(tmp_path, "lacks", "print('SKIPPED: no such thing')"),
    ]
    assert night.run_all(parts[:1], "abc", again=False)
    assert not night.run_all(parts, "abc", again=False)
    assert not night.run_all(parts, "abc", again=False)
    assert (tmp_path / "log").read_text().split() == ["good", "group/bad", "lacks"]
    outcomes = [night.Result.load(kept / one.name).outcome for one in parts]
    assert outcomes == ["passed", "failed", "skipped: no such thing"]
    night.run_all([part(tmp_path, "good", "1 + 1"), parts[1]], "abc", again=False)
    night.run_all(parts[2:], "abc", again=True)
    assert (tmp_path / "log").read_text().split()[3:] == ["good", "lacks"]
    assert "| group/bad | failed |" in "\n".join(night.table(parts, kept))


def test_outcome_names_pythons_that_are_missing():
    said = "SKIPPED [1] tests/a.py: no\nno wheel for Python 3.14: is not on this machine\n" * 2
    assert night.outcome_of(0, said) == (
        "passed (no wheel for Python 3.14: is not on this machine)"
    )
    assert night.outcome_of(1, "SKIPPED: no\n") == "failed"


def test_parts_on_test_data_say_which_variable_names_them(monkeypatch):
    monkeypatch.delenv("SNAILPS_DATA", raising=False)
    lacking = {one.name: one.command for one in all_parts() if one.command[0] == "echo"}
    assert set(lacking) == {"kills/training", "bench", "scaling/word2vec", "scaling/fasttext"}
    [line] = {command[1] for command in lacking.values()}
    assert night.outcome_of(0, line) == (
        "skipped: no words/text8like.txt.gz: set SNAILPS_DATA to the folder of the test data"
    )


def test_part_of_another_commit_is_not_kept(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(night, "tree", lambda: "def")
    with pytest.raises(SystemExit, match="is not at abc any more"):
        night.run_all([part(tmp_path, "good")], "abc", again=False)
    assert night.Result.load(kept / "good") is None


def test_part_has_one_run_at_a_time_and_others_run_beside(kept, tmp_path, capsys):
    parts = [part(tmp_path, "begun"), part(tmp_path, "free")]
    with night.alone(kept / "begun") as is_mine:
        assert is_mine
        assert not night.run_all(parts, "abc", again=False)
    assert (tmp_path / "log").read_text().split() == ["free"]
    assert "begun: another `make test-night` runs it" in capsys.readouterr().out
    assert night.run_all(parts, "abc", again=False)


def test_round_with_late_threads_runs_tests_in_its_order_and_tells_what_came_out(tmp_path):
    folder = tmp_path / "3"
    folder.mkdir()
    tests = "tests/unit/test_budget.py"
    subprocess.run(
        [sys.executable, "-m", "tests.night.rounds", "3", str(folder), "--",
         sys.executable, "-m", "pytest", tests], cwd=ROOT, check=True,
    )  # fmt: skip
    row = rounds.Row.of(folder)
    assert [one["outcome"] for one in row.tests] == ["passed"] * len(row.tests)
    assert {one["test"].partition("::")[0] for one in row.tests} == {tests}
    assert all(one["limit_s"] > 0 for one in row.tests)
    assert str(row).startswith(f"| 3 | all late by up to 150 ms | {len(row.tests)} | 0 | 0 |")


def test_tests_that_came_near_their_limit_are_complained_of(tmp_path):
    folder = tmp_path / "user"
    folder.mkdir()
    lines = [
        {"test": "a", "outcome": "skipped", "why": "no x", "wall_s": 0.0, "limit_s": 9.0},
        {"test": "b", "outcome": "passed", "why": "", "wall_s": 6.0, "limit_s": 9.0},
    ]
    (folder / "tests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {"load": "a user", "exit": 0, "wall_s": 7.0, "cpu_s": 2.0}
    (folder / "round.json").write_text(json.dumps(told))
    row = rounds.Row.of(folder)
    assert list(row.complaints()) == ["took 67% of its limit: b"]
    assert str(row) == "| user | a user | 1 | 0 | 1 | 7 s | 2 s | 67%: b |"


@each("cores", [1, 64])
def test_python_of_a_round_sees_its_cores(cores):
    code = "import os; print(len(os.sched_getaffinity(0)), os.cpu_count())"
    environment = {"NIGHT_CORES": str(cores), "PYTHONPATH": str(rounds.SITE)}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [str(cores)] * 2


def test_python_of_a_round_that_is_kept_on_some_cores_sees_those():
    code = "import os; print(len(os.sched_getaffinity(0)))"
    environment = {"NIGHT_CORES": "64", "NIGHT_REAL": "more", "PYTHONPATH": str(rounds.SITE)}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) == len(os.sched_getaffinity(0))


def told_in(how, code):
    """What a Python prints in a round."""
    here = {key: value for key, value in os.environ.items() if key not in how.without}
    return subprocess.run(
        [*how.before, sys.executable, "-c", code], cwd=ROOT, env={**here, **how.environment},
        capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip


def test_round_of_another_environment_has_it():
    with contextlib.ExitStack() as stack:
        try:
            how = stack.enter_context(rounds.load_of("environment", ROOT))
        except rounds.Impossible as error:
            pytest.skip(str(error))
        place, resolv, snailps, temporary, zone, *_ = told_in(
            how,
            "import os, pathlib, snailps, tempfile, time\n"
            "print(os.getcwd(), pathlib.Path('/etc/resolv.conf').read_text(), end='', sep='\\n')\n"
            "print(snailps.__file__, tempfile.gettempdir(), time.timezone, sep='\\n')",
        )
    assert " " in place
    assert snailps.startswith(place)
    assert (resolv + "\n", zone) == (rounds.RESOLV, str(-(13 * 60 + 45) * 60))
    assert " " in temporary


def test_round_beside_has_next_to_no_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    with rounds.load_of("beside", ROOT) as how:
        (variables, _) = told_in(how, "import os; print(sorted(os.environ))")
    assert "HOME" not in variables
    assert "PATH" in variables
