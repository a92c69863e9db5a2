"""master.leases.rotation: blocks, partitions, checkouts, with workers that come and go."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rotation_site import Site, blocks_of, taken_over

from snailps.api.rotation import CHUNKS_AHEAD, Rotation
from snailps.errors import MisuseError
from snailps.master.leases import Entries
from snailps.master.leases.parts import NO_PART
from snailps.master.leases.records import BlockResult
from snailps.master.leases.rotation import PARTITION_LOSSES_MAX, RotationSchedule
from snailps.master.leases.schedule import LOSSES_MAX
from snailps.pieces import Piece
from snailps.transport.messages.terms import ChunkBlock, Partition


def schedule_of(blocks=8, epochs=2, chunks=2, most_parts=8, nodes=(1, 2), **more):
    return RotationSchedule(
        Entries(blocks_of(blocks), epochs), Rotation(chunks, most_parts), nodes=list(nodes), **more
    )


def encodes(schedule, chunk, node=1):
    """Encodes all blocks of a chunk; a worker that may train gets its partitions first."""
    for number in schedule.chunks.numbers.blocks_of(chunk):
        assert schedule.claim(number, node)
        assert schedule.done(number, node)


def checkouts(schedule, number, node, units=0, seconds=0.0):
    """All checkouts of a partition, one after the other; the parts in their order."""
    parts = []
    while (part := schedule.checkouts.check_out(number, node)) != NO_PART:
        parts.append(part)
        assert schedule.checkouts.check_in(number, node, part, units, seconds)
    return parts


def rate(schedule, *nodes, units=10):
    """Workers train a part of what they have leased, so that their speed is known."""
    for node in nodes:
        (number, *_) = filter(schedule.chunks.numbers.is_partition, schedule.records.held_by(node))
        assert schedule.checkouts.check_in(
            number, node, schedule.checkouts.check_out(number, node), units, 1.0
        )


# --- what there is --------------------------------------------------------------------------------


def test_first_chunk_has_sweeps_of_its_output_partitions():
    """A whole sweep before the next one, and no output partition at two workers."""
    schedule = RotationSchedule(Entries(blocks_of(2), 2), Rotation(1, 4, sweeps=3), nodes=[1, 2])
    encodes(schedule, 0)
    one, two = (schedule.take(node) for node in (1, 2))
    assert (one.terms.output_parts, two.terms.output_parts) == (12, 12)
    assert [schedule.checkouts.check_out(one.number, 1) for _ in range(2)] == [0, 1]
    assert [schedule.checkouts.check_out(two.number, 2) for _ in range(3)] == [2, 3, None]
    assert schedule.checkouts.check_in(one.number, 1, 0)
    assert schedule.checkouts.check_out(two.number, 2) == 0
    assert schedule.checkouts.check_in(two.number, 2, 2)
    assert schedule.checkouts.check_out(one.number, 1) == 2
    assert (
        schedule.checkouts.check_out(one.number, 1) is None
    )  # 0 of the next sweep is held, 3 of this one, too
    for number, node, held in ((one.number, 1, (1, 2)), (two.number, 2, (3, 0))):
        assert all(schedule.checkouts.check_in(number, node, part) for part in held)
    assert checkouts(schedule, two.number, 2) == [1, 6, 7, 4, 5, 10, 11, 8, 9]
    assert checkouts(schedule, one.number, 1) == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert all(schedule.done(entry.number, node) for entry, node in ((one, 1), (two, 2)))
    encodes(schedule, 1)
    assert schedule.take(1).terms.output_parts == 4


def test_epoch_has_a_loss_of_each_checkout():
    """Not of each block: those are only encoded."""
    schedule = schedule_of(blocks=8, chunks=2, nodes=[1])
    encodes(schedule, 0)
    assert schedule.plan.results_per_epoch == 2 * schedule.chunks.rotation.checkouts_of_one
    schedule = schedule_of(blocks=8, chunks=2)
    encodes(schedule, 0)
    assert all(schedule.take(node) for node in (1, 2))
    assert schedule.chunks.parts_max == 2
    assert schedule.plan.results_per_epoch == 2 * 2 * 4  # chunks, parts, output parts of each


def test_chunk_of_other_rows_waits_for_all_partitions_of_the_one_before():
    """With several passes; with one, a worker goes on with its part of the next chunk."""
    for passes, goes_on in ((1, True), (2, False)):
        rotation = Rotation(1, 8, passes=passes)
        schedule = RotationSchedule(Entries(blocks_of(2), 3 * passes), rotation, nodes=[1, 2])
        for chunk in range(2):
            encodes(schedule, chunk)
        one, two = (schedule.take(node) for node in (1, 2))
        for entry, node in ((one, 1), (two, 2)):
            checkouts(schedule, entry.number, node, units=10, seconds=1.0)
        assert schedule.done(one.number, 1)
        following = schedule.take(1)
        if not goes_on:
            assert following.terms == ChunkBlock(2, 0, 2)  # nothing but blocks of a later chunk
            assert schedule.done(two.number, 2)
            following = schedule.take(1)
        assert following.terms == Partition(1, 2, 0, 2, 4, passes=passes)


def test_epoch_of_several_passes_has_its_blocks_in_each():
    rotation = Rotation(2, 8, passes=3)
    schedule = RotationSchedule(Entries(blocks_of(4), 2 * 3), rotation, nodes=[1, 2])
    numbers = schedule.chunks.numbers
    assert (numbers.chunks, numbers.in_epoch) == (12, 6)
    firsts = [numbers.blocks_of(chunk)[0] for chunk in range(12)]
    entries = [schedule.plan.entry(number) for number in firsts]
    assert [entry.piece.start for entry in entries] == [0, 20] * 6
    assert [entry.epoch for entry in entries] == [0] * 6 + [1] * 6
    assert entries[6].progress[0] == 0.5
    encodes(schedule, 0)
    assert schedule.take(1).progress == pytest.approx((0, 1 / 12))
    assert schedule.plan.results_per_epoch == 6 * 2 * 4


def test_blocks_that_are_kept_are_encoded_once_and_again_only_if_servers_lose_them():
    rotation = Rotation(2, 8, passes=3, is_kept=True)
    schedule = RotationSchedule(Entries(blocks_of(4), 2 * 3), rotation, nodes=[1, 2])
    trained = []
    while (entry := schedule.take(1)) is not None:
        if schedule.chunks.numbers.encodes(entry.number):
            assert entry.terms.chunk < 2  # the first pass
            assert schedule.done(entry.number, 1)
            continue
        trained.append(entry.terms.chunk)
        if entry.terms.chunk == 6:
            block = schedule.chunks.encode_again(entry.number, 1, 1)
            assert (block.terms, block.piece.start) == (ChunkBlock(6, 1, 2), 10)
            assert schedule.chunks.encode_again(entry.number, 1, 1) is None  # it is leased
            assert schedule.done(block.number, 1)
        checkouts(schedule, entry.number, 1)
        assert schedule.done(entry.number, 1)
    assert trained == [chunk for chunk in range(12) for _ in range(2)]
    assert schedule.size == schedule.records.finished == 4 * 6 + 12 * 2


def test_bad_lines_of_an_epoch_of_several_passes_count_once():
    """Each pass has all blocks; also of one that servers have lost, and that is encoded again."""
    rotation = Rotation(1, 8, passes=2)
    schedule = RotationSchedule(Entries(blocks_of(2), 2 * 2), rotation, nodes=[1])
    for chunk in range(2):
        for number in schedule.chunks.numbers.blocks_of(chunk):
            assert schedule.claim(number, 1)
            assert schedule.done(number, 1, BlockResult(bad_lines=3, units=9))
            counted = schedule.records.result(number)
            assert (counted.bad_lines, counted.units) == (3 if chunk == 0 else 0, 0)
    assert schedule.chunks.bad_lines == 2 * 3


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, "2"])
def test_rotation_of_anything_but_counts_is_refused(wrong):
    with pytest.raises(MisuseError, match=r"passes: expected a whole number from 1 to 1,000, got"):
        Rotation(1, 1, passes=1001)
    with pytest.raises(MisuseError, match="is_kept: expected True or False, got 1"):
        Rotation(2, 2, is_kept=1)
    with pytest.raises(MisuseError, match="chunks: expected a whole number from 1"):
        Rotation(wrong, 2)
    with pytest.raises(MisuseError, match="most_parts"):
        Rotation(2, wrong)


def test_entries_of_a_chunk_are_its_blocks_then_its_partitions():
    schedule = schedule_of(blocks=5, epochs=2, chunks=2)
    stride = 3 + 8
    chunk_blocks = [
        schedule.plan.entry(n) for n in (0, 1, *(stride + n for n in range(3)), 2 * stride)
    ]
    assert [one.terms.chunk for one in chunk_blocks] == [0, 0, 1, 1, 1, 2]
    assert [one.terms.chunk_index for one in chunk_blocks] == [0, 1, 0, 1, 2, 0]
    assert [one.terms.chunk_blocks for one in chunk_blocks] == [2, 2, 3, 3, 3, 2]
    assert [one.piece.start for one in chunk_blocks] == [0, 10, 20, 30, 40, 0]
    assert [one.epoch for one in chunk_blocks] == [0] * 5 + [1]
    assert all(isinstance(one.terms, ChunkBlock) for one in chunk_blocks)
    for chunk in range(4):
        schedule.chunks.decide(chunk, 3)  # the last one is not open
    lease = schedule.plan.entry(stride + 3 + 2)
    assert (lease.terms, lease.epoch) == (Partition(1, 3, 2, 3, 6), 0)
    assert lease.progress == (0.2, 0.5)
    assert lease.piece == Piece()
    assert [schedule.plan.epoch_of(n) for n in (0, 2 * stride - 1, 2 * stride)] == [0, 0, 1]
    numbers = filter(schedule.plan.has, range(-1, 5 * stride))
    known = [n for n in numbers if schedule.plan.entry(n).piece.path]
    assert known == [0, 1, 11, 12, 13, 22, 23, 33, 34, 35]
    assert schedule.chunks.extent["parts"] == [3, 3, 3]


def test_schedule_of_a_million_epochs_has_records_of_the_open_chunks_only():
    schedule = schedule_of(blocks=2, epochs=10**6, chunks=1, nodes=(1,))
    for chunk in range(100):
        encodes(schedule, chunk)
        lease = schedule.take(1)
        assert (lease.epoch, lease.terms.part) == (chunk, 0)
        checkouts(schedule, lease.number, 1)
        assert schedule.done(lease.number, 1, BlockResult(units=5))
    assert len(schedule.records.known()) <= (CHUNKS_AHEAD + 1) * 10
    assert len(schedule.chunks.extent["parts"]) == CHUNKS_AHEAD + 1
    assert (schedule.finished, schedule.size) == (300, 3 * 10**6)
    assert schedule.progress == pytest.approx(1e-4)
    schedule.records.make_durable([0, 1, lease.number], 1)  # late news of closed chunks
    assert schedule.records.durable().size == 0


def test_partition_is_leased_when_all_blocks_of_its_chunk_are_done():
    schedule = schedule_of()
    taken = [schedule.take(1).number, schedule.take(2).number, schedule.take(1).number]
    assert taken == [0, 1, 2]
    assert schedule.done(0, 1)
    assert schedule.done(1, 2)
    assert schedule.take(2).number == 3
    assert schedule.done(3, 2)
    assert schedule.take(2).terms.chunk == 1  # a block: block 2 is at work
    assert schedule.chunks.decided() == []
    assert schedule.done(2, 1)
    lease = schedule.take(1)
    assert (lease.number, lease.terms.chunk, lease.terms.part, lease.terms.parts) == (4, 0, 0, 2)
    assert schedule.chunks.decided() == [(0, 2, ())]
    assert schedule.chunks.decided() == []
    assert schedule.take(2).terms.part == 1


def test_blocks_are_encoded_two_chunks_ahead_and_no_more():
    schedule = schedule_of(blocks=4, epochs=2, chunks=4, nodes=(1,))
    for chunk in range(CHUNKS_AHEAD + 1):
        entry = schedule.take(1)
        while isinstance(entry.terms, Partition):  # its own partitions come first
            entry = schedule.take(1)
        assert entry.terms.chunk == chunk
        assert schedule.done(entry.number, 1)
    assert schedule.take(1) is None
    assert "finish" in str(schedule.wait_of(1))
    assert checkouts(schedule, 1, 1) == [0, 1]
    assert schedule.done(1, 1)
    assert [schedule.take(1).terms.chunk for _ in range(2)] == [2, 3]


def test_worker_keeps_its_part_and_holds_two_partitions_at_most():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4)
    for chunk in range(3):
        encodes(schedule, chunk)
    own, others = [schedule.take(2)], [schedule.take(1)]
    rate(schedule, 2, 1)
    own.append(schedule.take(2))
    assert [(one.terms.chunk, one.terms.part) for one in own] == [(0, 0), (1, 0)]
    assert schedule.take(2) is None or isinstance(schedule.take(2).terms, ChunkBlock)
    others.append(schedule.take(1))
    assert [(one.terms.chunk, one.terms.part) for one in others] == [(0, 1), (1, 1)]
    for entry in own:
        checkouts(schedule, entry.number, 2)
        assert schedule.done(entry.number, 2)
    assert schedule.take(2).terms.part == 0  # of chunk 2, while worker 1 is at chunk 0


def test_part_of_another_worker_is_taken_by_an_idle_one_only():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4, nodes=(1, 2, 3))
    encodes(schedule, 0)
    encodes(schedule, 1)
    first = schedule.take(1)
    assert schedule.take(2).terms.part == 1
    third = schedule.take(3).number
    rate(schedule, 1, 2, 3)
    assert (schedule.take(1).terms.chunk, schedule.take(1)) == (
        1,
        None,
    ) or schedule.chunks.rotation.chunks == 4
    checkouts(schedule, first.number, 1)
    assert schedule.retire(3) == [third]
    terms = [entry.terms for entry in iter(lambda: schedule.take(2), None)]
    late = [(lease.chunk, lease.part) for lease in terms if isinstance(lease, Partition)]
    assert late == [(1, 1)]  # nothing beside its own
    schedule.release(1)
    assert schedule.done(first.number, 1) is False


def test_parts_are_the_workers_of_that_moment_and_a_change_waits_for_the_chunk_before():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4)
    encodes(schedule, 0)
    encodes(schedule, 1)
    one, two = schedule.take(1), schedule.take(2)
    schedule.join(3)
    entries = [schedule.take(node) for node in (1, 2, 3)]
    assert all(isinstance(entry.terms, ChunkBlock) for entry in entries if entry is not None)
    checkouts(schedule, one.number, 1)
    assert schedule.done(one.number, 1)
    assert schedule.take(1) is None or isinstance(schedule.take(1).terms, ChunkBlock)
    assert "worker 2 to finish chunk 0" in str(schedule.wait_of(1))
    checkouts(schedule, two.number, 2)
    assert schedule.done(two.number, 2)
    later = [schedule.take(node) for node in (1, 2, 3)]
    assert [(entry.terms.chunk, entry.terms.part, entry.terms.parts) for entry in later] == [
        (1, 0, 3), (1, 1, 3), (1, 2, 3),
    ]  # fmt: skip


def test_training_that_one_worker_begins_goes_on_with_two_parts_when_another_joins():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4, nodes=(1,))
    for chunk in range(3):
        encodes(schedule, chunk)
    alone = [schedule.take(1) for _ in range(2)]
    assert [entry.terms for entry in alone] == [Partition(chunk, 1, 0, 1, 2) for chunk in (0, 1)]
    schedule.join(2)
    assert schedule.take(2) is None  # all chunks are encoded that may be
    for entry in alone:
        assert checkouts(schedule, entry.number, 1) == [0, 1]
        assert schedule.done(entry.number, 1)
    both = [schedule.take(node).terms for node in (1, 2)]
    assert [(one.chunk, one.part, one.parts) for one in both] == [(2, 0, 2), (2, 1, 2)]


def trained(schedule, node, units, seconds=4.0):
    """A worker leases a partition and trains it; the lease."""
    lease = schedule.take(node)
    while isinstance(lease.terms, ChunkBlock):
        assert schedule.done(lease.number, node)
        lease = schedule.take(node)
    checkouts(schedule, lease.number, node, units, seconds)
    assert schedule.done(lease.number, node)
    return lease


def test_partitions_are_as_large_as_their_workers_are_fast():
    schedule = schedule_of(blocks=4, epochs=2, chunks=4, nodes=(1, 2, 3))
    first = [trained(schedule, node, units) for node, units in ((1, 40), (2, 40), (3, 20))]
    assert [lease.terms.sizes for lease in first] == [()] * 3
    later = [trained(schedule, node, units) for node, units in ((1, 42), (2, 38), (3, 20))]
    assert [(lease.terms.chunk, lease.terms.part) for lease in later] == [(1, 0), (1, 1), (1, 2)]
    assert [lease.terms.sizes for lease in later] == [(19, 19, 10)] * 3
    assert schedule.progress == pytest.approx(2 / 8)
    later = [trained(schedule, node, units) for node, units in ((1, 40), (2, 40), (3, 20))]
    # A little is no reason to change.
    assert [lease.terms.sizes for lease in later] == [(19, 19, 10)] * 3
    assert [one[2] for one in schedule.chunks.decided()] == [(), (19, 19, 10), (19, 19, 10)]


@pytest.mark.parametrize(
    ("cores", "sizes"),
    [((0.4, 0.4, 0.2), (19, 19, 10)), ((8, 8, 8), ()), ((2, 2, 1.9), ()), ((16, 1, 1), (32, 8, 8))],
)
def test_first_partitions_are_as_large_as_their_workers_have_cores(cores, sizes):
    schedule = schedule_of(
        blocks=4, epochs=2, chunks=4, nodes=(1, 2, 3), cores_of=lambda node: cores[node - 1]
    )
    assert [trained(schedule, node, 40).terms.sizes for node in (1, 2, 3)] == [sizes] * 3


def test_who_asks_first_gets_the_partition_that_is_as_large_as_its_cores():
    cores = {1: 1.0, 2: 1.0, 3: 0.5}
    schedule = schedule_of(blocks=4, epochs=2, chunks=4, nodes=list(cores), cores_of=cores.get)
    encodes(schedule, 0)
    leases = [schedule.take(node).terms for node in (3, 3, 2, 1)]
    assert isinstance(leases.pop(1), ChunkBlock)
    assert [lease.part for lease in leases] == [2, 1, 0]


def test_what_is_decided_stays_until_speeds_are_known():
    """Behind a takeover, or where a worker comes in the place of another one."""
    cores = {1: 1.0, 2: 1.0, 3: 4.0}
    schedule = schedule_of(cores_of=cores.get)
    assert [trained(schedule, node, 40).terms.sizes for node in (1, 2)] == [()] * 2
    schedule.leave(2)
    schedule.join(3)
    assert trained(schedule, 1, 40).terms.sizes == ()


def test_sizes_of_a_checkpoint_go_to_workers_of_such_cores():
    cores = {7: 0.5, 8: 1.0, 9: 1.0}
    extent = {
        "open": 0,
        "closed_partitions": 0,
        "parts_max": 3,
        "parts": [3],
        "sizes": [[19, 19, 10]],
    }
    schedule = schedule_of(
        blocks=4, epochs=2, chunks=4, nodes=list(cores), cores_of=cores.get, extent=extent
    )
    encodes(schedule, 0)
    assert [schedule.take(node).terms.part for node in cores] == [2, 0, 1]


def test_the_workers_of_most_cores_train_where_not_all_can():
    cores = {1: 0.5, 2: 0.5, 3: 2.0}
    schedule = schedule_of(
        blocks=1, epochs=1, chunks=1, most_parts=2, nodes=list(cores), cores_of=cores.get
    )
    encodes(schedule, 0)
    assert schedule.take(2) is None
    assert str(schedule.wait_of(2)) == "worker 1, worker 3 to lease a partition of chunk 0"
    leases = [schedule.take(node).terms for node in (1, 3)]
    assert [(lease.part, lease.sizes) for lease in leases] == [(1, (26, 6)), (0, (26, 6))]


def test_first_sweep_is_made_up_where_a_checkout_of_it_is_not_durable():
    """A lost worker held one of the first sweep while another of the second one was durable."""
    schedule = RotationSchedule(Entries(blocks_of(2), 2), Rotation(1, 4, sweeps=3), nodes=[1, 2])
    encodes(schedule, 0)
    first = schedule.take(1)
    for part in (0, 1, 2):
        assert schedule.checkouts.check_out(first.number, 1) == part
        assert schedule.checkouts.check_in(first.number, 1, part)
    assert [schedule.checkouts.check_out(first.number, 1) for _ in range(2)] == [3, 4]
    assert schedule.checkouts.check_in(first.number, 1, 4)
    assert schedule.checkouts.make_durable(first.number, 1) == [0, 1, 2, 4]
    schedule.retire(1)
    schedule.join(3)
    again = schedule.take(3)
    assert (again.terms.part, again.terms.durable) == (0, (0, 1, 2, 4))
    assert checkouts(schedule, again.number, 3) == [3, *range(5, 12)]


def test_speeds_that_are_known_count_for_more_than_cores():
    schedule = schedule_of(nodes=(1, 2), cores_of=lambda node: 4.0 if node == 1 else 1.0)
    assert [trained(schedule, node, 40).terms.sizes for node in (1, 2)] == [(26, 6)] * 2
    assert [trained(schedule, node, 40).terms.sizes for node in (1, 2)] == [()] * 2


def test_a_worker_that_joins_has_a_partition_as_large_as_its_cores():
    schedule = schedule_of(
        blocks=4, epochs=2, chunks=4, cores_of=lambda node: 0.5 if node == 3 else 1.0
    )
    for node in (1, 2):
        trained(schedule, node, 40)
    schedule.join(3)
    assert trained(schedule, 1, 40).terms.sizes == (19, 19, 10)


def test_progress_and_shares_of_partitions_are_by_their_sizes():
    schedule = schedule_of(blocks=4, epochs=1, chunks=2)
    for node, units in ((1, 30), (2, 10)):
        trained(schedule, node, units)
    large = trained(schedule, 1, 30)
    assert large.terms.sizes == (24, 8)
    assert schedule.progress == pytest.approx(0.5 + 0.75 / 2)
    again = taken_over(schedule, (1, 2))
    assert again.plan.entry(large.number).terms.sizes == (24, 8)
    assert again.plan.share(again.records.done() - again.records._first) == pytest.approx(
        0.5 + 0.75 / 2
    )


def test_other_sizes_wait_for_the_chunk_before_and_for_speeds():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4)
    for chunk in range(3):
        encodes(schedule, chunk)
    one, two = schedule.take(1), schedule.take(2)
    rate(schedule, 1, units=30)
    assert schedule.take(1) is None  # the speed of worker 2 is not known
    assert schedule.woken({1: None}) == [1]
    rate(schedule, 2)
    assert schedule.woken({1: None}) == []  # other sizes wait for the whole chunk
    assert schedule.take(1) is None
    checkouts(schedule, one.number, 1)
    assert schedule.done(one.number, 1)
    assert schedule.take(1) is None
    assert "worker 2 to finish chunk 0" in str(schedule.wait_of(1))
    checkouts(schedule, two.number, 2)
    assert schedule.done(two.number, 2)
    leases = [schedule.take(node).terms for node in (1, 2)]
    assert [(lease.chunk, lease.sizes) for lease in leases] == [(1, (24, 8))] * 2


def test_worker_is_woken_when_the_speeds_of_all_are_known():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4)
    for chunk in range(3):
        encodes(schedule, chunk)
    for node in (1, 2):
        schedule.take(node)
    schedule.woken({1: None})
    rate(schedule, 1)
    assert schedule.take(1) is None
    assert schedule.woken({1: None}) == []
    rate(schedule, 2)
    assert schedule.woken({1: None}) == [1]
    assert schedule.take(1).terms.chunk == 1


def test_worker_in_the_place_of_a_lost_one_is_taken_to_be_as_fast():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4)
    for node, units in ((1, 30), (2, 10)):
        trained(schedule, node, units)
    trained(schedule, 1, 30)
    assert schedule.retire(2) == []
    schedule.join(3)
    last = trained(schedule, 3, 1, seconds=0.1)  # too little for a speed
    assert (last.terms.chunk, last.terms.part, last.terms.sizes) == (1, 1, (24, 8))
    assert trained(schedule, 3, 1, seconds=0.1).terms.sizes == (24, 8)


def test_speed_is_of_the_last_minute_and_no_partition_is_larger_than_twice_the_mean():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4, nodes=(1, 2, 3))
    for node, units in ((1, 10_000), (2, 10), (3, 10)):
        trained(schedule, node, units)
    assert trained(schedule, 1, 1000, seconds=1000.0).terms.sizes == (32, 8, 8)
    others = [trained(schedule, node, 1000, seconds=1000.0).terms for node in (2, 3)]
    assert [lease.sizes for lease in others] == [(32, 8, 8)] * 2
    assert trained(schedule, 1, 1).terms.sizes == ()


@pytest.mark.parametrize("speeds", [(8, *[1] * 3), (1, 1, 1, 0.02), (100, 1), (20, 20, 20, 5)])
def test_sizes_stay_where_speeds_only_differ_by_noise(speeds):
    """Also where no partition can be as large as its worker is fast."""
    random = np.random.default_rng(1)
    schedule = schedule_of(24, epochs=1, chunks=24, nodes=range(1, 1 + len(speeds)))
    found = []
    for _ in range(20):
        for node, speed in enumerate(speeds, 1):
            units = round(1e6 * speed * random.normal(1.0, 0.05))
            found.append(trained(schedule, node, units, seconds=2.0).terms.sizes)
    sizes = [*dict.fromkeys(found)]
    assert sizes[0] == ()
    assert len(sizes) == 2
    assert max(sizes[1]) <= 2.1 * np.mean(sizes[1])


@pytest.mark.parametrize(("seconds", "sizes"), [(0.5, ()), (8.0, (20, 12))])
def test_the_shorter_speeds_are_measured_the_more_they_must_differ(seconds, sizes):
    """Workers of which one is .6 as fast, or had no luck."""
    schedule = schedule_of(blocks=4, epochs=1, chunks=2)
    for node, units in ((1, 100), (2, 60)):
        trained(schedule, node, units, seconds=seconds / 4)  # has four checkouts
    assert trained(schedule, 1, 100).terms.sizes == sizes


def test_slow_worker_that_gets_the_part_of_one_that_left_has_a_small_one():
    schedule = schedule_of(8, epochs=1, chunks=8, nodes=(1, 2, 3, 4))
    speeds = {1: 20, 2: 20, 3: 20, 4: 5}
    for node, units in speeds.items():
        trained(schedule, node, units)
    assert schedule.retire(2) == []
    later = {node: trained(schedule, node, speeds[node]) for node in (1, 3, 4)}
    assert [(lease.terms.part, lease.terms.sizes) for lease in later.values()] == [
        (0, (21, 5, 21)), (2, (21, 5, 21)), (1, (21, 5, 21)),
    ]  # fmt: skip


def test_worker_that_asked_while_one_was_unknown_is_woken_though_it_was_looked_at_before():
    schedule = schedule_of(blocks=4, epochs=1, chunks=4, nodes=(1, 2, 3))
    for chunk in range(3):
        encodes(schedule, chunk)
    for node in (1, 2, 3):
        schedule.take(node)
    rate(schedule, 1, 2, 3)
    schedule.leave(3)  # and ends what it has
    schedule.join(4)
    assert schedule.take(1) is None  # how fast worker 3 was is forgotten
    schedule.woken({1: None})
    rate(schedule, 3)
    assert schedule.woken({1: None}) == [1]
    assert schedule.take(1).terms.chunk == 1


def test_parts_are_never_more_than_the_model_has_room_for():
    schedule = schedule_of(most_parts=2, nodes=(1, 2, 3))
    encodes(schedule, 0)
    assert {schedule.take(node).terms.part for node in (1, 2)} == {0, 1}
    extra = schedule.take(3)
    assert isinstance(extra.terms, ChunkBlock)
    assert schedule.chunks.decided() == [(0, 2, ())]


# --- output partitions ----------------------------------------------------------------------------


def tenants(nodes=(1, 2, 3), chunks=1):
    """A schedule whose workers have one partition each of the first chunk; their numbers."""
    schedule = schedule_of(blocks=chunks, epochs=1, chunks=chunks, nodes=nodes)
    encodes(schedule, 0)
    return schedule, [schedule.take(node).number for node in nodes]


def test_output_partition_is_the_next_free_one_from_its_leases_own_place():
    schedule, (a, b, c) = tenants()
    assert [schedule.checkouts.check_out(a, 1) for _ in range(3)] == [0, 1, 2]
    assert [schedule.checkouts.check_out(b, 2) for _ in range(3)] == [3, 4, 5]
    assert schedule.checkouts.check_out(c, 3) is None
    assert str(schedule.checkouts.wait_of(c, 3)) == "worker 1 to check in partition 0"
    assert schedule.checkouts.check_in(b, 2, 4)
    assert schedule.checkouts.check_out(c, 3) == 4
    assert schedule.checkouts.check_out(b, 2) is None
    assert schedule.checkouts.check_in(a, 1, 0)
    assert schedule.checkouts.check_out(c, 3) == 0
    assert schedule.checkouts.check_out(a, 1) is None  # it has had part 0


def test_partition_that_has_had_all_parts_is_told_so():
    schedule, (a, _, _) = tenants()
    assert checkouts(schedule, a, 1) == list(range(6))
    assert schedule.checkouts.check_out(a, 1) == NO_PART


def test_part_that_is_not_held_is_not_taken_back():
    schedule, (a, b, _) = tenants()
    part = schedule.checkouts.check_out(a, 1)
    assert not schedule.checkouts.check_in(a, 2, part)
    assert not schedule.checkouts.check_in(b, 2, part)
    assert not schedule.checkouts.check_in(a, 1, part + 1)
    assert not schedule.checkouts.check_in(999, 1, part)
    assert schedule.checkouts.check_in(a, 1, part)
    assert not schedule.checkouts.check_in(a, 1, part)


def test_checking_out_for_a_partition_of_another_worker_is_refused():
    schedule, (a, _, _) = tenants()
    for number, node in ((a, 2), (0, 1), (999, 1), (-1, 1)):
        with pytest.raises(LookupError, match="not leased to worker"):
            schedule.checkouts.check_out(number, node)


def test_partition_waits_for_a_part_while_its_worker_has_it_and_holds_none():
    schedule, (a, _, _) = tenants()
    assert schedule.checkouts.wait_of(a, 1) is not None
    assert schedule.checkouts.wait_of(a, 2) is None
    schedule.checkouts.check_out(a, 1)
    assert schedule.checkouts.wait_of(a, 1) is None
    schedule.retire(1)
    assert schedule.checkouts.wait_of(a, 1) is None


@pytest.mark.parametrize("how", ["retire", "release", "done", "ends early"])
def test_parts_of_a_partition_that_ends_are_free(how):
    schedule, (a, b, _) = tenants()
    held = [schedule.checkouts.check_out(a, 1) for _ in range(6)]
    assert schedule.checkouts.check_out(b, 2) is None
    if how in ("retire", "release"):
        getattr(schedule, how)(1)
    elif how == "done":
        assert schedule.done(a, 1)
    else:
        assert schedule.checkouts.cut(a, 1)
    assert checkouts(schedule, b, 2) == [2, 3, 4, 5, 0, 1]
    assert len(held) == 6
    assert schedule.records.is_done(a) == (how == "done")


def test_part_is_checked_out_by_one_partition_across_chunks():
    schedule = schedule_of(blocks=2, epochs=1, chunks=2)
    encodes(schedule, 0)
    encodes(schedule, 1)
    a, b = schedule.take(1).number, schedule.take(2).number
    checkouts(schedule, a, 1)
    assert schedule.done(a, 1)
    rate(schedule, 2)
    later = schedule.take(1).number
    assert [schedule.checkouts.check_out(b, 2) for _ in range(2)] == [3, 0]
    assert [schedule.checkouts.check_out(later, 1) for _ in range(3)] == [1, 2, None]


# --- durable checkouts ----------------------------------------------------------------------------


def test_partition_of_a_lost_worker_goes_on_behind_its_durable_checkouts():
    schedule, (a, b, _) = tenants()
    had = [schedule.checkouts.check_out(a, 1) for _ in range(4)]
    for part in had[:2]:
        schedule.checkouts.check_in(a, 1, part)
    assert schedule.checkouts.make_durable(a, 1) == [0, 1]
    assert schedule.checkouts.make_durable(a, 1) == []
    schedule.checkouts.check_in(a, 1, had[2])  # trained, and its input rows are lost
    assert schedule.retire(1) == [a]
    assert schedule.progress == pytest.approx(2 / 18)
    again = schedule.take(4)
    assert (again.number, again.terms.durable) == (a, (0, 1))
    assert checkouts(schedule, a, 4) == [2, 3, 4, 5]
    assert schedule.progress == pytest.approx(6 / 18)
    assert schedule.done(a, 4)
    assert schedule.plan.entry(a).terms.durable == ()
    assert schedule.plan.entry(b).terms.durable == ()


def test_checkouts_made_durable_by_two_workers_after_another_add_up():
    schedule, (a, _, _) = tenants()
    for node, parts in ((1, [0, 1]), (4, [2]), (5, [3, 4, 5])):
        if node > 1:
            assert schedule.take(node).number == a
        for part in parts:
            assert schedule.checkouts.check_out(a, node) == part
            assert schedule.checkouts.check_in(a, node, part)
        assert schedule.checkouts.make_durable(a, node) == parts
        schedule.retire(node)
    assert schedule.take(6).terms.durable == (0, 1, 2, 3, 4, 5)
    assert schedule.checkouts.check_out(a, 6) == NO_PART
    assert schedule.done(a, 6)


def test_checkouts_are_made_durable_by_the_worker_of_their_partition_only():
    schedule, (a, b, _) = tenants()
    for number, node in ((a, 2), (b, 1), (0, 1), (999, 1)):
        with pytest.raises(LookupError, match="not leased to worker"):
            schedule.checkouts.make_durable(number, node)


def test_partition_that_is_cut_is_trained_again_whole():
    schedule, (a, _, _) = tenants()
    schedule.checkouts.check_in(a, 1, schedule.checkouts.check_out(a, 1))
    schedule.checkouts.make_durable(a, 1)
    schedule.close()
    assert schedule.checkouts.cut(a, 1)
    assert schedule.plan.entry(a).terms.durable == ()


def test_durable_checkouts_are_for_a_master_that_takes_over_and_not_for_a_checkpoint():
    schedule, (a, b, c) = tenants()
    for number, node in ((a, 1), (b, 2)):
        for _ in range(2):
            schedule.checkouts.check_in(number, node, schedule.checkouts.check_out(number, node))
        schedule.checkouts.make_durable(number, node)
    schedule.done(b, 2)
    again = taken_over(schedule, [1, 3])
    assert again.plan.entry(a).terms.durable == (0, 1)
    assert again.progress == pytest.approx(schedule.progress)
    assert again.chunks.adopt_durable(c, [1, 5, 6, -1])
    assert again.plan.entry(c).terms.durable == (1, 5)
    assert not again.chunks.adopt_durable(b, [0])  # it is done
    assert not again.chunks.adopt_durable(0, [0])
    assert not again.chunks.adopt_durable(10_000, [0])
    assert again.claim(a, 1)
    again.checkouts.claim(a, 1, [2], [2])
    assert checkouts(again, a, 1) == [3, 4, 5]
    saved = schedule_of(
        blocks=1, epochs=1, chunks=1, known=schedule.durable(), extent=schedule.chunks.extent
    )
    assert saved.plan.entry(a).terms.durable == ()


# --- progress, the end ----------------------------------------------------------------------------


def test_progress_counts_checkouts_and_share_counts_partitions():
    schedule, (a, b, c) = tenants()
    assert schedule.progress == 0.0
    part = schedule.checkouts.check_out(a, 1)
    assert schedule.progress == 0.0
    schedule.checkouts.check_in(a, 1, part)
    assert schedule.progress == pytest.approx(1 / 18)
    checkouts(schedule, a, 1)
    schedule.done(a, 1)
    assert schedule.progress == pytest.approx(1 / 3)
    assert schedule.plan.share(schedule.records.done()) == pytest.approx(1 / 3)
    assert schedule.plan.share([]) == 0.0
    for number, node in ((b, 2), (c, 3)):
        schedule.done(number, node)
    assert schedule.over
    assert schedule.progress == 1.0
    assert schedule.plan.share(schedule.records.done()) == pytest.approx(1.0)
    assert (schedule.finished, schedule.size) == (4, 4)


def test_closed_schedule_leases_nothing_and_is_over_when_partitions_end():
    schedule, (a, b, c) = tenants(chunks=2)
    schedule.close()
    assert schedule.take(1) is None
    assert not schedule.over
    assert schedule.checkouts.cut(a, 1)
    assert not schedule.checkouts.cut(a, 1)
    assert not schedule.checkouts.cut(0, 1)
    assert schedule.done(b, 2)
    schedule.abandon(3)
    assert schedule.over
    assert schedule.records.is_waiting(a)
    assert schedule.records.is_waiting(c)
    assert schedule.woken({1, 2, 3}) == []


def test_losses_at_an_encoded_block_count_as_at_another_and_partitions_are_allowed_more():
    schedule, _ = tenants(nodes=(1,))
    assert [schedule.blame(1) for _ in range(PARTITION_LOSSES_MAX)] == [-1] * (
        PARTITION_LOSSES_MAX - 1
    ) + [1]
    schedule = schedule_of(nodes=(1,))
    schedule.take(1)
    assert [schedule.blame(1) for _ in range(LOSSES_MAX)] == [-1] * (LOSSES_MAX - 1) + [0]
    assert schedule.blame(7) == -1


# --- going on -------------------------------------------------------------------------------------


def test_schedule_goes_on_from_its_snapshot_with_what_workers_claim():
    schedule, (a, b, c) = tenants(chunks=2)
    held = [schedule.checkouts.check_out(a, 1), schedule.checkouts.check_out(a, 1)]
    schedule.checkouts.check_in(a, 1, held[0])
    schedule.checkouts.check_out(b, 2)
    schedule.done(c, 3)
    again = taken_over(schedule, [1, 2, 3])
    assert again.chunks.extent["parts"] == [3, 0]
    assert again.claim(a, 1)
    assert again.claim(b, 2)
    assert not again.claim(c, 3)  # it is done
    assert not again.claim(a, 2)
    assert not again.claim(10_000, 2)
    assert not again.claim(again.chunks.numbers.number(0, 5), 2)  # there are three parts
    again.checkouts.claim(a, 1, held, held[1:])
    again.checkouts.claim(b, 2, [2], [2])
    assert again.checkouts.check_out(a, 1) == 3
    with pytest.raises(LookupError, match="checked out already"):
        again.checkouts.claim(b, 2, [2, 3], [3])
    with pytest.raises(LookupError, match="checkouts"):
        again.checkouts.claim(b, 2, [6], [])
    with pytest.raises(LookupError, match="not leased"):
        again.checkouts.claim(c, 3, [], [])
    assert again.progress == pytest.approx(schedule.progress)


def test_checkpoint_has_done_partitions_and_blocks_of_open_chunks_are_encoded_again():
    schedule, (a, b, c) = tenants(chunks=2)
    for number, node in ((a, 1), (b, 2), (c, 3)):
        schedule.done(number, node, BlockResult(units=5))
    encodes(schedule, 1)
    later = schedule.take(1).number
    schedule.done(later, 1, BlockResult(units=7))
    saved = {"known": schedule.durable(), "extent": schedule.chunks.extent}
    again = schedule_of(blocks=2, epochs=1, chunks=2, nodes=(8, 9), **saved)
    assert again.records.done().tolist() == [later]
    assert (again.finished, again.size) == (5, schedule.size)
    entry = again.take(8)
    assert (entry.terms.chunk, entry.terms.chunk_index) == (1, 0)
    assert again.take(9) is None
    assert str(again.wait_of(9)) == "worker 8 to encode a block of chunk 1"
    again.done(entry.number, 8)
    parts = [again.take(8), again.take(9)]
    assert [one.terms.part for one in parts] == [1, 2]  # of three, as it was
    for node, one in zip((8, 9), parts, strict=True):
        checkouts(again, one.number, node)
        again.done(one.number, node)
    assert again.over


def test_run_with_more_epochs_goes_on_behind_closed_chunks():
    schedule, numbers = tenants(chunks=2)
    for number, node in zip(numbers, (1, 2, 3), strict=True):
        schedule.done(number, node)
    saved = {"known": schedule.durable(), "extent": schedule.chunks.extent}
    again = schedule_of(blocks=2, epochs=3, chunks=2, **saved)
    assert again.take(1).terms.chunk == 1
    assert again.progress == pytest.approx(1 / 6)
    assert again.finished == 4


def test_run_with_fewer_epochs_has_no_partition_of_chunks_behind_its_last_one():
    schedule = schedule_of(blocks=2, epochs=2, chunks=1)
    encodes(schedule, 0)
    slow, quick = schedule.take(1).number, schedule.take(2).number
    encodes(schedule, 1, node=2)
    assert schedule.done(quick, 2)
    rate(schedule, 1)
    ahead = schedule.take(2)
    assert ahead.terms.chunk == 1
    assert schedule.done(ahead.number, 2)
    saved = {"known": schedule.durable(), "extent": schedule.chunks.extent}
    again = schedule_of(blocks=2, epochs=1, chunks=1, **saved)
    assert again.records.done().tolist() == [quick]
    encodes(again, 0)
    last = again.take(1)
    assert last.number == slow
    assert again.done(slow, 1)
    assert again.over
    assert again.finished == again.size
    assert again.plan.share(again.records.done()) == 1.0


def test_bad_lines_of_blocks_that_a_checkpoint_lacks_are_those_of_open_chunks():
    schedule, numbers = tenants(chunks=2)
    assert schedule.chunks.bad_lines == 0
    index = schedule.take(1).number
    schedule.done(index, 1, BlockResult(bad_lines=3))
    assert schedule.chunks.bad_lines == 3
    for number, node in zip(numbers, (1, 2, 3), strict=True):
        schedule.done(number, node)
    assert schedule.chunks.bad_lines == 3
    schedule.take(1)
    schedule.done(numbers[0] + schedule.chunks.numbers.stride, 1)
    assert np.flatnonzero(schedule.durable()["state"]).tolist() == [1]


# --- a walk ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_pair_of_parts_is_checked_out_once_and_no_part_has_two_writers(seed):
    site = Site(seed)
    for _ in range(site.rng.randint(0, 400)):
        if site.schedule.over:
            break
        site.step(faults=True)
    site.finish()
    schedule = site.schedule
    assert schedule.progress == pytest.approx(1.0)
    checkouts = schedule.checkouts
    assert (len(checkouts._out), len(checkouts._leases)) == (0, 0)
    expected = {
        site.number_of(chunk, part)
        for chunk in range(site.count)
        for part in range(site.parts[chunk])
    }
    assert set(site.done_partitions) == expected
    assert schedule.chunks.extent == {
        "open": site.count,
        "closed_partitions": len(expected),
        "parts_max": max(site.parts.values()),
        "parts": [],
        "sizes": [],
    }
    assert schedule.plan.share(schedule.records.done()) == pytest.approx(1.0)
    assert schedule.finished == schedule.size
