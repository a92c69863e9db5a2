"""The parameters of an estimator: the settings of its model that make sense in Python.

    settings class -> Parameters -> signature, defaults
    values of an estimator -> Parameters.settings -> settings of a job, or a ParameterError

Settings for paths, columns, checkpoints and output are not parameters, because data and results are
objects here.  Must not know models by name, or clusters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from snailps.config import (
    CHECKPOINT_SETTINGS,
    CheckpointSettings,
    JobSettings,
    MasterSettings,
    RawConfig,
    ServerSettings,
    Setting,
    WorkerSettings,
    settings_of,
)
from snailps.errors import ConfigError, ParameterError, near_name

_ROLES = CheckpointSettings, MasterSettings, ServerSettings, WorkerSettings
_OF_THE_JOB = {"worker_class", "assign", "scratch_bytes", *CHECKPOINT_SETTINGS}
_UNITS = {"path", "paths", "column"}
_TYPES: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "list": Sequence[str],
}  # fmt: skip
_ELSEWHERE = {
    # gensim, fasttext, scikit-learn
    "vector_size": "dim", "size": "dim", "alpha": "lr", "learning_rate": "lr", "eta0": "lr",
    "epoch": "epochs", "iter": "epochs", "max_iter": "epochs", "ws": "window", "sg": "model",
    "hs": "loss",
    "negative": "negatives", "neg": "negatives", "mincount": "min_count",
    "mincountlabel": "min_count_label", "wordngrams": "word_ngrams", "t": "sample",
    "max_final_vocab": "max_vocab", "buckets": "bucket", "random_state": "seed",
    "thread": "workers", "n_jobs": "workers", "min_n": "minn", "max_n": "maxn",
    "hidden_layer_sizes": "hidden", "n_factors": "factors", "rank": "factors", "k": "factors",
    "penalty": "l2", "fit_intercept": "bias", "class_weights": "class_weight", "tol": "target_loss",
    "reg_alpha": "l1", "reg_lambda": "l2", "n_iter": "epochs", "iterations": "epochs",
    "embedding_dim": "dim", "num_epochs": "epochs", "n_epochs": "epochs", "lr_all": "lr",
    "early_stopping": "stop_after", "n_iter_no_change": "stop_after", "patience": "stop_after",
    "early_stopping_rounds": "stop_after", "eval_set": "validation",
    "validation_fraction": "held_out", "validation_split": "held_out", "test_size": "held_out",
    "reg_all": "l2", "regularization": "l2", "num_negs_per_pos": "negatives",
}  # fmt: skip
"""Our names for the parameters of other libraries (in lower case), for hints in errors."""
_NOT_LR = {"alpha": "l2", "c": "l2"}
"""Names that mean a penalty in models with `l2`: scikit-learn's alpha, and C, its inverse."""

_OF_CALLS = {
    "input": "fit(X)", "train": "fit(X)", "output": "save(path)", "formats": "save(path)",
    "continue_from": "load(path), then partial_fit(X)",
}  # fmt: skip
"""Settings of commands that methods take here."""

OWN: Mapping[str, tuple[Any, Any]] = MappingProxyType(
    {
        "cluster": ("Cluster | None", None),
        "workers": ("int | None", None),
        "callbacks": ("Sequence[Callable[[dict[str, Any]], object]]", ()),
        "verbose": ('bool | int | Literal["auto"]', "auto"),
    }
)
"""Parameters that every estimator has besides its model's: type and default."""


class EstimatorParameters:
    """The parameters of one estimator.

    `fixed` are settings whose value the estimator decides; `without` names further settings that
    are no parameters.  `extra` are parameters that are no settings, as (type as text, default).
    """

    def __init__(
        self,
        settings: type[JobSettings],
        *,
        fixed: Mapping[str, Any] = MappingProxyType({}),
        without: Iterable[str] = (),
        extra: Mapping[str, tuple[str, Any]] = MappingProxyType({}),
    ) -> None:
        left_out = {*_OF_THE_JOB, *fixed, *without, *extra}
        self.extra = extra
        self._settings, self.fixed = settings, fixed
        declared = settings_of(settings)
        self.by_name: Mapping[str, Setting] = {
            name: setting
            for name, setting in sorted(declared.items(), key=lambda item: item[0] in _common())
            if not (setting.hidden or name in left_out or setting.unit in _UNITS)
        }
        self.defaults: Mapping[str, Any] = {
            **{name: _shown(setting, setting.default) for name, setting in self.by_name.items()},
            **{name: default for name, (_, default) in extra.items()},
            **{name: default for name, (_, default) in OWN.items()},
        }

    def signature(self) -> inspect.Signature:
        """Return the signature of the estimator's constructor; all parameters are keyword-only."""
        own = {**self.extra, **OWN}
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=own[name][0] if name in own else type_of(self.by_name[name]),
                )
                for name, default in self.defaults.items()
            ]
        )

    def unknown(self, name: str, who: str) -> ParameterError:
        """Make the error for an unknown parameter, with the name that may have been meant."""
        known = list(self.defaults)
        small = name.lower()
        meant = _ELSEWHERE.get(small.replace("_", ""), _ELSEWHERE.get(small, ""))
        if "l2" in known:
            meant = _NOT_LR.get(small, meant)
        if meant not in known and (meant or small) == "factors":  # a matrix factorisation says dim
            meant = "dim"
        if name in _OF_CALLS:
            return ParameterError(
                f"{who}: unknown parameter {name!r}; give it to {_OF_CALLS[name]}"
            )
        if name == "servers" or any(name in settings_of(role) for role in _ROLES):
            return ParameterError(
                f"{who}: unknown parameter {name!r}; it is a cluster's: with "
                f"snailps.local_cluster({name}=...) as cluster, then cluster=cluster"
            )
        near = meant if meant in known else near_name(small, known)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
        if near == "l2" and small == "c":
            hint = "did you mean 'l2', 1 / (n C) of n examples?"
        return ParameterError(f"{who}: unknown parameter {name!r}; {hint}")

    def settings(
        self,
        values: Mapping[str, Any],
        who: str,
        also: Mapping[str, Any] = MappingProxyType({}),
        left_out: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Check the parameters; return the settings of a job that differ from their defaults.

        `also` takes precedence over `values`.  Left out are the parameters in `left_out` and those
        that have no effect with the other settings.
        """
        differing = self._changed(values, who, also)
        without = {*left_out} - also.keys() | self._unread(differing, who).keys()
        changed = {name: value for name, value in differing.items() if name not in without}
        built, normal = self._built(changed, who), settings_of(self._settings)
        return {**{name: _shown(normal[name], getattr(built, name)) for name in changed}, **also}

    def unread(self, values: Mapping[str, Any], who: str) -> list[str]:
        """Return a warning for each parameter that has no effect with the other values.

        It is no error, because a search such as GridSearchCV tries all combinations.
        """
        reasons = self._unread(self._changed(values, who), who)
        return [f"{who}: {name} {why}" for name, why in reasons.items()]

    def _changed(
        self, values: Mapping[str, Any], who: str, also: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Check types, and return the settings that differ from the defaults of the model."""
        plain = {name: _plain(values[name], setting) for name, setting in self.by_name.items()}
        for name, value in plain.items():
            _check_type(self.by_name[name], value, who)
        normal = settings_of(self._settings)
        return {
            name: value
            for name, value in {**plain, **self.fixed, **also}.items()
            if value != _shown(normal[name], normal[name].default)
        }

    def _unread(self, changed: Mapping[str, Any], who: str) -> dict[str, str]:
        """Return why a parameter has no effect, for each changed parameter without effect."""
        conditional = {
            name: setting
            for name, setting in self.by_name.items()
            if name in changed and setting.read_if
        }
        built = self._built(changed, who) if conditional else None
        return {
            name: setting.unread_text(built)
            for name, setting in conditional.items()
            if not setting.is_read(built)
        }

    def _built(self, changed: Mapping[str, Any], who: str) -> JobSettings:
        try:
            return RawConfig.from_mapping(changed, who).build(self._settings)
        except ConfigError as error:
            raise ParameterError(str(error)) from None

    def of_settings(self, settings: object) -> dict[str, Any]:
        """Return the parameters in the settings of a model's file, except those without effect."""
        return {
            name: _shown(setting, getattr(settings, name))
            for name, setting in self.by_name.items()
            if hasattr(settings, name) and setting.is_read(settings)
        }


def type_of(setting: Setting) -> Any:
    """Return the type annotation of a parameter."""
    if setting.choices:
        return Literal[setting.choices]
    if setting.kind == "list" and setting.unit == "numbers":
        return Sequence[float]
    if setting.auto:
        return _TYPES[setting.kind] | Literal["auto"]
    return int | str if setting.unit == "bytes" else _TYPES[setting.kind]


def _shown(setting: Setting, value: Any) -> Any:
    """Convert a setting's value to what users write in Python."""
    return "auto" if setting.auto and value == setting.automatic else value


def _common() -> Mapping[str, Setting]:
    """Return the settings of every job, which follow the model's own in a signature."""
    return settings_of(JobSettings)


def _plain(value: Any, setting: Setting) -> Any:
    """Convert a NumPy scalar to a Python value, and None to "auto" if the setting has it."""
    if value is None and setting.auto:
        return "auto"
    item: Callable[[], Any] | None = getattr(value, "item", None)
    return item() if item is not None and getattr(value, "ndim", None) == 0 else value


def _check_type(setting: Setting, value: Any, who: str) -> None:
    """Raise ParameterError for a value of the wrong type; `who` is the class, for the message."""
    fits = {
        "int": isinstance(value, (int, str) if setting.unit == "bytes" else int),
        "float": isinstance(value, (int, float)) and not isinstance(value, bool),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
        "list": isinstance(value, (str, list, tuple)),
    }[setting.kind]
    fits |= setting.auto and value == "auto"
    if not fits or (setting.kind == "int" and isinstance(value, bool)):
        raise ParameterError(
            f"{who}: {setting.name}: expected {setting.expected}; got {value!r:.80}"
        )
