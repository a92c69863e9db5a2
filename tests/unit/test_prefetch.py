"""What a worker trains next: prefetched blocks, and those that come back from a lost worker."""

from concurrent.futures import Future

from snailps.transport.messages.terms import Step
from snailps.worker.prefetch import BlockPrefetcher
from tests.support.blocks import held_block


class Pull:
    """A request under way."""

    abandoned = False

    def abandon(self):
        self.abandoned = True


def block(number, clock):
    made = held_block(number=number, terms=Step(clock))
    made._pulls.append(Pull())
    made._reach = Pull()
    return made


class Helper:
    """Answers requests for blocks when the test says so."""

    def __init__(self):
        self.asked = []

    def __call__(self, back=False):
        self.asked.append((back, Future()))
        return self.asked[-1][1]

    def answer(self, at, block):
        self.asked[at][1].set_result(block)


def test_coming_asks_ahead_only_once_the_block_before_is_there():
    helper = Helper()
    prefetcher = BlockPrefetcher(helper)
    answers = iter([block(0, 0), block(1, 0), block(2, 1), block(3, 1)])
    ask = helper.__call__

    def ready(back=False):
        future = ask(back)
        future.set_result(next(answers, None))
        return future

    prefetcher = BlockPrefetcher(ready)
    assert prefetcher.next(2).number == 0
    assert len(helper.asked) == 3
    assert [prefetcher.next(2).number for _ in range(3)] == [1, 2, 3]
    assert prefetcher.next(2) is None


def test_coming_gives_a_block_of_an_earlier_clock_first_and_the_other_one_after_it():
    helper = Helper()
    prefetcher = BlockPrefetcher(helper)
    first = block(8, 2)
    helper_first = prefetcher._ask(False)
    helper_first.set_result(first)
    prefetcher._blocks.append(helper_first)
    assert prefetcher.next(1) is first
    assert prefetcher.earlier(first) is None  # not known yet
    early = block(4, 1)
    helper.answer(1, early)
    assert prefetcher.earlier(first) is early
    assert prefetcher.next(1) is first


def test_coming_asks_for_blocks_that_came_back_beside_those_on_their_way():
    helper = Helper()
    prefetcher = BlockPrefetcher(helper)
    prefetcher._blocks.append(prefetcher._ask(False))
    helper.answer(0, block(9, 3))
    waiting = prefetcher.next(1)
    prefetcher.ask_back()
    assert helper.asked[2][0] is True
    helper.answer(2, None)  # another worker has it
    assert prefetcher.earlier(waiting) is None
    prefetcher.ask_back()
    back = block(1, 0)
    helper.answer(3, back)
    assert prefetcher.earlier(waiting) is back
    assert prefetcher.next(1) is waiting


def test_coming_that_is_dropped_abandons_pulls_also_of_blocks_that_come_later():
    helper = Helper()
    prefetcher = BlockPrefetcher(helper)
    prefetcher._blocks.append(prefetcher._ask(False))
    first = block(0, 0)
    helper.answer(0, first)
    prefetcher.next(1)
    prefetcher.drop()
    late = block(1, 0)
    helper.answer(1, late)
    assert late._pulls[0].abandoned
    assert late._reach.abandoned
    assert not first._pulls[0].abandoned
    assert not first._reach.abandoned
