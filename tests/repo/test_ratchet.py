"""`tools/ratchet.py` fails where a special case, a stub or a term comes back."""

import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RATCHET = runpy.run_path(str(ROOT / "tools" / "ratchet.py"))


def most(name):
    return RATCHET["MOST"][name]


@pytest.fixture
def tree(tmp_path):
    """A repository with nothing to complain of."""
    (tmp_path / "snailps").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("| term | meaning |\n|---|---|\n| row | |\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("forks on the number of workers", "if self.workers == 1: ...\n"),
        ("forks on the number of workers", "x = a if workers > 1 else b\n"),
        ("forks on the number of partitions", "if parts == 1 and fits: ...\n"),
        ("questions whether a worker shares its rows", "if not sharing.others_push: ...\n"),
        ("questions whether a worker shares its rows", "ROOM_ALONE = 1 << 30\n"),
        ("type tests of policies", "if isinstance(job.schedule, BspSchedule): ...\n"),
        ("type tests of policies", "rounds = cast(RoundSchedule, job.schedule)\n"),
        ("questions for the schedule outside of its policy", 'if s.consistency == "bsp": ...\n'),
    ],
)
def test_one_line_too_many_is_named(tree, capsys, name, line):
    module = tree / "snailps" / "trainer.py"
    module.write_text(line * most(name))
    assert RATCHET["main"](tree) == 0
    module.write_text(line * (most(name) + 1))
    assert RATCHET["main"](tree) == 1
    assert f"snailps/trainer.py:{most(name) + 1}: {line.strip()}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "body",
    ["pass", '"""None."""', "return", "return None", "return -1", "return {}", "raise Error"],
)
def test_method_of_a_schedule_that_answers_nothing_is_named(tree, capsys, body):
    module = tree / "snailps" / "master" / "leases" / "slots.py"
    module.parent.mkdir(parents=True)
    module.write_text("class Slots:\n    def of(self, node):\n        return self.clocks[node]\n")
    assert RATCHET["main"](tree) == 0
    module.write_text(f"class Slots:\n    def of(self, node):\n        {body}\n")
    assert RATCHET["main"](tree) == 1
    assert "snailps/master/leases/slots.py:2: Slots.of" in capsys.readouterr().out


def test_stub_in_git_and_a_term_too_many_are_named(tree, capsys):
    (tree / "snailps" / "_rows.pyi").write_text("")
    assert RATCHET["main"](tree) == 0
    subprocess.run(["git", "-C", str(tree), "add", "-A"], check=True)
    assert RATCHET["main"](tree) == 1
    (tree / "snailps" / "_rows.pyi").unlink()
    subprocess.run(["git", "-C", str(tree), "add", "-A"], check=True)
    with (tree / "docs" / "glossary.md").open("a") as glossary:
        glossary.write("".join(f"| word {at} | |\n" for at in range(most("terms"))))
    assert RATCHET["main"](tree) == 1
    found = capsys.readouterr().out
    assert "snailps/_rows.pyi" in found
    assert "word 7" in found


def test_stray_at_the_root_is_named(tree, capsys):
    """`j.jsonl`, which a benchmark had written, had come in with `git add -A`."""
    for name in ("j.jsonl", "notes/today.md", "docs/page.md"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("{}\n")
    assert RATCHET["main"](tree) == 0  # not added: its owner's
    subprocess.run(["git", "-C", str(tree), "add", "-A"], check=True)
    assert RATCHET["main"](tree) == 1
    assert "at most 0: move it into a folder" in (said := capsys.readouterr().out)
    assert said.endswith("\n  j.jsonl\n  notes\n")


def test_names_of_the_root_are_there():
    assert {name for name in RATCHET["ROOT_NAMES"] if not (ROOT / name).exists()} == set()


def test_what_runs_leave_at_the_root_is_ignored():
    left = ["j.jsonl", "callgrind.out.12", "core.12", "perf.data", ".coverage", "nohup.out",
            "model.bin", "vectors.npz", "words.vec", "profile.prof", "model.ftz", "ads.safetensors",
            "checkpoints/1/shard", "corpus.checkpoints/1/shard", "corpus.journal",
            "good/.snailps/state.json", "good/_report.html", ".snailps-doctor-1f",
            "build/x", "out/x"]  # fmt: skip
    command = ["git", "-C", str(ROOT), "check-ignore", "--no-index", *left]
    assert subprocess.run(command, capture_output=True, text=True).stdout.split() == left
    never = ["git", "-C", str(ROOT), "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(never, capture_output=True, text=True, check=True).stdout == ""


def test_lines_of_a_commit_are_counted_by_package(tree):
    (tree / "snailps" / "data").mkdir()
    (tree / "snailps" / "data" / "text.py").write_text("one\ntwo\n")
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    assert RATCHET["lines_of"](tree, "HEAD") == {"snailps/data": 2}


def test_name_of_several_classes_is_named_with_its_places(tree, capsys):
    name = "class names with several classes"
    pairs = "".join(f"class Name{number}:\n    x = 1\n" for number in range(most(name)))
    (tree / "snailps" / "a.py").write_text(pairs + "class Run(Base):\n    x = 1\n")
    (tree / "snailps" / "b.py").write_text(pairs)
    assert RATCHET["main"](tree) == 0
    nested = "class Outer:\n    class _Run:\n        pass\n"
    (tree / "snailps" / "c.py").write_text(nested)
    assert RATCHET["main"](tree) == 1
    line = 2 * most(name) + 1
    assert f"Run: snailps/a.py:{line}, snailps/c.py:2" in capsys.readouterr().out
    (tree / "snailps" / "c.py").unlink()
    (tree / "snailps" / "d.pyx").write_text("\ncdef class Run(Base[int]):\n    pass\n")
    (tree / "snailps" / "d.pyi").write_text("class Name: ...\nclass Run: ...\n")
    assert RATCHET["main"](tree) == 1
    assert f"Run: snailps/a.py:{line}, snailps/d.pyx:2\n" in capsys.readouterr().out
