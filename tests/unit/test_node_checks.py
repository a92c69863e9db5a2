"""Checks of a machine: what they say of it."""

import os

import pytest

from snailps.api.tables import Table
from snailps.node import checks
from snailps.node.checks import shown_command


def test_command_that_holds_a_script_is_shown_on_one_line():
    cmdline = b"python3\0-c\0import socket\n\nwith socket.socket() as s:\n    s.listen()\n\0"
    assert shown_command(cmdline) == "python3 -c import socket with socket.socket() as s: s.listen"
    assert shown_command(b"") == ""


ROW = 4 * 10 + checks.ROW_OVERHEAD_BYTES


@pytest.mark.parametrize(("servers", "replicated", "level", "cure"), [
    (1, True, "error", "start 8 such servers, or 4 with replication: none"),
    (4, True, "error", "start 8 such servers, or 4 with replication: none"),
    (8, True, "ok", ""),
    (4, False, "ok", ""),
    (2, False, "error", "start 4 such servers"),
])  # fmt: skip
def test_memory_counts_standbys_of_the_servers_that_it_advises(
    monkeypatch, servers, replicated, level, cure
):
    monkeypatch.setattr(checks, "free_memory", lambda: (100 * ROW, "the test"))
    found = checks.check_memory([Table("a", 10)], 400, servers, replicated=replicated)
    assert [(one.level, one.cure) for one in found] == [(level, cure)]


def test_disk_has_room_for_the_checkpoints_that_are_kept_and_the_next_one(tmp_path, monkeypatch):
    status = os.statvfs(tmp_path)
    each = status.f_bavail * status.f_frsize // 4
    folder = tmp_path / "run.checkpoints"
    assert checks.check_disk(folder, each, 2)[0].level == "ok"
    (error,) = checks.check_disk(folder, each, 4)
    assert (error.level, "checkpoints_kept" in error.cure) == ("error", True)
    assert "5 of " in error.text


@pytest.mark.parametrize(("names", "why"), [
    (["nothing/*.txt"], "matches no file"),
    (["empty"], "expected files in the folder"),
    (["nosuch://x/y.txt"], "nosuch"),
    (["bare.txt"], "the input is empty"),
    (["in.txt", "missing.txt"], "does not exist"),
])  # fmt: skip
def test_input_that_the_master_refuses_is_an_error_there_and_a_warning_elsewhere(
    tmp_path, monkeypatch, names, why
):
    pytest.importorskip("fsspec") if "://" in names[0] else None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare.txt").touch()
    (tmp_path / "in.txt").write_text("a b\n")
    for master, level in ((True, "error"), (False, "warning")):
        (found,) = checks.check_input(names, master=master)
        assert (found.level, why in found.text) == (level, True), found
    assert checks.check_input(["in.txt"], master=True)[0].level == "ok"


def test_output_is_tried_and_leaves_no_folder(tmp_path):
    assert checks.check_result(f"{tmp_path}/a/b/model")[0].level == "ok"
    assert not list(tmp_path.iterdir())
    (error,) = checks.check_result("/proc/nothing/model")
    assert (error.level, error.check) == ("error", "output")
    (tmp_path / "file").touch()
    assert checks.check_result(f"{tmp_path}/file/model")[0].level == "error"
