"""files.scratch, files.host_cache: one copy a host, bounded, locked, removed only when unused."""

import contextlib
import errno
import fcntl
import gzip
import os
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from snailps.errors import DataError, WaitTimeout
from snailps.files import driver_files
from snailps.files import scratch as module
from snailps.files.host_cache import HostCache, default_folder
from snailps.files.scratch import Scratch, release_whole, whole_file

Usage = namedtuple("Usage", "total used free")
TEXT = b"some words to pack\n" * 1000


@pytest.fixture
def make(tmp_path):
    """Makes scratches on one folder; closes them all."""
    made = []

    def make(bytes_max=1 << 20, **options) -> Scratch:
        made.append(Scratch(str(tmp_path / "scratch"), bytes_max, **options))
        return made[-1]

    yield make
    for scratch in made:
        scratch.close()


def pack(folder) -> str:
    """A packed file."""
    path = folder / "text.gz"
    path.write_bytes(gzip.compress(TEXT))
    return str(path)


@pytest.fixture
def packed(tmp_path) -> str:
    return pack(tmp_path)


def copies(scratch) -> list[str]:
    return sorted(path.name for path in scratch.folder.iterdir())


def test_local_plain_file_is_itself_and_makes_no_folder(make, tmp_path):
    scratch = make()
    assert scratch.local("/data/plain.txt") == Path("/data/plain.txt")
    assert not scratch.folder.exists()
    assert scratch.clean() == 0


def test_local_packed_file_is_unpacked_once(make, packed, monkeypatch):
    first = make().local(packed)
    assert first.read_bytes() == TEXT
    monkeypatch.setattr(module, "pieces_of", lambda path: pytest.fail("unpacked twice"))
    again = make()
    assert again.local(packed) == again.local(packed) == first
    assert first.stat().st_mode & 0o077 == 0
    assert first.parent.stat().st_mode & 0o077 == 0


def test_local_several_gzip_members_are_one_text(make, tmp_path):
    path = tmp_path / "members.GZ"
    path.write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert make().local(str(path)).read_bytes() == b"one two"


def test_local_changed_origin_is_unpacked_anew_but_not_under_a_user(make, packed):
    old = make()
    before = old.local(packed)
    Path(packed).write_bytes(gzip.compress(b"changed"))
    assert make().local(packed).read_bytes() == b"changed"
    assert old.local(packed) == before
    assert before.read_bytes() == TEXT


def test_local_link_and_target_share_one_copy(make, packed, tmp_path):
    link = tmp_path / "link.gz"
    link.symlink_to(packed)
    scratch = make()
    assert scratch.local(str(link)) == scratch.local(packed)


@pytest.mark.parametrize("damage", ["truncated", "checksum", "no gzip", "missing"])
def test_local_damaged_file_is_data_error_and_leaves_nothing(make, packed, damage):
    good = Path(packed).read_bytes()
    bad = {
        "truncated": good[:-20],
        "checksum": good[:-8] + bytes(8),
        "no gzip": b"plain text",
        "missing": None,
    }[damage]
    if bad is None:
        Path(packed).unlink()
    else:
        Path(packed).write_bytes(bad)
    scratch = make()
    with pytest.raises(DataError, match=r"cannot (unpack|open) .*text\.gz"):
        scratch.local(packed)
    assert not scratch.folder.exists() or copies(scratch) == []


def test_local_beyond_limit_is_data_error_with_both_numbers(make, packed):
    scratch = make(1000)
    with pytest.raises(DataError, match="more than 19,000 bytes, 1,000 of the 1,000 bytes"):
        scratch.local(packed)
    assert copies(scratch) == []


def test_local_on_a_disk_that_is_nearly_full_says_that_and_what_helps(make, packed, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 4096))
    said = r"2,048 of the 2,048 bytes of scratch are left \(half of what its disk has free\)"
    with pytest.raises(
        DataError, match=said + r".* choose another scratch_dir, or unpack the file"
    ):
        make(0).local(packed)


def test_local_without_room_removes_what_nobody_uses(make, packed, tmp_path):
    other = tmp_path / "other.gz"
    other.write_bytes(gzip.compress(TEXT[::-1]))
    limit = len(TEXT) + 100
    first = make(limit)
    unused = first.local(packed)
    with pytest.raises(DataError, match="100 of the 19,100 bytes"):
        make(limit).local(str(other))  # the first copy is still in use
    first.close()
    assert make(limit).local(str(other)).read_bytes() == TEXT[::-1]
    assert not unused.exists()


def test_local_full_disk_is_data_error_naming_the_folder(make, packed, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    scratch = make()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DataError, match=r"cannot unpack .*scratch .*No space left"):
        scratch.local(packed)
    assert copies(scratch) == []


def test_clean_removes_unused_copies_and_parts_only(make, packed):
    user, other = make(), make()
    used = user.local(packed)
    part = used.with_name("0" * 32 + ".part")
    part.write_bytes(b"left by a process that died")
    foreign = used.with_name("thesis.txt")
    foreign.write_bytes(b"not ours")
    assert other.clean() == 27
    assert (used.exists(), part.exists(), foreign.exists()) == (True, False, True)
    user.close()
    assert other.clean() == len(TEXT)
    assert (used.exists(), foreign.exists()) == (False, True)


def test_clean_passes_over_files_that_their_owners_close_meanwhile(make, packed, monkeypatch):
    user, other = make(), make()
    used = user.local(packed)
    for name in ("0" * 32 + ".part", "1" * 32 + ".part"):
        used.with_name(name).write_bytes(b"left by a process that died")
    open_, flock = os.open, fcntl.flock

    def gone_before(path, *arguments, **more):
        if str(path).endswith("0.part"):
            path.unlink()
        return open_(path, *arguments, **more)

    def gone_behind(descriptor, how):
        used.with_name("1" * 32 + ".part").unlink(missing_ok=True)
        return flock(descriptor, how)

    monkeypatch.setattr(os, "open", gone_before)
    monkeypatch.setattr(fcntl, "flock", gone_behind)
    assert other.clean() == 0
    assert copies(other) == [used.name]


@pytest.fixture
def held(make, packed):
    """The lock of a copy that another process makes."""
    scratch = make()
    copy = scratch.local(packed)
    scratch.close()
    copy.unlink()
    with copy.with_suffix(".lock").open("w") as holder:
        holder.write("process 42, unpacking big.gz")
        holder.flush()
        fcntl.flock(holder, fcntl.LOCK_EX)
        yield holder


def test_local_while_other_unpacks_too_long_says_who(make, packed, held):
    scratch = make(wait_s=0.0)
    with pytest.raises(WaitTimeout, match=r"held by process 42, unpacking big\.gz"):
        scratch.local(packed)
    held.close()
    assert scratch.local(packed).read_bytes() == TEXT


def test_other_files_while_a_copy_is_made_do_not_wait(make, held, tmp_path):
    other = tmp_path / "other.gz"
    other.write_bytes(gzip.compress(b"another text"))
    scratch = make(wait_s=0.0)
    assert scratch.local(str(other)).read_bytes() == b"another text"
    file = scratch.new_file("a fit on data in memory")
    file.write(b"rows")
    file.close()
    assert scratch.clean() == 0


@pytest.fixture
def late(make, monkeypatch):
    """Files of which another process removed one just before it was locked."""
    flock, removed = fcntl.flock, []

    def lock(descriptor, how):
        folder = make().folder
        for path in [] if removed else [*folder.glob("*.lock"), *folder.glob("*.spool")]:
            removed.append(path)
            path.unlink()
        return flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    return removed


def test_local_whose_lock_was_removed_before_it_was_taken_locks_anew(make, packed, late):
    assert make().local(packed).read_bytes() == TEXT
    assert len(late) == 1


def test_new_file_that_was_removed_before_it_was_locked_is_another(make, late):
    file = make().new_file("a file")
    assert file.path.exists()
    assert file.path != late[0]
    file.close()


def test_file_of_a_key_is_filled_once_and_its_parts_go(tmp_path):
    cache, filled = HostCache(str(tmp_path), 1 << 20), []

    def fill(make):
        make("a part").write(b"part")
        file = make("the whole")
        file.write_at(b"le", 3)
        file.write_at(b"who", 0)
        filled.append(file.path)
        return file

    found = {cache.find("key", "filling it", fill) for _ in range(2)}
    assert [path.read_bytes() for path in found] == [b"whole"]
    assert len(filled) == 1
    assert [path.name for path in tmp_path.iterdir()] == [path.name for path in found]
    with pytest.raises(ZeroDivisionError):
        cache.find("another", "filling that", lambda make: 1 / make("nothing").bytes)
    assert HostCache(str(tmp_path), 1 << 20).clean() == 0
    cache.close()
    assert cache.clean() == 5


def test_file_that_a_forked_child_closes_stays(tmp_path, monkeypatch):
    file = HostCache(str(tmp_path), 1 << 20).new_file("a file")
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    file.close()
    assert file.path.exists()


def descriptors_in(folder: Path) -> list[str]:
    """Files of a folder that this process has open; others come and go with the collector."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(link.readlink()))
    return sorted(link for link in links if link.startswith(str(folder)))


@pytest.mark.parametrize("failing", [1, 2])
def test_local_on_a_disk_without_locks_is_data_error_and_leaves_no_descriptor(
    make, packed, tmp_path, monkeypatch, failing
):
    flock, calls = fcntl.flock, []

    def refuse(descriptor, how):
        calls.append(how)
        if len(calls) == failing:
            raise OSError(errno.ENOLCK, "No locks available")
        return flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", refuse)
    scratch = make()
    before = descriptors_in(tmp_path)
    with pytest.raises(DataError, match=r"cannot lock files in .*scratch: No locks available"):
        scratch.local(packed)
    assert len(calls) == failing
    assert descriptors_in(tmp_path) == before


def test_local_copy_is_on_the_disk_before_it_has_its_name(make, packed, monkeypatch):
    steps = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor):
        steps.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    def replaced(path, target):
        steps.append(target.suffix)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    make().local(packed)
    assert steps[:2] == [len(TEXT), ".copy"]


def test_local_folder_of_another_is_refused(make, packed, monkeypatch):
    scratch = make()
    scratch.folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(DataError, match=r"folder of this user \(uid 4242\)"):
        scratch.local(packed)


def test_local_folder_that_is_a_link_is_refused(make, packed, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    scratch = make()
    scratch.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="folder of this user"):
        scratch.local(packed)


def test_default_folder_names_the_user():
    assert default_folder().name == f"snailps-{os.getuid()}"
    assert Scratch("", 1).folder == default_folder()


@pytest.fixture
def usual(tmp_path, monkeypatch):
    """The place of this user's folder, in an empty folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"snailps-{os.getuid()}"


@pytest.mark.parametrize("taken", ["by another", "by a file", "by a link", "for others to write"])
def test_default_folder_whose_name_is_taken_is_another_one_of_this_user(usual, packed, taken):
    if taken == "by a file":
        usual.write_bytes(b"")
    elif taken == "by a link":
        usual.symlink_to(usual.parent)
    else:
        usual.mkdir()
        usual.chmod(0o777)
        decoy = usual.with_name(f"{usual.name}-00000000")
        decoy.mkdir()
        decoy.chmod(0o777)
    if taken == "by another":
        if os.getuid() != 0:
            pytest.skip("gives folders to others")
        for path in (usual, decoy):
            path.chmod(0o755)
            os.chown(path, 4242, -1)
    first, second = Scratch("", 1 << 20), Scratch("", 1 << 20)
    copy = first.local(packed)
    assert second.local(packed) == copy
    assert copy.read_bytes() == TEXT
    assert first.folder.parent == usual.parent
    assert first.folder.name.startswith(f"{usual.name}-")
    assert first.folder.stat().st_uid == os.getuid()
    assert first.folder.stat().st_mode & 0o077 == 0
    first.close()
    second.close()


def test_whole_file_is_copied_once_and_goes_when_it_is_released(tmp_path, monkeypatch):
    asked = []

    class Far:
        def read(self, start, stop):
            asked.append((start, stop))
            return b"rows"[start:stop]

        def close(self):
            asked.append("closed")

    monkeypatch.setattr(driver_files, "open_remote", lambda address, number: Far())
    path = driver_files.driver_path("host:1", "a", 4)
    assert whole_file("model.bin") == "model.bin"
    copies = {whole_file(path, str(tmp_path)) for _ in range(2)}
    assert [Path(copy).read_bytes() for copy in copies] == [b"rows"]
    assert asked == [(0, 4)]
    release_whole("model.bin")
    release_whole(path)
    assert asked[1:] == ["closed"]
    assert list(tmp_path.glob("*.spool")) == []
