"""Base of all estimators: parameters, the one way of fitting, a repr, scikit-learn's conventions.

    class FastText(Estimator, settings=WordVectorSettings) -> constructor, signature, get_params

What is called when; the methods of a subclass stand in brackets:

    fit(X, y)       partial_fit(X, y)                        load(path)
        |               |   fitted: [_start] -> Start            |
        |               |   other parameters are refused         |
        v               v                                        v
    _learn(Data): parameters are checked                     _loaded(path, parameters)
        |                                                        |
    [_input_of](Data) -> Source: input, settings, attributes     |
        |   continues: [_write_start] -> a file, continue_from   |
    run_job -> Finished                                          |
        |                                                        |
    [_learned](Finished, Source) -> attributes           [_saved](path) -> attributes, parameters
        |                                                        |
        +----------> set together, with history_ and figures_ <--+

Nothing is set before the job has finished: an estimator whose fit fails is what it was before.
scikit-learn is never imported unless it asks.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from snailps.config import JobSettings
from snailps.data.extras import optional_module
from snailps.data.spool import Spooled
from snailps.dataclass import dataclass, field, replace
from snailps.errors import NotFitted, ParameterError, convergence_warning
from snailps.estimators.display import check_verbose, display_of
from snailps.estimators.jobs import Finished, check_cluster, run_job
from snailps.estimators.monitor import Monitor, Report, callbacks_of
from snailps.estimators.parameters import Parameters
from snailps.estimators.routing import Routed
from snailps.estimators.validation import not_fitted

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes

E = TypeVar("E", bound="Estimator")
_NONE: Mapping[str, Any] = MappingProxyType({})
_NO_VALUES: Mapping[str, Any] = MappingProxyType({"cluster": None, "callbacks": ()})
"""Parameters that clones share with their original, and what pickles have in their place."""


@dataclass(frozen=True, slots=True)
class Data:
    """What `fit` or `partial_fit` got; an estimator takes the fields that its methods name."""

    X: Any
    y: Any = None
    sample_weight: Any = None
    classes: Sequence[Any] | None = None
    """Labels that may come later, besides the labels of y; None: none may."""
    columns: Sequence[str] = ()
    column: str = ""
    continues: bool = False
    """The job starts from the fitted model."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a fitted model asks of the job that starts from it."""

    must_match: Mapping[str, Any]
    """Settings of the model: parameters with other values are refused."""
    in_file: bool = False
    """The file that the job starts from decides them: they do not go with the job."""
    habits: frozenset[str] = frozenset()
    """Settings that the file has, too, but parameters decide: these go with the job, always."""
    lacks: str = ""
    """Why no job can start from the model; empty: it can."""


@dataclass(frozen=True, slots=True)
class Source:
    """Input of a job, and what follows from it.

    An attribute that is None is removed from a model that had it.
    """

    input: Spooled | list[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    """Warnings to give before the training."""


class Estimator(Routed):
    """A model as an object.

    Parameters are stored as they are, and checked when `fit` is called.

    Attributes
    ----------
    history_ : list of dict
        Loss and speed of each epoch, of all calls of `partial_fit`, too.
    figures_ : dict
        Figures of the last job.
    """

    worker_class: ClassVar[str]
    """The model that trains it, ``package.module:Class``."""
    _keeps_state: ClassVar[bool] = False
    """Whether a job leaves its rows with the state of their optimizer, to go on with."""
    _estimator_type: ClassVar[str | None] = None
    """Kind of estimator for scikit-learn: "classifier", "regressor"."""
    _takes_rows: ClassVar[bool] = False
    """Whether its examples are rows of a matrix."""
    _multiclass: ClassVar[bool] = True
    """Whether a classifier takes more than two classes."""
    parameters: ClassVar[Parameters]
    __signature__: ClassVar[inspect.Signature]

    history_: list[Report]
    figures_: dict[str, Any]
    cluster: Any
    workers: Any
    callbacks: Any
    verbose: Any
    _model: Any

    def __init_subclass__(
        cls,
        *,
        settings: type[JobSettings] | None = None,
        fixed: Mapping[str, Any] = _NONE,
        without: Iterable[str] = (),
        extra: Mapping[str, tuple[str, Any]] = _NONE,
        **others: Any,
    ) -> None:
        """Give a class the parameters of `settings`, or inherit; the rest as in `Parameters`."""
        super().__init_subclass__(**others)
        if settings is not None:
            cls.parameters = Parameters(settings, fixed=fixed, without=without, extra=extra)
            cls.__signature__ = cls.parameters.signature()
            constructor: Any = _constructor(cls.__signature__)
            constructor.__qualname__ = f"{cls.__qualname__}.__init__"
            cls.__init__ = constructor  # type: ignore[method-assign]

    def __init__(self, **parameters: Any) -> None:
        """Stores the parameters.

        Raises
        ------
        ParameterError
            A name is none of them; the text says which one may have been meant.
        """
        self._refuse_unknown(parameters)
        for name, default in self.parameters.defaults.items():
            setattr(self, name, parameters.get(name, default))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters by name; `deep` has no effect, for none of them is an estimator."""
        return {name: getattr(self, name) for name in self.parameters.defaults}

    def set_params(self: E, **parameters: Any) -> E:
        """Changes parameters; a fitted model stays as it is until the next fit."""
        self._refuse_unknown(parameters)
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the loss of each epoch; on `ax` if given.

        Raises
        ------
        ConfigError
            matplotlib is not installed.
        """
        self._refuse_unfitted("plot")
        if ax is None:
            pyplot = optional_module("matplotlib.pyplot", "plot", "snailps[plot]")
            ax = pyplot.subplots()[1]
        epochs = [one["epoch"] for one in self.history_]
        ax.plot(epochs, [one["loss"] for one in self.history_], marker="o", label="training loss")
        ax.set_xlabel("epoch")
        ax.set_ylabel("training loss")
        ax.set_title(type(self).__name__)
        return ax

    def __repr__(self) -> str:
        """The parameters that differ from their defaults."""
        defaults = self.parameters.defaults
        changed = ", ".join(
            f"{name}={value!r:.200}"
            for name, value in self.get_params().items()
            if not _equal(value, defaults[name])
        )
        return f"{type(self).__name__}({changed})"

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.parameters.defaults:
                raise self.parameters.unknown(name, type(self).__name__)

    # --- fitting ---------------------------------------------------------------------------------

    def _learn(self: E, data: Data, epochs: int | str | None = None) -> E:
        """Run the job of `fit` or `partial_fit`, and take its model; see the module."""
        name, passes = type(self).__name__, {} if epochs is None else {"epochs": epochs}
        chosen = self._checked(passes)
        for text in self.parameters.unread(self.get_params(), name):
            warnings.warn(text, stacklevel=3)
        data = replace(data, continues=data.continues and self._is_fitted)
        start = self._start() if data.continues else None
        if start is not None:
            self._refuse_other_model(start, chosen)
        before = self.history_ if data.continues else []
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(self._input_of(data))
            for text in source.remarks:
                warnings.warn(text, stacklevel=3)
            settings, left_out = {**passes, **source.settings}, _NONE.keys()
            if start is not None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="snailps-"))
                for habit in start.habits & self.parameters.by_name.keys():
                    settings[habit] = chosen.get(habit, self.parameters.defaults[habit])
                settings["continue_from"] = self._write_start(folder, source)
                left_out = start.must_match.keys() if start.in_file else left_out
            monitor = Monitor(
                self.callbacks, display_of(self.verbose, name), before[-1]["epoch"] if before else 0
            )
            monitor.quiet = not self.verbose
            stack.callback(monitor.close)
            done = stack.enter_context(
                run_job(
                    self.worker_class,
                    self._checked(settings, left_out),
                    source.input,
                    monitor,
                    cluster=self.cluster,
                    workers=self.workers,
                    packed=self._keeps_state,
                )
            )
            attributes = {**source.attributes, **self._learned(done, source)}
        figures = dict(done.figures)
        attributes |= {"history_": [*before, *monitor.history], "figures_": figures}
        for attribute, value in attributes.items():
            self.__dict__.pop(attribute, None)
            if value is not None:
                setattr(self, attribute, value)
        for warning in self._remarks_on(figures):
            warnings.warn(warning, stacklevel=3)
        return self

    @abstractmethod
    def _input_of(self, data: Data) -> AbstractContextManager[Source]:
        """The input of a job."""

    def _start(self) -> Start:
        """What the fitted model asks of a job that starts from it."""
        raise NotImplementedError

    def _write_start(self, folder: str, source: Source) -> str:
        """Write the fitted model into a folder for the next job; return the file's path."""
        raise NotImplementedError

    @abstractmethod
    def _learned(self, done: Finished, source: Source) -> dict[str, Any]:
        """The attributes of the model in the files of a job."""

    @classmethod
    def _loaded(
        cls: type[E],
        path: str | os.PathLike[str],
        parameters: Mapping[str, Any],
        classes: Any = None,
    ) -> E:
        """A fitted estimator of a file, whose own parameters `parameters` replace."""
        estimator = cls(**parameters)
        for name, value in cls._saved(path, parameters, classes).items():
            if name not in parameters:
                setattr(estimator, name, value)
        estimator.history_, estimator.figures_ = [], {}
        return estimator

    @classmethod
    @abstractmethod
    def _saved(
        cls, path: str | os.PathLike[str], parameters: Mapping[str, Any], classes: Any = None
    ) -> dict[str, Any]:
        """The attributes of the model in a file, and the parameters that the file has.

        `classes`: labels of a classifier, whose file may lack them.
        """

    def _refuse_other_model(self, start: Start, chosen: Mapping[str, Any]) -> None:
        """Refuse parameters that make another model, and a model that no job can start from."""
        for name, value in start.must_match.items():
            known = self.parameters.by_name.get(name)
            mine = chosen.get(name, self.parameters.defaults.get(name, value))
            # An automatic number is the one that was chosen for it.
            if mine != value and not (known is not None and known.auto and mine == "auto"):
                raise ParameterError(
                    f"{type(self).__name__}: {name}: the fitted model has {value!r:.80}, got "
                    f"{getattr(self, name, mine)!r:.80}: partial_fit goes on with that model; call "
                    "fit for another one"
                )
        if start.lacks:
            raise NotFitted(f"{type(self).__name__}: {start.lacks}")

    def _remarks_on(self, figures: Mapping[str, Any]) -> Iterator[str | Warning]:
        """Warnings of a training's figures."""
        name = type(self).__name__
        if falls := figures.get("loss_falls"):
            epochs = figures["epochs"]
            yield convergence_warning(
                f"{name}: the loss still falls {falls:.0%} an epoch after {epochs} epochs: more "
                f"would help (epochs={2 * epochs})"
            )
        if constant := figures.get("constant_loss"):
            loss = figures["train_loss"]
            yield convergence_warning(
                f"{name}: the loss, {loss:.4g}, is above that of a constant, {constant:.4g}: check "
                "labels and columns, or lower lr"
            )
        for key, count in figures.get("clipped", {}).items():
            yield (
                f"{name}: {count:,} values of column {self._name_of_column(key)}, of all epochs, "
                "are beyond 64 times their scale: they are trained, and predicted, as that"
            )

    def _name_of_column(self, key: str) -> str:
        """Name of a column in figures of a run."""
        return key

    def _checked(
        self, also: Mapping[str, Any] = _NONE, left_out: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Settings of a job; parameters are checked before data is read, which may take long."""
        name, workers = type(self).__name__, self.workers
        also = {**self._translated(), **also}
        chosen = self.parameters.settings(self.get_params(), name, also, left_out)
        if workers is not None and not (type(workers) is int and workers > 0):
            raise ParameterError(
                f"{name}: workers: expected a whole number of at least 1, or None; got "
                f"{workers!r:.80}"
            )
        check_cluster(self.cluster, workers)
        check_verbose(self.verbose)
        callbacks_of(self.callbacks)
        return chosen

    def _translated(self) -> dict[str, Any]:
        """Settings for parameters that are no settings themselves."""
        return {}

    @property
    def _is_fitted(self) -> bool:
        return "history_" in self.__dict__

    def _refuse_unfitted(self, what: str) -> None:
        if not self._is_fitted:
            name = type(self).__name__
            raise not_fitted(f"{name}: {what} needs a fitted model: call fit first")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: without the cluster and the callbacks, which stay here."""
        state = dict(self.__dict__)
        state.update({name: value for name, value in _NO_VALUES.items() if name in state})
        return state

    # --- scikit-learn ----------------------------------------------------------------------------

    def __sklearn_clone__(self: E) -> E:
        """For `sklearn.clone`: an estimator with equal parameters that is not fitted."""
        made = type(self)(
            **{
                name: value if name in _NO_VALUES else copy.deepcopy(value)
                for name, value in self.get_params().items()
            }
        )
        if self._requests:
            made._requests = self._requests
        return made

    def __sklearn_is_fitted__(self) -> bool:
        """For `sklearn.utils.validation.check_is_fitted`."""
        return self._is_fitted

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`, which has imported scikit-learn."""
        from sklearn import utils

        kind, rows = self._estimator_type, self._takes_rows
        is_classifier, transforms = kind == "classifier", hasattr(self, "transform")
        return utils.Tags(
            estimator_type=kind,
            target_tags=utils.TargetTags(required=kind is not None),
            classifier_tags=utils.ClassifierTags(multi_class=self._multiclass)
            if is_classifier
            else None,
            regressor_tags=utils.RegressorTags() if kind == "regressor" else None,
            transformer_tags=utils.TransformerTags(preserves_dtype=[]) if transforms else None,
            input_tags=utils.InputTags(string=not rows, two_d_array=rows, sparse=rows),
            non_deterministic=True,  # threads write to the same rows
        )


def _constructor(signature: inspect.Signature) -> Callable[..., None]:
    """A constructor that shows its parameters: to `help`, editors, and scikit-learn."""

    def __init__(self: Estimator, *data: Any, **parameters: Any) -> None:
        if data:
            name = type(self).__name__
            raise ParameterError(
                f"{name}: expected parameters by name, got {type(data[0]).__name__}: data goes to "
                f"fit, {name}(...).fit(data)"
            )
        Estimator.__init__(self, **parameters)

    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown: Any = __init__
    shown.__signature__ = signature.replace(parameters=[me, *signature.parameters.values()])
    return __init__


def _equal(one: object, other: object) -> bool:
    """Whether values are equal; arrays, which do not say so, are not."""
    try:
        return one is other or bool(one == other)
    except ValueError:
        return False
