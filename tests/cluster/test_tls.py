"""TLS: certificates, the relay in front of plain sockets, and whole clusters over it."""

import contextlib
import errno
import os
import random
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest
from cluster_models import COUNTER, write_numbers
from processes import LIMIT_S, Cluster, run_snailps
from test_heartbeats import dials_its_heartbeat_connection_again
from waiting import joined, until

from snailps.cli.tls import init
from snailps.errors import ConfigError, ProtocolError, SnailError
from snailps.transport.control import dial, listen
from snailps.transport.control.files import FileServer, RemoteFile
from snailps.transport.handshake import Channel, Role
from snailps.transport.security import tls_relay as relays
from snailps.transport.security.tls import Tls
from snailps.transport.security.tls_link import TlsLink, words
from snailps.transport.security.tls_relay import TlsRelay
from snailps.transport.security.trust import Trust


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Certificates `a` and `b` of one CA, `c` of another."""
    base = tmp_path_factory.mktemp("tls")
    a, b = init(base / "ours", ["a", "b"])
    (c,) = init(base / "theirs", ["c"])
    return {"a": a, "b": b, "c": c}


def test_node_with_tls_dials_its_heartbeat_connection_again(folders):
    dials_its_heartbeat_connection_again(str(folders["a"]))


# --- certificates -----------------------------------------------------------------------------


def test_init_makes_certificates_that_openssl_verifies_and_keys_that_only_the_owner_reads(folders):
    for folder in folders.values():
        subprocess.run(
            ["openssl", "verify", "-CAfile", folder / "ca.pem", folder / "node.pem"],
            check=True, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert (folder / "node.key").stat().st_mode & 0o777 == 0o600
        assert (folder.parent / "ca.key").stat().st_mode & 0o777 == 0o600
        assert (folder / "node.pem").stat().st_mode & 0o777 == 0o644


def test_init_again_adds_nodes_to_the_same_ca_and_overwrites_none(tmp_path):
    init(tmp_path / "certs", ["one"])
    ca = (tmp_path / "certs" / "ca.pem").read_bytes()
    (two,) = init(tmp_path / "certs", ["two", "two"])
    assert (two / "ca.pem").read_bytes() == ca
    with pytest.raises(ConfigError, match="exists already"):
        init(tmp_path / "certs", ["three", "one"])
    for name in ("../up", "", "a b", "ca.key"):
        with pytest.raises(ConfigError, match="cannot be the name"):
            init(tmp_path / "certs", [name])
    assert sorted(p.name for p in (tmp_path / "certs").iterdir()) == [
        "ca.key", "ca.pem", "one", "two",
    ]  # fmt: skip


def test_tls_of_a_folder_that_lacks_something_or_is_open_to_others_says_so(tmp_path, folders):
    with pytest.raises(ConfigError, match=r"ca\.pem does not exist; 'snailps tls init'"):
        Tls(str(tmp_path))
    (mine,) = init(tmp_path / "certs", ["mine"])
    with pytest.raises(ConfigError, match=r"name the folder of a node, e\.g\. .*/certs/mine$"):
        Tls(str(tmp_path / "certs"))
    (mine / "node.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"mode 0644\): chmod 600"):
        Tls(str(mine))
    (mine / "ca.pem").chmod(0o666)
    with pytest.raises(ConfigError, match=r"ca\.pem can be changed by others \(mode 0666\), who"):
        Tls(str(mine))
    (mine / "ca.pem").chmod(0o644)
    (mine / "node.key").write_bytes((folders["a"] / "node.key").read_bytes())
    (mine / "node.key").chmod(0o600)
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        Tls(str(mine))


def test_certificate_that_no_member_would_accept_is_refused_where_a_process_listens(
    tmp_path, folders, monkeypatch
):
    name, ends = Tls(str(folders["a"])).check()
    assert name == "a"
    assert ends > time.time() + 9 * 365 * 86400
    shutil.copytree(folders["a"], tmp_path / "other")
    shutil.copyfile(folders["c"] / "ca.pem", tmp_path / "other" / "ca.pem")
    monkeypatch.setattr("snailps.cli.tls.DAYS", -1)
    (expired,) = init(folders["b"].parent, ["gone"])
    for folder, why in ((tmp_path / "other", "certificate"), (expired, "certificate has expired")):
        with pytest.raises(ConfigError, match=rf"tls: no member .* will accept .*{why}"):
            listen("127.0.0.1", 0, Trust(tls=Tls(str(folder))))


# --- the relay --------------------------------------------------------------------------------


def wait_for_words(caplog, words):
    """Waits until another thread has logged them."""
    until(lambda: words in caplog.text, lambda: f"{words!r} in the log: {caplog.text}")


class Echo:
    """What comes through a relay goes back, by a thread for each connection."""

    def __init__(self, tls):
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.relay = tls.listening(listener)
        self._over, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        while self._over not in select.select([self.relay, self._over], [], [])[0]:
            threading.Thread(target=self._serve, args=self.relay.accept()[:1], daemon=True).start()

    @staticmethod
    def _serve(sock):
        with sock:
            while data := sock.recv(1 << 16):
                sock.sendall(data)

    def close(self):
        self._end.close()
        joined(self._thread)
        self.relay.close()
        self._over.close()


@pytest.fixture
def echo(folders):
    made = Echo(Tls(str(folders["a"])))
    yield made
    made.close()


def connected(tls, address):
    sock = tls.encrypted(socket.create_connection(address, LIMIT_S), LIMIT_S)
    plain = tls.plain(sock, address)
    plain.settimeout(LIMIT_S)
    return plain


@pytest.fixture
def door(folders):
    """A relay that listens, and accepts no connection by itself."""
    relay = Tls(str(folders["a"])).listening(socket.create_server(("127.0.0.1", 0)))
    yield relay
    relay.close()


def accepted(door):
    """The plain end of the connection that comes next."""
    select.select([door], [], [], LIMIT_S)
    sock, _ = door.accept()
    sock.settimeout(LIMIT_S)
    return sock


def received(sock):
    """All that comes until the end."""
    parts = []
    while data := sock.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def test_relay_carries_megabytes_both_ways_at_once_and_the_end_behind_them(echo, folders):
    tls = Tls(str(folders["b"]))
    data = b"".join(i.to_bytes(4, "little") for i in range(1 << 20))
    got = {}

    def talk(number):
        with connected(tls, echo.address) as sock:
            reader = threading.Thread(target=lambda: got.update({number: received(sock)}))
            reader.start()
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            joined(reader)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread)
    assert all(got.get(number) == data for number in range(3))
    tls.close()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "before its thread began"])
def test_relay_that_is_closed_first_sends_what_was_written(door, folders, monkeypatch, late):
    run = TlsRelay.run

    def run_late(relay):
        while relay._listener is None and relay._closing_at is None:
            time.sleep(0.001)
        run(relay)

    monkeypatch.setattr(relays, "FLUSH_S", LIMIT_S)
    if late:
        monkeypatch.setattr(TlsRelay, "run", run_late)
    tls = Tls(str(folders["b"]))
    theirs = connected(tls, door.getsockname())
    ours = accepted(door)
    theirs.sendall(b"goodbye")
    theirs.close()
    tls.close()
    assert received(ours) == b"goodbye"
    ours.close()


def test_relay_delivers_all_that_was_written_before_the_plain_end_was_closed(door, folders):
    tls = Tls(str(folders["b"]))
    theirs = connected(tls, door.getsockname())
    ours = accepted(door)
    data = random.Random(1).randbytes(16 << 20)  # mostly more than buffers hold

    def write():
        with theirs:
            theirs.sendall(data)

    writer = threading.Thread(target=write)
    writer.start()
    # Nothing is read yet: the writer comes to a halt with its relay's buffers full.
    with contextlib.suppress(OSError, ValueError):  # or it is through, where they hold all
        while select.select([], [theirs], [], 0.05)[1]:
            time.sleep(0.001)
    got = received(ours)
    joined(writer)
    assert got == data
    ours.close()
    tls.close()


def test_relay_delivers_the_last_words_of_a_peer_that_left_something_unread(door, folders):
    """That is a reset: of a peer that says why, and closes while it is written to."""
    tls = Tls(str(folders["b"]))
    words = [b"first ", b"second ", b"and last"]
    for _ in range(30):
        theirs = tls.encrypted(socket.create_connection(door.getsockname()), LIMIT_S)
        theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours = accepted(door)
        ours.sendall(b"never read")
        select.select([theirs], [], [], LIMIT_S)
        for word in words:
            theirs.sendall(word)
        socket.socket.close(theirs)
        assert received(ours) == b"".join(words)
        ours.close()


def test_relay_ends_the_peers_connection_when_its_owner_closes_the_plain_end(door, folders):
    tls = Tls(str(folders["b"]))
    theirs = tls.encrypted(socket.create_connection(door.getsockname()), LIMIT_S)
    theirs.sendall(b"never read")
    ours = accepted(door)
    ours.close()
    assert received(theirs) == b""
    theirs.close()


@pytest.mark.parametrize("words", [b"", b"\x16", b"GET / HTTP/1.1\r\n\r\n", bytes(5000)])
def test_relay_drops_who_speaks_no_tls_and_serves_the_others(echo, folders, words, caplog):
    with socket.create_connection(echo.address) as stranger:
        stranger.sendall(words)
        tls = Tls(str(folders["b"]))
        with connected(tls, echo.address) as sock:
            sock.sendall(b"still here?")
            assert sock.recv(100) == b"still here?"
        tls.close()
        where = "{}:{}".format(*stranger.getsockname())
        with contextlib.suppress(OSError):  # it may have been dropped already
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(LIMIT_S)
            received(stranger)
    # Who says nothing, or half a word, may only have looked whether the port is open.
    assert (f"refused {where}: no TLS handshake" in caplog.text) == (len(words) > 1)


def test_relay_refuses_a_certificate_of_another_ca_and_none_at_all(echo, folders, caplog):
    with pytest.raises(ssl.SSLError):
        connected(Tls(str(folders["c"])), echo.address)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    with (
        pytest.raises(ssl.SSLError),
        bare.wrap_socket(socket.create_connection(echo.address)) as sock,
    ):
        sock.recv(1)
    wait_for_words(caplog, "it has no certificate")  # the peer is told before the log is


def test_relay_refuses_a_certificate_that_has_expired_on_either_side(
    echo, folders, caplog, monkeypatch
):
    monkeypatch.setattr("snailps.cli.tls.DAYS", -1)
    (old,) = init(folders["a"].parent, ["old"])
    tls = Tls(str(old))
    with (
        pytest.raises(ssl.SSLError) as error,
        tls.encrypted(socket.create_connection(echo.address), LIMIT_S) as sock,
    ):
        sock.recv(1)  # TLS 1.3 tells what is wrong with its certificate to one that is connected
    assert words(error.value) == "it says that this certificate has expired"
    wait_for_words(caplog, "its certificate has expired")
    theirs = Echo(tls)
    with pytest.raises(ssl.SSLError) as error:
        connected(Tls(str(folders["b"])), theirs.address)
    theirs.close()
    assert words(error.value) == "its certificate has expired"


def test_relay_speaks_no_tls_before_1_3(echo, folders, caplog):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.maximum_version = False, ssl.TLSVersion.TLSv1_2
    old.load_verify_locations(folders["b"] / "ca.pem")
    old.load_cert_chain(folders["b"] / "node.pem", folders["b"] / "node.key")
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        old.wrap_socket(socket.create_connection(echo.address, LIMIT_S))
    wait_for_words(caplog, "UNSUPPORTED_PROTOCOL")


class Full(socket.socket):
    """A listener that finds no descriptor left, so often."""

    times = 0

    def accept(self):
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_relay_without_descriptors_makes_room_or_waits_and_says_so(folders, caplog):
    listener = Full()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    relay = Tls(str(folders["a"])).listening(listener)
    where = listener.getsockname()
    tls = Tls(str(folders["b"]))
    listener.times = 2  # no peer is there yet: both times it can only wait
    connected(tls, where).close()
    assert caplog.text.count("cannot accept it yet: Too many open files") == 2
    select.select([relay], [], [], LIMIT_S)
    relay.accept()[0].close()
    with socket.create_connection(where, LIMIT_S) as stranger:
        # A connection with a handshake behind the stranger was accepted behind it.
        connected(tls, where).close()
        listener.times = 1
        connected(tls, where).close()
        assert received(stranger) == b""
        port = stranger.getsockname()[1]
    assert f"refused 127.0.0.1:{port}: made room for newer connections" in caplog.text
    tls.close()
    relay.close()


def test_relay_outlives_what_nobody_foresaw_of_one_connection(echo, folders, caplog, monkeypatch):
    pump, known, failed = TlsLink.pump, set(), []

    def fail_once(link, *args):
        if link not in known and known_are_all and not failed:
            failed.append(link)
            raise ValueError("unforeseen")
        known.add(link)
        return pump(link, *args)

    known_are_all = False
    monkeypatch.setattr(TlsLink, "pump", fail_once)
    tls = Tls(str(folders["b"]))
    with connected(tls, echo.address) as served:
        served.sendall(b"hello?")
        assert served.recv(100) == b"hello?"
        known_are_all = True  # of this connection: the next link, at either end, is the other's
        with connected(tls, echo.address) as broken, contextlib.suppress(OSError):
            broken.sendall(b"lost")
            assert broken.recv(100) == b""
        served.sendall(b"still here?")
        assert served.recv(100) == b"still here?"
    assert caplog.text.count("the relay for TLS has failed for one connection") == 1
    tls.close()


# --- clusters ---------------------------------------------------------------------------------


def test_cluster_over_tls_trains_and_names_whom_it_refuses(tmp_path, folders):
    """Two servers: standbys' streams, pulls, pushes, control and heartbeats go through it."""
    write_numbers(tmp_path / "in.txt", 1000, 50)
    (tmp_path / "gates").mkdir()
    job = {"worker_class": COUNTER, "input": "in.txt", "output": "out", "epochs": 2}
    common = {"tls": folders["a"]}
    with Cluster(tmp_path, common, job, servers=2, workers=2) as cluster:
        master = cluster.master()
        address = ("127.0.0.1", cluster.port)
        for trust, why in [
            (Trust(), "this port speaks TLS only"),
            (Trust(tls=Tls(str(folders["c"]))), "its certificate is of another CA"),
        ]:
            with pytest.raises(ProtocolError, match=why) as refused:
                dial(
                    address,
                    Channel.CONTROL,
                    Role.DRIVER,
                    peer_name="m",
                    limit_s=LIMIT_S,
                    trust=trust,
                )
            assert refused.value.exit_code == 2  # a wrong setting
        master.wait_line(r"refused 127\.0\.0\.1:\d+: no TLS handshake: it does not use TLS")
        at = ["--set", f"master_addr={cluster.address}", "--set", f"tls={folders['b']}"]
        run_snailps("status", "--json", *at)
        cluster.nodes()
        assert cluster.codes() == [0] * 5, master.stderr
        assert "Traceback" not in "".join(process.stderr for process in cluster.processes)
    assert (tmp_path / "out.npz").exists()


def test_master_with_a_secret_besides_tls_asks_for_both(tmp_path, folders):
    common = {"tls": folders["a"], "expected_node_num": 2}
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    with Cluster(tmp_path, {**common, "secret_file": secret}) as cluster:
        master = cluster.master(options=["--session"])
        tls = Tls(str(folders["b"]))
        where = ("127.0.0.1", cluster.port), Channel.CONTROL, Role.DRIVER
        with pytest.raises(ProtocolError, match="asks for a secret"):
            dial(*where, peer_name="m", limit_s=LIMIT_S, trust=Trust(tls=tls))
        master.wait_line(r"refused 127\.0\.0\.1:\d+: it left in the middle of the handshake")
        both = Trust(b"0123456789abcdef", tls=tls)
        dial(*where, peer_name="m", limit_s=LIMIT_S, trust=both).close()
        tls.close()
        master.close()


# --- a driver's files -------------------------------------------------------------------------


def test_drivers_file_is_read_through_tls_only(folders, tmp_path):
    text = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(text)
    own = Trust(tls=Tls(str(folders["a"])))
    server = FileServer(listen("127.0.0.1", 0, own), own)
    number, size = server.add(str(tmp_path / "data"))
    try:
        trust = Trust(tls=Tls(str(folders["b"])))
        member = RemoteFile(server.address, number, role=Role.WORKER, trust=trust)
        assert member.read(5, size) == text[5:]
        assert member.read(0, 5) == text[:5]
        member.close()
        stranger = RemoteFile(server.address, number, role=Role.WORKER, limit_s=1.0)
        with pytest.raises(SnailError):
            stranger.read(0, 5)
        trust.close()
    finally:
        server.close()
        own.close()
