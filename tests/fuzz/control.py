"""The control port under attack: a master whose job runs, and messages that no peer should send.

    python -m fuzz.control MESSAGES [SEED [CONNECTION]]     (PYTHONPATH=tests; the last: that alone)

seed, connection -> persona, messages -> master         honest worker, server, visitor -> Tally

Messages are mutated by their structure: fields out of range, of another type, swapped, missing,
nested wrongly or very deep; and whole ones that come when they make no sense.  What a member may
well end a job with is left out: a member's Failed while it belongs to the job, Ctrl-C at a node
(`Leaving` of SIGINT), blocks leased and never trained, a loss that is no number for a block that is
held, and draining the only server.
"""

import contextlib
import copy
import errno
import json
import random
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cluster_models import write_numbers
from processes import LIMIT_S, Cluster
from waiting import until

from fuzz.attack import Growth, Hung
from fuzz.mutate import EDGES, mutated
from snailps.errors import ProtocolError, SnailError
from snailps.transport import messages as m
from snailps.transport.control import visit
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.handshake import Channel, ClientSession, Hello, Role
from snailps.transport.security.trust import Trust

SECRET = "correct-horse-battery-staple"
GROWTH_MB = 50.0
CONNECTION_MB = 0.0005
"""A worker that came and went stays in the figures of the run: a kilobyte for one in ten."""
MESSAGES_MAX = 40
"""Of one connection."""
THREADS = 12
"""The master answers each soon, but not at once: others have the time in between."""
LINES, ROWS = 2000, 50
DEEP = 400

PERSONAS = {"stranger": 40, "driver": 44, "worker": 10, "server": 3, "pulse": 3}
TABLE = {
    "name": "fuzz", "dim": 4, "access": "add", "init": "zeros", "scale": 0.0, "lr": 0.0,
    "eps": 1e-8, "seed": 0, "dtype": "float32", "beta1": 0.9, "beta2": 0.999, "l1": 0.0,
    "l2": 0.0, "beta": 1.0, "track": "", "wire": "float32",
}  # fmt: skip
STANDING = {
    "started": True, "held": [["train", 3]], "not_durable": [2], "finished": None,
    "reported": [{"number": 1, "units": 1, "seconds": 0.1, "metrics": {"loss": 1.0}}],
}  # fmt: skip
STATS = {
    "peak_rss_mb": 9.0,
    "shards": [{"shard": 0, "pulls": 1, "pushes": 2, "rows": 3, "replica": {"seeded": 0.5}}],
}


def calls(life):
    """Calls to a master, and the roles that make them."""
    return {
        "stranger": [
            m.Ask("status"), m.Ask("stats"), m.Probe(0), m.Drain(77),
            m.Rejoin(life, 2, 2, "worker", "h", 1, 1, [], 1, "", STANDING),
            m.Rejoin(life, 1, 1, "server", "h", 1, 1, [["h", 1]], 1, "", {"standbys": []}),
            m.Rejoin(1, 9, 9, "worker", "h", 1, 1, [], 0, "SIGTERM", STANDING),
        ],
        "driver": [
            m.Ask("status"), m.Probe(0), m.Shutdown(), m.Submit({"worker_class": "os:path"}),
            m.AskJob(1), m.Summarise(1 << 31), m.Cancel(),
            m.Declare([TABLE]), m.Declare([TABLE, {**TABLE, "dim": 5}]),
            m.Declare([{**TABLE, "name": "fuzz2", "access": "sgd", "lr": 0.1}]), m.Drain(1 << 20),
        ],
        "worker": [
            m.Lease("survey"), m.Lease("train", True), m.Lease("x"), m.Summarise(),
            m.Done("train", 1, 1, 0.1, {"loss": 1.0, "examples": 1.0}),
            m.Done("train", 1 << 40, 1, 0.1, {"loss": float("nan")}),
            m.Done("survey", 0, 1 << 50, 0.0, {}, b"part"), m.Fetch(0, "train", "line"),
            m.Fetch(1 << 30, "train", "word"), m.Declare([TABLE]), m.Ask("status"),
            m.CheckOut(0), m.CheckOut(1 << 40),
        ],
        "server": [m.Ask("status"), m.Probe(0), m.Drain(1 << 20)],
    }  # fmt: skip


NOTES = {
    "stranger": [m.Examined([{"level": "ok", "check": "x", "text": "y", "cure": ""}])],
    "driver": [m.Bye({"peak_rss_mb": 1.0})],
    "worker": [
        m.Durable([1, 2, 3]), m.Durable([1 << 40]), m.CheckIn(1, 2, 3, 0.1, {"loss": 1.0}),
        m.CheckIn(1 << 40, 0, 0, 0.0, {}, True), m.Finished({"bytes_in": 1.0}),
        m.Bye({"bytes_out": 2.0**53}), m.Leaving("SIGTERM"), m.Failed("planted", "trace"),
    ],
    "server": [
        m.Saved(1, [{"name": "a", "bytes": 1}], ""), m.Loaded(1, 2, ""), m.Backed(0, 1),
        m.Unbacked(0, 1, "planted"), m.Yielded(0, ""), m.Yielded(0, "no"), m.Leaving("SIGTERM"),
        m.Bye({}), m.Failed("planted"),
    ],
}  # fmt: skip
ANSWERS = [
    m.Ok(), m.Report({}), m.Report(STATS), m.Report({"endpoint": ["127.0.0.1", 9]}),
    m.Report({"done": [0]}), m.Report({"waits": [["a", "b", 1.0]]}),
    m.Enough(), m.Declared([1]),
]  # fmt: skip
ERRORS = [b'{"code":"x","text":"y"}', b"", b"[" * 4000, b'{"code":1e999}']
MASTERS = [
    m.Welcome(1, 1, 1, 64, 1.0, 9.0), m.TakeRoute({}), m.Stop(True, "x"), m.Fence(1),
    m.MakeTables([[1, TABLE]]), m.DropTables([7]), m.Expire(2, 1, [0]), m.SetClock(1),
    m.CloseClock(1, [0]),
    m.Save(1, "/x"), m.StopSaving(), m.Load(1, "/x", [[1, 1]]), m.HostStandby(0, []), m.Alone(0),
    m.BackUp(0, 1, "h", 1, True, False), m.Promote(0, 9), m.Yield(0, 1.0), m.DropShard(0),
    m.KeepShards([]), m.Start(1, "a:B", {}, 1, False), m.Leased(1, progress=(0.0, 1.0)),
    m.CameBack(), m.Slowest(1, 1), m.Workers(3), m.Summary(b"x"), m.Again(), m.Content(b"x"),
    m.Examine(["127.0.0.1", 9], {"host": "h"}),
]  # fmt: skip
"""What is never for a peer of a master to say; but for Examine, which makes it dial."""
HOSTILE = [
    *EDGES, *(-edge for edge in EDGES), 10**30, 10**400, -(10**400), 0.5, -0.5, 1e308, 1e999,
    -1e999, float("nan"), True, False, None, "", "train", "x" * 300, "x" * 20_000, "\ud800",
    "\udcff", "a\0b", "../../x", "%s%n", "\u4e2d", [], {}, [None], [[]], ["x"], [1, 2], ["h", 1],
    [["h", 1]], [["h", float("inf")]], [["x" * 300, 9]], [["h", 1 << 63]], {"": 0}, {"a": 10**400},
    {"bad_lines": float("nan")}, {"examples": -1.0}, {"x" * 300: 1}, {"\ud800": "\ud800"},
    [0] * 2000, {str(n): n for n in range(1100)},
]  # fmt: skip


def plain(message):
    """A message as the fields of its JSON, and its blob."""
    data = m.encode(message)
    stop = 4 + int.from_bytes(data[:4], "little")
    return json.loads(data[4:stop]), data[stop:]


def body_of(fields, blob=b""):
    """A body, however wrong its fields are."""
    text = json.dumps(fields).encode()
    return len(text).to_bytes(4, "little") + text + blob


def places(value, found, depth=0):
    """Every container in a message, with each of its keys."""
    if depth < 6 and isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(len(value), 8)):
            if depth or key != "is":
                found.append((value, key))
            places(value[key], found, depth + 1)
    return found


def mutate(message, others, random_):
    """A body with something wrong in its structure: most often one thing."""
    fields, blob = plain(message)
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        way = random_.randrange(20)
        where = places(fields, [])
        if way <= 8 and where:
            container, key = random_.choice(where)
            container[key] = copy.deepcopy(random_.choice(HOSTILE))
        elif way == 9 and where:
            container, key = random_.choice(where)
            del container[key]
        elif way == 10:
            fields[random_.choice(("colour", "blob", "", "node", "x" * 1000))] = random_.choice(
                HOSTILE
            )
        elif way == 11:
            fields["is"] = random_.choice((*m.codec.REGISTRY, "Explode", "", 7, None, []))
        elif way == 12:  # fields of another message under this one's name
            fields = {**plain(random_.choice(others))[0], "is": fields["is"]}
        elif way == 13 and where:
            container, key = random_.choice(where)
            container[key] = random_.choice(([container[key]], {"a": container[key]}))
        elif way == 14 and len(where) > 1:
            (one, a), (two, b) = random_.sample(where, 2)
            with contextlib.suppress(KeyError, IndexError):
                one[a], two[b] = copy.deepcopy(two[b]), copy.deepcopy(one[a])
        elif way == 15:
            blob += random_.randbytes(random_.choice((1, 100, 100_000)))
        elif way == 16:
            return mutated(body_of(fields, blob), random_)
        elif way == 17:
            body = body_of(fields, blob)
            return body[: random_.randrange(len(body))]
        elif way == 18:
            deep = b"[" * DEEP + b"]" * DEEP if random_.random() < 0.9 else b"[" * 100_000
            text = json.dumps(fields).encode()[:-1] + b',"deep":' + deep + b"}"
            key = random_.choice(("facts", "state", "data", "findings", "settings", "figures"))
            text = text.replace(b'"deep"', json.dumps(key).encode())
            return len(text).to_bytes(4, "little") + text + blob
        else:
            body = body_of(fields, blob)
            return random_.choice(EDGES).to_bytes(8, "little")[:4] + body[4:]
    return body_of(fields, blob)


class Corpus:
    """What one connection sends."""

    def __init__(self, life):
        self.calls = calls(life)
        self._all = [one for group in (*self.calls.values(), *NOTES.values()) for one in group]
        self._all += MASTERS

    def register(self, persona, random_):
        endpoints = [["127.0.0.1", 9]] if persona == "server" else []
        return m.Register(persona, random_.choice(("h", "\u4e2d", "x" * 200)), 1, 1, endpoints)

    def item(self, persona, random_):
        """Kind, number and body of a message."""
        draw = random_.random()
        if draw < 0.70:
            call = random_.random() < 0.7
            message = random_.choice((self.calls if call else NOTES)[persona])
            body = m.encode(message)
            if random_.random() < 0.15:  # other values that are as good, out of order at most
                body = self._varied(message, random_)
            return Kind.CALL if call else Kind.NOTE, random_.getrandbits(60) | 1, body
        if draw < 0.82:  # answers to calls that were never made, or made otherwise
            answer = m.encode(random_.choice(ANSWERS))
            few = random_.random() < 0.15  # calls that may have been made
            number = random_.choice((1, 1, 2, 3, 4)) if few else random_.getrandbits(64)
            if random_.random() < 0.2:
                text = random_.choice(ERRORS)
                return Kind.ERROR, number, text
            if random_.random() < 0.2:
                answer = mutate(random_.choice(ANSWERS), self._all, random_)
            return Kind.ANSWER, number, answer
        if draw < 0.84:  # of another role, or twice
            message = random_.choice((*self._all, self.register("driver", random_)))
            if isinstance(message, m.Examine) and random_.random() < 0.9:
                message = m.Ok()
            kind = random_.choice((Kind.CALL, Kind.NOTE))
            return kind, random_.getrandbits(60), m.encode(message)
        message = random_.choice(self._all if random_.random() < 0.5 else self.calls[persona])
        kind = random_.choice((Kind.CALL, Kind.CALL, Kind.NOTE))
        return kind, random_.getrandbits(60) | 1, mutate(message, self._all, random_)

    def _varied(self, message, random_):
        fields, blob = plain(message)
        where = [(c, k) for c, k in places(fields, []) if type(c[k]) in (int, float, str)]
        if where:
            container, key = random_.choice(where)
            kind = type(container[key])
            container[key] = random_.choice([v for v in HOSTILE if type(v) is kind])
        return body_of(fields, blob)


def ends_legitimately(persona, message):
    """Whether this message of this peer may end or hold up the job, and is left out for it."""
    if isinstance(message, m.Lease) and message.pass_ == "train" and not message.back:
        return persona == "worker"
    if isinstance(message, m.Leaving) and message.why == "SIGINT":
        return persona in ("worker", "server")
    if isinstance(message, m.Rejoin) and message.leaving == "SIGINT":
        return True
    return isinstance(message, m.Drain) and message.server < 1000


def outlived(persona, kind, body, told):
    """Whether the connection goes on behind this message, and whether it may be sent at all."""
    try:
        message = m.decode(body) if kind != Kind.ERROR else m.Ok()
    except ProtocolError:
        return False, True
    if kind == Kind.ERROR:
        return True, True
    if kind == Kind.ANSWER:
        return told > 4 or persona == "stranger", True
    if ends_legitimately(persona, message):
        return False, False
    mine = type(message) in {type(one) for one in _POOL[kind][persona]}
    return mine and not (isinstance(message, m.Probe) and message.size > 0), True


_POOL = {Kind.CALL: calls(1), Kind.NOTE: NOTES}
for _of in (_POOL[Kind.CALL], _POOL[Kind.NOTE]):
    for _persona in ("driver", "worker", "server"):
        _of[_persona] = [*_of[_persona], *_of["stranger"]]


@dataclass
class Tally(Growth):
    """What was sent, and what it cost."""

    messages: int = 0
    heard: int = 0
    honest: int = 0
    blocks: int = 0
    slowest_s: float = 0.0


class Attacker:
    """Connection after connection to a master's control port."""

    def __init__(self, address, life, seed, first=0, step=1):
        self.address, self.life, self.seed = address, life, seed
        self.corpus = Corpus(life)
        self.next, self.step = first, step
        self.messages = self.heard = self.connections = 0

    def run(self, messages, over):
        """Connections until so many messages are sent, or `over` is set."""
        while self.messages < messages and not over.is_set():
            sent, heard = self.connection(self.next)
            self.messages += sent
            self.heard += heard
            self.connections += 1
            self.next += self.step

    def messages_of(self, number):
        """Persona and frames of a connection, the same for the same number and life."""
        random_ = random.Random(f"{self.seed} {number}")
        (persona,) = random_.choices(list(PERSONAS), PERSONAS.values())
        frames = []
        if persona == "pulse":
            return persona, [random_.randbytes(random_.choice((1, 48, 100)))], random_
        if persona != "stranger":
            body = m.encode(self.corpus.register(persona, random_))
            frames.append(encode_frame(Frame(Kind.CALL, body, request=1)))
        while len(frames) < MESSAGES_MAX:
            kind, number, body = self.corpus.item(persona, random_)
            lives, allowed = outlived(persona, kind, body, number)
            if not allowed:
                continue
            frame = Frame(kind, body, request=number if kind != Kind.NOTE else 0)
            if not lives:
                # The one in front is answered at once, so all before were handled.
                frames.append(encode_frame(Frame(Kind.CALL, m.encode(m.Probe(0)), request=2)))
            frames.append(encode_frame(frame, pack=random_.random() < 0.1))
            if not lives:
                break
        return persona, frames, random_

    def connection(self, number):
        """One connection; messages that it sent, and how many of them were surely heard."""
        persona, frames, random_ = self.messages_of(number)
        source = (f"127.0.{random_.randrange(1, 255)}.{random_.randrange(1, 255)}", 0)
        heard = 0
        try:
            with socket.create_connection(self.address, LIMIT_S, source) as sock:
                self._shake(sock, persona, random_)
                sock.sendall(b"".join(frames))
                if persona == "pulse":  # beats go on until this side closes
                    return len(frames), len(frames)
                sock.shutdown(socket.SHUT_WR)
                heard = len(frames) if self._is_through(sock) else 1
        except TimeoutError:
            raise Hung(f"seed {self.seed}, connection {number} ({persona})") from None
        except OSError as error:  # the master had enough of it, which is its right
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
        return len(frames), heard

    def _is_through(self, sock):
        """Reads to the end; whether the last but one message was answered."""
        decoder, through = FrameDecoder(), False
        while data := sock.recv(1 << 18):
            for frame in decoder.feed(data):
                through |= frame.kind == Kind.ANSWER and frame.request == 2
        return through

    def _shake(self, sock, persona, random_):
        channel = Channel.PULSE if persona == "pulse" else Channel.CONTROL
        node = random_.choice((1, 2, 3, 1 << 31)) if persona == "pulse" else 0
        hello = Hello(
            channel, Role.WORKER, random_.randbytes(16), node, node, self.life if node else 0
        )
        session = ClientSession(hello, SECRET.encode())
        decoder = FrameDecoder()
        sock.sendall(encode_frame(session.start()))
        while not session.ready:
            data = sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            for frame in decoder.feed(data):
                if not session.ready:  # behind READY a pulse connection has heartbeats
                    answer = session.receive(frame)
                    if answer is not None:
                        sock.sendall(encode_frame(answer))


class LiveJob:
    """A master, a server and a worker at a job that lasts until it is told to finish."""

    def __init__(self, folder, messages):
        self.folder = folder
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        (folder / "gates").mkdir()
        write_numbers(folder / "in.txt", LINES, ROWS)
        self.epochs = 4 + messages // 2_000
        job = {
            "worker_class": "cluster_models:Paced", "input": "in.txt", "output": "out",
            "epochs": self.epochs, "block_bytes": 60, "gates": folder / "gates", "pace_s": 0.03,
        }  # fmt: skip
        settings = {"secret_file": secret, "log_level": "error"}
        self._cluster = Cluster(folder, settings, job=job)
        try:
            self.master = self._cluster.master()
            self._cluster.nodes()
            self.address = ("127.0.0.1", self._cluster.port)
            self._visitor = visit(self.address, LIMIT_S, Trust(SECRET.encode()))
            until(lambda: self.status()["phase"] == "training", self.status)
            status = self.status()
        except BaseException:
            self._cluster.close(check=False)
            raise
        self.life = int(status["cluster_id"], 16)
        self._members = {(node["role"], node["id"]) for node in status["nodes"]}
        self._done, self._moved_at = 0, time.monotonic()

    def status(self):
        return self._visitor.call(m.Ask("status"), LIMIT_S).data

    def look(self):
        """Honest work: the job gets on, and all that began it are still at it; blocks done."""
        status = self.status()
        assert status["phase"] == "training", status["message"] or status["phase"]
        here = {
            (node["role"], node["id"])
            for node in status["nodes"]
            if node["state"] not in ("gone", "missed", "stopping")
        }
        assert self._members <= here, f"expelled: {self._members - here}"
        blocks = status["blocks"]
        if blocks["done"] != self._done:
            self._done, self._moved_at = blocks["done"], time.monotonic()
        stands = time.monotonic() - self._moved_at
        assert stands < LIMIT_S or blocks["left"] + blocks["leased"] < 3, f"stands still: {blocks}"
        return self._done

    def memory_mb(self):
        """Resident memory of the master."""
        status = Path(f"/proc/{self.master.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1000

    def descriptors(self):
        return len(list(Path(f"/proc/{self.master.pid}/fd").iterdir()))

    @property
    def ended(self):
        return [p for p in self._cluster.processes if p.popen.poll() is not None]

    def finish(self):
        """Lets the job come to its end, which must be the right one."""
        (self.folder / "gates" / "finish").touch()
        self._visitor.close()
        codes = self._cluster.codes()
        assert codes == [0, 0, 0], [p.lines[-9:] for p in self._cluster.processes]
        for process in self._cluster.processes:
            _, broken, words = process.stderr.partition("Traceback")
            assert not broken, words[:4000]
        with np.load(self.folder / "out.npz") as saved:
            assert saved["counts.keys"].tolist() == list(range(ROWS))
            right = self.epochs * LINES / ROWS
            assert saved["counts.rows"].ravel().tolist() == [right] * ROWS

    def close(self):
        with contextlib.suppress(SnailError):
            self._visitor.close()
        self._cluster.close(check=False)


def attack(job, seed, messages, *, tell=lambda tally: None):
    """Sends so many messages to the master of a job that runs; the job must not notice.

    Raises
    ------
    AssertionError
        A process ended, a connection was not ended, the job stood still, or memory grew.
    """
    attackers = [Attacker(job.address, job.life, seed, at, THREADS) for at in range(THREADS)]
    tally, over, failed = Tally(), threading.Event(), []

    def run(attacker):
        try:
            attacker.run(messages // THREADS, over)
        except BaseException as error:
            failed.append(error)
            over.set()

    threads = [threading.Thread(target=run, args=(one,)) for one in attackers]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or len(tally.memory_mb) < 2:
            time.sleep(0.1)  # between two looks; nothing waits for it
            if job.ended or over.is_set():
                break
            begin = time.monotonic()
            tally.blocks = job.look()
            tally.slowest_s = max(tally.slowest_s, time.monotonic() - begin)
            tally.honest += 1
            for name in ("messages", "heard", "connections"):
                setattr(tally, name, sum(getattr(one, name) for one in attackers))
            tally.memory_mb.append(job.memory_mb())
            tally.descriptors.append(job.descriptors())
            tell(tally)
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)
    at = [one.next for one in attackers]
    dead = [(p.name, p.popen.poll(), p.stderr[-4000:]) for p in job.ended]
    assert not dead, f"seed {seed}, about connections {at}: {dead}"
    if failed:
        raise failed[0]
    for name in ("messages", "heard", "connections"):
        setattr(tally, name, sum(getattr(one, name) for one in attackers))
    allowed_mb = GROWTH_MB + CONNECTION_MB * tally.connections
    assert tally.growth_mb < allowed_mb, f"seed {seed}: grew by {tally.growth_mb:.0f} MB"
    return tally


def main(messages, seed, only=None):
    begin, told = time.monotonic(), [0.0]

    def tell(tally):
        now = time.monotonic() - begin
        if now - told[0] > 10.0:
            told[0] = now
            print(
                f"{now:6.0f} s  {tally.messages:9,} messages  {tally.connections:8,} connections  "
                f"{tally.honest:6,} looks, slowest {tally.slowest_s:.2f} s  "
                f"{tally.blocks:6,} blocks  {tally.memory_mb[-1]:6.1f} MB  "
                f"{tally.descriptors[-1]} descriptors",
                flush=True,
            )

    with tempfile.TemporaryDirectory() as folder:
        job = LiveJob(Path(folder), messages)
        try:
            if only is not None:
                attacker = Attacker(job.address, job.life, seed)
                print(attacker.messages_of(only))
                print(attacker.connection(only), job.look())
                tally = Tally(memory_mb=[0.0])
            else:
                tally = attack(job, seed, messages, tell=tell)
            job.finish()
        finally:
            job.close()
    print(
        f"{tally.messages:,} messages ({tally.heard:,} surely heard) in {tally.connections:,} "
        f"connections, seed {seed}, {time.monotonic() - begin:.0f} s: no crash, no hang; the "
        f"master grew by {tally.growth_mb:.1f} MB; the job got on by {tally.blocks:,} blocks "
        f"meanwhile and ended with the right result; {tally.honest:,} honest requests, the "
        f"slowest answered after {tally.slowest_s:.2f} s"
    )


if __name__ == "__main__":
    main(int(sys.argv[1].replace("_", "")), *map(int, sys.argv[2:]))
