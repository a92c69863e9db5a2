"""Base of all estimators: parameters, fitting, a repr, and scikit-learn's conventions.

    class FastText(Estimator, settings=WordVectorSettings) -> constructor, signature, get_params

The order of calls; methods that a subclass implements are in brackets:

    fit(X, y)       partial_fit(X, y)                        load(path)
        |               |   fitted: [_start] -> Start            |
        |               |   other parameters are refused         |
        v               v                                        v
    _learn(Data): parameters are checked                     _loaded(path, parameters)
        |                                                        |
    [_input_of](Data) -> FitInput: input, settings, attributes   |
        |   continues: [_write_start] -> a file, continue_from   |
    run_job -> Finished                                          |
        |                                                        |
    [_learned](FinishedJob, FitInput) -> attributes      [_saved](path) -> attributes, parameters
        |                                                        |
        +----------> set together, with history_ and figures_ <--+

Attributes are set only after the job has finished: if `fit` raises, the estimator keeps its earlier
model.  scikit-learn is optional: it is imported only inside the methods that scikit-learn calls.
This module must not know files, matrices or what a model computes.
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
from snailps.data.spool import Spooled
from snailps.dataclass import dataclass, field, replace
from snailps.errors import ConfigError, NotFitted, ParameterError, convergence_warning
from snailps.estimators.display import check_verbose, display_of
from snailps.estimators.jobs import FinishedJob, check_cluster, run_job
from snailps.estimators.monitor import Monitor, Report, callbacks_of
from snailps.estimators.parameters import EstimatorParameters
from snailps.estimators.routing import Routed
from snailps.estimators.validation import not_fitted
from snailps.files.extras import optional_module

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes

E = TypeVar("E", bound="Estimator")
_NONE: Mapping[str, Any] = MappingProxyType({})
_NO_VALUES: Mapping[str, Any] = MappingProxyType({"cluster": None, "callbacks": ()})
"""Parameters that a clone shares instead of copying, with the values that a pickle has for them."""


@dataclass(frozen=True, slots=True)
class Data:
    """Arguments of `fit` or `partial_fit`; each estimator reads the fields that it supports."""

    X: Any
    y: Any = None
    sample_weight: Any = None
    classes: Sequence[Any] | None = None
    """Labels that later calls may bring, besides the labels of y; None: only labels of y."""
    columns: Sequence[str] = ()
    times: Any = None
    column: str = ""
    has_weights: bool = False
    """Whether texts in memory or their labels have weights."""
    label_prefix: str = "__label__"
    """Before the labels of texts in memory."""
    continues: bool = False
    """Whether the job starts from the fitted model; False for a model that is not fitted yet."""
    epochs_chosen: bool = False
    """Whether a search has chosen the epochs: advice on their number would contradict it."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What a fitted model requires of a job that continues its training."""

    must_match: Mapping[str, Any]
    """Settings that define the model's shape; a parameter with another value is refused."""
    in_file: bool = False
    """The job reads `must_match` from the model's file, so they are not sent as settings."""
    habits: frozenset[str] = frozenset()
    """Settings that the file also has.  They are always sent, defaults too: else the job would
    take the file's value where the parameter has its default."""
    lacks: str = ""
    """Why the model cannot be continued; empty: it can."""


@dataclass(frozen=True, slots=True)
class FitInput:
    """Input of a job, with the settings and attributes that the data decides."""

    input: Spooled | list[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Set on the estimator after the job; None deletes the attribute of an earlier fit."""
    remarks: Sequence[str] = ()
    """Warnings to give before the training."""


class Estimator(Routed):
    """A model as an object.

    The constructor stores parameters unchanged; `fit` checks them.

    Attributes
    ----------
    history_ : list of dict
        One dict an epoch, with its loss and speed; `partial_fit` appends to it.
    figures_ : dict
        Final figures of the last job: loss, speed, counts.
    """

    worker_class: ClassVar[str]
    """The worker that trains it, ``package.module:Class``."""
    _keeps_state: ClassVar[bool] = False
    """Whether a job returns its rows with optimizer state, from which `partial_fit` continues."""
    _estimator_type: ClassVar[str | None] = None
    """scikit-learn's kind of estimator: "classifier", "regressor" or None."""
    _takes_rows: ClassVar[bool] = False
    """Whether an example is a row of a matrix; else a text, or a row of names."""
    _multiclass: ClassVar[bool] = True
    """Whether a classifier supports more than two classes."""
    _warns_at: ClassVar[int] = 3
    """Frames from a warning up to the caller's line, whose place it shows."""
    parameters: ClassVar[EstimatorParameters]
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
        """Build the constructor from `settings`; without them the class inherits its base's.

        `fixed`, `without` and `extra` are arguments of `EstimatorParameters`.
        """
        super().__init_subclass__(**others)
        if settings is not None:
            cls.parameters = EstimatorParameters(
                settings, fixed=fixed, without=without, extra=extra
            )
            cls.__signature__ = cls.parameters.signature()
            constructor: Any = _constructor(cls.__signature__)
            constructor.__qualname__ = f"{cls.__qualname__}.__init__"
            cls.__init__ = constructor  # type: ignore[method-assign]

    def __init__(self, **parameters: Any) -> None:
        """Store the parameters; `fit` checks their values.

        Raises
        ------
        ParameterError
            Unknown name; the text suggests the parameter that may have been meant.
        """
        self._refuse_unknown(parameters)
        for name, default in self.parameters.defaults.items():
            setattr(self, name, parameters.get(name, default))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name.

        `deep` has no effect: no parameter is itself an estimator.
        """
        return {name: getattr(self, name) for name in self.parameters.defaults}

    def set_params(self: E, **parameters: Any) -> E:
        """Change parameters; they take effect with the next fit.

        Raises
        ------
        ParameterError
            Unknown name; nothing is changed.
        """
        self._refuse_unknown(parameters)
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the training loss by epoch.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        NotFitted
            `fit` was not called.
        ConfigError
            matplotlib is not installed.
        """
        self._refuse_unfitted("plot")
        if ax is None:
            pyplot = optional_module("matplotlib.pyplot", "plot", "snailps[plot]")
            ax = pyplot.subplots()[1]
        epochs = [report["epoch"] for report in self.history_]
        losses = [report["loss"] for report in self.history_]
        ax.plot(epochs, losses, marker="o", label="training loss")
        ax.set_xlabel("epoch")
        ax.set_ylabel("training loss")
        ax.set_title(type(self).__name__)
        return ax

    def __repr__(self) -> str:
        """Show the parameters that differ from their defaults."""
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
        """Run the job of `fit` or `partial_fit`, then set the attributes of its model.

        The module docstring has the order of calls.
        """
        name, passes = type(self).__name__, {} if epochs is None else {"epochs": epochs}
        chosen = self._checked(passes)  # first: a typing error must not cost reading the data
        for text in self.parameters.unread(self.get_params(), name):
            warnings.warn(text, stacklevel=self._warns_at)
        data = replace(data, continues=data.continues and self._is_fitted)
        start = self._start() if data.continues else None
        if start is not None:
            self._refuse_other_model(start, chosen)
        before = self.history_ if data.continues else []
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(self._input_of(data))
            for text in source.remarks:
                warnings.warn(text, stacklevel=self._warns_at)
            settings, left_out = {**passes, **source.settings}, _NONE.keys()
            if start is not None:
                # The folder is entered before the job, so that it is removed after it.
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="snailps-"))
                for habit in start.habits & self.parameters.by_name.keys():
                    settings.setdefault(habit, chosen.get(habit, self.parameters.defaults[habit]))
                settings["continue_from"] = self._write_start(folder, source)
                left_out = start.must_match.keys() if start.in_file else left_out
            monitor = Monitor(
                self.callbacks, display_of(self.verbose, name), before[-1]["epoch"] if before else 0
            )
            monitor.quiet = not self.verbose
            stack.callback(monitor.close)
            with self._as_parameters():
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
        # From here on nothing raises: a model is replaced whole, or not at all.
        figures = dict(done.figures)
        attributes |= {"history_": [*before, *monitor.history], "figures_": figures}
        for attribute, value in attributes.items():
            self.__dict__.pop(attribute, None)
            if value is not None:
                setattr(self, attribute, value)
        ignored = {"loss_falls"} if data.epochs_chosen else ()
        for warning in self._remarks_on({k: v for k, v in figures.items() if k not in ignored}):
            warnings.warn(warning, stacklevel=self._warns_at)
        return self

    @contextlib.contextmanager
    def _as_parameters(self) -> Iterator[None]:
        """Raise what the job refuses of a parameter, which only the model can judge, like the
        refusals of this process."""
        try:
            yield
        except ConfigError as error:
            if str(error).partition(":")[0] not in self.parameters.defaults:
                raise  # of the cluster; or it has the name of the estimator already
            raise ParameterError(f"{type(self).__name__}: {error}") from None

    @abstractmethod
    def _input_of(self, data: Data) -> AbstractContextManager[FitInput]:
        """Yield the input of a job; scratch files last as long as the context."""

    def _start(self) -> WarmStart:
        """Return what the fitted model requires of a job that continues it."""
        raise NotImplementedError

    def _write_start(self, folder: str, source: FitInput) -> str:
        """Write the fitted model into a folder for the next job; return the file's path."""
        raise NotImplementedError

    @abstractmethod
    def _learned(self, done: FinishedJob, source: FitInput) -> dict[str, Any]:
        """Return the attributes of the model that a job has exported.

        It runs while the job's files exist; they are deleted afterwards.
        """

    @classmethod
    def _loaded(
        cls: type[E],
        path: str | os.PathLike[str],
        parameters: Mapping[str, Any],
        classes: Any = None,
    ) -> E:
        """Open a file as a fitted estimator; `parameters` take precedence over the file's."""
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
        """Return attributes and parameters that a file has.

        `classes` are the labels of a classifier; files of ``snailps train`` may lack them.
        """

    def _refuse_other_model(self, start: WarmStart, chosen: Mapping[str, Any]) -> None:
        """Refuse parameters that change the model's shape, and models that cannot be continued."""
        for name, value in start.must_match.items():
            setting = self.parameters.by_name.get(name)
            wanted = chosen.get(name, self.parameters.defaults.get(name, value))
            # "auto" means the value that the first fit chose, if the program or the file fills it
            # in; else it is a choice like any other, which the job would make anew.
            is_filled_in = start.in_file or (setting is not None and setting.auto)
            if wanted != value and not (wanted == "auto" and is_filled_in):
                raise ParameterError(
                    f"{type(self).__name__}: {name}: the fitted model has {value!r:.80}, got "
                    f"{getattr(self, name, wanted)!r:.80}: partial_fit continues that model; call "
                    "fit to train a new one"
                )
        if start.lacks:
            raise NotFitted(f"{type(self).__name__}: {start.lacks}")

    def _remarks_on(self, figures: Mapping[str, Any]) -> Iterator[str | Warning]:
        """Yield a warning for each figure that shows a training that went wrong."""
        name = type(self).__name__
        if (ended_by := figures.get("ended_by")) and not figures.get("blocks", 1):
            yield (
                f"{name}: nothing was trained: no block was finished before {ended_by} ended the "
                "training, and the model is as it began"
            )
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
                f"{name}: {count:,} values of column {self._name_of_column(key)} (counted in all "
                "epochs) are beyond 64 times their scale: training and prediction clip them to that"
            )

    def _name_of_column(self, key: str) -> str:
        """Return the name of a column that figures name by its key."""
        return key

    def _checked(
        self, also: Mapping[str, Any] = _NONE, left_out: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Check all parameters and return the settings of a job, without reading any data."""
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
        """Return settings made of parameters that are no settings themselves."""
        return {}

    @property
    def _is_fitted(self) -> bool:
        return "history_" in self.__dict__

    def _refuse_unfitted(self, what: str) -> None:
        if not self._is_fitted:
            name = type(self).__name__
            raise not_fitted(f"{name}: {what} needs a fitted model: call fit first")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: without cluster and callbacks, which belong to this process."""
        state = dict(self.__dict__)
        state.update({name: value for name, value in _NO_VALUES.items() if name in state})
        return state

    # --- scikit-learn ----------------------------------------------------------------------------

    def __sklearn_clone__(self: E) -> E:
        """For `sklearn.clone`: an unfitted estimator with equal parameters."""
        clone = type(self)(
            **{
                name: value if name in _NO_VALUES else copy.deepcopy(value)
                for name, value in self.get_params().items()
            }
        )
        if self._requests:
            clone._requests = self._requests
        return clone

    def __sklearn_is_fitted__(self) -> bool:
        """For `sklearn.utils.validation.check_is_fitted`."""
        return self._is_fitted

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`, whose caller has imported scikit-learn."""
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
            non_deterministic=True,  # workers push to the same rows in any order
        )


def _constructor(signature: inspect.Signature) -> Callable[..., None]:
    """Make a constructor whose signature `help`, editors and scikit-learn can read."""

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
    """Whether two values are equal; False for arrays, whose ``==`` has no truth value."""
    try:
        return one is other or bool(one == other)
    except ValueError:
        return False
