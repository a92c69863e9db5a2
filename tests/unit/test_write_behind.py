"""Files that a thread writes: any mix of writes and seeks, errors of the disk."""

import errno
import io
import os

import numpy as np
import pytest

from snailps.errors import ModelFileError
from snailps.files import write_behind
from snailps.files.atomic import atomic_file
from snailps.files.write_behind import WriteBehind

PIECE = 8192


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(write_behind, "PIECE_BYTES", PIECE)


def opened(path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    return WriteBehind(path, file, lambda error: error)


@pytest.mark.parametrize("sizes", [[0], [1], [PIECE], [PIECE - 1, 2], [1] * 20, [10 * PIECE + 7]])
def test_file_has_what_was_written_in_its_order(tmp_path, sizes):
    rng = np.random.default_rng(1)
    parts = [rng.bytes(size) for size in sizes]
    with opened(tmp_path / "m") as file:
        for part in parts:
            assert file.write(part) == len(part)
        file.sync()
    assert (tmp_path / "m").read_bytes() == b"".join(parts)


def test_data_may_change_after_it_was_taken(tmp_path):
    data = bytearray(b"x" * (3 * PIECE))
    with opened(tmp_path / "m") as file:
        for value in (b"a", b"b"):
            data[:] = value * len(data)
            file.write(data)
        file.sync()
    assert (tmp_path / "m").read_bytes() == b"a" * len(data) + b"b" * len(data)


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_places_that_are_written_can_be_written_again(tmp_path, seed, buffered):
    rng = np.random.default_rng(seed)
    expected = bytearray()
    with opened(tmp_path / "m") as raw:
        file = io.BufferedWriter(raw, 1000) if buffered else raw
        for _ in range(60):
            at = len(expected) if rng.random() < 0.6 else int(rng.integers(len(expected) + 1))
            part = rng.bytes(int(rng.integers(2 * PIECE)))
            assert file.seek(at) == at
            file.write(part)
            expected[at : at + len(part)] = part
            assert file.tell() == at + len(part)
        assert file.seek(0, os.SEEK_END) == len(expected)
        file.flush()
        raw.sync()
    assert (tmp_path / "m").read_bytes() == expected


def test_place_that_is_not_written_is_refused(tmp_path):
    with opened(tmp_path / "m") as file:
        file.write(b"abc")
        with pytest.raises(ValueError, match="an offset of 0 to the 3 bytes written, got 4"):
            file.seek(4)


def test_file_system_that_refuses_to_pass_the_page_cache_is_written_through_it(
    tmp_path, monkeypatch
):
    write = os.pwrite
    direct = []

    def refuse(file, data, at):
        if file == direct[0]:
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(file, data, at)

    with opened(tmp_path / "m") as file:
        direct.append(os.open(tmp_path / "m", os.O_WRONLY))
        monkeypatch.setattr(os, "open", lambda *_: direct[0])
        monkeypatch.setattr(os, "pwrite", refuse)
        file.write(b"x" * (5 * PIECE))
        file.sync()
    assert (tmp_path / "m").read_bytes() == b"x" * (5 * PIECE)


def test_disk_that_is_full_ends_the_writing_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    taken = []

    def fill():
        with atomic_file(tmp_path / "m") as file:
            for _ in range(1000):
                taken.append(file.write(bytes(PIECE)))

    with pytest.raises(ModelFileError, match="is full"):
        fill()
    assert len(taken) < 900  # it is noticed long before the end
    assert list(tmp_path.iterdir()) == []


def test_error_of_the_last_piece_is_raised_by_sync(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    with opened(tmp_path / "m") as file:
        monkeypatch.setattr(os, "pwrite", broken)
        file.write(bytes(PIECE))
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
