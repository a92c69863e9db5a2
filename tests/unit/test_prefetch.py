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
    return held_block(number=number, terms=Step(clock))


def waits_for(block):
    """What a block waits for: a pull, and its step."""
    requests = Pull(), Pull()
    block._pulls.append(requests[0])
    block._step_begun = requests[1]
    return requests


class Helper:
    """Answers requests for blocks when the test says so; the first one has `first` at once."""

    def __init__(self, first=None):
        self.asked, self.first = [], first

    def __call__(self, back=False):
        self.asked.append((back, Future()))
        if self.first is not None:
            self.answer(0, self.first)
            self.first = None
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
    first = block(8, 2)
    helper = Helper(first)
    prefetcher = BlockPrefetcher(helper)
    assert prefetcher.next(1) is first
    assert prefetcher.earlier(first) is None  # not known yet
    early = block(4, 1)
    helper.answer(1, early)
    assert prefetcher.earlier(first) is early
    assert prefetcher.next(1) is first


def test_coming_asks_for_blocks_that_came_back_beside_those_on_their_way():
    helper = Helper(block(9, 3))
    prefetcher = BlockPrefetcher(helper)
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
    first, late = block(0, 0), block(1, 0)
    trained, dropped = waits_for(first), waits_for(late)
    helper = Helper(first)
    prefetcher = BlockPrefetcher(helper)
    prefetcher.next(1)
    prefetcher.drop()
    helper.answer(1, late)
    assert all(request.abandoned for request in dropped)
    assert not any(request.abandoned for request in trained)
