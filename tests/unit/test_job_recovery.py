"""master.job.recovery: a replayed schedule stands where the first one did; entries by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from without import is_there

from snailps.master.leases import BspSchedule, Entries, QueueSchedule, SspSchedule
from snailps.pieces import Piece
from snailps.registry import named

BLOCKS = [Piece("file", 0, 1)] * 7
NODES = [1, 2, 3]
BOOKS = {
    "plain": lambda: QueueSchedule(Entries(BLOCKS, 2)),
    "ssp": lambda: SspSchedule(Entries(BLOCKS, 2), nodes=NODES, staleness=3),
    "stepped": lambda: BspSchedule(Entries(BLOCKS, 2), micro_batches=3, nodes=NODES),
}
if is_there("rounds"):
    BOOKS["rounds"] = lambda: named("rounds").RoundSchedule(3, NODES)


def finish(book, held):
    """Works through a book from here: every entry that is finished, in the order of that."""
    order = []
    for _ in range(200):
        if book.rounds is not None and book.rounds.ready:
            book.rounds.advance()
        for node in NODES:
            if not held[node] and (entry := book.take(node)) is not None:
                held[node].append(entry.number)
            if held[node]:
                number = held[node].pop(0)
                assert book.done(number, node)
                order.append(number)
    assert book.over
    return order


@pytest.mark.parametrize("kind", BOOKS)
@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["take", "done", "retire", "join"]), st.sampled_from(NODES)),
        max_size=60,
    )
)
def test_book_replayed_has_every_entry_done_once(kind, actions):
    living, replayed = BOOKS[kind](), BOOKS[kind]()
    held = {node: [] for node in NODES}
    done = []
    for action, node in actions:
        if action == "take" and (entry := living.take(node)) is not None:
            held[node].append(entry.number)
        elif action == "done" and held[node]:
            number = held[node].pop(0)
            assert living.done(number, node)
            assert replayed.claim(number, node)
            assert replayed.done(number, node)
            done.append(number)
        elif action == "retire" and len(held) > 1 and kind != "rounds":
            living.retire(node), replayed.retire(node)
            held[node].clear()
        elif action == "join":
            living.join(node), replayed.join(node)
        if living.rounds is not None and living.rounds.ready:
            living.rounds.advance(), replayed.rounds.advance()
    for node, numbers in held.items():
        for number in numbers:
            assert replayed.claim(number, node)
            assert replayed.claim(number, node)  # said twice
    by_worker = [[book.records.held_by(node) for node in NODES] for book in (living, replayed)]
    assert by_worker[0] == by_worker[1]
    assert replayed.finished == living.finished
    if kind == "stepped":
        assert replayed.slots.open == living.slots.open
        assert all(replayed.slots.last_of(node) == living.slots.last_of(node) for node in NODES)
    for node in NODES:
        replayed.join(node)
    done += finish(replayed, held)
    wanted = 9 if kind == "rounds" else 14
    assert sorted(done) == [*range(wanted)]


def test_claim_of_what_is_done_or_held_by_another_is_refused():
    book = QueueSchedule(Entries(BLOCKS))
    assert book.claim(4, 1)
    assert not book.claim(4, 2)
    assert book.done(4, 1)
    assert not book.claim(4, 1)
    assert not book.claim(7, 1)
    assert [book.take(2).number for _ in range(6)] == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize("kind", BOOKS)
def test_results_count_in_the_epoch_or_round_of_their_entry(kind):
    book, found = BOOKS[kind](), []
    for _ in range(6):
        for node in NODES:
            if (entry := book.take(node)) is not None:
                found.append((book.plan.epoch_of(entry.number), entry.epoch))
                assert book.done(entry.number, node)
        if book.rounds is not None and book.rounds.ready:
            book.rounds.advance()
    assert {epoch for _, epoch in found} > {0}
    assert all(counted == epoch for counted, epoch in found)
