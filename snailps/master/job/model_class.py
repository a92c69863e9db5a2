"""What the class of a job's model is and answers about itself, asked once.

    raw settings -> load -> class -> ask -> ModelClass -> the run, its beginning, its figures

A method of a user's class may raise, or take seconds. So what it says by its settings is a value,
made anew only when the model has measured its input (`beginning.py`). Methods whose result depends
on the run are called where that is needed: `file_sizes` beside the master's loop, `rotation`,
`range_passes` and `counted` in it, as they are to compute from a summary and a few sums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from snailps.api.concurrency import Concurrency
from snailps.api.counting import Counted
from snailps.api.passes import Passes
from snailps.api.plain_values import Number, plain_figures, plain_number
from snailps.api.results import Results
from snailps.api.traits import InRounds, Limited, Reported, Surveyed, is_clocked, trait_of
from snailps.api.validation import Validation
from snailps.api.worker import Worker, load_class
from snailps.config import JobSettings, RawConfig, settings_of
from snailps.config.origins import Origin, with_origins
from snailps.dataclass import dataclass, field
from snailps.errors import ConfigError
from snailps.master.job.settings import plain_settings
from snailps.registry import named

log = logging.getLogger(__name__)

Tester = Callable[[Results], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """How a job trains in rounds."""

    # 0: the job has none. The indices of a round are the workers that are there as the
    # training begins, so such a job needs some then.
    number: int
    fraction: float  # of the workers, drawn for each round
    deadline_s: float  # after which a round ends without late workers; 0: it waits
    inspects: bool  # the class looks at its tables after each round


@dataclass(frozen=True, slots=True)
class ByInput:
    """What the class chose when it saw its input; as given here before that."""

    measured: tuple[str, ...] = ()  # settings, in words
    passes: Passes | None = None  # None: the user set the number of epochs
    concurrency: Concurrency = field(default_factory=Concurrency)
    # Only one of the two: a model that is tested after each epoch is not tested in between.
    validation: Validation | None = None
    tester: Tester | None = None


@dataclass(frozen=True, slots=True)
class ModelClass:
    cls: type[Worker]
    path: str  # "package.module:Class"
    source: bytes  # of the class, if no process can import it
    raw: RawConfig  # where its settings come from
    origins: list[Origin]  # the source of each setting, for people
    name: str
    counts: Literal["examples", "words"]  # what a unit is
    clocked: bool  # blocks are contributions to common steps
    rounds: RoundTerms
    expires: int  # units after which rows that no push touched are deleted; 0: never
    loader: Callable[[Results], None] | None  # fills rows between survey and training
    loss_bound: float  # see `loss_watch.py`
    constant_loss: float  # of a model that does not look at its examples; 0: unknown
    # The loss decides the number of epochs by default; whether it still falls is reported even
    # where the user set that number.
    judges_epochs: bool
    by_input: ByInput = field(default_factory=ByInput)


def load(raw: RawConfig) -> tuple[type[Worker], str]:
    """The class that the settings name, and its path."""
    entry = raw.explicit("worker_class", JobSettings)
    if entry is None or not entry.value:
        raise ConfigError(
            "worker_class is not set: nothing to train. Write "
            "'worker_class: package.module:Class' into the master's file "
            "(config/fasttext.conf shows a whole job)"
        )
    return load_class(entry.value, entry.origin), entry.value


def ask(
    cls: type[Worker], path: str, source: bytes, raw: RawConfig, settings: JobSettings
) -> ModelClass:
    """Ask the class, by its settings, for everything that a job needs to know before its input."""

    def plain(part: type[Any], method: str, kind: Callable[[Any], Number]) -> Number:
        return plain_number(cls, method, getattr(part, method)(settings), kind)

    in_rounds, limited, reported = (
        trait_of(cls, InRounds),
        trait_of(cls, Limited),
        trait_of(cls, Reported),
    )
    rounds = plain(in_rounds, "rounds", int)
    if rounds:
        named("rounds")  # refused now, where this installation lacks it
    after_round = in_rounds.after_round.__func__  # type: ignore[attr-defined]
    return ModelClass(
        cls,
        path,
        source,
        raw,
        with_origins(settings, raw),
        name=plain(cls, "model_name", str),
        counts=reported.counts,
        clocked=is_clocked(cls, settings),
        rounds=RoundTerms(
            rounds,
            plain(in_rounds, "fraction", float),
            plain(in_rounds, "deadline", float),
            after_round is not InRounds.after_round.__func__,  # type: ignore[attr-defined]
        ),
        expires=plain(limited, "expires", int),
        loader=trait_of(cls, Surveyed).loader(settings),
        loss_bound=limited.loss_bound,
        constant_loss=plain(reported, "constant_loss", float),
        judges_epochs=settings_of(cls.Settings)["epochs"].auto,
    )


def tests_of(model: ModelClass, settings: JobSettings) -> tuple[Validation | None, Tester | None]:
    """How the class tests the model in training: after each epoch, or now and then."""
    trait = trait_of(model.cls, Reported)
    validation = None if model.rounds.number else trait.validation(settings)
    if validation is None:
        return None, trait.tester(settings)
    check_returned(model.cls, validation, Validation, "validation")
    return validation, None


def check_returned(cls: type[Worker], value: object, kind: type, method: str) -> None:
    """Refuse what a method of the user's class returned, if it is nothing of this kind."""
    if not isinstance(value, kind):
        expected = f"{kind.__module__}.{kind.__name__}"
        raise ConfigError(f"{cls.__name__}.{method} returned {value!r:.100}: expected a {expected}")


def judge_counts(
    cls: type[Worker], settings: JobSettings, counts: Mapping[str, float], units: int
) -> Counted:
    """Have the class judge what its workers have counted; plain values."""
    try:
        if counts:
            counted = trait_of(cls, Reported).counted(settings, counts, units)
            figures = plain_figures(cls, "counted", counted.figures)
            refused = plain_number(cls, "counted", counted.refused, str)
            return Counted(plain_settings(counted.settings), figures, refused)
    except Exception as error:  # in the master's loop, and no training is lost for its figures
        log.error("%s.counted failed", cls.__name__, exc_info=error)
    return Counted(settings)
