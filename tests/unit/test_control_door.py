"""Messages that a member, or anybody who knows the secret, may send: none of them ends a master."""

import json
import logging
import os
import socket
import threading

import pytest
from cluster_models import COUNTER, write_numbers
from frame_socket import FrameSocket
from processes import LIMIT_S
from waiting import until

from snailps.api.tables import Table
from snailps.config import ROLE_CLASSES, MasterSettings, RawConfig
from snailps.master.life import LASTING, SESSION
from snailps.master.process import Launch, Master
from snailps.transport import messages
from snailps.transport.control import dial, visit
from snailps.transport.frame import Frame, Kind
from snailps.transport.handshake import Channel, Role, remote_error

HUGE = 10**400
DEEP = b"[" * 500 + b"]" * 500


def body(fields, blob=b""):
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return len(text).to_bytes(4, "little") + text + blob


class Running:
    """A master in a thread of this process, which waits for a server."""

    def __init__(self, *, lasting=False, **settings):
        settings = {"heartbeat_timeout": "900", "master_time_out": "900", **settings}  # none beats
        raw = RawConfig.from_mapping({"master_addr": "127.0.0.1:1", **settings}, "test")
        self.errors, listens = [], threading.Event()

        def on_listening(host, port):
            self.address = (host, port)
            listens.set()

        self.master = Master(
            raw.merged(RawConfig.from_mapping({"listen_addr": "127.0.0.1:0"}, "test")).build(
                MasterSettings
            ),
            raw,
            Launch(LASTING if lasting else SESSION, any_port=True),
            also_known=[cls for _, cls in ROLE_CLASSES],
            on_listening=on_listening,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert listens.wait(LIMIT_S)
        self.driver = visit(self.address, LIMIT_S, self.master.trust)
        self.driver.call(messages.Register("driver", "test", 1, 1), LIMIT_S)

    def _run(self):
        try:
            self.master.run()
        except BaseException as error:
            self.errors.append(error)

    def status(self):
        assert not self.errors, self.errors
        return self.driver.call(messages.Ask("status"), LIMIT_S).data

    def close(self):
        self.driver.close()  # a session ends with its driver
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors


@pytest.fixture(scope="module")
def running():
    made = Running()
    yield made
    made.close()


class Raw(FrameSocket):
    """A connection that has shaken hands."""

    def __init__(self, address):
        super().__init__(
            dial(address, Channel.CONTROL, Role.WORKER, peer_name="m", limit_s=LIMIT_S)
        )
        self.sock.settimeout(LIMIT_S)

    def say(self, data, kind=Kind.CALL):
        self.send(Frame(kind, data, request=kind == Kind.CALL))

    def message(self, kind):
        """The next message of a kind; what comes before is left unanswered."""
        while not isinstance(message := messages.decode((frame := self.next()).body), kind):
            pass
        return message, frame.request

    def register(self, role, endpoints=()):
        """Belongs to the cluster."""
        self.say(messages.encode(messages.Register(role, "h", 1, 1, list(endpoints))))
        return self.message(messages.Welcome)[0].node

    def take_route(self):
        """Takes the route that comes, as a node that has reached every server."""
        self.answer(self.message(messages.TakeRoute)[1])

    def answer(self, call):
        """Has done as asked."""
        self.send(Frame(Kind.ANSWER, messages.encode(messages.Ok()), request=call))


REGISTER = {"is": "Register", "role": "worker", "host": "h", "pid": 1, "cores": 1}
BY_ANYBODY = [
    ({"is": "Yield", "shard": 1, "limit_s": HUGE}, "limit_s"),
    ({"is": "Done", "pass_": "train", "number": 1, "units": 1, "seconds": HUGE, "metrics": {}}, ""),
    ({**REGISTER, "role": "server", "endpoints": [["h", float("inf")]]}, "endpoints"),
    ({**REGISTER, "role": "server", "endpoints": [["h", HUGE]]}, "endpoints"),
    ({**REGISTER, "role": "server", "endpoints": [["x" * 300, 1]]}, "endpoints"),
    ({**REGISTER, "role": "server", "endpoints": 7}, "endpoints"),
    ({**REGISTER, "pid": HUGE}, "pid"),
    ({**REGISTER, "role": "master"}, "role"),
    ({"is": "Examine", "endpoint": ["x" * 300, 1], "facts": {}}, "endpoint"),
    ({"is": "Examine", "endpoint": ["a..b", 1], "facts": {}}, "endpoint"),
    ({"is": "Examine", "endpoint": ["h", 0], "facts": {}}, "endpoint"),
    ({"is": "Examine", "endpoint": ["h\0", 1], "facts": {}}, "endpoint"),
    ({"is": "Examine", "endpoint": ["h", 1], "facts": {"host": [[[]]]}}, "facts"),
    ({"is": "Probe", "size": HUGE}, "size"),
    ({"is": "Drain", "server": HUGE}, "server"),
    (b'{"is":"Drain","server":' + b"9" * 5000 + b"}", "JSON"),
    (b'{"is":"Report","data":{"a":' + DEEP + b"}}", "levels"),
    (b'{"is":"Ask","what":"\xff"}', "JSON"),
    (b'{"is":' + DEEP + b"}", "unknown control message"),
]


@pytest.mark.parametrize(("fields", "words"), BY_ANYBODY)
def test_message_that_cannot_be_meant_ends_its_connection_and_nothing_else(running, fields, words):
    with Raw(running.address) as raw:
        raw.say(body(fields))
        assert words in str(raw.refused())
    assert running.status()["phase"] == "forming"


@pytest.mark.parametrize(
    "message",
    [
        messages.Durable([1]),
        messages.Finished({"a": 1.0}),
        messages.Saved(1, [], ""),
        messages.Backed(1, 1),
        messages.Failed("I may not say this"),
        messages.Leaving("SIGINT"),
        messages.Lease("train"),
        messages.Fetch(1, "train", "line"),
        messages.TakeRoute({}),
        messages.Stop(True, "no"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_message_of_another_role_ends_the_connection_of_who_said_it(running, message):
    """A driver may not end the job of others with a word that is a worker's."""
    with Raw(running.address) as raw:
        raw.say(messages.encode(messages.Register("driver", "h", 1, 1)))
        assert isinstance(messages.decode(raw.next().body), messages.Welcome)
        note = isinstance(message, messages.Durable | messages.Failed | messages.Leaving)
        raw.say(messages.encode(message), Kind.NOTE if note else Kind.CALL)
        assert f"{type(message).__name__} from a driver" in str(raw.refused())
    assert running.status()["phase"] == "forming"


def rejoin(**fields):
    state = {"started": False, "held": [], "reported": [], "not_durable": [], "finished": None}
    good = {
        "is": "Rejoin", "job": 7, "node": 1, "incarnation": 1, "role": "worker", "host": "h",
        "pid": 1, "cores": 1, "endpoints": [], "epoch": 0, "leaving": "", "state": state,
    }  # fmt: skip
    return {**good, **fields}


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"started": True},
        {"started": 1, "held": [], "reported": [], "not_durable": [], "finished": None},
        {"started": True, "held": [["train"]], "reported": [], "not_durable": [], "finished": None},
        {"started": True, "held": [], "reported": [{}], "not_durable": [], "finished": None},
        {"started": True, "held": [], "reported": [], "not_durable": ["x"], "finished": None},
        {"started": True, "held": [], "reported": [], "not_durable": [], "finished": {"a": "b"}},
        {"standbys": []},
    ],
)
def test_rejoin_with_another_state_is_refused_at_the_door(state):
    with pytest.raises(messages.codec.ProtocolError, match="state"):
        messages.decode(body(rejoin(state=state)))
    assert messages.decode(body(rejoin())).state["held"] == []


@pytest.mark.parametrize("node", [1, 2, 77])
def test_rejoin_of_another_members_number_is_refused(running, node):
    """1 is the driver's; 2 and 77 are free, but the next member would get the same number."""
    life = int(running.status()["cluster_id"], 16)
    with Raw(running.address) as raw:
        raw.say(body(rejoin(job=life, node=node, incarnation=node)))
        assert "Start it anew" in str(remote_error(raw.next()))
    assert [node["id"] for node in running.status()["nodes"]] == [1]


def test_rejoin_on_a_connection_that_is_registered_is_refused(running):
    life = int(running.status()["cluster_id"], 16)
    with Raw(running.address) as raw:
        raw.say(messages.encode(messages.Register("driver", "h", 1, 1)))
        raw.next()
        raw.say(body(rejoin(job=life)))
        assert "registered already" in str(raw.refused())


def test_handler_that_fails_loses_its_peer_alone(running, monkeypatch, caplog):
    """Whatever the door lets through that a handler does not expect: one member is lost."""

    def broken(call, now):
        raise KeyError("a bug")

    monkeypatch.setattr(running.master.core.worker_reports, "ask_status", broken)
    with Raw(running.address) as raw:
        raw.say(messages.encode(messages.Ask("status")))
        assert "KeyError" in str(raw.refused())
    monkeypatch.undo()
    assert running.status()["phase"] == "forming"
    texts = [record.getMessage() for record in caplog.records]
    assert any("cannot be handled: KeyError('a bug')" in text for text in texts)
    assert any(record.exc_info for record in caplog.records)


def test_heartbeat_connection_that_cannot_be_taken_is_closed_alone(running, monkeypatch):
    def broken(hello, sock):
        raise MemoryError

    monkeypatch.setattr(running.master._server, "_on_pulse", broken)
    sock = dial(running.address, Channel.PULSE, Role.WORKER, peer_name="m", limit_s=LIMIT_S)
    sock.settimeout(LIMIT_S)
    assert sock.recv(1) == b""
    sock.close()
    assert running.status()["phase"] == "forming"


def test_way_back_that_cannot_be_tried_is_told_to_the_doctor(running, monkeypatch):
    def broken(address, name):
        raise ZeroDivisionError

    monkeypatch.setattr("snailps.node.probe_service.check_reach", broken)
    with socket.create_server(("127.0.0.1", 0)) as here, Raw(running.address) as raw:
        raw.say(messages.encode(messages.Examine(list(here.getsockname()), {})))
        report = messages.decode(raw.next().body)
    assert "ZeroDivisionError" in report.data["back"]


def test_worker_that_fails_twice_is_sent_away_once(running, monkeypatch):
    """The second word of it comes before it has heard that it is gone."""
    with monkeypatch.context() as patch:
        patch.setattr(running.master.core.members, "formed", True)
        with Raw(running.address) as raw:
            raw.say(messages.encode(messages.Register("worker", "h", 1, 1)))
            raw.next()
            for _ in range(2):
                raw.say(messages.encode(messages.Failed("planted")), Kind.NOTE)
            raw.say(messages.encode(messages.Lease("train")))
            assert messages.decode(raw.next().body) == messages.Stop(True, "failed: planted")
            assert "was sent away" in str(remote_error(raw.next()))
    assert running.status()["phase"] == "forming"


def test_declare_before_the_cluster_is_complete_waits_for_that():
    """Servers that have made a table take no other first route: their shards would be mistaken."""
    made = Running(expected_node_num="2", expected_servers="1")
    with Raw(made.address) as server, Raw(made.address) as worker:
        declared = made.driver.call_async(messages.Declare([Table("rows", 4).to_dict()]))
        server.register("server", [["127.0.0.1", 9]])
        worker.register("worker")
        server.take_route()
        assert made.status()["phase"] == "forming"
        assert not declared.done()
        worker.take_route()
        order, call = server.message(messages.MakeTables)
        assert [table["name"] for _, table in order.tables] == ["rows"]
        assert not declared.done()
        server.answer(call)
        assert declared.result(LIMIT_S) == messages.Declared([1])
        made.driver.close()
        server.message(messages.Stop)
    made.close()


def test_table_of_a_session_that_lasts_is_on_disk_before_servers_make_it(tmp_path, monkeypatch):
    """The journal syncs itself, too, a little later: a power cut may come before that."""
    syncs, synced = threading.Event(), threading.Event()

    def sync(file):
        if threading.current_thread().name.startswith("snailps-work"):
            syncs.set()
            synced.wait(LIMIT_S)

    monkeypatch.setattr(os, "fdatasync", sync)
    made = Running(lasting=True, expected_node_num="1", journal_dir=str(tmp_path / "journal"))
    with Raw(made.address) as server:
        server.register("server", [["127.0.0.1", 9]])
        server.take_route()
        declared = made.driver.call_async(messages.Declare([Table("rows", 4).to_dict()]))
        assert syncs.wait(LIMIT_S)
        assert not declared.done()
        synced.set()
        server.answer(server.message(messages.MakeTables)[1])
        assert declared.result(LIMIT_S) == messages.Declared([1])
        made.driver.call(messages.Shutdown(), LIMIT_S)
        server.message(messages.Stop)
    made.close()


def test_newcomer_that_fails_in_a_job_that_was_submitted_while_it_joined_goes_alone(tmp_path):
    write_numbers(tmp_path / "in.txt", 100)
    made = Running(expected_node_num="2", expected_servers="1")
    with Raw(made.address) as server, Raw(made.address) as worker, Raw(made.address) as newcomer:
        server.register("server", [["127.0.0.1", 9]])
        worker.register("worker")
        for one in (server, worker):
            one.take_route()
        until(lambda: made.status()["phase"] != "forming", "the end of forming")
        newcomer.register("worker")
        job = {"worker_class": COUNTER, "input": str(tmp_path / "in.txt")}
        made.driver.call(messages.Submit(job), LIMIT_S)
        worker.message(messages.Start)
        newcomer.take_route()
        newcomer.message(messages.Start)
        newcomer.say(messages.encode(messages.Failed("planted")), Kind.NOTE)
        assert newcomer.message(messages.Stop)[0].text == "failed: planted"
        assert made.status()["phase"] == "training"
        made.driver.close()
        server.message(messages.Stop)
    made.close()


def test_history_settings_and_log_are_answered_at_once(running):
    history = running.driver.call(messages.Ask("history"), LIMIT_S).data
    assert history == {"at_s": [], "units": [], "units_per_s": [], "loss": []}
    settings = running.driver.call(messages.Ask("settings"), LIMIT_S).data["settings"]
    assert ["frag_num", "1024", "default"] in settings
    logging.getLogger("snailps").warning("a line")
    lines = running.driver.call(messages.Ask("log"), LIMIT_S).data["lines"]
    assert lines[-1].endswith("warning a line")
