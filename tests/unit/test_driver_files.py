"""Files that a Python process has alone: served in pieces, copied on demand, refused in words."""

import contextlib
import gzip
import itertools
import os
import resource
import socket
import threading
from functools import partial

import pytest
from test_trust import SECRET, trust_of
from waiting import run_all

from snailps.data.matrix_writer import write_matrix
from snailps.errors import ConfigError, DataError, ProtocolError
from snailps.files import driver_files
from snailps.files.blocks import cut, expand, head_of, read_block
from snailps.files.driver_files import DriverCopy, driver_path, is_driver_file, opened, size_of
from snailps.files.scratch import Scratch, open_input
from snailps.master.job.input import check_driver_files
from snailps.node.driver_files import read_driver_files
from snailps.transport.control import files as module
from snailps.transport.control.files import FileServer, RemoteFile
from snailps.transport.handshake import Role
from snailps.transport.security.trust import OPEN
from snailps.transport.sockets import listen

TEXT = b"".join(b"line %d of the text\n" % i for i in range(3000))
TOKEN = "0f" * 8


class Served:
    """A server with one file, and the path by which it is read."""

    def __init__(self, folder, trust=OPEN):
        self.file = folder / "spooled.txt"
        self.file.write_bytes(TEXT)
        listener = listen("127.0.0.1", 0, trust)
        self.address = listener.getsockname()[:2]
        self.server = FileServer(listener, trust)
        self.number, size = self.server.add(str(self.file))
        self.path = driver_path("{}:{}".format(*self.address), self.number, size)


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_files, "open_remote", driver_files.open_remote)
    monkeypatch.setattr(module, "STEP_S", 0.01)
    read_driver_files(Role.WORKER, OPEN, 10.0)
    served = Served(tmp_path)
    yield served
    served.server.close()


@pytest.fixture
def scratch(tmp_path):
    scratch = Scratch(str(tmp_path / "scratch"), 1 << 20)
    yield scratch
    scratch.close()


def test_piece_of_a_copy_is_what_a_request_may_ask_for():
    assert driver_files.PIECE_BYTES <= module.READ_BYTES_MAX


def test_path_has_address_number_and_size():
    path = driver_path("[::1]:4000", TOKEN, 77)
    assert path == f"driver:[::1]:4000/{TOKEN}/77"
    assert is_driver_file(path)
    assert size_of(path) == 77
    for wrong in ["driver:x", "driver:h:1/zz/3", "driver:h:1/ff/-3", "/driver:h:1/ff/3"]:
        with pytest.raises(DataError, match="expected driver:HOST:PORT/NUMBER/BYTES"):
            size_of(wrong)


def test_opened_outside_a_cluster_is_refused(monkeypatch):
    monkeypatch.setattr(driver_files, "open_remote", driver_files.nowhere)
    with pytest.raises(DataError, match="only processes of its cluster can read it"):
        opened(driver_path("h:1", TOKEN, 3))


def test_blocks_of_a_driver_file_are_the_file(served, scratch, monkeypatch):
    monkeypatch.setattr(driver_files, "PIECE_BYTES", 1000)
    served.file.unlink()  # it is open there
    sources = expand([served.path], scratch)
    assert [(source.path, source.bytes) for source in sources] == [(served.path, len(TEXT))]
    blocks = cut(sources, 7000)
    for unit in ("line", "word"):
        read = [read_block(b.path, b.start, b.stop, unit=unit, scratch=scratch) for b in blocks]
        assert b"".join(read) == TEXT
        assert len(list(filter(None, read))) == len(blocks)
    assert head_of(served.path) == TEXT[: len(head_of(served.path))]
    assert scratch.local(served.path).read_bytes() == TEXT


def test_pieces_are_fetched_once_and_only_those_that_are_read(served, scratch, monkeypatch):
    monkeypatch.setattr(driver_files, "PIECE_BYTES", 1000)
    asked = []
    read = RemoteFile.read
    monkeypatch.setattr(
        RemoteFile, "read", lambda self, a, b: asked.append((a, b)) or read(self, a, b)
    )
    with scratch.open(served.path) as file:
        file.seek(2500)
        assert file.read(1000) == TEXT[2500:3500]
        assert file.read(100) == TEXT[3500:3600]
        assert file.seek(-3, os.SEEK_END) == len(TEXT) - 3
        assert file.read() == TEXT[-3:]
        assert file.read(1) == b""
    assert asked == [(2000, 3000), (3000, 4000), (len(TEXT) // 1000 * 1000, len(TEXT))]
    with scratch.open(served.path) as file:
        file.seek(2000)
        assert file.read(2000) == TEXT[2000:4000]
    assert len(asked) == 3


def test_local_copy_of_some_bytes_has_these(served, scratch, monkeypatch):
    monkeypatch.setattr(driver_files, "PIECE_BYTES", 1000)
    data = scratch.local(served.path, 2500, 3500).read_bytes()
    assert len(data) == len(TEXT)
    assert data[2000:4000] == TEXT[2000:4000]
    assert not any(data[:2000] + data[4000:])


def test_copy_counts_towards_the_limit_and_goes_with_the_scratch(served, tmp_path):
    tight = Scratch(str(tmp_path / "tight"), 1000)
    with pytest.raises(DataError, match=r"a copy of the data needs more than [\d,]+ bytes"):
        tight.open(served.path)
    tight.close()
    scratch = Scratch(str(tmp_path / "scratch"), 1 << 20)
    kept = scratch.local(served.path)
    assert kept.exists()
    scratch.close()
    assert not kept.exists()


def test_file_that_was_removed_is_served_no_longer(served, scratch):
    with scratch.open(served.path) as file:
        assert file.read(10) == TEXT[:10]
    served.server.remove(served.number)
    with pytest.raises(DataError, match="serves it no longer"):
        expand([served.path], scratch)


def test_process_that_has_ended_is_named(served, scratch):
    remote = opened(served.path)
    assert remote.read(0, 5) == TEXT[:5]
    served.server.close()
    where = "{}:{}".format(*served.address)
    ended = rf"has the data \({where}\) has ended"
    unknown = rf"cannot be reached at {where}: .*advertise_addr=, listen_addr=, port_range="
    for again, words in ((remote, ended), (opened(served.path), unknown)):
        with pytest.raises(DataError, match=words):
            again.read(0, 5)


def test_broken_connection_is_made_anew(served):
    remote = opened(served.path)
    assert remote.read(0, 5) == TEXT[:5]
    remote._sock.shutdown(socket.SHUT_RDWR)
    assert remote.read(5, 9) == TEXT[5:9]
    remote.close()


def test_requests_beyond_a_piece_or_the_file_are_refused(served):
    remote = opened(served.path)
    with pytest.raises(DataError, match="expected bytes of 0 to"):
        remote.read(0, len(TEXT) + 1)
    with pytest.raises(DataError, match="ReadFile of more than"):
        remote.read(0, module.READ_BYTES_MAX + 1)
    remote.close()


def test_process_without_the_secret_reads_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STEP_S", 0.01)
    served = Served(tmp_path, trust_of({"SNAILPS_SECRET": SECRET}))
    try:
        stranger = RemoteFile(served.address, served.number, role=Role.WORKER)
        with pytest.raises(ProtocolError, match="asks for a secret, and this process has none"):
            stranger.read(0, 5)
        trust = trust_of({"SNAILPS_SECRET": SECRET})
        member = RemoteFile(served.address, served.number, role=Role.WORKER, trust=trust)
        assert member.read(0, 5) == TEXT[:5]
        member.close()
    finally:
        served.server.close()


def test_role_that_reads_no_input_is_refused(served):
    remote = RemoteFile(served.address, served.number, role=Role.SERVER)
    with pytest.raises(DataError, match="ReadFile is for workers and masters to say"):
        remote.read(0, 5)
    remote.close()


def test_copy_that_is_truncated_is_an_error(served, scratch):
    file = scratch.new_file("copy")
    copy = DriverCopy(served.path, file)
    assert copy.read(0, 5) == TEXT[:5]
    os.ftruncate(file.fileno(), 3)
    with pytest.raises(DataError, match=r"copy of the data: it ends before byte 5"):
        copy.read(0, 5)
    copy.close()


def test_server_holds_back_what_is_over_the_limit(served, monkeypatch):
    monkeypatch.setattr(module, "UNDER_WAY_BYTES_MAX", 1)
    most = []
    under_way = FileServer.under_way
    monkeypatch.setattr(
        FileServer, "under_way", lambda self: most.append(under_way(self)) or most[-1]
    )
    found = []

    def read(_):
        remote = opened(served.path)
        found.extend(remote.read(i * 5000, i * 5000 + 5000) for i in range(5))
        remote.close()

    run_all(*(partial(read, one) for one in range(3)))
    assert sorted(found) == sorted([TEXT[i : i + 5000] for i in range(0, 25000, 5000)] * 3)
    assert max(most) < 2 * 5000  # one piece at a time


@pytest.fixture
def no_descriptors():
    """Opens files until this process can open no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]

    def take():
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 64, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(held[0]))

    yield take
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_server_in_a_process_that_can_open_no_more_files_goes_on(served, no_descriptors):
    remote = opened(served.path)
    remote.read(0, 1)
    no_descriptors()
    assert remote.read(5, 50) == TEXT[5:50]
    assert served.server.is_alive
    remote.close()


def test_server_whose_file_is_removed_while_it_is_read_closes_it_behind_that(served, monkeypatch):
    pread, seen = os.pread, []

    def removing(descriptor, count, at):
        if threading.current_thread().name == "snailps-files":
            served.server.remove(served.number)
            seen.append(descriptor)
        return pread(descriptor, count, at)

    monkeypatch.setattr(module.os, "pread", removing)
    remote = opened(served.path)
    assert remote.read(0, 10) == TEXT[:10]
    with pytest.raises(DataError, match="serves it no longer"):
        remote.read(0, 10)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(seen[0])
    remote.close()


def test_settings_that_name_a_drivers_file_are_its_own(served):
    check_driver_files({"input": f"a.txt,{served.path}", "output": "driver"}, [served.path])
    for text, files in itertools.product([f"a.txt,{served.path}", served.path], [[], ["b"]]):
        with pytest.raises(ConfigError, match="names data that a Python process has"):
            check_driver_files({"input": text}, files)


def test_blocks_of_a_drivers_matrix_file_are_those_of_the_file(
    served, scratch, tmp_path, monkeypatch
):
    monkeypatch.setattr(driver_files, "PIECE_BYTES", 1000)
    rows = [{f"name{i % 7}": i, "bias": 1} for i in range(500)]
    path = tmp_path / "rows.mx"
    write_matrix(path, rows, [i % 2 for i in range(500)])
    number, size = served.server.add(str(path))
    theirs = driver_path("{}:{}".format(*served.address), number, size)
    assert head_of(theirs) == head_of(str(path))
    blocks = cut(expand([theirs], scratch), size // 7)
    for block in blocks:
        ours = read_block(str(path), block.start, block.stop, unit="line", scratch=scratch)
        assert ours
        found = read_block(theirs, block.start, block.stop, unit="line", scratch=scratch)
        assert found == ours


def test_input_is_opened_without_a_copy(served, tmp_path):
    with open_input(served.path) as file:
        assert file.read(7) == TEXT[:7]
        file.seek(100)
        assert file.read(10) == TEXT[100:110]
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(TEXT))
    for path in (packed, served.file):
        with open_input(str(path)) as file:
            assert file.read() == TEXT
