"""files.atomic: files that appear complete, with the rights of those that they replace."""

import os
import stat

import numpy as np
import pytest

from snailps import write_matrix
from snailps.errors import ModelFileError, SnailError
from snailps.files import atomic
from snailps.files.atomic import Unfinished, atomic_file, publish, unfinished_of


def write_model(path):
    with atomic_file(path) as file:
        file.write(b"new")


def write_examples(path):
    write_matrix(path, np.eye(2))


WRITERS = [write_model, write_examples]


def mode_of(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("old", "new"), [(0o600, 0o600), (0o444, 0o444), (0o666, 0o644)])
def test_file_over_another_one_keeps_its_mode_within_the_umask(tmp_path, umask, write, old, new):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(old)
    write(path)
    assert path.read_bytes() != b"old"
    assert mode_of(path) == new


def test_unfinished_file_over_a_private_one_is_private_from_its_beginning(tmp_path, umask):
    (tmp_path / "m").write_bytes(b"old")
    (tmp_path / "m").chmod(0o600)
    file = Unfinished(tmp_path / "m")
    assert mode_of(file.path) == 0o600
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to others")
@pytest.mark.parametrize("write", WRITERS)
def test_file_over_that_of_another_user_stays_that_users(tmp_path, write):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    os.chown(path, 4242, 4243)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (4242, 4243)


def test_file_that_cannot_keep_its_group_has_no_rights_for_groups(tmp_path, monkeypatch, umask):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(0o664)
    old = path.stat()
    other = os.stat_result([*old[:5], old.st_gid + 1, *old[6:]])
    monkeypatch.setattr(atomic.Path, "stat", lambda path: other)

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(atomic.os, "fchown", refuse)
    file = Unfinished(path)
    assert stat.S_IMODE(os.fstat(file.descriptor).st_mode) == 0o604
    file.close()


@pytest.mark.parametrize("write", WRITERS)
def test_file_is_synced_before_and_its_folder_behind_the_rename(tmp_path, monkeypatch, write):
    steps = []
    fsync, replace = os.fsync, atomic.Path.replace

    def synced(descriptor):
        found = os.fstat(descriptor)
        steps.append("folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")
        fsync(descriptor)

    def replaced(path, target):
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(atomic.os, "fsync", synced)
    monkeypatch.setattr(atomic.Path, "replace", replaced)
    write(tmp_path / "m")
    size = (tmp_path / "m").stat().st_size
    assert steps[-3:] == [f"{size} bytes", "rename", "folder"]


@pytest.mark.parametrize("write", WRITERS)
def test_file_of_a_link_is_replaced_where_the_link_leads(tmp_path, write):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() != b"old"


@pytest.mark.parametrize("write", WRITERS)
def test_file_is_written_beside_what_a_killed_process_of_the_same_number_has_left(
    tmp_path, monkeypatch, write
):
    """In containers: each life of a process has the same number."""
    monkeypatch.setattr(atomic.Unfinished, "remove", lambda file: None)
    with pytest.raises(ZeroDivisionError), atomic_file(tmp_path / "m"):
        raise ZeroDivisionError
    monkeypatch.undo()
    write(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size > 0


@pytest.mark.parametrize("name", ["\N{CJK UNIFIED IDEOGRAPH-6A21}" * 84, "m" * 250])
def test_file_of_the_longest_names_is_written(tmp_path, name):
    write_model(tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"new"


@pytest.mark.parametrize("name", ["m.bin", "[m]*.", "m" * 250])
def test_what_killed_processes_have_left_of_a_file_is_found(tmp_path, name):
    left = [Unfinished(tmp_path / one).path for one in (name, name, "other")]
    (tmp_path / f".{name[:40]}.part").touch()
    (tmp_path / f".{name[:40]}.of-another-program.part").touch()
    assert sorted(unfinished_of([tmp_path / name, tmp_path / "gone" / name])) == sorted(left[:2])


def test_file_of_a_name_that_cannot_be_is_model_error(tmp_path):
    with pytest.raises(ModelFileError, match="cannot be written, because File name too long"):
        write_model(tmp_path / ("m" * 256))


def test_file_that_its_owner_cannot_read_is_replaced(tmp_path, monkeypatch):
    def refuse(path, flags, *mode):
        if str(path).startswith(str(tmp_path)) and not flags & (os.O_WRONLY | os.O_DIRECTORY):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *mode)

    opened = os.open
    monkeypatch.setattr(atomic.os, "open", refuse)
    write_model(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == b"new"


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_file_of_the_name_of_a_pipe_or_folder_is_refused_and_that_stays(tmp_path, write, make):
    """As root a device, such as /dev/null, would become a file."""
    make(tmp_path / "m")
    kind = stat.S_IFMT((tmp_path / "m").stat().st_mode)
    with pytest.raises(SnailError, match=r"cannot (be )?writ.* it is a (folder|device)"):
        write(tmp_path / "m")
    assert stat.S_IFMT((tmp_path / "m").stat().st_mode) == kind
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_publish_of_a_folder_puts_it_and_its_files_in_place(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "key").write_text("k")
    publish(made, tmp_path / "node")
    assert (tmp_path / "node" / "key").read_text() == "k"
    assert not made.exists()
