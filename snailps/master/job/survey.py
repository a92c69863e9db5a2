"""Merges the parts of a survey that workers report, one after the other, into one summary.

    (number, part) -> Surveyor.add -> Surveyor.result -> summary, at most 255 MiB

`SurveyMerge` calls the model's class, so it runs beside the loop, one call at a time (`Work`, lane
"survey"). `JobSurvey` has the summary, or what it is made of. `PartTurns` bounds the bytes of parts
at the master: a thousand workers may have one.
"""

from __future__ import annotations

from snailps.api.traits import Surveyed, Surveyor, trait_of
from snailps.api.worker import Worker
from snailps.config import JobSettings
from snailps.errors import ClusterError, ConfigError
from snailps.transport import messages
from snailps.transport.control.encoded import Encoded
from snailps.transport.frame import CONTROL_BODY_MAX

SUMMARY_BYTES_MAX = CONTROL_BODY_MAX - (1 << 20)
"""Most bytes of a summary, which travels in one message."""
PART_BYTES = 24 << 20
"""Bytes of a part from which a worker asks for its turn to send it."""
PART_BYTES_MAX = 2 * PART_BYTES
"""Bytes of a part at which a worker stops counting until its turn comes."""
PARTS_BYTES_MAX = 2 * PART_BYTES
"""Bytes of parts that are sent or merged at the same time; one part may always be."""


class PartTurns:
    """Turns of workers to send their survey parts, bounded by bytes at the master."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._sending: dict[int, int] = {}

    def hold(self, node: int, part_bytes: int) -> None:
        self._held[node] = part_bytes

    def held(self, node: int) -> int:
        return self._held.get(node, 0)

    def begin(self, node: int) -> bool:
        """Begin a worker's turn, if there is room for its part; False: not yet."""
        size = self._held[node]
        if self._sending and sum(self._sending.values()) + size > PARTS_BYTES_MAX:
            return False
        self._sending[node] = self._held.pop(node)
        return True

    def end(self, node: int) -> bool:
        """End a worker's turn; whether others may have theirs."""
        self._held.pop(node, None)
        return self._sending.pop(node, None) is not None and bool(self._held)


class SurveyMerge:
    def __init__(self, surveyor: Surveyor, *, in_order: bool) -> None:
        # `in_order`: merge parts in the order of their blocks (`bsp`), not of their arrival
        self._surveyor, self._in_order = surveyor, in_order
        self._next = 0  # the first part that is missing, in order
        self._early: dict[int, bytes] = {}

    def add(self, number: int, part: bytes) -> None:
        """Merge the part of a block. A part at which the surveyor raises stays missing: its block
        is counted again."""
        if not self._in_order:
            self._surveyor.add(part)
            return
        self._early[number] = part
        while self._next in self._early:
            self._surveyor.add(self._early.pop(self._next))
            self._next += 1

    def result(self, blocks: int) -> bytes:
        """The summary of `blocks` blocks; may take seconds. ClusterError if a part could not be
        merged, ConfigError if the summary is too large."""
        if self._in_order and self._next < blocks:
            raise ClusterError(
                f"the survey of block {self._next} could not be merged; the master's log says why"
            )
        summary = self._surveyor.result()
        if len(summary) > SUMMARY_BYTES_MAX:
            raise ConfigError(
                f"the summary of the survey has {len(summary):,} bytes, limit "
                f"{SUMMARY_BYTES_MAX:,}: keep less of it (for word vectors: raise min_count, or "
                "set max_vocab)"
            )
        return summary


class JobSurvey:
    """The survey of a job: what its parts are merged into, then its summary."""

    def __init__(self, cls: type[Worker], settings: JobSettings, *, clocked: bool) -> None:
        trait = trait_of(cls, Surveyed)
        surveyor = trait.surveyor(settings)
        self.exists = surveyor is not None
        """The model has a survey; still true once it is merged."""
        # Where workers merge blocks, their order does not matter: see `SurveyPart`.
        in_order = clocked and trait.survey_part is Surveyed.survey_part
        self.merge = None if surveyor is None else SurveyMerge(surveyor, in_order=in_order)
        """None once the summary is known: it may be larger than all else at the master."""
        self.summary: bytes | None = None
        self._message: tuple[bytes, Encoded] | None = None  # of a summary

    def end(self, blocks: int) -> bytes:
        """Make the summary of `blocks` blocks; may take seconds."""
        assert self.merge is not None
        self.summary = summary = self.merge.result(blocks)
        self.merge = None
        self.encode(summary)
        return summary

    def adopt(self, summary: bytes | None) -> None:
        """Take the summary that a checkpoint or an earlier master has: nothing is left to merge."""
        self.summary, self.merge = summary, None

    def encode(self, summary: bytes) -> None:
        """Encode the message once; takes long, beside the loop."""
        self._message = (summary, Encoded(messages.Summary(summary)))

    def message(self) -> Encoded:
        assert self.summary is not None
        if self._message is None or self._message[0] is not self.summary:
            self.encode(self.summary)
        assert self._message is not None
        return self._message[1]
