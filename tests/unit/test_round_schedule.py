"""Rounds: who is drawn, what counts, and what a replay makes of reports."""

import pytest

from snailps.master.leases.rounds import RoundSchedule

NODES = [1, 2, 3]


def take_all(book, nodes):
    return {node: entry for node in nodes if (entry := book.take(node)) is not None}


def test_rounds_give_each_worker_one_entry_a_round():
    book = RoundSchedule(3, [5, 6])
    for round_ in range(3):
        entries = take_all(book, (6, 5))
        assert book.take(5) is None
        assert [
            (e.number, e.terms.clock, e.terms.slot, e.terms.slots, e.terms.index, e.epoch)
            for e in (entries[5], entries[6])
        ] == [
            (2 * round_, round_, 0, 2, 0, round_), (2 * round_ + 1, round_, 1, 2, 1, round_)
        ]  # fmt: skip
        assert book.done(entries[6].number, 6)
        assert not book.rounds.ready
        assert book.done(entries[5].number, 5)
        assert book.rounds.ready
        assert book.rounds.done_slots == [0, 1]
        assert book.take(5) is None  # not before the round is closed
        book.rounds.advance()
    assert book.over
    assert book.finished == 6
    assert take_all(book, (5, 6)) == {}


def test_rounds_draw_the_same_fraction_for_the_same_seed_and_others_later():
    def drawn(seed):
        book = RoundSchedule(6, list(range(1, 9)), fraction=0.5, seed=seed)
        found = []
        while not book.over:
            entries = take_all(book, range(1, 9))
            assert [e.terms.slot for e in entries.values()] == list(range(4))
            found.append(sorted(entries))
            for node, entry in entries.items():
                assert entry.terms.slots == 4
                book.done(entry.number, node)
            book.rounds.advance()
        return found

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len({tuple(nodes) for nodes in drawn(1)}) > 1


def test_rounds_cut_off_late_ones_and_take_them_back_later():
    book = RoundSchedule(3, [1, 2, 3])
    entries = take_all(book, (1, 2, 3))
    assert book.rounds.cut_off() == []  # one worker has to be done first
    book.done(entries[1].number, 1)
    book.done(entries[3].number, 3)
    assert book.rounds.cut_off() == [2]
    assert book.rounds.ready
    assert book.rounds.done_slots == [0, 2]
    late = entries[2].number
    assert book.rounds.is_void(late)
    book.rounds.advance()
    assert book.rounds.is_void(late)
    assert not book.done(late, 2)  # its part is not wanted any more
    assert not book.rounds.is_void(late)
    assert book.take(2).terms.clock == 1


def test_rounds_go_on_without_a_lost_worker_and_its_index_is_taken_by_the_next():
    book = RoundSchedule(9, [1, 2])
    entries = take_all(book, (1, 2))
    book.done(entries[1].number, 1)
    assert not book.rounds.ready
    book.retire(2)
    assert book.rounds.ready
    assert book.rounds.done_slots == [0]
    book.rounds.advance()
    assert take_all(book, (1,))[1].terms.slots == 1
    book.join(7)
    book.done(2, 1)
    book.rounds.advance()
    assert take_all(book, (1, 7))[7].terms.index == 1


@pytest.mark.parametrize("resumed", [False, True])
def test_rounds_give_an_index_that_becomes_free_to_a_worker_that_has_none(resumed):
    book = RoundSchedule(9, [1, 2])
    for node in (7, 8):
        book.join(node)
        assert book.take(node) is None
    if resumed:
        snapshot, book = book.snapshot(), RoundSchedule(9, [1, 2])
        book.resume(snapshot)
    book.leave(1)
    book.retire(1)
    assert take_all(book, (2, 7, 8)).keys() == {2}  # of this round the part of 1 is void
    book.done(1, 2)
    book.rounds.advance()
    assert {n: e.terms.index for n, e in take_all(book, (2, 7, 8)).items()} == {2: 1, 7: 0}
    book.retire(7)
    book.retire(2)  # neither is done: another round begins with the last worker
    assert book.woken({8}) == [8]
    assert take_all(book, (8,)).keys() == {8}


def test_rounds_whose_only_drawn_worker_is_lost_draw_again():
    book = RoundSchedule(2, [1, 2], fraction=0.5, seed=3)
    (lost,) = take_all(book, (1, 2))
    book.retire(lost)
    other = 3 - lost
    entry = book.take(other)
    assert entry.terms.clock == 0
    book.done(entry.number, other)
    assert book.rounds.ready


def test_part_of_a_round_that_is_past_or_closed_is_void():
    book = RoundSchedule(3, NODES)
    assert book.claim(0, 1)
    assert book.done(0, 1)
    book.rounds.only([0])
    assert not book.claim(1, 2)
    assert book.rounds.is_void(1)
    book.rounds.advance()
    assert not book.claim(2, 3)
    assert book.rounds.is_void(2)
    assert book.claim(3, 1)


def test_part_of_a_round_that_the_journal_has_lost_counts_when_it_is_trained_again():
    book = RoundSchedule(3, NODES)
    assert not book.claim(3, 1)  # of the next round: the worker knows more than the journal
    for node in NODES:
        assert book.done(book.take(node).number, node)
    book.rounds.advance()
    assert book.take(1).number == 3
    assert book.done(3, 1)


def test_part_of_a_worker_that_left_meanwhile_counts_in_a_replay():
    """Leases are not in the journal: of a part that was leased before, `done` alone tells."""
    living, replayed = (RoundSchedule(3, NODES) for _ in range(2))
    assert living.take(2).number == 1
    for book in (living, replayed):
        book.leave(2)
    assert living.done(1, 2)
    assert replayed.claim(1, 2)
    assert replayed.done(1, 2)
    assert replayed.rounds.done_slots == living.rounds.done_slots == [1]
    assert not replayed.rounds.ready
    assert [replayed.take(node).number for node in (1, 3)] == [0, 2]
