"""What every estimator is: parameters, fitting by a job, a repr, scikit-learn's conventions.

    class FastText(Estimator, settings=WordVectorSettings) -> constructor, signature, get_params
    fit -> corpus -> run_job -> `_take` of the class: fitted attributes

A subclass says which settings it has, which model trains it, and what it is when it is fitted.
scikit-learn is never imported unless it asks.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from numpy.typing import NDArray

from snailps.config import JobSettings
from snailps.data.spool import Spooled
from snailps.errors import ParameterError, convergence_warning
from snailps.estimators.display import check_verbose, display_of
from snailps.estimators.history_plot import plot_history
from snailps.estimators.jobs import Finished, check_cluster, run_job
from snailps.estimators.labels import accuracy, values_of
from snailps.estimators.monitor import Monitor, Report, callbacks_of
from snailps.estimators.parameters import Parameters
from snailps.estimators.validation import not_fitted, one_axis, weights_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

E = TypeVar("E", bound="Estimator")
_NONE: Mapping[str, Any] = MappingProxyType({})
_SHARED = ("cluster", "callbacks")
"""Parameters that a clone shares with its original: what they hold is no value."""
_LEFT_HERE: Mapping[str, Any] = MappingProxyType({"cluster": None, "callbacks": ()})
"""Parameters that are not pickled, and what is in their place."""


class Estimator:
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
    parameters: ClassVar[Parameters]
    __signature__: ClassVar[inspect.Signature]

    history_: list[Report]
    figures_: dict[str, Any]

    def __init_subclass__(
        cls,
        *,
        settings: type[JobSettings] | None = None,
        defaults: Mapping[str, Any] = _NONE,
        fixed: Mapping[str, Any] = _NONE,
        without: Iterable[str] = (),
        extra: Mapping[str, tuple[str, Any]] = _NONE,
        **others: Any,
    ) -> None:
        """Give a class the parameters of `settings`, or inherit; the rest as of `Parameters`."""
        super().__init_subclass__(**others)
        if settings is not None:
            cls.parameters = Parameters(
                settings, defaults=defaults, fixed=fixed, without=without, extra=extra
            )
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
        return plot_history(self.history_, type(self).__name__, ax)

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

    def _fit(
        self,
        given: Spooled | list[str],
        settings: Mapping[str, Any] = _NONE,
        *,
        without: Iterable[str] = (),
        first: bool = True,
    ) -> None:
        """Train on `given`; sets the fitted attributes at the end.

        `settings` join the parameters, `without` are left out; `first` begins a new history.
        """
        name = type(self).__name__
        chosen = self._checked(settings, without)
        before = [] if first else self.history_
        display = display_of(self._parameter("verbose"), name)
        past = before[-1]["epoch"] if before else 0
        monitor = Monitor(self._parameter("callbacks"), display, past)
        monitor.quiet = not self._parameter("verbose")
        try:
            with run_job(
                self.worker_class,
                chosen,
                given,
                monitor,
                cluster=self._parameter("cluster"),
                workers=self._workers(),
                packed=self._keeps_state,
            ) as done:
                self._take(done)
        finally:
            monitor.close()
        figures = dict(done.figures)
        self.history_, self.figures_ = [*before, *monitor.history], figures
        if falls := figures.get("loss_falls"):
            epochs = figures["epochs"]
            text = f"{name}: the loss still falls {falls:.0%} an epoch after {epochs} epochs: more "
            warnings.warn(convergence_warning(f"{text}would help (epochs=...)"), stacklevel=4)
        if constant := figures.get("constant_loss"):
            loss = figures["train_loss"]
            text = (
                f"{name}: the loss, {loss:.4g}, is above that of a constant, {constant:.4g}: check "
            )
            warnings.warn(
                convergence_warning(f"{text}labels and columns, or lower lr"), stacklevel=4
            )

    def _checked(
        self, settings: Mapping[str, Any] = _NONE, without: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Settings of a job, checked before data is read, which may take long."""
        name = type(self).__name__
        also = {**self._translated(), **settings}
        chosen = self.parameters.settings(self.get_params(), name, also, without)
        check_cluster(self._parameter("cluster"), self._workers())
        check_verbose(self._parameter("verbose"))
        callbacks_of(self._parameter("callbacks"))
        return chosen

    def _translated(self) -> dict[str, Any]:
        """Settings for parameters that are no settings themselves."""
        return {}

    def _take(self, done: Finished) -> None:
        """Takes the fitted model from the files of a job."""
        raise NotImplementedError

    def _parameter(self, name: str) -> Any:
        return getattr(self, name)

    def _workers(self) -> int | None:
        workers = self._parameter("workers")
        if workers is None or (type(workers) is int and workers >= 1):
            return workers
        raise ParameterError(
            f"{type(self).__name__}: workers: expected a whole number of at least 1, or None; got "
            f"{workers!r:.80}"
        )

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
        state.update({name: value for name, value in _LEFT_HERE.items() if name in state})
        return state

    # --- scikit-learn ----------------------------------------------------------------------------

    def __sklearn_clone__(self: E) -> E:
        """For `sklearn.clone`: an estimator with equal parameters that is not fitted."""
        return type(self)(
            **{
                name: value if name in _SHARED else copy.deepcopy(value)
                for name, value in self.get_params().items()
            }
        )

    def __sklearn_is_fitted__(self) -> bool:
        """For `sklearn.utils.validation.check_is_fitted`."""
        return self._is_fitted

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`, which has imported scikit-learn."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(string=True, two_d_array=False),
            non_deterministic=True,  # threads write to the same rows
        )


class ClassifierEstimator(Estimator):
    """An estimator that predicts labels.

    Attributes
    ----------
    classes_ : array
        The labels, sorted.
    """

    _estimator_type = "classifier"
    classes_: NDArray[Any]

    @abstractmethod
    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each example, (n,)."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of examples whose class is predicted right, 0 to 1.

        Parameters
        ----------
        X : object
            As of `fit`.
        y : sequence or array
            Labels of the kind of `classes_`.
        sample_weight : array-like, optional
            Of each example.

        Raises
        ------
        DataError
            y has other than one label an example, or labels of another kind than the model.
        """
        said = self.predict(X)
        values = values_of(y if isinstance(y, str) else one_axis(y, type(self).__name__), X)
        return accuracy(said.tolist(), values, weights_of(sample_weight, len(said)))

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`, which has imported scikit-learn."""
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.target_tags.required = True
        return tags


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
