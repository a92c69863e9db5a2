"""The registry of runs: numbers, ends, kills, folders of others; time and processes are given."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from snailps.cli import jobs
from snailps.cli.master import absolute
from snailps.cli.masters import ask
from snailps.cli.page_address import Shown
from snailps.errors import EXIT_INTERRUPTED, EXIT_LEFT, ConfigError, WaitTimeout
from snailps.node import status_line
from snailps.node.master_waits import Waiting, waiting_for
from snailps.node.run_registry import KEPT, Registration, Run, RunRegistry, folders
from snailps.store.checkpoint.folder import Checkpoint, CheckpointFolder

UID = os.getuid()


class Machine:
    """Processes that live, by their start times, and a clock that a test sets."""

    def __init__(self, folder):
        self.births = {}
        self.now = 1000.0
        self.places = [folder / "runtime", folder / "temporary"]

    def registry(self, boot="boot", places=None):
        return RunRegistry(
            places or self.places, birth=self.births.get, boot=boot, clock=lambda: self.now, uid=UID
        )

    def begin(self, pid, **more):
        self.births[pid] = 7 * pid
        return self.registry().begin(
            Run(pid=pid, **{"model": "fasttext", "cluster_id": str(pid), **more})
        )


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_run_until_its_end_is_running_and_then_has_a_record(machine):
    registry = machine.registry()
    run = machine.begin(10, output="/tmp/x", address="127.0.0.1:1")
    assert [one.number for one in registry.running()] == [run.number] == [1]
    assert registry.last() is None
    machine.now += 60
    del machine.births[10]
    registry.end(run, 0, "", {"words": 5, "validation": {"a": []}, "files": ["/tmp/x.vec"]})
    (done,) = registry.runs()
    assert registry.state(done) == "ended"
    assert (done.started, done.ended, done.code) == (1000.0, 1060.0, 0)
    assert done.figures == {"words": 5, "files": ["/tmp/x.vec"]}
    assert registry.last() == done
    assert registry.running() == []


def test_run_whose_master_is_gone_was_killed(machine):
    run = machine.begin(10)
    registry = machine.registry()
    assert registry.state(run) == "running"
    assert machine.registry(boot="next").state(run) == "killed"
    machine.births[10] = 71  # another process has got the number
    assert registry.state(run) == "killed"
    del machine.births[10]
    assert registry.state(run) == "killed"
    assert registry.last() == run


def test_master_that_takes_over_keeps_the_number(machine):
    first, other = machine.begin(10, cluster_id="a"), machine.begin(11, cluster_id="b")
    del machine.births[10]
    machine.now += 5
    second = machine.begin(12, cluster_id="a")
    assert (first.number, other.number, second.number) == (1, 2, 1)
    assert second.started == first.started
    assert [one.pid for one in machine.registry().running()] == [12, 11]


def test_run_of_0_1_is_known_by_its_cluster(machine):
    run = machine.begin(10, cluster_id="a")
    file = machine.places[0] / "1.json"
    file.write_text(file.read_text().replace('"cluster_id"', '"life"'))
    assert machine.registry().runs() == [run]


def test_numbers_go_on_after_ends(machine):
    for pid in range(10, 13):
        run = machine.begin(pid)
        machine.registry().end(run, 0, "", {})
    assert machine.begin(20).number == 4


def test_newest_ends_are_kept_and_running_ones_always(machine):
    long = machine.begin(5)
    for pid in range(10, 10 + KEPT + 7):
        machine.registry().end(machine.begin(pid), 0, "", {})
    runs = machine.registry().runs()
    assert len(runs) == KEPT + 1
    assert runs[0] == long
    assert runs[-1].pid == 10 + KEPT + 6


def test_session_that_ends_leaves_no_record(machine):
    registry = machine.registry()
    registry.end(machine.begin(10, model="session"), 0, "", {})
    machine.begin(11, model="session")
    del machine.births[11]
    registry.prune()
    assert registry.runs() == []


def test_launcher_that_lives_starts_a_killed_master_again(machine):
    machine.births[9] = 63
    run = machine.begin(10, launcher=9)
    del machine.births[10]
    registry = machine.registry()
    assert registry.restarts(run)
    assert registry.going_on() == [run]
    (line,) = jobs.ended_lines(run, registry)
    assert "being started again" in line
    machine.births[9] = 64
    assert not registry.restarts(run)
    assert registry.going_on() == []
    assert "was killed before its end" in jobs.ended_lines(run, registry)[0]


def test_secret_of_a_run_is_known_by_its_address_until_its_end_and_in_a_private_file(machine):
    run = machine.begin(10, address="127.0.0.1:5000", secret="made up here")
    machine.begin(11, address="127.0.0.1:5001")
    registry, path = machine.registry(), machine.places[0] / "1.json"
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert registry.secret_at(f"{host}:5000") == b"made up here"
        assert registry.secret_at(f"{host}:5001") == b""
    assert registry.secret_at("10.0.0.1:5000") == b""
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert "made up here" not in repr(run)
    assert "made up here" not in json.dumps(jobs.record_of(run, registry, None))
    registry.end(run, 0, "", {})
    assert "made up here" not in path.read_text()
    assert registry.secret_at("127.0.0.1:5000") == b""


def test_secret_of_an_address_is_that_of_the_master_that_runs_there(machine):
    machine.births[9] = 63
    machine.begin(10, launcher=9, address="127.0.0.1:5000", secret="of a lost one")
    del machine.births[10]
    assert machine.registry().secret_at("127.0.0.1:5000") == b"of a lost one"
    machine.begin(11, address="127.0.0.1:5000", secret="of its follower")
    assert machine.registry().secret_at("127.0.0.1:5000") == b"of its follower"


def test_second_folder_serves_where_the_first_cannot_be_made(machine, tmp_path):
    machine.places[0] = tmp_path / "missing" / "runtime"
    run = machine.begin(10)
    assert (machine.places[1] / "1.json").exists()
    assert machine.registry().running() == [run]


def test_folder_that_others_may_write_is_not_used(machine):
    machine.places[0].mkdir()
    machine.places[0].chmod(0o777)
    (machine.places[0] / "7.json").write_text(json.dumps({"number": 7, "pid": 1}))
    assert machine.begin(10).number == 1
    assert not (machine.places[0] / "1.json").exists()


def test_link_to_a_folder_is_not_used(machine, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    machine.places[0].symlink_to(tmp_path / "real")
    machine.begin(10)
    assert not list((tmp_path / "real").iterdir())


def test_folder_of_another_user_is_not_used(machine):
    machine.begin(10)
    assert RunRegistry(machine.places, uid=UID + 1).runs() == []


def test_no_folder_at_all_registers_nothing_and_raises_nothing(machine, tmp_path):
    (tmp_path / "file").write_text("")
    machine.places = [tmp_path / "file" / "runtime"]
    assert machine.begin(10) is None
    registration = Registration(machine.registry())
    registration.begin(Run(pid=10))
    registration.end(0, "", {})


def test_error_of_the_registry_does_not_reach_the_run(machine):
    def fails(pid):
        raise RuntimeError("a bug")

    registration = Registration(RunRegistry(machine.places, birth=fails, uid=UID))
    registration.begin(Run(pid=10))
    registration.end(1, "", {})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"number": "x"}', '{"number": 8}', "\0" * 10, '{"number": 3, "pid": []}'],
)
def test_damaged_files_are_no_runs_and_break_nothing(machine, text):
    machine.begin(10)
    (machine.places[0] / "3.json").write_text(text)
    runs = machine.registry().runs()
    assert runs[0].number == 1
    assert all(machine.registry().state(run) == "killed" for run in runs[1:])


def test_registry_leaves_no_drafts(machine):
    machine.registry().end(machine.begin(10), 0, "", {})
    assert [path.name for path in machine.places[0].iterdir()] == ["1.json"]


def test_file_that_was_removed_is_written_again(machine):
    run = machine.begin(10)
    registry = machine.registry()
    (machine.places[0] / "1.json").unlink()
    assert not registry.is_written(run)
    assert registry.write(run)
    assert registry.running() == [run]


def test_folders_are_of_the_runtime_and_of_the_user():
    assert [str(place) for place in folders({"XDG_RUNTIME_DIR": "/run/user/5"}, 5)] == [
        "/run/user/5/snailps",
        "/tmp/snailps-runs-5",
    ]
    assert [str(place) for place in folders({"XDG_RUNTIME_DIR": "x", "TMPDIR": "/var/t"}, 5)] == [
        "/var/t/snailps-runs-5"
    ]


@pytest.fixture
def squatted(tmp_path, monkeypatch):
    """A temporary folder in which others can write to the one of this user's runs."""
    taken = tmp_path / f"snailps-runs-{UID}"
    taken.mkdir()
    taken.chmod(0o777)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return taken


def test_run_whose_folder_others_have_is_in_another_one_and_says_so(squatted, tmp_path, caplog):
    registration = Registration(RunRegistry())
    registration.begin(Run(pid=os.getpid(), model="fasttext", address="127.0.0.1:1"))
    assert "the entry of this run is in another folder" in caplog.text
    assert f"{squatted}: others can write to it" in caplog.text
    assert len(RunRegistry().running()) == 1
    (file,) = (tmp_path / "home").rglob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    registration.end(0, "", {})
    assert RunRegistry().state(RunRegistry().runs()[0]) == "ended"


def test_run_that_cannot_be_registered_says_why(squatted, tmp_path, caplog):
    (tmp_path / "home").touch()
    registration = Registration(RunRegistry())
    registration.begin(Run(pid=os.getpid(), model="fasttext"))
    registration.end(0, "", {})
    assert "others can write to it: chmod go-w: the entry of this run cannot be" in caplog.text
    assert RunRegistry().write_private("x", "y") is None


def test_process_that_waits_for_a_master_is_told_as_long_as_it_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    said = []
    with Waiting("server 2", "127.0.0.1:1", said.append) as waiting:
        assert waiting_for("127.0.0.1:1") == []
        waiting.report("waiting for the master (refused), 9 s left")
        (line,) = waiting_for("tcp://127.0.0.1:1")
        assert line.startswith(f"server 2 (process {os.getpid()} of this machine) since 20")
        assert line.endswith(": waiting for the master (refused), 9 s left")
        assert waiting_for("127.0.0.1:2") == []
        assert "of the master at 127.0.0.1:1" in waiting_for()[0]
        monkeypatch.setattr(status_line, "DIAL_S", 0.05)
        with pytest.raises(WaitTimeout, match="waits for it: server 2"):
            ask("127.0.0.1:1", 0.1)
    assert said
    assert waiting_for() == []
    dead = {"pid": os.getpid(), "born": 1, "name": "x", "address": "127.0.0.1:1", "since": 0.0}
    RunRegistry().write_private("waits-1", json.dumps({**dead, "text": "gone"}))
    RunRegistry().write_private("waits-2", "damaged")
    assert waiting_for() == []


@pytest.mark.parametrize(("mode", "folder", "others"), [
    (0o644, 0o755, True), (0o600, 0o755, False), (0o640, 0o750, True), (0o644, 0o700, False),
])  # fmt: skip
def test_address_in_a_log_that_others_read_has_no_token(
    tmp_path, monkeypatch, mode, folder, others
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    url = "http://127.0.0.1:8087/?token=abcdefgh"
    # Not below tmp_path, whose own folders others may not enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as logs:
        log = Path(logs) / "job.log"
        log.touch()
        log.chmod(mode)
        log.parent.chmod(folder)
        with log.open() as file:
            shown = Shown(url, file.fileno())
    assert ("abcdefgh" in shown.line) is not others
    files = list((tmp_path / "snailps").glob("page-*")) if others else []
    if others:
        (path,) = files
        assert str(path) in shown.line
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("abcdefgh\n", 0o600)
    shown.close()
    assert not any(path.exists() for path in files)


class TestWords:
    """What `snailps status` and `snailps jobs` say of runs."""

    def test_run_that_its_master_has_left_goes_on_with_the_same_command(self, machine, tmp_path):
        (tmp_path / "x.journal").mkdir()
        (tmp_path / "x.journal" / "facts").touch()
        run = machine.begin(
            10, output=str(tmp_path / "x"), journal=str(tmp_path / "x.journal"),
            command="snailps master -c x.conf", folder=str(Path.cwd()),
        )  # fmt: skip
        left = machine.registry().end(run, EXIT_LEFT, "left by SIGTERM", {})
        first, *lines = jobs.ended_lines(left, machine.registry())
        assert " was left by its master (SIGTERM) after " in first
        assert lines[:2] == ["  left by SIGTERM", "  continue with: snailps master -c x.conf"]
        assert jobs.record_of(left, machine.registry(), None)["state"] == "left"

    def test_done_run_says_figures_and_files(self, machine, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))  # not as ~, which is no path in quotes
        (tmp_path / "x.vec").write_bytes(b"a" * 2500)
        run = machine.begin(10, output=str(tmp_path / "x"))
        figures = {
            "words": 1_000_000, "train_s": 2.0, "words_per_s": 500_000.0, "train_loss": 1.5,
            "files": [str(tmp_path / "x.vec"), str(tmp_path / "y.bin")],
        }  # fmt: skip
        machine.now += 75
        last = {"events": [{"kind": "lost", "text": "server 2 was lost"}], "checkpoint": None}
        done = machine.registry().end(run, 0, "", figures, last)
        first, *lines = jobs.ended_lines(done, machine.registry())
        assert first.startswith(f"run 1 (fasttext to {tmp_path / 'x'}) was done after 75 s, ")
        assert "  trained 1,000,000 words in 2.0 s, 500,000 words/s" in lines
        assert f"  wrote {tmp_path / 'x.vec'} (2.5 kB)" in lines
        assert f"  wrote {tmp_path / 'y.bin'}" in lines
        assert "  survived: server 2 was lost" in lines
        (tmp_path / "x.vec").unlink()
        lines = jobs.ended_lines(done, machine.registry())
        assert not any("wrote" in line or "next:" in line for line in lines)
        assert lines[-1] == "  its files are no longer there"

    def test_report_is_found_from_any_folder(self, machine, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        figures = absolute({"files": ["out.bin"], "report": "out.report.html"})
        assert figures["report"] == str(tmp_path / "out.report.html")
        (tmp_path / "out.bin").write_bytes(b"")
        (tmp_path / "out.report.html").write_bytes(bytes(2000))
        machine.registry().end(machine.begin(1), 0, "", figures)
        (run,) = machine.registry().runs()
        assert "report: out.report.html (2.0 kB): open it in a browser" in jobs.figure_lines(run)

    def test_failed_run_says_why_and_the_command(self, machine):
        run = machine.begin(10, folder="/a b", command="snailps train fm")
        done = machine.registry().end(run, 1, "server 2 is lost", {})
        first, why, onward = jobs.ended_lines(done, machine.registry())
        assert "failed after" in first
        assert why == "  server 2 is lost"
        assert onward.endswith("begin again: cd '/a b' && snailps train fm")

    def test_killed_run_with_a_journal_says_how_to_go_on(self, machine, tmp_path):
        (tmp_path / "journal").mkdir()
        (tmp_path / "journal" / "facts").write_text("x")
        run = machine.begin(
            10, folder="/a", command="snailps master -c x.conf", journal=str(tmp_path / "journal")
        )
        del machine.births[10]
        first, onward, waits = jobs.ended_lines(run, machine.registry())
        assert "was killed before its end" in first
        assert onward == "  continue with: cd /a && snailps master -c x.conf"
        assert waits.endswith("(master_time_out); without them it begins anew")

    @pytest.mark.parametrize("state", ["good", "unfinished", "damaged"])
    def test_killed_run_goes_on_from_a_checkpoint_only_where_one_is_good(
        self, machine, tmp_path, monkeypatch, state
    ):
        found = [Checkpoint(3, tmp_path / "saved" / "checkpoint-000003", state)]
        monkeypatch.setattr(CheckpointFolder, "candidates", lambda folder: iter(found))
        run = machine.begin(10, folder="/a", command="c", checkpoints=str(tmp_path / "saved"))
        del machine.births[10]
        _, onward = jobs.ended_lines(run, machine.registry())
        told = {"good": "  continue from its newest checkpoint, in "}.get(
            state, "  nothing was saved"
        )
        assert onward.startswith(told)

    def test_run_is_found_by_number_output_address_and_file_name(self, machine, tmp_path):
        runs = [
            machine.begin(10, output=str(tmp_path / "a"), address="127.0.0.1:1"),
            machine.begin(11, output=str(tmp_path / "b")),
        ]
        for name in ("1", str(tmp_path / "a"), "127.0.0.1:1", "a"):
            assert jobs.find(name, runs) == runs[0]
        with pytest.raises(ConfigError, match=r"no run 'c' .*\(1, 2\)"):
            jobs.find("c", runs)

    def test_record_for_programs_is_json(self, machine):
        run = machine.begin(10)
        registry = machine.registry()
        assert jobs.record_of(run, registry, None)["state"] == "running"
        done = registry.end(run, 130, "interrupted", {})
        record = json.loads(json.dumps(jobs.record_of(done, registry, None)))
        assert (record["state"], record["code"]) == ("interrupted", 130)


@pytest.mark.parametrize("width", [80, 120])
def test_table_of_runs_shows_the_ends_of_outputs_for_which_a_terminal_has_no_room(machine, width):
    output = "/a" + "/long-folder" * 20 + "/last/vectors"
    machine.begin(10, output=output)
    registry = machine.registry()
    lines = jobs.table_of(registry.runs(), registry, width)
    assert max(map(len, lines)) <= width
    assert lines[-1].endswith("/last/vectors")
    assert ".../" in lines[-1]
    assert jobs.table_of(registry.runs(), registry)[-1].endswith(output)


def test_interrupted_run_that_saved_its_model_is_told_with_its_files(machine, tmp_path):
    run = machine.begin(10)
    registry = machine.registry()
    (tmp_path / "x.bin").write_bytes(b"")
    figures = {"files": [str(tmp_path / "x.bin")], "words": 9, "words_per_s": 3.0, "train_s": 3.0}
    registry.end(run, EXIT_INTERRUPTED, "interrupted after 9% of the training", figures)
    (ended,) = registry.runs()
    lines = jobs.ended_lines(ended, registry)
    assert "was interrupted" in lines[0]
    assert f"  wrote {tmp_path / 'x.bin'} (0 bytes)" in lines
