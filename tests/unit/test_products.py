"""`snailps.shard._product_requests`: FORWARD and BACKWARD over real sockets, against NumPy."""

import contextlib
import select
import socket
import struct

import numpy as np
import pytest
from products import Reference, batch
from shards import (
    ADAGRAD,
    ADAM,
    ADD,
    AVERAGE,
    FTRL,
    JOB,
    LIMIT_S,
    SGD,
    UNIFORM,
    ZEROS,
    Shards,
    push_out,
)  # fmt: skip

from snailps.abi.loops import WIRE_TYPES
from snailps.errors import ConnectionLost, MisuseError, RemoteError
from snailps.transport.client._client import Client
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame

HYPER = (0.1, 1e-6, 0.9, 0.999, 0.001, 0.01, 1.0)
CATCH_UP = 1 << 63  # in the number of a part that is sent again in front of another
STATE = {ADD: 0, SGD: 0, ADAGRAD: 1, ADAM: 2, FTRL: 2}


def rng(seed=1):
    return np.random.default_rng(seed)


@contextlib.contextmanager
def table_of(shards, dim, access, init=UNIFORM):
    """Shards with such a table, and a client of theirs."""
    with Shards(shards) as cluster:
        cluster.add_table(1, dim, access, init, hyper=HYPER)
        yield cluster, cluster.client()


def rows_of(client, columns, dim):
    return client.pull(1, np.arange(columns, dtype=np.uint64), np.empty((columns, dim), np.float32))


def close(got, wanted, bound=1e-4):
    """Largest difference, as a share of the largest value."""
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max(initial=0)) <= bound * np.abs(wanted).max(initial=1e-9)


def train(client, data, dim, reference, wire=0, keep_dz=None, cut=None):
    """Some batches forth and back, each compared with the reference; dL/dZ is Z and some noise."""
    for number, (ptr, keys, values) in enumerate(data):
        forward = client.forward_async(1, ptr, keys, values, dim, wire)
        if cut is not None:
            cut(number, 0)
        z = forward.wait()
        wanted = reference.forward(ptr, keys, values)
        assert close(z, wanted, 1e-4 if wire == 0 else 2e-2)
        dz = (wanted + rng(number).normal(size=wanted.shape)).astype(np.float32)
        back = client.backward_async(forward, dz, wire)
        if cut is not None:
            cut(number, 1)
        back.wait()
        reference.backward(ptr, keys, values, dz.astype(np.float64))


@pytest.mark.parametrize("access", [ADD, SGD, ADAGRAD, ADAM, FTRL])
@pytest.mark.parametrize(("shards", "dim"), [(1, 1), (2, 7), (3, 50)])
def test_batches_forth_and_back_are_as_the_reference(access, shards, dim):
    columns = 300
    reference = Reference(columns, dim, access, HYPER, state=STATE[access])
    with table_of(shards, dim, access) as (cluster, client):
        if access == FTRL:  # its z begins so that the first weights come of it
            keys = np.arange(columns, dtype=np.uint64)
            whole = client.pull(1, keys, np.empty((columns, 3 * dim), np.float32), True)
            reference.rows[:] = whole
        data = [batch(rng(n), 37, columns, 6, ones=n == 2) for n in range(4)]
        train(client, data, dim, reference)
        assert close(rows_of(client, columns, dim), reference.rows[:, :dim], 1e-3)
        assert cluster.stats("rows_stepped") == sum(len(np.unique(keys)) for _, keys, _ in data)


@pytest.mark.parametrize("wire", [name for name in WIRE_TYPES if name != "float32"])
def test_narrow_wire_types_round_and_no_more(wire):
    reference = Reference(200, 20, SGD, HYPER)
    with table_of(2, 20, SGD) as (_, client):
        train(client, [batch(rng(), 50, 200, 8)], 20, reference, WIRE_TYPES[wire])
        assert close(rows_of(client, 200, 20), reference.rows, 2e-2)


@pytest.mark.parametrize("wire", [name for name in WIRE_TYPES if name != "float32"])
@pytest.mark.parametrize("dz", [[3e-12, -1e-12], [1e-40, 0]], ids=["small", "subnormal"])
def test_small_gradients_alone_survive_narrow_wires(wire, dz):
    with table_of(1, 2, ADD, ZEROS) as (_, client):
        key = np.array([5], np.uint64)
        forward = client.forward_async(1, np.array([0, 1]), key, None, 2, WIRE_TYPES[wire])
        forward.wait()
        client.backward_async(forward, np.array([dz], np.float32), WIRE_TYPES[wire]).wait()
        rows = client.pull(1, key, np.empty((1, 2), np.float32))
        assert np.allclose(rows, [dz], rtol=1e-2, atol=0)


@pytest.mark.parametrize("dim", [1, 2, 7])
def test_products_beyond_float16_arrive_whole_beside_others(dim):
    wire = WIRE_TYPES["float16"]
    with table_of(1, dim, ADD, ZEROS) as (_, client):
        keys = np.arange(3, dtype=np.uint64)
        client.push(1, keys, np.array([[1], [300_000], [-1e6]], np.float32).repeat(dim, 1))
        z = client.forward_async(1, np.array([0, 1, 3]), keys, None, dim, wire, keep=False).wait()
        assert z.tolist() == [[1] * dim, [-700_000] * dim]
        one = client.forward_async(1, np.array([0, 1]), keys[2:], None, dim, wire, keep=False)
        assert one.wait().tolist() == [[-1e6] * dim]


def test_rows_never_pushed_count_as_first_value_and_stay_unborn():
    with table_of(2, 8, SGD) as (cluster, client):
        ptr, keys, values = batch(rng(), 20, 1 << 40, 5)
        z = client.forward_async(1, ptr, keys, values, 8, keep=False).wait()
        rows = client.pull(1, keys, np.empty((len(keys), 8), np.float32))
        of = np.repeat(np.arange(20), np.diff(ptr))
        wanted = np.zeros((20, 8))
        np.add.at(wanted, of, values[:, None] * rows)
        assert close(z, wanted, 1e-5)
        z = client.forward_async(1, ptr, keys, values, 8, keep=False, stored=True).wait()
        assert not z.any()
        assert cluster.stats("rows") == 0


def test_stored_rows_alone_are_summed_where_that_is_asked_for():
    with table_of(2, 8, SGD) as (_, client):
        ptr, keys, values = batch(rng(), 300, 400, 9)
        pushed = np.unique(keys)[::2]
        client.push(1, pushed, np.ones((len(pushed), 8), np.float32))
        z = client.forward_async(1, ptr, keys, values, 8, keep=False, stored=True).wait()
        rows = client.pull(1, keys, np.empty((len(keys), 8), np.float32))
        rows[~np.isin(keys, pushed)] = 0
        wanted = np.zeros((300, 8))
        np.add.at(wanted, np.repeat(np.arange(300), np.diff(ptr)), values[:, None] * rows)
        assert close(z, wanted, 1e-5)


def test_batch_without_entries_or_examples_is_zeros():
    with table_of(2, 3, SGD) as (cluster, client):
        nothing = np.empty(0, np.uint64)
        for examples in (0, 4):
            forward = client.forward_async(1, np.zeros(examples + 1, np.int64), nothing, None, 3)
            assert np.array_equal(forward.wait(), np.zeros((examples, 3)))
            client.backward_async(forward, np.ones((examples, 3), np.float32)).wait()
        assert cluster.stats("rows") == 0


def test_products_of_a_batch_are_added_in_one_order():
    """Whatever shard answers first: the same Z to the bit, and again by a client of its own."""
    with Shards(3) as cluster:
        cluster.add_table(1, 16, SGD, UNIFORM, 0.1, 5, 0.1)
        data = batch(rng(), 200, 1000, 20)
        z = [cluster.client(n).forward_async(1, *data, 16).wait().copy() for n in range(1, 6)]
        assert all(np.array_equal(one, z[0]) for one in z)


def test_batch_in_flight_lacks_the_one_before_and_no_other():
    """Two under way: the second's product is computed before the first's gradient arrives."""
    reference = Reference(100, 4, SGD, HYPER)
    with table_of(2, 4, SGD) as (_, client):
        data = [batch(rng(n), 30, 100, 5) for n in range(6)]
        under_way = [(client.forward_async(1, *data[0], 4), reference.forward(*data[0]))]
        for number in range(len(data)):
            if number + 1 < len(data):
                coming = data[number + 1]
                under_way.append((client.forward_async(1, *coming, 4), reference.forward(*coming)))
            forward, wanted = under_way.pop(0)
            assert close(forward.wait(), wanted)
            client.backward_async(forward, wanted.astype(np.float32))
            reference.backward(*data[number], wanted)
        client.flush()
        assert close(rows_of(client, 100, 4), reference.rows)


def test_flush_leaves_summing_a_product_to_the_one_who_waits_for_it():
    """Another thread may be at it: shards' parts would be added twice."""
    reference = Reference(100, 4, SGD, HYPER)
    with table_of(2, 4, SGD) as (_, client):
        data = batch(rng(1), 30, 100, 5)
        forward = client.forward_async(1, *data, 4)
        while not forward.done:
            client.flush()
        part = forward.rows.copy()
        client.flush()
        assert np.array_equal(forward.rows, part)
        assert close(forward.wait(), reference.forward(*data))
        assert not close(part, forward.rows)


def test_pushes_and_batches_keep_their_order():
    with table_of(1, 1, ADD, ZEROS) as (_, client):
        key, one = np.array([7], np.uint64), np.ones((1, 1), np.float32)
        ptr = np.array([0, 1])
        for turn in range(5):
            client.push_async(1, key, one)
            forward = client.forward_async(1, ptr, key, None, 1)
            assert forward.wait()[0, 0] == 11 * turn + 1
            client.backward_async(forward, 10 * one)
        assert client.pull(1, key, np.empty((1, 1), np.float32))[0, 0] == 55


# --- what is sent again --------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
def test_cuts_in_the_middle_of_batches_lose_and_repeat_nothing(shards):
    reference = Reference(400, 64, ADAGRAD, HYPER, state=1)
    with table_of(shards, 64, ADAGRAD) as (_, client):

        def cut(number, back):
            if number % 2 == back:
                client.cut(number % shards)

        data = [batch(rng(n), 600, 400, 20) for n in range(8)]
        train(client, data, 64, reference, cut=cut)
        assert client.counters()["reconnects"] > 0
        assert close(rows_of(client, 400, 64), reference.rows[:, :64], 1e-3)


def test_many_cuts_with_other_pushes_in_between_keep_sums_exact():
    """Whole numbers: every batch and every push counts exactly once, or the sum tells."""
    with table_of(2, 64, ADD, ZEROS) as (_, client):
        keys = np.arange(500, dtype=np.uint64)
        ptr = np.arange(0, 501, dtype=np.int64)
        ones = np.ones((500, 64), np.float32)
        turns = 25
        for turn in range(turns):
            forward = client.forward_async(1, ptr, keys, None, 64)
            forward.wait()
            client.backward_async(forward, ones)
            client.push_async(1, keys, 10 * ones)
            client.cut(turn % 2)
            if turn % 3 == 0:
                client.pull(1, keys[:1], np.empty((1, 64), np.float32))
                client.cut((turn + 1) % 2)
        client.flush()
        assert np.array_equal(rows_of(client, 500, 64), 11 * turns * ones)


@pytest.mark.parametrize("answered", [False, True])
def test_shard_that_forgets_a_batch_gets_it_again(answered):
    """Forgotten between forward and backward, or between two parts of a backward."""
    reference = Reference(300, 400, SGD, HYPER)
    with table_of(2, 400, SGD) as (cluster, client):

        def forget(number, back):
            if back == answered:
                push_out(client, 400)

        data = [batch(rng(n), 500, 300, 10) for n in range(4)]
        train(client, data, 400, reference, cut=forget)
        push_out(client, 400)
        last = client.forward_async(1, *data[0], 400)
        dz = last.wait().copy()
        wanted = reference.forward(*data[0])
        push_out(client, 400)
        client.backward_async(last, dz).wait()
        reference.backward(*data[0], wanted)
        assert close(rows_of(client, 300, 400), reference.rows, 1e-3)
        assert cluster.stats("batches_unknown") >= 2
        assert client.counters()["batches_forgotten"] >= 2


def test_forgetting_does_not_let_later_pushes_overtake():
    """A push behind the refused batch must not raise the marks that the batch is judged by."""
    with table_of(1, 1, ADD, ZEROS) as (_, client):
        key, one = np.array([7], np.uint64), np.ones((1, 1), np.float32)
        for turn in range(20):
            forward = client.forward_async(1, np.array([0, 1]), key, None, 1)
            forward.wait()
            push_out(client, 1)
            client.backward_async(forward, one)
            for _ in range(5):
                client.push_async(1, key, 10 * one)
            client.flush()
            assert client.pull(1, key, np.empty((1, 1), np.float32))[0, 0] == 51 * (turn + 1)
        assert client.counters()["reconnects"] == 20


def test_ninth_batch_under_way_takes_the_place_of_the_first_and_none_is_lost():
    with table_of(1, 1, ADD, ZEROS) as (_, client):
        key = np.array([7], np.uint64)
        under_way = [client.forward_async(1, np.array([0, 1]), key, None, 1) for _ in range(10)]
        for forward in under_way:
            forward.wait()
        for forward in under_way:
            client.backward_async(forward, np.ones((1, 1), np.float32))
        client.flush()
        assert client.pull(1, key, np.empty((1, 1), np.float32))[0, 0] == 10
        assert client.counters()["batches_forgotten"] > 0


class Scripted:
    """A shard played by the test: it sees each frame of the client and answers as it likes."""

    def __init__(self, dim=400):
        self.dim, self.life = dim, 0
        self.pairs = [socket.socketpair() for _ in range(3)]
        for _, theirs in self.pairs:
            theirs.settimeout(LIMIT_S)
        self.client = Client(self.connect, ["s"], np.zeros(64), 1, JOB, 9, LIMIT_S)
        self.client.start()
        self.begin()

    def connect(self, shard):
        return self.pairs[self.life][0].detach()

    def begin(self):
        """Listens to the connection made last."""
        self.sock, self.decoder, self.frames = self.pairs[self.life][1], FrameDecoder(), []

    def drop(self):
        """Loses the connection; the client makes the next one."""
        old = self.sock
        self.life += 1
        self.begin()
        old.close()

    def take(self, count):
        """The next frames: (kind, request, seq, first, count, options)."""
        while len(self.frames) < count:
            self.frames += self.decoder.feed(self.sock.recv(1 << 16))
        taken, self.frames = self.frames[:count], self.frames[count:]
        return [self.told(frame) for frame in taken]

    @staticmethod
    def told(frame):
        seq, batch, _, first, count, _, _, options, _, _ = struct.unpack_from(
            "<QQIIIIIIfI", frame.body
        )
        assert batch == 1
        return Kind(frame.kind).name, frame.request, seq, first, count, options & 3

    def answer(self, part):
        kind, request, _, _, count, _ = part
        body = np.ones((count, self.dim), "<f4").tobytes() if kind == "FORWARD" else b""
        self.sock.sendall(encode_frame(Frame(Kind(Kind[kind] + 1), body, request=request)))

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.client.close()
        for ours, theirs in self.pairs:
            ours.close()
            theirs.close()


def test_new_connection_gets_a_batch_from_its_beginning_and_the_number_stays():
    """Lost between the two parts of a backward: all of the batch again, quietly, then the part."""
    keep, quiet = 1, 2
    with Scripted() as shard:
        ptr = np.arange(81, dtype=np.int64)
        forward = shard.client.forward_async(1, ptr, np.arange(80, dtype=np.uint64), None, 400)
        parts = shard.take(2)
        assert [part[3:] for part in parts] == [(0, 40, keep), (40, 40, keep)]
        shard.answer(parts[0])
        shard.drop()  # one part is answered, one is open
        again = shard.take(2)
        before = CATCH_UP | parts[1][1]
        assert again == [("FORWARD", before, 0, 0, 40, keep | quiet), parts[1]]
        shard.answer(parts[1])
        assert np.array_equal(forward.wait(), np.ones((80, 400)))
        backward = shard.client.backward_async(forward, np.ones((80, 400), np.float32))
        first, last = shard.take(2)
        assert [first[3:], last[3:]] == [(0, 40, 0), (40, 40, 0)]
        shard.answer(first)
        shard.drop()
        again = shard.take(4)
        before = CATCH_UP | last[1]
        assert again[:2] == [("FORWARD", before, 0, at, 40, keep | quiet) for at in (0, 40)]
        assert again[2] == ("BACKWARD", before, last[2], 0, 40, 0)
        assert again[3] == last
        shard.answer(last)
        backward.wait()


def test_refusal_of_what_is_sent_again_fails_its_batch_and_not_the_client():
    refusal = b'{"code":"memory","text":"none left for batch 1"}'
    with Scripted() as shard:
        ptr = np.arange(81, dtype=np.int64)
        forward = shard.client.forward_async(1, ptr, np.arange(80, dtype=np.uint64), None, 400)
        first, last = shard.take(2)
        shard.answer(first)
        shard.drop()
        again = shard.take(2)[0]
        shard.answer((*again[:4], 0, 0))  # quietly taken: that answers no part
        assert not forward.done
        shard.sock.sendall(encode_frame(Frame(Kind.ERROR, refusal, request=again[1])))
        with pytest.raises(RemoteError, match="none left for batch 1"):
            forward.wait()
        shard.answer(last)  # late, and of no part that is open
        pull = shard.client.pull_async(1, np.zeros(1, np.uint64), np.empty((1, 1), np.float32))
        while not shard.frames:
            shard.frames += shard.decoder.feed(shard.sock.recv(1 << 16))
        reply = Frame(Kind.PULLED, bytes(16), request=shard.frames[0].request)
        shard.sock.sendall(encode_frame(reply))
        assert pull.wait() == 0


def test_shard_that_always_forgets_ends_the_client_in_words():
    refusal = b'{"code":"batch","text":"batch 1 is not known here"}'
    with Scripted() as shard:
        one = np.arange(2, dtype=np.int64), np.zeros(1, np.uint64), None
        forward = shard.client.forward_async(1, *one, 400)
        shard.answer(shard.take(1)[0])
        forward.wait()
        backward = shard.client.backward_async(forward, np.ones((1, 400), np.float32))
        told = shard.take(1)[0]
        while not backward.done:
            shard.pairs.append(socket.socketpair())
            before, shard.life = shard.sock, shard.life + 1  # where it will connect to next
            before.sendall(encode_frame(Frame(Kind.ERROR, refusal, request=told[1])))
            shard.begin()
            again = False
            while not (again or backward.done):
                again = bool(select.select([shard.sock], [], [], 0.05)[0])
            assert not again or shard.take(2)[1] == told
        with pytest.raises(ConnectionLost, match="again and again without answering"):
            backward.wait()


# --- misuse --------------------------------------------------------------------------------------


def test_forward_with_wrong_arrays_is_refused_in_words():
    with table_of(1, 2, ADD, ZEROS) as (_, client):
        ptr, keys = np.array([0, 2]), np.arange(2, dtype=np.uint64)
        values = np.ones(2, np.float32)
        for bad, said in [
            ((ptr.astype(np.int32), keys, values), "ptr must be a int64"),
            ((ptr + 1, keys, values), "ptr must begin with 0"),
            ((np.array([0, 2, 1]), keys[:1], None), "rise"),
            ((np.empty(0, np.int64), keys, None), "ptr"),
            ((ptr, keys.astype(np.int64), values), "keys must be a uint64"),
            ((ptr, keys[:1], values), "2 elements"),
            ((ptr, keys, values[:1]), "values must be"),
        ]:
            with pytest.raises(MisuseError, match=said):
                client.forward_async(1, *bad, 2)
        many = np.zeros(65_537, np.uint64)
        with pytest.raises(MisuseError, match="65,536 entries"):
            client.forward_async(1, np.array([0, len(many)]), many, None, 2)
        with pytest.raises(RemoteError, match="rows of 2 floats here"):
            client.forward_async(1, ptr, keys, values, 3).wait()


def test_backward_that_cannot_be_is_refused_in_words():
    with table_of(1, 2, ADD, ZEROS) as (_, client):
        data = np.array([0, 1]), np.array([3], np.uint64), None
        dz = np.ones((1, 2), np.float32)
        shown = client.forward_async(1, *data, 2, keep=False)
        shown.wait()
        with pytest.raises(MisuseError, match="went forward with keep"):
            client.backward_async(shown, dz)
        forward = client.forward_async(1, *data, 2)
        forward.wait()
        for bad in (dz.astype(float), dz[:, :1], np.ones((2, 2), np.float32)):
            with pytest.raises(MisuseError, match="gradient must be"):
                client.backward_async(forward, bad)
        client.backward_async(forward, dz).wait()
        with pytest.raises(MisuseError, match="has not gone back"):
            client.backward_async(forward, dz)


def test_access_methods_without_a_product_are_refused():
    refused = pytest.raises(RemoteError, match="built-in access method other than average")
    with table_of(1, 2, AVERAGE, ZEROS) as (_, client), refused:
        client.forward_async(1, np.array([0, 1]), np.array([3], np.uint64), None, 2).wait()


def test_batch_larger_than_a_connection_may_keep_is_refused():
    with Shards(1) as cluster:
        cluster.add_table(1, 4096, ADD, ZEROS)
        client = cluster.client(timeout_s=LIMIT_S)
        examples = (256 << 20) // (4 * 4096) + 1
        ptr = np.zeros(examples + 1, np.int64)
        ptr[1:] = 1
        forward = client.forward_async(1, ptr, np.array([3], np.uint64), None, 4096)
        with pytest.raises(RemoteError, match="does not fit"):
            forward.wait()
        small = client.forward_async(1, ptr[:2].copy(), np.array([3], np.uint64), None, 4096)
        assert not small.wait().any()


@pytest.mark.parametrize("dim", [1, 2, 400])
def test_gradients_of_a_fragment_that_are_too_many_are_refused_and_nothing_is_applied(dim):
    with Shards(1, frag_num=1) as cluster:
        cluster.add_table(1, dim, ADD, ZEROS)
        client = cluster.client()
        most = (4 << 20) // (8 + 4 * dim)
        for keys in (np.arange(most, dtype=np.uint64), np.arange(most + 1, dtype=np.uint64)):
            ends = np.linspace(0, len(keys), 9).astype(np.int64)
            forward = client.forward_async(1, ends, keys, None, dim)
            forward.wait()
            back = client.backward_async(forward, np.ones((8, dim), np.float32))
            if len(keys) == most:
                back.wait()
                continue
            with pytest.raises(RemoteError, match=r"limit 4194304: .*frag_num"):
                back.wait()
        assert (client.pull(1, keys[:3], np.empty((3, dim), np.float32)) == 1).all()


@pytest.mark.parametrize("coarse", [False, True])
def test_push_with_a_row_below_float16s_digits_is_float32_unless_it_is_coarse(coarse):
    wire = WIRE_TYPES["float16"]
    with table_of(1, 2, ADD, ZEROS) as (_, client):
        keys = np.arange(4, dtype=np.uint64)
        values = np.array([[1, 1e-7], [0, 0], [3e-6, 1e-8], [0.5, 0]], np.float32)
        client.push(1, keys, values, False, False, wire, False, coarse)
        rows = client.pull(1, keys, np.empty((4, 2), np.float32))
        expected = values.astype(np.float16).astype(np.float32) if coarse else values
        assert rows.tolist() == expected.tolist()
        # Rows of zeros, and small values beside others, are no reason.
        client.push(1, keys[[0, 1, 3]], values[[0, 1, 3]], False, False, wire, False, coarse)
        rows = client.pull(1, keys, np.empty((4, 2), np.float32))
        assert rows[0, 1] == expected[0, 1] + np.float32(np.float16(1e-7))
