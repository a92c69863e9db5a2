"""data/pipeline.py: order, bounds, dealing, errors and ends."""

import itertools
import threading
import time

import pytest
from pipeline_stages import (
    Again,
    Fails,
    FailsAwkwardly,
    Last,
    Leaves,
    Nothing,
    Numbers,
    Twice,
)  # fmt: skip
from waiting import LIMIT_S, happens, run_all

from snailps.data.pipeline import LAPS, Pipeline
from snailps.errors import DataError, MisuseError


def drain(pipeline, taker=0):
    items = []
    while (item := pipeline.take(taker)) is not None:
        items.append(item)
    return items


def take_soon(pipeline):
    """The next item, or an error where none comes."""
    end = time.monotonic() + LIMIT_S
    return pipeline.take(give_up=lambda: time.monotonic() > end)


def test_pipeline_hands_on_everything_in_order():
    with Pipeline([Numbers(50), Twice(), Twice()], bound=2) as pipeline:
        items = drain(pipeline)
        assert items == [n // 4 for n in range(200)]
        assert pipeline.take() is None  # and stays at its end


@pytest.mark.parametrize("takers", [1, 3])
def test_pipeline_deals_in_turn_whoever_is_quick(takers):
    with Pipeline([Numbers(60)], takers, bound=2) as pipeline:
        found = {}
        turns = reversed(range(takers))
        run_all(*(lambda i=i: found.update({i: drain(pipeline, i)}) for i in turns))
        assert found == {i: list(range(i, 60, takers)) for i in range(takers)}


def test_pipeline_with_nobody_taking_stops_at_its_bounds():
    full, taken, ahead = threading.Event(), 0, set()

    def source(items):
        for n in itertools.count():
            ahead.add(n + 1 - taken)
            if n + 1 == 2 + 2 + 2:  # two in each queue, one in each stage's hands
                full.set()
            yield n

    def passes(items):
        yield from items

    with Pipeline([source, passes], bound=2) as pipeline:
        happens(full, "full queues")
        for n in range(100):  # a source without a bound would run all the time
            taken = n + 1
            assert pipeline.take() == n
        assert max(ahead) == 6


def test_pipeline_with_failing_stage_tells_every_taker():
    with Pipeline([Numbers(50), Fails(3), Twice()], 2) as pipeline:
        for taker in range(2):
            for n in range(3):
                assert pipeline.take(taker) == n
            for _ in range(2):
                with pytest.raises(DataError, match=r"stage Fails .* no 3, please"):
                    pipeline.take(taker)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (FailsAwkwardly, "stage FailsAwkwardly .* no 0, please"),
        (Leaves, "stage Leaves of a pipeline failed"),
    ],
)
def test_pipeline_with_stage_that_ends_oddly_says_so(stage, said):
    with (
        Pipeline([Numbers(5), stage()]) as pipeline,
        pytest.raises(DataError, match=said),
    ):
        take_soon(pipeline)


def test_pipeline_with_stage_that_makes_nothing_of_all_there_is_names_it():
    with (
        Pipeline([Again(4), Twice(), Nothing(), Twice()]) as pipeline,
        pytest.raises(DataError, match=r"stage Nothing .* 3 times, 24 items, .* nothing of it"),
    ):
        take_soon(pipeline)


def test_pipeline_with_stage_that_gathers_waits_for_it_however_long():
    with Pipeline([Again(4), Last(4 * LAPS * 5), Twice()]) as pipeline:
        assert [take_soon(pipeline) for _ in range(4)] == [3, 3, 3, 3]


def test_pipeline_with_stage_that_names_the_trouble_passes_it_on():
    def source(items):
        raise DataError("no such file: a.txt")
        yield

    with Pipeline([source]) as pipeline, pytest.raises(DataError, match=r"^no such file: a.txt$"):
        pipeline.take()


def test_pipeline_closed_while_stages_wait_ends_them():
    pipeline = Pipeline([Numbers(10**9), Twice()], bound=1)
    assert pipeline.take() == 0
    running = list(pipeline._running)
    pipeline.close()
    pipeline.close()
    assert not any(one.is_alive() for one in running)
    with pytest.raises(MisuseError, match="closed"):
        pipeline.take()


def test_pipeline_take_given_up_returns():
    def source(items):
        threading.Event().wait(LIMIT_S)
        yield 1

    pipeline = Pipeline([source])
    with pytest.raises(MisuseError, match="closed"):
        pipeline.take(give_up=lambda: True)


@pytest.mark.parametrize(
    ("stages", "takers", "bound"), [([], 1, 1), ([Numbers(1)], 0, 1), ([Numbers(1)], 1, 0)]
)
def test_pipeline_without_stages_takers_or_room_refuses(stages, takers, bound):
    with pytest.raises(MisuseError, match="at least one stage"):
        Pipeline(stages, takers, bound)


def test_error_that_a_later_stage_swallows_reaches_the_takers():
    def source(_):
        yield 1
        raise OSError("the disk is gone")

    def careless(items):
        while True:
            try:
                yield next(items)
            except StopIteration:
                return
            except Exception:
                continue

    with Pipeline([source, careless]) as running:
        assert running.take() == 1
        with pytest.raises(DataError, match="the disk is gone"):
            running.take()
