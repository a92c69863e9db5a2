"""Effects: what `ServerCore.handle` returns, and the outbox that collects them.

    parts of the core -> Outbox -> list of Effect -> performer.py performs them, in order

Declarations and a queue, no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, TypeVar

from snailps.dataclass import dataclass
from snailps.errors import RemoteError, SnailError
from snailps.node.effects import Effect, EffectQueue, OnDone, WorkDone
from snailps.server.events import Address
from snailps.shard.shard import Shard
from snailps.transport import messages

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
Do = Callable[[Shard], Any]
"""A call of a shard's method: a `functools.partial`."""


@dataclass(frozen=True, slots=True)
class Note(Effect):
    """A note to the master."""

    message: messages.Message


@dataclass(frozen=True, slots=True)
class StartShard(Effect):
    """Start a shard; `WorkDone` follows with its endpoint or an error. `listener`: one of the
    registered ones; None: a new one. Later effects reach the shard. `number` is for names of
    threads and messages: it may change while the cluster forms."""

    shard: int
    number: int
    standby: bool
    listener: int | None


@dataclass(frozen=True, slots=True)
class StopShard(Effect):
    """Stop a shard in a thread of its own, since freeing rows takes a while; its unanswered posts
    end with `ConnectionLost`."""

    shard: int


@dataclass(frozen=True, slots=True)
class CloseListeners(Effect):
    """Close the listeners that no shard uses."""


@dataclass(frozen=True, slots=True)
class Post(Effect):
    """Call a shard's method in its thread, after earlier posts. `WorkDone` follows, with
    `ConnectionLost` if the shard does not run any more, or with the reason why it did not start.
    With `at_standby` it follows once the standby has executed the call, too, or cannot be promoted;
    later posts do not wait for that."""

    shard: int
    post: int
    do: Do
    at_standby: bool


@dataclass(frozen=True, slots=True)
class Withdraw(Effect):
    """Cancel a post, if the shard has not begun it; its answer is then `WaitTimeout`."""

    post: int


@dataclass(frozen=True, slots=True)
class Dial(Effect):
    """Connect to the standby of shard `number`. `WorkDone` follows with a link (a descriptor, or
    its equivalent in tests) or an error."""

    dial: int
    number: int
    address: Address
    limit_s: float


@dataclass(frozen=True, slots=True)
class GiveUp(Effect):
    """Cancel a dial; its `WorkDone` follows all the same."""

    dial: int


@dataclass(frozen=True, slots=True)
class CloseLink(Effect):
    link: int


@dataclass(frozen=True, slots=True)
class Stream(Effect):
    """Have a shard stream to the standby at a link (`Shard.back_up`), in order with posts.
    `StreamReported` follows. If the shard refuses, the link is closed."""

    shard: int
    stream: int
    link: int
    sync: bool
    paced: bool
    resume: bool


class Outbox(EffectQueue):
    # --- the master ------------------------------------------------------------------------------

    def reply_by(self, call: int, make: Callable[[], messages.Message]) -> None:
        """Answer an order with the message that `make` returns, or with the error that it
        raises."""
        try:
            answer: messages.Message | SnailError = make()
        except SnailError as error:
            answer = error
        except Exception as error:  # a bug in a user's access method, or here
            log.error("cannot execute an order of the master", exc_info=error)
            answer = RemoteError(f"failed: {error!r}")
        self.reply(call, answer)

    def note(self, message: messages.Message) -> None:
        self._effects.append(Note(message))

    # --- shards ----------------------------------------------------------------------------------

    def post(
        self, shard: int, do: Do, then: OnDone | None = None, *, at_standby: bool = False
    ) -> int:
        """Post a call to a shard; `then` gets its answer. Returns the number of the post."""
        number = self.number() if then is None else self.expect(then)
        self._effects.append(Post(shard, number, do, at_standby))
        return number

    def post_all(
        self,
        posts: Iterable[tuple[K, int, Do]],
        then: Callable[[dict[K, WorkDone], float], None],
        now: float,
        *,
        at_standby: bool = False,
    ) -> None:
        """Post (key, shard, call) to shards; `then` gets all answers, by key."""
        asked = list(posts)
        answers: dict[K, WorkDone] = {}

        def heard(key: K, answer: WorkDone, now: float) -> None:
            answers[key] = answer
            if len(answers) == len(asked):
                then({key: answers[key] for key, _, _ in asked}, now)

        for key, shard, do in asked:
            self.post(shard, do, partial(heard, key), at_standby=at_standby)
        if not asked:
            then({}, now)


def results(answers: dict[K, WorkDone]) -> dict[K, Any]:
    """Return all results, in order; raise the first error."""
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error
    return {key: answer.result for key, answer in answers.items()}
