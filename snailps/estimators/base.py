"""Base of all estimators: parameters, the one way of fitting, a repr, scikit-learn's conventions.

    class FastText(Estimator, settings=WordVectorSettings) -> constructor, signature, get_params
    fit, partial_fit -> `_learn`: X, y -> `_source` -> Source -> run_job -> Finished -> `_take`
        -> attributes, set at the end
    fitted model -> `_resume` -> a file -> `continue_from` of the next job

A subclass says which settings it has, which model trains it, how data becomes a job's input, and
what it is when it is fitted.  scikit-learn is never imported unless it asks.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from snailps.config import JobSettings
from snailps.data.extras import optional_module
from snailps.data.spool import Spooled
from snailps.dataclass import dataclass, field
from snailps.errors import ParameterError, convergence_warning
from snailps.estimators.display import check_verbose, display_of
from snailps.estimators.jobs import Finished, check_cluster, run_job
from snailps.estimators.monitor import Monitor, Report, callbacks_of
from snailps.estimators.parameters import Parameters
from snailps.estimators.routing import Routed
from snailps.estimators.validation import not_fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

E = TypeVar("E", bound="Estimator")
_NONE: Mapping[str, Any] = MappingProxyType({})
_NO_VALUES: Mapping[str, Any] = MappingProxyType({"cluster": None, "callbacks": ()})
"""Parameters that clones share with their original, and what pickles have in their place."""


@dataclass(frozen=True, slots=True)
class Source:
    """Input of a job, and the settings and attributes that follow from it.

    An attribute that is None is removed from a model that had it.
    """

    input: Spooled | list[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Estimator(Routed):
    """A model as an object.

    Parameters are stored as they are, and checked when `fit` is called.

    Attributes
    ----------
    history_ : list of dict
        Loss and speed of each epoch, those of all `partial_fit` included.
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
        """Give a class the parameters of `settings`, or inherit; the rest as of `Parameters`."""
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

    def _learn(
        self: E,
        X: Any,
        y: Any = None,
        *,
        goes_on: bool = False,
        epochs: int | str | None = None,
        **how: Any,
    ) -> E:
        """Learn from data; `goes_on`: with the model that is there; `how` is of `_source`."""
        name, settings = type(self).__name__, {} if epochs is None else {"epochs": epochs}
        chosen = self._checked(settings)
        for text in self.parameters.unread(self.get_params(), name):
            warnings.warn(text, stacklevel=3)
        goes_on = goes_on and self._is_fitted
        if goes_on:
            self._refuse_other_model(chosen)
        before = self.history_ if goes_on else []
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(self._source(X, y, goes_on=goes_on, **how))
            also = {**settings, **source.settings}
            if goes_on:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="snailps-"))
                also["continue_from"] = self._resume(folder, source)
            monitor = Monitor(
                self.callbacks, display_of(self.verbose, name), before[-1]["epoch"] if before else 0
            )
            monitor.quiet = not self.verbose
            stack.callback(monitor.close)
            done = stack.enter_context(
                run_job(
                    self.worker_class,
                    self._checked(also, self._left_out() if goes_on else ()),
                    source.input,
                    monitor,
                    cluster=self.cluster,
                    workers=self.workers,
                    packed=self._keeps_state,
                )
            )
            found = {**source.attributes, **self._take(done, source)}
        figures = dict(done.figures)
        found |= {"history_": [*before, *monitor.history], "figures_": figures}
        for attribute, value in found.items():
            self.__dict__.pop(attribute, None)
            if value is not None:
                setattr(self, attribute, value)
        if falls := figures.get("loss_falls"):
            epochs = figures["epochs"]
            text = f"{name}: the loss still falls {falls:.0%} an epoch after {epochs} epochs: more "
            text += f"would help (epochs={2 * epochs})"
            warnings.warn(convergence_warning(text), stacklevel=3)
        if constant := figures.get("constant_loss"):
            loss = figures["train_loss"]
            text = f"{name}: the loss, {loss:.4g}, is above that of a constant, {constant:.4g}: "
            warnings.warn(
                convergence_warning(f"{text}check labels and columns, or lower lr"), stacklevel=3
            )
        for key, count in figures.get("clipped", {}).items():
            text = f"{name}: {count:,} values of column {self._column(key)}, of all epochs, are "
            text += "beyond 64 times their scale: they are trained, and predicted, as that"
            warnings.warn(text, stacklevel=3)
        return self

    def _column(self, key: str) -> str:
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

    def _refuse_other_model(self, chosen: Mapping[str, Any]) -> None:
        """Refuse to go on with parameters that make another model."""
        for one, value in self._kept().items():
            known = self.parameters.by_name.get(one)
            mine = chosen.get(one, self.parameters.defaults.get(one, value))
            # An automatic number is the one that was chosen for it.
            if mine != value and not (known is not None and known.auto and mine == "auto"):
                raise ParameterError(
                    f"{type(self).__name__}: {one}: the fitted model has {value!r:.80}, got "
                    f"{getattr(self, one, mine)!r:.80}: partial_fit goes on with that model; call "
                    "fit for another one"
                )

    def _kept(self) -> Mapping[str, Any]:
        """Settings of the fitted model that must stay to go on with it."""
        return _NONE

    def _left_out(self) -> Iterable[str]:
        """Settings that a job leaves to the model that it goes on with."""
        return ()

    @abstractmethod
    def _source(self, *data: Any, **how: Any) -> AbstractContextManager[Source]:
        """The input of a job, of X and y, with `goes_on`."""

    def _resume(self, folder: str, source: Source) -> str:
        """Write the fitted model to go on with into a folder; return the file's path."""
        raise NotImplementedError

    @abstractmethod
    def _take(self, done: Finished, source: Source) -> dict[str, Any]:
        """The attributes of the model in the files of a job."""

    def _adopted(self: E, settings: object, given: Container[str]) -> E:
        """Take parameters that are not `given` from a file's settings; there is no history."""
        for name, value in self.parameters.of_settings(settings).items():
            if name not in given:
                setattr(self, name, value)
        self.history_, self.figures_ = [], {}
        return self

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
