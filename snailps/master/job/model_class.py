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
from typing import Any, Literal, TypeAlias

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

Moment: TypeAlias = 'Literal["begin", "tenth", "epoch", "round", "end"]'
"""When a look is due: as the training begins, at each tenth of it, after each epoch or round, or as
the model is exported."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at a job's rows, in its training or at its end."""

    when: tuple[Moment, ...]
    # Called beside the master's loop, with the number of the tenth, epoch or round: names with a
    # figure each, or with a list of neighbours.
    what: Callable[[Results, int], Mapping[str, Any]]
    strict: bool = False  # an error fails the job; else it is logged: no model is lost for advice
    # After so many epochs without a better one the training ends with the rows of the best; 0:
    # none are kept.
    keeps: int = 0
    better: Literal["higher", "lower"] = "higher"  # which values of its first figure


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """How a job trains in rounds."""

    # 0: the job has none. The indices of a round are the workers that are there as the
    # training begins, so such a job needs some then.
    number: int
    fraction: float  # of the workers, drawn for each round
    deadline_s: float  # after which a round ends without late workers; 0: it waits


@dataclass(frozen=True, slots=True)
class ByInput:
    """What the class chose when it saw its input; as given here before that."""

    measured: tuple[str, ...] = ()  # settings, in words
    passes: Passes | None = None  # None: the user set the number of epochs
    concurrency: Concurrency = field(default_factory=Concurrency)
    looks: tuple[Look, ...] = ()

    def at(self, moment: Moment) -> list[Look]:
        """The looks that are due then."""
        return [look for look in self.looks if moment in look.when]


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
        ),
        expires=plain(limited, "expires", int),
        loader=trait_of(cls, Surveyed).loader(settings),
        loss_bound=limited.loss_bound,
        constant_loss=plain(reported, "constant_loss", float),
        judges_epochs=settings_of(cls.Settings)["epochs"].auto,
    )


def looks_of(model: ModelClass, settings: JobSettings) -> tuple[Look, ...]:
    """What each hook of the class has the master look at, and when.

        hook                  when           an error        keeps
        Reported.inspector    tenth, end     is logged
        Reported.tester       begin, tenth   is logged
        Reported.validation   begin, epoch   fails the job   the best rows, with `stop_after`
        InRounds.after_round  round          fails the job

    At the beginning a model reads what it tests on: what it finds then is not used. A model that is
    tested after each epoch is not tested in between, and in rounds not after epochs.
    """
    cls, in_rounds = model.cls, trait_of(model.cls, InRounds)
    trait, looks = trait_of(cls, Reported), list[Look]()

    def figures(name: str, test: Callable[[Results], Any]) -> Callable[..., Mapping[str, float]]:
        def seen(results: Results, number: int) -> Mapping[str, float]:
            tested = plain_figures(cls, name, test(results))
            return {figure: float(value) for figure, value in tested.items()}

        return seen

    if (inspector := trait.inspector(settings)) is not None:
        inspects = inspector

        def neighbours(results: Results, number: int) -> Mapping[str, list[tuple[str, float]]]:
            return {
                name: [(str(other), float(figure)) for other, figure in near]
                for name, near in plain_figures(cls, "inspector", inspects(results)).items()
            }

        looks.append(Look(("tenth", "end"), neighbours))
    validation = None if model.rounds.number else trait.validation(settings)
    if validation is not None:
        check_returned(cls, validation, Validation, "validation")
        keeps, better = validation.stop_after, validation.better
        tests = figures("validation", validation.test)
        looks.append(Look(("begin", "epoch"), tests, True, keeps, better))
    elif (tester := trait.tester(settings)) is not None:
        looks.append(Look(("begin", "tenth"), figures("tester", tester)))
    after_round = in_rounds.after_round
    # Of a class that does not write it, no round waits for a connection.
    if after_round.__func__ is not InRounds.after_round.__func__:  # type: ignore[attr-defined]

        def after(results: Results, number: int) -> Mapping[str, Any]:
            return plain_figures(cls, "after_round", after_round(results, number))

        looks.append(Look(("round",), after, True))
    return tuple(looks)


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
