"""The arguments of fastText's trainings: names, aliases, defaults.

    arguments, by place or by name -> taken -> a value for each
    header of a model's file -> arguments_in, arguments_of -> the same names

Must not know what an argument means for a job: that is `training`.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from snailps import kernels
from snailps.errors import ParameterError, near_name
from snailps.vectors.fasttext_bin import BinHeader


class model_name(enum.Enum):
    """Kinds of models."""

    cbow = 1
    skipgram = 2
    supervised = 3


class loss_name(enum.Enum):
    """Losses."""

    hs = 1
    ns = 2
    softmax = 3
    ova = 4


unsupervised_default: dict[str, Any] = {
    "model": "skipgram",
    "lr": 0.05,
    "dim": 100,
    "ws": 5,
    "epoch": 5,
    "minCount": 5,
    "minCountLabel": 0,
    "minn": 3,
    "maxn": 6,
    "neg": 5,
    "wordNgrams": 1,
    "loss": "ns",
    "bucket": 2_000_000,
    "thread": None,
    "lrUpdateRate": 100,
    "t": 1e-4,
    "label": "__label__",
    "verbose": 2,
    "pretrainedVectors": "",
    "seed": 0,
    "autotuneValidationFile": "",
    "autotuneMetric": "f1",
    "autotunePredictions": 1,
    "autotuneDuration": 300,
    "autotuneModelSize": "",
}
"""fastText's defaults; a script that changes one changes it for later trainings.

``thread`` None: one a core.
"""
OURS: dict[str, Any] = {"normalize": ""}
"""Arguments that fastText lacks, with their defaults."""
SUPERVISED_DEFAULT = {
    "lr": 0.1, "minCount": 1, "minn": 0, "maxn": 0, "loss": "softmax", "model": "supervised",
}  # fmt: skip
"""Defaults of `train_supervised` that differ."""
ALIASES = {
    "min_count": "minCount",
    "word_ngrams": "wordNgrams",
    "lr_update_rate": "lrUpdateRate",
    "label_prefix": "label",
    "pretrained_vectors": "pretrainedVectors",
}
SUPERVISED = ("input", *(name for name in unsupervised_default if name != "model"), *OURS)
UNSUPERVISED = ("input", *(name for name in unsupervised_default if "autotune" not in name), *OURS)
NATIVE: dict[str, Any] = {
    "output": "", "saveOutput": False, "cutoff": 0, "dsub": 2, "qnorm": False, "qout": False,
    "retrain": False,
}  # fmt: skip
"""Arguments of fastText's command that `getArgs` has, too."""
KEPT = tuple(
    name for name in SUPERVISED[1:] if name not in ("seed", *OURS) and "autotune" not in name
)
"""Arguments that become attributes of a trained model."""


def taken(
    who: str,
    names: tuple[str, ...],
    defaults: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the value of each argument; raise TypeError as a function with these arguments."""
    if len(args) > len(names):
        raise TypeError(f"{who}: expected at most {len(names)} arguments, got {len(args)}")
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        name = ALIASES.get(name, name)
        if name not in names:
            near = near_name(name, (*names, *ALIASES))
            hint = f"did you mean {near}?" if near else f"it has {', '.join(names)}"
            raise TypeError(f"{who}: unknown argument {name!r}; {hint}")
        if name in values:
            raise TypeError(f"{who}: argument {name!r} was given twice")
        values[name] = value
    if "input" not in values:
        raise TypeError(f"{who}: expected input, the path of a text")
    every = {**unsupervised_default, **OURS, **defaults, **values}
    losses, models = loss_name.__members__, model_name.__members__
    for name, choices in (("loss", losses), ("model", models)):
        if every[name] not in choices:
            raise ParameterError(
                f"{name}: expected one of {', '.join(choices)}, got {every[name]!r:.60}"
            )
    return every


def arguments_in(header: BinHeader) -> dict[str, Any]:
    """Return the arguments that a model's file has, by fastText's names."""
    return {
        "dim": header.dim,
        "ws": header.window,
        "epoch": header.epochs,
        "minCount": header.min_count,
        "neg": header.negatives,
        "wordNgrams": header.word_ngrams,
        "loss": loss_name[header.loss],
        "model": model_name[header.model],
        "bucket": header.bucket,
        "minn": header.minn,
        "maxn": header.maxn,
        "lrUpdateRate": header.lr_update_rate,
        "t": header.sample,
    }


def arguments_of(header: BinHeader) -> dict[str, Any]:
    """Return all arguments of a model's file; arguments that it lacks have their defaults."""
    defaults = {"input": "", **NATIVE, **unsupervised_default}
    return {**defaults, "thread": kernels.cores(), **arguments_in(header)}


def signed(names: tuple[str, ...], defaults: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Give a function the signature that `help` and editors show."""
    every = {**unsupervised_default, **OURS, **defaults}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=every.get(name, inspect.Parameter.empty),
        )
        for name in names
    ]

    def decorate(function: Any) -> Any:
        function.__signature__ = inspect.Signature(parameters, return_annotation="Model")
        return function

    return decorate
