"""Checkpoints at a server: shards are copied and written, or read and filled.

    Save -> Shard.copy_next -> buffer -> Work(Writer.write)          -> Saved
    Load -> Work(Reader.batches) -> section -> Shard.put_section     -> Loaded

A part of `ServerCore`.  Owns one checkpoint order at a time.  A shard's thread only copies, up to
16 MiB at a time, between requests; works beside the control thread compute checksums and write.
Must not know why: the master decides when and what to save.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from snailps.dataclass import dataclass
from snailps.errors import CheckpointError, ClusterError, SnailError, explain
from snailps.node.effects import WorkDone
from snailps.node.limits import STOP_S
from snailps.server.effects import Do, Outbox, results
from snailps.server.services import Batch, Buffer, OpenCheckpoint, ServerFiles, Writer
from snailps.server.shard_host import ShardHost
from snailps.shard.shard import FragmentCursor, Shard
from snailps.transport import messages

log = logging.getLogger(__name__)

BATCH_BYTES = 16 << 20
"""Bytes of rows that are copied and written at a time, and the most bytes of a section."""
LANES = 2
"""Buffers of a shard: while one is filled, the other is checksummed or written."""
REST = 1.0
"""Rest of a lane after a write, as a multiple of its duration (docs/design/checkpoints.md)."""
CLOCK_S = 0.002
"""How often a lane asks whether its shard has reached the clock to be saved."""
RESTORE_BYTES_MAX = 64 << 20
"""A section is put when fewer bytes wait for the connection to the standby."""
RESTORE_LIMIT_S = 60.0
"""How long a section waits for the standby to take the sections before it."""
RESTORE_LOOK_S = 0.001

Order = messages.Save | messages.Load | messages.StopSaving
OnResult = Callable[[Any, float], None]


class CheckpointControl:
    """The checkpoint orders of a server, executed in sequence: each may wait for disks and
    shards."""

    def __init__(
        self, host: ShardHost, welcome: messages.Welcome, files: ServerFiles, out: Outbox
    ) -> None:
        self._host, self._welcome, self._files, self._out = host, welcome, files, out
        self._line: deque[tuple[int, Order]] = deque()
        self._busy = False  # an order is being executed
        self._task: _CheckpointTask | None = None
        self._stops: Callable[[float], None] | None = None  # called once the task has ended
        self._stops_at = math.inf  # or at this time, if it has not

    @property
    def done_bytes(self) -> int:
        """Bytes written or read of the present checkpoint, or the last one."""
        return self._task.done_bytes if self._task is not None else 0

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.ended

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        waits = self._task.due if self._task is not None else math.inf
        return min(waits, self._stops_at)

    def order(self, call: int, order: Order, now: float) -> None:
        self._line.append((call, order))
        self._next(now)

    def tick(self, now: float) -> None:
        if self._task is not None:
            self._task.tick(now)
        while self._stops is not None and (not self.running or now >= self._stops_at):
            stops, self._stops, self._stops_at = self._stops, None, math.inf
            stops(now)

    def stop(self, then: Callable[[float], None], now: float) -> None:
        """Cancel the task under way, which then reports nothing; `then` is called when it has
        ended, or after STOP_S."""
        if self._task is not None:
            self._task.cancel(now)
        self._stops, self._stops_at = then, now + STOP_S

    # --- orders ----------------------------------------------------------------------------------

    def _next(self, now: float) -> None:
        while self._line and not self._busy:
            call, order = self._line.popleft()
            self._busy = True
            try:
                self._begin(call, order, now)
            except SnailError as error:
                self._answer(call, error, now)

    def _answer(self, call: int, answer: messages.Message | SnailError, now: float) -> None:
        self._out.reply(call, answer)
        self._busy = False
        self._next(now)

    def _begin(self, call: int, order: Order, now: float) -> None:
        if isinstance(order, messages.StopSaving):
            self.stop(partial(self._answer, call, messages.Ok()), now)
            return
        if self.running:
            self._begin_later(call, order)
        elif isinstance(order, messages.Load):
            self._start(
                _LoadTask(self._out, self._files, self._shards(), order, self._welcome), now
            )
            self._answer(call, messages.Ok(), now)
        else:
            check = partial(self._files.check_folder, order.folder, self._welcome.job)
            self._out.work(check, partial(self._checked, call, order))

    def _begin_later(self, call: int, order: Order) -> None:
        """Keep a restore until the cancelled task has ended: its disk may be slow, and if the
        restore were refused, the master would take an older checkpoint, and lose training. A save
        is refused: the master makes another one later."""
        is_cancelled = self._task is not None and not self._task.reports
        if isinstance(order, messages.Save) or not is_cancelled or self._stops is not None:
            raise ClusterError(
                f"server {self._welcome.node} is still working on another checkpoint"
            )
        self._stops, self._stops_at = partial(self._begin, call, order), math.inf

    def _checked(self, call: int, order: messages.Save, event: WorkDone, now: float) -> None:
        if event.error is not None:
            self._answer(call, _refusal(event.error), now)
            return
        self._start(_SaveTask(self._out, self._files, self._shards(), order, self._welcome), now)
        self._answer(call, messages.Ok(), now)

    def _start(self, task: _CheckpointTask, now: float) -> None:
        self._task = task
        task.begin(now)

    def _shards(self) -> list[int]:
        return [shard for _, shard in sorted(self._host.primaries.items())]


class _CheckpointTask:
    """A checkpoint that is being written or read, in lanes; its first error stops all of them. A
    lane waits for one thing at a time, a shard, a work or a time: so it ends exactly once."""

    def __init__(self, out: Outbox, shards: Sequence[int]) -> None:
        self.out, self.shards = out, shards
        self.done_bytes = 0
        self.ended = self.stopped = False
        self.reports = True  # the master waits for its report
        self.error: BaseException | None = None
        self._lanes = 0
        self._waits: list[tuple[float, Callable[[float], None]]] = []

    def begin(self, now: float) -> None:
        raise NotImplementedError

    def finish(self, now: float) -> None:
        raise NotImplementedError

    @property
    def due(self) -> float:
        return min((at for at, _ in self._waits), default=math.inf)

    def tick(self, now: float) -> None:
        ready = [wait for wait in self._waits if self.stopped or wait[0] <= now]
        self._waits = [wait for wait in self._waits if wait not in ready]
        for _, follow in ready:
            if self.stopped:
                self.end_lane(now)
            else:
                follow(now)

    def cancel(self, now: float) -> None:
        self.reports = False
        self.stop(now)

    def stop(self, now: float) -> None:
        self.stopped = True
        self.tick(now)

    def report(self, note: messages.Saved | messages.Loaded) -> None:
        """End, and report unless cancelled: a late report would be taken for the next order's."""
        self.ended = True
        if self.reports:
            self.out.note(note)

    # --- lanes

    def begin_lanes(self, lanes: Sequence[Callable[[float], None]], now: float) -> None:
        """Begin the lanes; with none the task is finished."""
        self._lanes = len(lanes)
        for lane in lanes:
            lane(now)
        if not lanes:
            self.finish(now)

    def end_lane(self, now: float) -> None:
        self._lanes -= 1
        if self._lanes == 0:
            self.finish(now)

    def post(self, shard: int, do: Do, follow: OnResult, *, at_standby: bool = False) -> None:
        self.out.post(shard, do, self._then(follow), at_standby=at_standby)

    def work(self, run: Callable[[], Any], follow: OnResult) -> None:
        self.out.work(run, self._then(follow))

    def wait(self, until: float, follow: Callable[[float], None]) -> None:
        self._waits.append((until, follow))

    def _then(self, follow: OnResult) -> Callable[[WorkDone, float], None]:
        def heard(event: WorkDone, now: float) -> None:
            if event.error is not None or self.stopped:
                self.fail(event.error, now)
            else:
                follow(event.result, now)

        return heard

    def fail(self, error: BaseException | None, now: float) -> None:
        """End a lane, and all others with it."""
        if self.error is None and not self.stopped:
            self.error = error
        self.end_lane(now)
        self.stop(now)

    def why(self, what: str) -> str:
        """Return the error for the master, in words; empty: none."""
        if self.error is None:
            return ""
        if not isinstance(self.error, SnailError):
            log.error("%s failed", what, exc_info=self.error)
        return explain(self.error)


@dataclass(slots=True)
class _Lane:
    """One buffer of a shard's file."""

    shard: int
    writer: Writer
    cursor: FragmentCursor
    buffer: Buffer | None = None


class _SaveTask(_CheckpointTask):
    """Writes the fragments of a server's shards to the folder of a checkpoint."""

    def __init__(
        self,
        out: Outbox,
        files: ServerFiles,
        shards: Sequence[int],
        order: messages.Save,
        welcome: messages.Welcome,
    ) -> None:
        super().__init__(out, shards)
        self._files, self._order, self._node = files, order, welcome.node
        self._writers: Sequence[Writer] = ()

    def begin(self, now: float) -> None:
        names = [f"server-{self._node}-shard-{index}.rows" for index in range(len(self.shards))]
        create = partial(self._files.create, self._order.folder, names, self._order.number)
        self.out.work(create, self._created)

    def _created(self, event: WorkDone, now: float) -> None:
        if event.error is not None:
            self.error = event.error
            self._end(now)
            return
        self._writers = event.result
        asked = [(i, shard, partial(Shard.fragments)) for i, shard in enumerate(self.shards)]
        self.out.post_all(asked, self._copy, now)

    def _copy(self, answers: dict[int, WorkDone], now: float) -> None:
        try:
            fragments = results(answers)
        except Exception as error:
            self.error = error
            self.finish(now)
            return
        lanes = []
        for index, shard in enumerate(self.shards):
            cursor = FragmentCursor(fragments[index])
            for _ in range(LANES):
                lane = _Lane(shard, self._writers[index], cursor)
                lanes.append(partial(self._buffer, lane))
        self.begin_lanes(lanes, now)

    def _buffer(self, lane: _Lane, now: float) -> None:
        def made(buffer: Buffer, now: float) -> None:
            lane.buffer = buffer
            if self._order.clock >= 0:
                self._look(lane, now)
            else:
                self._next(lane, now)

        self.work(partial(self._files.buffer, BATCH_BYTES), made)

    def _look(self, lane: _Lane, now: float) -> None:
        """Wait until the shard has reached the clock."""

        def looked(clock: int, now: float) -> None:
            if clock < self._order.clock:
                self.wait(now + CLOCK_S, partial(self._look, lane))
            else:
                self._next(lane, now)

        self.post(lane.shard, partial(Shard.clock), looked)

    def _look_again(self, lane: _Lane) -> None:
        """Check that all rows were copied at one clock; the master withholds a slot to keep it
        open."""

        def looked(clock: int, now: float) -> None:
            if clock == self._order.clock:
                self.end_lane(now)
                return
            text = f"rows were to be copied at clock {self._order.clock}, and it is {clock} by now"
            self.fail(CheckpointError(text), now)

        self.post(lane.shard, partial(Shard.clock), looked)

    def _next(self, lane: _Lane, now: float) -> None:
        assert lane.buffer is not None
        do = partial(Shard.copy_next, cursor=lane.cursor, buffer=lane.buffer)
        self.post(lane.shard, do, partial(self._copied, lane))

    def _copied(self, lane: _Lane, copied: tuple[int, Any], now: float) -> None:
        used, sections = copied
        if used == 0:
            if self._order.clock >= 0:
                self._look_again(lane)
            else:
                self.end_lane(now)
        else:
            assert lane.buffer is not None
            begun = now

            def written(_: object, now: float) -> None:
                self.done_bytes += used
                self.wait(now + REST * (now - begun), partial(self._next, lane))

            self.work(partial(lane.writer.write, lane.buffer, used, sections), written)

    def finish(self, now: float) -> None:
        if self.error is not None or self.stopped:
            self._end(now)
            return
        writers = self._writers
        self.out.work(lambda: [writer.close().to_dict() for writer in writers], self._closed)

    def _closed(self, event: WorkDone, now: float) -> None:
        if event.error is not None or self.stopped:  # a cancelled save must not report files
            self.error = event.error
            self._end(now)
            return
        self.report(messages.Saved(self._order.number, event.result))

    def _end(self, now: float) -> None:
        """Remove the files, and report why."""
        writers = self._writers

        def abandon() -> None:
            for writer in writers:
                writer.abandon()

        self.out.work(abandon, self._abandoned)

    def _abandoned(self, event: WorkDone, now: float) -> None:
        number = self._order.number
        self.report(messages.Saved(number, [], self.why(f"checkpoint {number}")))


class _LoadTask(_CheckpointTask):
    """Restores the fragments of a server's shards from a checkpoint."""

    def __init__(
        self,
        out: Outbox,
        files: ServerFiles,
        shards: Sequence[int],
        order: messages.Load,
        welcome: messages.Welcome,
    ) -> None:
        super().__init__(out, shards)
        self._files, self._order = files, order
        self._tables = {int(saved): int(number) for saved, number in order.tables}
        self._rows = 0

    def begin(self, now: float) -> None:
        opening = partial(self._files.open, self._order.folder, self._order.number)
        self.out.work(opening, self._opened)

    def _opened(self, event: WorkDone, now: float) -> None:
        if event.error is not None or self.stopped:
            self.error = event.error
            self.finish(now)
            return
        lanes = [partial(self._read, shard, event.result) for shard in self.shards]
        self.begin_lanes(lanes, now)

    def _read(self, shard: int, reader: OpenCheckpoint, now: float) -> None:
        put = partial(Shard.put_section, tables=self._tables)

        def cleared(_: object, now: float) -> None:
            self.post(shard, partial(Shard.fragments), owned)

        def owned(fragments: Any, now: float) -> None:
            self._next(shard, put, reader.batches(fragments), now)

        self.post(shard, partial(Shard.clear, numbers=[*self._tables.values()]), cleared)

    def _next(self, shard: int, put: Do, batches: Iterator[Batch], now: float) -> None:
        def read(batch: Batch | None, now: float) -> None:
            # The lane ends when the standby has all rows, too: it may be promoted right after the
            # report, and must not lack any.
            if batch is None:
                there = partial(Shard.stream_waiting)
                self.post(shard, there, lambda _, now: self.end_lane(now), at_standby=True)
            else:
                self._put(shard, put, batches, deque(batch), now)

        self.work(partial(next, batches, None), read)

    def _put(
        self,
        shard: int,
        put: Any,
        batches: Iterator[Batch],
        batch: deque[tuple[int, Buffer]],
        now: float,
    ) -> None:
        """Put the sections of a batch, one after the other, no faster than the standby takes
        them."""
        if not batch:
            self._next(shard, put, batches, now)
            return
        _, section = batch.popleft()
        until = now + RESTORE_LIMIT_S

        def filled(rows: int, now: float) -> None:
            self._rows += rows
            self.done_bytes += len(section)
            look(now)

        def look(now: float) -> None:
            self.post(shard, partial(Shard.stream_waiting), looked)

        def looked(waiting: int, now: float) -> None:
            if waiting >= RESTORE_BYTES_MAX and now < until:
                self.wait(now + RESTORE_LOOK_S, look)
            else:
                self._put(shard, put, batches, batch, now)

        self.post(shard, partial(put, section=section), filled)

    def finish(self, now: float) -> None:
        number = self._order.number
        why = self.why(f"loading of checkpoint {number}")
        self.report(messages.Loaded(number, 0 if why else self._rows, why))


def _refusal(error: BaseException) -> SnailError:
    """An error as the answer to an order."""
    if isinstance(error, SnailError):
        return error
    log.error("Save failed", exc_info=error)
    return ClusterError(f"Save failed: {explain(error)}")
