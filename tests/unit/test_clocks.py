"""Contributions to clocks through clients and shards: slots, seals, waiting, ends of all kinds."""

import itertools
import struct
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from shards import ADAGRAD, ADD, AVERAGE, JOB, LIMIT_S, ZEROS, Shards, a_table, u64

from snailps import Table
from snailps.api.export_progress import ExportProgress
from snailps.errors import MisuseError, RemoteError, WaitTimeout
from snailps.master.job.model_reader import ModelReader
from snailps.master.leases import BspSchedule, Entries
from snailps.master.services import ModelAccess
from snailps.pieces import Piece
from snailps.transport.frame import Frame, Kind
from snailps.transport.security.trust import Trust

DIM = 4
WINDOW = 1024  # parts in flight, of _link.pxd


@pytest.fixture
def shard(request):
    with Shards(1, staged_bytes_max=getattr(request, "param", 2 << 30)) as made:
        made.add_table(1, DIM, ADD, ZEROS)
        yield made


def full(value, n=1, dim=DIM):
    return np.full((n, dim), value, np.float32)


def pull(client, keys, clock=-1, table=1, dim=DIM):
    return client.pull(table, u64(keys), full(np.nan, len(keys), dim), clock=clock)


def end_clock(client, clock, slots=1, first=0):
    for slot in range(first, slots):
        client.seal_async(clock, slot, slots).wait()


# --- slots and seals -----------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_contributions_are_applied_with_the_last_seal(shards):
    with a_table(DIM, shards=shards) as (cluster, client):
        keys = range(50)
        client.push(1, u64(keys), full(1, 50), clock=0, slot=1)
        client.seal_async(0, 1, 2).wait()
        client.push(1, u64(keys), full(2, 50), clock=0, slot=0)
        assert np.all(pull(client, keys) == 0)
        assert cluster.stats("staged_bytes") > 0
        assert cluster.stats("slots_sealed") == shards
        client.seal_async(0, 0, 2).wait()
        client.reach_async(1).wait()
        assert np.all(pull(client, keys, clock=1) == 3)
        assert cluster.stats("staged_bytes") == 0
        assert cluster.stats("clock") == shards


def contribution(slot, clock, keys_max=3000, n=4000):
    rng = np.random.default_rng([slot, clock])
    values = rng.normal(size=(n, DIM)) * 10.0 ** rng.integers(-3, 6, (n, 1))
    return rng.integers(0, keys_max, n, dtype=np.uint64), values.astype(np.float32)


def tables_after(shards, deal, clocks=3, slots=4, cut=None, access=ADAGRAD):
    """Rows and state, by key, after some clocks; `deal` says which client has which slot."""
    with Shards(shards) as cluster:
        cluster.add_table(1, DIM, access, ZEROS, lr=0.5)
        clients = [cluster.client(incarnation) for incarnation in range(1, 5)]

        def train(which):
            for clock in range(clocks):
                for slot in [slot for slot in deal if deal[slot] == which]:
                    client = clients[which]
                    client.reach_async(clock).wait()
                    keys, values = contribution(slot, clock)
                    if cut:
                        cut(client, shards)
                    for a in range(0, len(keys), 1000):
                        pushed = slice(a, a + 1000)
                        client.push_async(1, keys[pushed], values[pushed], clock=clock, slot=slot)
                        if cut:
                            cut(client, shards)
                    client.flush()
                    sealed = client.seal_async(clock, slot, slots)
                    if cut:
                        cut(client, shards)
                    sealed.wait()

        threads = [threading.Thread(target=train, args=(which,)) for which in set(deal.values())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keys = u64(range(3000))
        rows = np.empty((3000, 2 * DIM), np.float32)
        clients[0].pull(1, keys, rows, state=True, clock=clocks)
        assert cluster.stats("clock") == shards * clocks
        assert cluster.stats("staged_bytes") == 0
        return rows, sum(client.counters()["reconnects"] for client in clients)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("clients", [2, 3, 4])
def test_tables_do_not_depend_on_how_many_clients_and_shards_there_are(shards, clients):
    alone, _ = tables_after(1, dict.fromkeys(range(4), 0))
    shared, _ = tables_after(shards, {slot: slot % clients for slot in range(4)})
    assert alone.any()
    assert shared.tobytes() == alone.tobytes()


@pytest.mark.parametrize("shards", [1, 2])
def test_cut_connections_leave_the_tables_as_they_are(shards):
    turns = itertools.count()

    def cut(client, shards):
        if next(turns) % 2 == 0:
            client.cut(next(turns) % shards)

    alone, _ = tables_after(1, dict.fromkeys(range(4), 0))
    shaken, reconnects = tables_after(shards, {0: 0, 1: 1, 2: 0, 3: 1}, cut=cut)
    assert reconnects > 10
    assert shaken.tobytes() == alone.tobytes()


def test_incarnation_that_died_with_half_a_slot_leaves_nothing(shard):
    keys = u64(range(2000))
    doomed, other = shard.client(1), shard.client(2)
    doomed.push(1, keys, full(100, 2000), clock=0, slot=0)
    doomed.push(1, keys, full(1, 2000), clock=0, slot=1)
    doomed.seal_async(0, 1, 3).wait()  # this one was done
    doomed.close()
    other.push(1, keys, full(2, 2000), clock=0, slot=0)
    other.push(1, keys, full(100, 2000), clock=0, slot=1)  # acknowledged, and dropped
    other.push(1, keys, full(4, 2000), clock=0, slot=2)
    end_clock(other, 0, 3)
    assert np.all(pull(other, range(2000), clock=1) == 7)
    assert shard.stats("staged_bytes") == 0
    assert shard.stats("parts_dropped") > 0


@pytest.mark.parametrize("wire", [1, 3])
def test_contribution_in_a_narrow_type_is_staged_as_float32(shard, wire):
    client = shard.client()
    values = np.array([[1.0, -2.0, 0.5, 0.25]], np.float32)
    for slot in range(2):
        client.push(1, u64([slot, 9]), np.repeat(values, 2, 0), wire=wire, feedback=False,
                    clock=0, slot=slot)  # fmt: skip
    end_clock(client, 0, 2)
    found = pull(client, [0, 1, 9])
    assert np.allclose(found, values * np.array([[1], [1], [2]]), atol=0.02)


def test_average_is_closed_and_differences_of_state_are_added_with_the_clock():
    with Shards(2) as cluster:
        cluster.add_table(1, 2, AVERAGE, ZEROS)
        cluster.add_table(2, 2, ADAGRAD, ZEROS, lr=0.5)
        client = cluster.client()
        for slot, (value, weight) in enumerate([(1.0, 3.0), (5.0, 1.0)]):
            weighted = np.array([[value * weight, -value * weight, weight]], np.float32)
            client.push(1, u64([7]), weighted, clock=0, slot=slot)
            client.push(2, u64([7]), full(value, dim=4), state=True, clock=0, slot=slot)
        end_clock(client, 0, 2)
        assert pull(client, [7], table=1, dim=2).tolist() == [[2.0, -2.0]]
        state = np.empty((1, 4), np.float32)
        assert client.pull(2, u64([7]), state, state=True).tolist() == [[6.0] * 4]


def test_method_in_python_gets_the_sum_of_a_clock_once():
    with Shards(2) as cluster:
        cluster.declare(Table("t", dim=3, access="python_methods:Momentum", lr=0.5))
        client = cluster.client()
        keys = u64(range(20))
        for slot in range(3):
            client.push(1, keys, full(2, 20, 3), clock=0, slot=slot)
        end_clock(client, 0, 3)
        # A row begins with its key and reads twice itself: 2 (key - 0.5 (0 + 6)).
        wanted = np.repeat(2 * (np.arange(20, dtype=np.float32) - 3)[:, None], 3, 1)
        assert np.array_equal(pull(client, range(20), dim=3), wanted)


def test_method_in_python_that_fails_refuses_the_seal_and_all_others():
    with Shards(1) as cluster:
        cluster.declare(Table("t", dim=1, access="python_methods:Faulty"))
        client = cluster.client()
        client.push(1, u64([5]), full(-1, dim=1), clock=0)
        for _ in range(2):
            with pytest.raises(RemoteError, match="planted failure") as caught:
                client.seal_async(0, 0, 1).wait()
            assert caught.value.code == "access"
        assert cluster.stats("clock") == 0
        cluster.threads[0].set_clock(0)
        client.push(1, u64([5]), full(3, dim=1), clock=0)
        end_clock(client, 0)
        assert pull(client, [5], dim=1).tolist() == [[3.0]]


def test_model_is_not_written_where_the_last_clock_could_not_be_applied():
    """... and no worker is left to say so."""
    with Shards(2) as cluster:
        cluster.declare(Table("t", dim=1, access="python_methods:Faulty"))
        client = cluster.client()
        client.push(1, u64([5]), full(-1, dim=1), clock=0)
        with pytest.raises(RemoteError, match="planted failure"):
            end_clock(client, 0)
        book = BspSchedule(Entries([Piece("file", 0, 10)]), micro_batches=1, nodes=[1])
        book.done(book.take(1).number, 1)
        assert book.over
        readings = ModelReader(LIMIT_S, Trust(b""), JOB)
        readings.follow(cluster.route)
        reading = ModelAccess(iter([99, 100, 101]), {}, {}, book.slots.open)
        with pytest.raises(RemoteError, match="planted failure"):
            readings.export(SimpleNamespace(), reading, ExportProgress())


def test_method_in_python_that_fails_when_the_master_closes_the_clock_is_told_to_it():
    with Shards(1) as cluster:
        cluster.declare(Table("t", dim=1, access="python_methods:Faulty"))
        cluster.threads[0].set_clock(0, early=True)
        client = cluster.client()
        client.push(1, u64([5]), full(-1, dim=1), clock=0)
        end_clock(client, 0)
        for _ in range(2):
            with pytest.raises(RemoteError, match="planted failure"):
                cluster.threads[0].close_clock(0, [0])
        assert cluster.stats("clock") == 0


# --- what is refused -----------------------------------------------------------------------------


def test_push_and_seal_of_a_clock_to_come_are_refused_with_words(shard):
    client = shard.client()
    with pytest.raises(RemoteError, match=r"clock 3, which has not come \(this is clock 0\)"):
        client.push(1, u64([1]), full(1), clock=3)
    with pytest.raises(RemoteError, match="clock 3, which has not come: this is clock 0"):
        client.seal_async(3, 0, 1).wait()
    client.seal_async(3, 0, 1)
    with pytest.raises(RemoteError, match="which has not come"):
        client.flush()


def test_slot_that_the_clock_has_not_is_refused(shard):
    client = shard.client()
    client.seal_async(0, 0, 2).wait()
    with pytest.raises(RemoteError, match="slot 2 of a clock of 2 slots"):
        client.push(1, u64([1]), full(1), clock=0, slot=2)
    with pytest.raises(RemoteError, match="has 3 slots, others said 2"):
        client.seal_async(0, 2, 3).wait()
    with pytest.raises(RemoteError, match="after its seal"):
        client.push(1, u64([1]), full(1), clock=0, slot=0)


@pytest.mark.parametrize("arguments", [(-1, 0, 1), (0, 1, 1), (0, 0, 0), (0, 0, 4097)])
def test_seal_of_no_slot_is_misuse(shard, arguments):
    with pytest.raises(MisuseError, match="expected a clock of 0 or more"):
        shard.client().seal_async(*arguments)


def test_clock_below_none_and_slot_too_high_are_misuse(shard):
    client = shard.client()
    for arguments in ({"clock": -2}, {"clock": 0, "slot": 4096}):
        with pytest.raises(MisuseError, match="expected a clock"):
            client.push_async(1, u64([1]), full(1), **arguments)
    with pytest.raises(MisuseError, match="expected a clock"):
        client.pull_async(1, u64([1]), full(1), clock=-2)
    with pytest.raises(MisuseError, match="expected a clock"):
        client.reach_async(-1)


@pytest.mark.parametrize("shard", [200_000], indirect=True)
def test_limit_of_staged_bytes_refuses_with_words_and_the_seal_with_it(shard):
    shard.threads[0].set_clock(0)
    client = shard.client()
    keys = u64(range(20_000))
    client.push_async(1, keys, full(1, 20_000), clock=0)
    with pytest.raises(RemoteError, match="use smaller micro-batches") as caught:
        client.flush()
    assert caught.value.code == "staged"
    assert shard.stats("staged_bytes") <= 200_000
    with pytest.raises(RemoteError, match="a push to it was refused"):
        client.seal_async(0, 0, 1).wait()
    shard.threads[0].set_clock(0)
    assert shard.stats("staged_bytes") == 0


# --- waiting -------------------------------------------------------------------------------------


def test_pull_of_a_clock_waits_for_it_and_holds_up_nothing(shard):
    early, late = shard.client(1), shard.client(2)
    waiting = early.pull_async(1, u64([1]), full(np.nan), clock=1)
    reached = early.reach_async(1)
    shard.until("parked", lambda n: n == 2)
    early.push(1, u64([1]), full(1), clock=0, slot=0)
    assert pull(early, [1]).tolist() == [[0.0] * DIM]
    early.seal_async(0, 0, 2).wait()
    early.flush()  # does not wait for what waits for the clock
    assert not waiting.done
    assert not reached.done
    late.push(1, u64([1]), full(2), clock=0, slot=1)
    late.seal_async(0, 1, 2).wait()
    assert np.all(waiting.wait() == 3)
    reached.wait()


def test_wait_that_ends_says_what_for(shard):
    client = shard.client()
    client.seal_async(0, 0, 2).wait()
    with pytest.raises(WaitTimeout, match=r"pull of 1 rows of table 1 at clock 2"):
        client.pull_async(1, u64([1]), full(0), clock=2).wait(0.05)
    reached = client.reach_async(2)
    shard.until("parked", lambda n: n == 2)
    with pytest.raises(WaitTimeout, match=r"reach of clock 2 waited .* shard 0"):
        reached.wait(0.05)
    assert shard.threads[0].stats()["waits_for"] == "slot 1 of clock 0"


def test_wait_at_the_shard_has_a_limit_that_names_clock_and_slots():
    with Shards(1, clock_limit_s=0.3, park_limit_s=0.1) as shard:
        shard.add_table(1, DIM, ADD, ZEROS)
        client = shard.client()
        client.seal_async(0, 1, 4).wait()
        with pytest.raises(RemoteError, match=r"waited .* for slots 0, 2, 3 of clock 0") as caught:
            client.reach_async(1).wait()
        assert caught.value.code == "timeout"
        with pytest.raises(RemoteError, match=r"waited .* for slots 0, 2, 3 of clock 0"):
            pull(client, [1], clock=7)


def test_words_for_what_is_waited_for_are_those_of_now():
    with Shards(1, clock_limit_s=0.3, park_limit_s=0.1) as shard:
        client = shard.client()
        for slot in (0, 1):
            shard.threads[0].set_clock(0)
            client.seal_async(0, slot, 3).wait()
            with pytest.raises(RemoteError, match=f"for slots {1 - slot}, 2 of clock 0"):
                client.reach_async(1).wait()


def test_pulls_of_a_clock_to_come_leave_room_for_what_ends_the_present_one():
    """More parts than a client has in flight, or a shard keeps of a connection."""
    dim, n = 8000, 3 * WINDOW
    with a_table(dim) as (shard, client):
        rows = np.empty((n, dim), np.float32)
        later = client.pull_async(1, u64(range(n)), rows, clock=2)
        shard.until("parked", lambda parked: parked >= 128)
        ahead = client.pull_async(1, u64(range(n)), np.empty_like(rows), clock=1, ahead=True)
        shard.until("parked", lambda parked: parked > 128)
        client.push(1, u64([5]), full(1, dim=dim), clock=0)
        end_clock(client, 0)
        assert np.all(ahead.wait()[5] == 1)
        present = np.empty((1, dim), np.float32)
        client.push(1, u64([5]), client.pull(1, u64([5]), present, clock=1), clock=1)
        assert not later.done
        end_clock(client, 1)
        assert np.all(later.wait()[5] == 2)
        assert not rows[6:].any()


def test_pull_of_the_present_clock_is_not_held_up_by_those_of_the_next():
    dim, n = 8000, 2 * WINDOW
    with Shards(2) as cluster:
        cluster.add_table(1, dim, ADD, ZEROS)
        client, other = cluster.client(1), cluster.client(2)
        client.pull_async(1, u64(range(n)), np.empty((n, dim), np.float32), clock=2).abandon()
        # The client does not know yet that clock 1 has come: it is another one that ends clock 0.
        present = client.pull_async(1, u64(range(n)), np.empty((n, dim), np.float32), clock=1)
        end_clock(other, 0)
        assert not present.wait().any()


def test_abandoned_pull_is_not_waited_for_and_nothing_breaks(shard):
    client = shard.client()
    rows = full(np.nan, 3)
    client.pull_async(1, u64([1, 2, 3]), rows, clock=5).abandon()
    client.push(1, u64([1]), full(1))
    client.flush()
    del rows
    for clock in range(5):
        end_clock(client, clock)
    assert pull(client, [1], clock=5).tolist() == [[1.0] * DIM]
    client.push_async(1, u64([1]), full(1)).abandon()  # applied all the same
    client.flush()
    assert pull(client, [1]).tolist() == [[2.0] * DIM]


def test_abandoned_pull_is_not_sent_as_far_as_it_was_not():
    dim, n = 8000, 2 * WINDOW
    with a_table(dim) as (shard, client):
        pending = client.pull_async(1, u64(range(n)), np.empty((n, dim), np.float32), clock=1)
        shard.until("parked", lambda parked: parked >= 128)
        pending.abandon()
        end_clock(client, 0)
        pending.wait()
        assert shard.stats("rows_pulled") < n


def test_pull_of_a_clock_that_is_over_is_refused_unless_clocks_are_closed_by_command(shard):
    client = shard.client()
    client.push(1, u64([1]), full(1), clock=0)
    end_clock(client, 0)
    with pytest.raises(RemoteError, match="clock 0 have changed, this is clock 1") as caught:
        pull(client, [1], clock=0)
    assert caught.value.code == "late"
    client.reach_async(0).wait()
    assert np.all(pull(client, [1], clock=1) == 1)
    shard.threads[0].set_clock(1, early=True)
    assert np.all(pull(client, [1], clock=0) == 1)


def test_slot_that_some_shards_have_sealed_is_not_made_again_from_newer_rows():
    """Its incarnation died between two seals: the one shard has gone on, the other waits."""
    keys = u64(range(100))
    with Shards(2) as cluster:
        cluster.add_table(1, DIM, ADD, ZEROS)
        lost, other = cluster.client(1), cluster.client(2)
        other.push(1, keys, full(1, 100), clock=0, slot=0)
        other.seal_async(0, 0, 2).wait()
        lost.push(1, keys, full(2, 100), clock=0, slot=1)
        with cluster.raw(0) as one:  # as the client's own seal, but to one shard
            body = struct.pack("<QII", 0, 1, 2)
            assert one.ask(Frame(Kind.SEAL, body, 0, 1, JOB, 1, 1)).kind == Kind.SEALED
        lost.close()
        assert [thread.stats()["clock"] for thread in cluster.threads] == [1, 0]
        with pytest.raises(RemoteError, match="another incarnation has sealed") as caught:
            pull(other, range(100), clock=0)
        assert caught.value.code == "late"


def test_answers_to_many_that_wait_are_not_left_to_the_timer():
    """All that waits for a clock, more than an output holds, is answered as fast as it is read."""
    dim, n = 8000, 128
    with Shards(1) as shard:
        shard.add_table(1, dim, ADD, ZEROS)
        reader, other = shard.client(1), shard.client(2)
        for clock in range(20):
            rows = np.empty((n, dim), np.float32)
            pending = reader.pull_async(1, u64(range(n)), rows, clock=clock + 1)
            end_clock(other, clock)
            pending.wait()
        assert shard.stats("parked") == 0


# --- the master's orders -------------------------------------------------------------------------


def test_clock_closed_early_has_the_same_slots_at_all_shards():
    with Shards(2) as cluster:
        cluster.add_table(1, DIM, ADD, ZEROS)
        for thread in cluster.threads:
            thread.set_clock(0, early=True)
        fast, slow = cluster.client(1), cluster.client(2)
        keys = u64(range(100))
        for slot, value in enumerate((1, 10)):
            fast.push(1, keys, full(value, 100), clock=0, slot=slot)
            fast.seal_async(0, slot, 3).wait()
        slow.push(1, keys, full(100, 100), clock=0, slot=2)
        waiting = slow.pull_async(1, keys, full(np.nan, 100), clock=1)
        assert cluster.threads[0].close_clock(0, [0, 1])["sealed"] == [0, 1]
        slow.seal_async(0, 2, 3).wait()  # all are sealed at the other shard, and yet it waits
        assert cluster.threads[1].close_clock(0, [0, 1])["sealed"] == [0, 1, 2]
        assert np.all(waiting.wait() == 11)
        assert cluster.stats("staged_bytes") == 0


def test_set_clock_wakes_who_waits_and_forgets_what_is_staged(shard):
    client = shard.client()
    client.push(1, u64([1]), full(1), clock=0)
    waiting = client.reach_async(7)
    shard.until("parked", lambda n: n == 1)
    shard.threads[0].set_clock(7)
    waiting.wait()
    assert shard.stats("staged_bytes") == 0
    end_clock(client, 7)
    assert pull(client, [1], clock=8).tolist() == [[0.0] * DIM]


def test_fenced_incarnation_is_turned_away_and_others_are_not(shard):
    fenced, other = shard.client(1), shard.client(2)
    fenced.push(1, u64([1]), full(1), clock=0)
    parked = fenced.reach_async(1)
    shard.until("parked", lambda n: n == 1)
    shard.threads[0].fence(1)
    with pytest.raises(RemoteError, match="the master has given up incarnation 1") as caught:
        parked.wait()
    assert caught.value.code == "fenced"
    other.push(1, u64([1]), full(2), clock=0)
    end_clock(other, 0)
    assert np.all(pull(other, [1], clock=1) == 2)


# --- any course of things ------------------------------------------------------------------------
