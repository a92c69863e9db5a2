"""Owns the record of each block of a pass: its state, its worker, and its result.

    WAITING -> LEASED -> DONE -> DURABLE        LEASED -> WAITING: returned by its worker, or lost
    DONE, DURABLE -> WITHDRAWN: the training has ended, and the servers may lack its pushes
    survey: LEASED -> MERGING -> DONE           MERGING -> LEASED: its part cannot be merged
    LEASED -> COUNTED -> MERGING -> DONE        where a worker merges blocks before it sends a part
    beside the table, each by one method: `skip`, WAITING -> DURABLE: servers have the block
        `undo`, DONE, DURABLE -> WAITING: servers have lost what it has made
        `make_all_durable`, DONE -> DURABLE of many; `resume`, all states of an earlier run

No other place keeps the state of a block: schedules decide which block a worker gets, and metrics,
checkpoints, journal and status read from here. Any other transition is a defect. 48 bytes a block,
and as many again once `known` has been called. No files, sockets or time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class BlockState(enum.IntEnum):
    """State of a block; `DONE` and `DURABLE` have their numbers in checkpoints."""

    WAITING = 0
    DONE = 1
    """Trained; its pushes may still be under way."""
    DURABLE = 2
    """All its pushes are acknowledged: a checkpoint includes it."""
    LEASED = 3
    MERGING = 4
    """In a part of the survey that is being merged; the loss of its worker no longer matters."""
    COUNTED = 5
    """Leased, and in the part of the survey that its worker has not sent yet."""
    WITHDRAWN = 6
    """It was done; the training has ended, and does not count it, as servers may lack pushes."""


_S = BlockState
TRANSITIONS: dict[int, frozenset[BlockState]] = {
    _S.WAITING: frozenset({_S.LEASED}),
    _S.LEASED: frozenset({_S.WAITING, _S.DONE, _S.MERGING, _S.COUNTED}),
    _S.COUNTED: frozenset({_S.WAITING, _S.MERGING}),
    _S.MERGING: frozenset({_S.DONE, _S.LEASED}),
    _S.DONE: frozenset({_S.DURABLE, _S.WITHDRAWN}),
    _S.DURABLE: frozenset({_S.WITHDRAWN}),
    _S.WITHDRAWN: frozenset(),
}

OUTCOME = np.dtype(
    [
        ("state", "<u4"),
        ("node", "<u4"),
        ("units", "<i8"),
        ("loss", "<f8"),
        ("examples", "<f8"),
        ("bad_lines", "<i8"),
    ]
)
"""A record as checkpoints have it."""
RECORD = np.dtype([*OUTCOME.descr, ("lr", "<f8")])
_LOOK = 4096
"""Records that one step of a search reads."""


class BlockResult(NamedTuple):
    """Result of a block, as a worker reports it; NaN: not reported."""

    units: int = 0
    loss: float = math.nan
    examples: float = 0.0
    bad_lines: int = 0
    lr: float = math.nan


NO_RESULT = BlockResult()


class BlockRecords:
    """The records of the blocks ``first`` to ``first + size - 1``."""

    def __init__(self, size: int, first: int = 0) -> None:
        self._size = size
        self.begin(first)

    def begin(self, first: int) -> None:
        """Replace all records by those of as many blocks from `first` on, all waiting."""
        self._all = np.zeros(self._size, RECORD)
        self._states, self._nodes = self._all["state"], self._all["node"]
        self._first = first
        self._end = 0  # after the last block that was ever done
        self._by_node: dict[int, dict[int, None]] = {}  # leased blocks of workers, as leased
        # counted blocks are leased, durable ones finished
        self.leased = self.merging = self.finished = 0
        self._known: NDArray[Any] | None = None  # last result of `known`
        self._changed = (0, 0)  # range of blocks done or durable since then

    # --- states ------------------------------------------------------------------------------

    def is_waiting(self, number: int) -> bool:
        """Whether a block exists, and is neither leased nor done."""
        index = number - self._first
        # `item`: without the numpy scalar that `[index]` makes. Each lease asks this several times.
        return 0 <= index < len(self._all) and self._states.item(index) == _S.WAITING

    def is_done(self, number: int) -> bool:
        """Whether a block is done or durable."""
        index = number - self._first
        return 0 <= index < len(self._all) and self._states.item(index) in (_S.DONE, _S.DURABLE)

    def holder(self, number: int) -> int:
        """The worker that has leased a block; 0: none."""
        index = number - self._first
        if not 0 <= index < len(self._all) or self._states.item(index) not in (
            _S.LEASED,
            _S.COUNTED,
        ):
            return 0
        return int(self._nodes.item(index))

    def waiting(self, start: int, stop: int) -> list[int]:
        """Numbers in this range that are neither leased nor done."""
        return self._where(start, stop, self._states[self._range(start, stop)] == _S.WAITING)

    def not_done(self, start: int, stop: int) -> list[int]:
        """Numbers in this range that are not done, leased ones included."""
        states = self._states[self._range(start, stop)]
        return self._where(start, stop, ~_is_done(states))

    def next_not_done(self, start: int, stop: int) -> int:
        """The first number from `start` on that is not done; `stop`: there is none before."""
        while start < stop and self.is_done(start):
            block = self._states[self._range(start, min(stop, start + _LOOK))]
            undone = ~_is_done(block)
            start += int(undone.argmax()) if undone.any() else len(block)
        return start

    def done(self) -> NDArray[np.int64]:
        """Numbers of all blocks that are done or durable, ascending."""
        return np.flatnonzero(_is_done(self._states[: self._end])) + self._first

    def undurable(self) -> list[int]:
        """Numbers of the blocks that are done and not durable, ascending."""
        return self._where(
            self._first, self._first + self._end, self._states[: self._end] == _S.DONE
        )

    def workers_of(self, numbers: list[int]) -> set[int]:
        """The workers that have, or had, these blocks."""
        places = np.array(numbers, np.int64) - self._first
        return set(self._nodes[places].tolist())

    @property
    def last(self) -> int:
        """The greatest number that is leased or done; -1: none."""
        held = max((max(numbers) for numbers in self._by_node.values()), default=-1)
        return max(held, self._first + self._end - 1 if self._end else -1)

    def _range(self, start: int, stop: int) -> slice:
        return slice(max(0, start - self._first), max(0, stop - self._first))

    def _where(self, start: int, stop: int, mask: NDArray[np.bool_]) -> list[int]:
        numbers: list[int] = (np.flatnonzero(mask) + max(start, self._first)).tolist()
        return numbers

    def _move(self, number: int, state: BlockState) -> int:
        """Change the state of a block; returns its index in the array."""
        index = number - self._first
        old = self._states.item(index)
        # No `assert`: `python -O` leaves these out, and a block would be trained twice unnoticed.
        if state not in TRANSITIONS[old]:
            raise AssertionError(
                f"block {number} does not go from {BlockState(old).name} to {state.name}"
            )
        self._states[index] = state
        return index

    # --- transitions ---------------------------------------------------------------------------

    def lease(self, number: int, node: int) -> None:
        """WAITING -> LEASED."""
        self._nodes[self._move(number, _S.LEASED)] = node
        self._by_node.setdefault(node, {})[number] = None
        self.leased += 1

    def release(self, number: int) -> int:
        """LEASED or COUNTED -> WAITING; the worker that had it."""
        return self._unlease(number, _S.WAITING)

    def count(self, number: int) -> None:
        """LEASED -> COUNTED."""
        self._move(number, _S.COUNTED)

    def is_counted(self, number: int) -> bool:
        """Whether a block is in the part of a survey that its worker has not sent yet."""
        index = number - self._first
        return 0 <= index < len(self._all) and self._states.item(index) == _S.COUNTED

    def merge(self, number: int) -> None:
        """LEASED or COUNTED -> MERGING."""
        self._unlease(number, _S.MERGING)
        self.merging += 1

    def merge_failed(self, number: int) -> None:
        """MERGING -> LEASED, by the worker that had it."""
        node = int(self._nodes.item(self._move(number, _S.LEASED)))
        self._by_node.setdefault(node, {})[number] = None
        self.merging -= 1
        self.leased += 1

    def finish(self, number: int, result: BlockResult) -> int:
        """LEASED or MERGING -> DONE; the worker that trained it."""
        index = number - self._first
        if self._states.item(index) == _S.MERGING:
            self._move(number, _S.DONE)
            self.merging -= 1
            node = int(self._nodes.item(index))
        else:
            node = self._unlease(number, _S.DONE)
        self._all[index] = (_S.DONE, node, *result)
        self.finished += 1
        self._end = max(self._end, index + 1)
        self._change(index, index + 1)
        return node

    def skip(self, numbers: Iterable[int]) -> None:
        """WAITING -> DURABLE of blocks that servers have from an earlier pass, without a worker or
        a result."""
        for number in numbers:
            if not self.is_waiting(number):
                raise AssertionError(f"block {number} is not waiting")
            index = number - self._first
            self._all[index] = (_S.DURABLE, 0, *NO_RESULT)
            self.finished += 1
            self._end = max(self._end, index + 1)
            self._change(index, index + 1)

    def undo(self, number: int) -> None:
        """DONE or DURABLE -> WAITING: servers have lost what the block has made."""
        if not self.is_done(number):
            raise AssertionError(f"block {number} is not done")
        index = number - self._first
        self._all[index] = np.zeros((), RECORD)
        self.finished -= 1
        self._change(index, index + 1)

    def make_durable(self, numbers: Iterable[int], node: int) -> None:
        """DONE -> DURABLE of these blocks, where this worker has trained them. If another worker
        has trained a block again since, a late note says nothing about that worker's pushes."""
        for number in numbers:
            index = number - self._first
            is_done = 0 <= index < self._end and self._states.item(index) == _S.DONE
            if is_done and self._nodes.item(index) == node:
                self._move(number, _S.DURABLE)
                self._change(index, index + 1)

    def make_all_durable(self, node: int, but: Iterable[int] = ()) -> None:
        """DONE -> DURABLE of all blocks that this worker has trained, except these."""
        # All at once and not by `_move`: a worker may have trained a million blocks, and the loop
        # waits.
        held = (self._states[: self._end] == _S.DONE) & (self._nodes[: self._end] == node)
        places = [number - self._first for number in but]
        held[[index for index in places if 0 <= index < self._end]] = False
        self._states[: self._end][held] = _S.DURABLE
        changed = np.flatnonzero(held)
        if len(changed):
            self._change(int(changed[0]), int(changed[-1]) + 1)

    def withdraw(self, number: int) -> BlockResult:
        """DONE or DURABLE -> WITHDRAWN; its result."""
        index = self._move(number, _S.WITHDRAWN)
        self.finished -= 1
        self._change(index, index + 1)
        return self.result(number)

    def _unlease(self, number: int, state: BlockState) -> int:
        node = int(self._nodes.item(self._move(number, state)))
        held = self._by_node[node]
        held.pop(number, None)
        if not held:
            del self._by_node[node]
        self.leased -= 1
        return node

    # --- by worker -----------------------------------------------------------------------------

    def held_by(self, node: int) -> list[int]:
        """Blocks that a worker has leased, ascending."""
        return sorted(self._by_node.get(node, ()))

    def begun_by(self, node: int) -> list[int]:
        """Blocks that a worker has leased, in the order in which it trains them."""
        return list(self._by_node.get(node, ()))

    def count_of(self, node: int) -> int:
        return len(self._by_node.get(node, ()))

    def nodes(self, start: int, count: int) -> NDArray[np.uint32]:
        """The worker that has, or had last, each of these blocks; 0: none."""
        nodes: NDArray[np.uint32] = self._nodes[self._range(start, start + count)]
        return nodes

    def holders(self) -> Iterator[int]:
        """Workers that have leased a block."""
        return iter(self._by_node)

    # --- results -------------------------------------------------------------------------------

    def result(self, number: int) -> BlockResult:
        return BlockResult(*self._all[number - self._first].item()[2:])

    def durable(self) -> NDArray[Any]:
        """`OUTCOME` of each block up to the last one done; zero where it is not durable."""
        outcomes = _outcomes(self._all[: self._end])
        outcomes[outcomes["state"] != _S.DURABLE] = 0
        return outcomes

    def first(self, count: int) -> NDArray[Any]:
        """`OUTCOME` of the first `count` blocks, all of which are done, as durable."""
        outcomes = _outcomes(self._all[:count])
        outcomes["state"] = _S.DURABLE
        return outcomes

    def known(self) -> NDArray[Any]:
        """`RECORD` of each block up to the last one done; zero where it is not done. Valid until
        the next call; copies only what has changed since the last one."""
        if self._known is None:
            self._known = np.zeros_like(self._all)
        changed = slice(*self._changed)
        self._known[changed] = self._all[changed]
        undone = ~_is_done(self._known["state"][changed])
        self._known[changed][undone] = 0
        self._changed = (0, 0)
        return self._known[: self._end]

    def resume(self, known: NDArray[Any]) -> None:
        """Begin with records of an earlier run, of `durable` or `known`."""
        count = min(len(known), len(self._all))
        for name in known.dtype.names or ():
            self._all[name][:count] = known[name][:count]
        if "lr" not in (known.dtype.names or ()):
            self._all["lr"][:count] = math.nan
        self._end = count
        self.finished = int(np.count_nonzero(self._states[:count]))
        self._known, self._changed = None, (0, count)

    def forget(self, first: int) -> None:
        """Advance the range: drop the blocks below `first`, durable, which still count as
        finished."""
        gone = first - self._first
        later = self._all[gone:].copy()
        self._all[: len(later)], self._all[len(later) :] = later, 0
        self._first, self._end = first, max(0, self._end - gone)
        self._known, self._changed = None, (0, self._end)

    def _change(self, start: int, stop: int) -> None:
        first, last = self._changed
        self._changed = (min(first, start), max(last, stop)) if last else (start, stop)


def _is_done(states: NDArray[Any]) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = (states == _S.DONE) | (states == _S.DURABLE)
    return mask


def _outcomes(records: NDArray[Any]) -> NDArray[Any]:
    """A copy of records, as checkpoints have them."""
    outcomes = np.zeros(len(records), OUTCOME)
    for name in OUTCOME.names or ():
        outcomes[name] = records[name]
    return outcomes
