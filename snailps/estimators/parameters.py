"""The parameters of an estimator: those settings of its model that make sense in Python.

    settings class -> parameters_of -> Parameters -> signature, defaults
    values of an estimator -> Parameters.settings -> settings of a job, or a ParameterError

Paths, columns, checkpoints and output are no parameters: data and result are objects here.  Knows
no model by name, and no cluster.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from snailps.config import CHECKPOINT_SETTINGS, JobSettings, RawConfig, Setting, settings_of
from snailps.errors import ConfigError, ParameterError

_OF_THE_JOB = {"worker_class", "assign", "scratch_bytes", *CHECKPOINT_SETTINGS}
_UNITS = {"path", "paths", "column"}
_TYPES: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "list": Sequence[str],
}  # fmt: skip
_ELSEWHERE = {
    # gensim, fasttext, scikit-learn
    "vector_size": "dim", "size": "dim", "alpha": "lr", "learning_rate": "lr", "eta0": "lr",
    "epoch": "epochs", "iter": "epochs", "max_iter": "epochs", "ws": "window", "sg": "model",
    "negative": "negatives", "neg": "negatives", "mincount": "min_count",
    "mincountlabel": "min_count_label", "wordngrams": "word_ngrams", "t": "sample",
    "max_final_vocab": "max_vocab", "buckets": "bucket", "random_state": "seed",
    "thread": "workers", "n_jobs": "workers", "min_n": "minn", "max_n": "maxn",
    "hidden_layer_sizes": "hidden", "n_factors": "factors", "rank": "factors", "k": "factors",
    "penalty": "l2", "fit_intercept": "bias", "class_weights": "class_weight", "tol": "target_loss",
    "reg_alpha": "l1", "reg_lambda": "l2", "n_iter": "epochs", "iterations": "epochs",
    "embedding_dim": "dim", "num_epochs": "epochs", "n_epochs": "epochs", "lr_all": "lr",
    "reg_all": "l2", "regularization": "l2", "num_negs_per_pos": "negatives",
}  # fmt: skip
"""Names that other libraries use, in small letters."""
_NOT_LR = {"alpha": "l2", "c": "l2"}
"""Names in models with `l2`: scikit-learn's `alpha` is a penalty, and C the inverse of one."""

OWN: Mapping[str, tuple[Any, Any]] = MappingProxyType(
    {
        "cluster": ("Cluster | None", None),
        "workers": ("int | None", None),
        "callbacks": ("Sequence[Callable[[dict[str, Any]], object]]", ()),
        "verbose": ('bool | int | Literal["auto"]', "auto"),
    }
)
"""Parameters that every estimator has besides its model's: type and default."""


class Parameters:
    """The parameters of one estimator.

    `fixed` are settings that the estimator decides, `without` further ones that are no parameters;
    `extra` are parameters that are no settings: type, as text, and default.
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
        every = settings_of(settings)
        self.by_name: Mapping[str, Setting] = {
            name: one
            for name, one in sorted(every.items(), key=lambda item: item[0] in _common())
            if not (one.hidden or name in left_out or one.unit in _UNITS)
        }
        self.defaults: Mapping[str, Any] = {
            **{name: _shown(one, one.default) for name, one in self.by_name.items()},
            **{name: default for name, (_, default) in extra.items()},
            **{name: default for name, (_, default) in OWN.items()},
        }

    def signature(self) -> inspect.Signature:
        """Return the signature of the estimator's constructor; all parameters by keyword."""
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
        """The error for a parameter that is none, with the name that may have been meant."""
        known = list(self.defaults)
        small = name.lower()
        meant = _ELSEWHERE.get(small.replace("_", ""), _ELSEWHERE.get(small, ""))
        if "l2" in known:
            meant = _NOT_LR.get(small, meant)
        if meant not in known and (meant or small) == "factors":  # of a matrix factorisation
            meant = "dim"
        near = [meant] if meant in known else difflib.get_close_matches(small, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        if near == ["l2"] and small == "c":
            hint = "did you mean 'l2', 1 / (n C) of n examples?"
        return ParameterError(f"{who}: unknown parameter {name!r}; {hint}")

    def settings(
        self,
        values: Mapping[str, Any],
        who: str,
        also: Mapping[str, Any] = MappingProxyType({}),
        left_out: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Settings of a job that differ from the defaults of its model, checked.

        `also` go before `values`; parameters that are `left_out` do not go with this job, nor do
        those that it does not read.
        """
        every = self._changed(values, who, also)
        without = {*left_out} - also.keys() | self._unread(every, who).keys()
        changed = {name: value for name, value in every.items() if name not in without}
        built, normal = self._built(changed, who), settings_of(self._settings)
        return {**{name: _shown(normal[name], getattr(built, name)) for name in changed}, **also}

    def unread(self, values: Mapping[str, Any], who: str) -> list[str]:
        """A sentence for each parameter that has no effect with the others, which is no error:

        a search over several parameters, as GridSearchCV, tries all combinations.
        """
        found = self._unread(self._changed(values, who), who)
        return [f"{who}: {name} {why}" for name, why in found.items()]

    def _changed(
        self, values: Mapping[str, Any], who: str, also: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Settings that differ from the defaults of the model; types of parameters are checked."""
        plain = {name: _plain(values[name], one) for name, one in self.by_name.items()}
        for name, value in plain.items():
            _check_type(self.by_name[name], value, who)
        normal = settings_of(self._settings)
        return {
            name: value
            for name, value in {**plain, **self.fixed, **also}.items()
            if value != _shown(normal[name], normal[name].default)
        }

    def _unread(self, changed: Mapping[str, Any], who: str) -> dict[str, str]:
        """Of parameters that have no effect with these settings: why."""
        some = {name: one for name, one in self.by_name.items() if name in changed and one.read_if}
        built = self._built(changed, who) if some else None
        return {n: one.unread_text(built) for n, one in some.items() if not one.is_read(built)}

    def _built(self, changed: Mapping[str, Any], who: str) -> JobSettings:
        try:
            return RawConfig.from_mapping(changed, who).build(self._settings)
        except ConfigError as error:
            raise ParameterError(str(error)) from None

    def of_settings(self, settings: object) -> dict[str, Any]:
        """Values of the parameters that settings have, as in a model's file, and that were read."""
        return {
            name: _shown(one, getattr(settings, name))
            for name, one in self.by_name.items()
            if hasattr(settings, name) and one.is_read(settings)
        }


def type_of(setting: Setting) -> Any:
    """The type of a parameter's values."""
    if setting.choices:
        return Literal[setting.choices]
    if setting.kind == "list" and setting.unit == "numbers":
        return Sequence[float]
    if setting.auto:
        return _TYPES[setting.kind] | Literal["auto"]
    return int | str if setting.unit == "bytes" else _TYPES[setting.kind]


def _shown(setting: Setting, value: Any) -> Any:
    """A value as users write it in Python."""
    return "auto" if setting.auto and value == setting.automatic else value


def _common() -> Mapping[str, Setting]:
    """Settings of every job: they come after the model's."""
    return settings_of(JobSettings)


def _plain(value: Any, setting: Setting) -> Any:
    """A Python value in the place of a NumPy scalar; None is ``auto`` where there is such."""
    if value is None and setting.auto:
        return "auto"
    item: Callable[[], Any] | None = getattr(value, "item", None)
    return item() if item is not None and getattr(value, "ndim", None) == 0 else value


def _check_type(setting: Setting, value: Any, who: str) -> None:
    """Refuses text for a number, and what is no value at all."""
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
