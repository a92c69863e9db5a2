"""fastText's two trainings: what its arguments mean as parameters of a job.

    arguments -> supervised, unsupervised -> Training -> run -> Model

What snailps does not train is refused by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from snailps import kernels
from snailps.data.unpacking import is_url
from snailps.dataclass import dataclass
from snailps.errors import ParameterError
from snailps.estimators.base import Data
from snailps.estimators.text_base import OF_TEXT, TextEstimator
from snailps.fasttext.arguments import (
    KEPT,
    SUPERVISED,
    SUPERVISED_DEFAULT,
    UNSUPERVISED,
    loss_name,
    signed,
    taken,
)
from snailps.fasttext.model import Model
from snailps.local.session import within
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors.fasttext_bin import BinModel, read_bin

SETTINGS = {
    "dim": "dim",
    "lr": "lr",
    "epoch": "epochs",
    "loss": "loss",
    "minCount": "min_count",
    "seed": "seed",
}  # fmt: skip
"""Setting of a job for each argument that both trainings hand on unchanged."""
OF_CLASSIFIERS = {"minCountLabel": "min_count_label", "label": "label"}
OF_WORDS = {"model": "model", "ws": "window", "neg": "negatives", "t": "sample"}
_ARGUMENTS = {
    setting: argument
    for argument, setting in {
        **SETTINGS,
        **OF_CLASSIFIERS,
        **OF_WORDS,
        "wordNgrams": "word_ngrams",
        "thread": "workers",
    }.items()
}


@dataclass(frozen=True, slots=True)
class Training:
    """A job: the estimator that runs it, its parameters, and attributes of the model."""

    estimator: type[_Trainer]
    parameters: Mapping[str, Any]
    input: str
    args: Mapping[str, Any]

    def run(self) -> Model:
        trainer = self.estimator(**self.parameters)
        try:
            return Model.of_bin(trainer.trained(self.input), self.args)
        except ParameterError as error:
            raise ParameterError(_with_arguments(str(error))) from None


class _Trainer(TextEstimator):
    """An estimator whose model is the opened file."""

    _model: BinModel
    _warns_at = 5  # through `trained`, `run` and the function that users call

    def trained(self, path: str) -> BinModel:
        # A Path is never taken for a text.
        self._learn(Data(path if is_url(path) else Path(path)))
        return self._model

    def _remarks_on(self, figures: Mapping[str, Any]) -> Iterator[str | Warning]:
        for remark in super()._remarks_on(figures):
            yield type(remark)(str(remark).replace("(epochs=", "(epoch="))

    @staticmethod
    def _open(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> BinModel:
        return read_bin(path, file=file)


class _Supervised(_Trainer, settings=ClassifierSettings, extra=OF_TEXT):
    worker_class = "snailps.models.classifier:Classifier"


class _Unsupervised(
    _Trainer,
    settings=WordVectorSettings,
    fixed={"formats": ("bin",)},
    without=("validation_words",),
    extra=OF_TEXT,
):
    worker_class = "snailps.models.word_vectors:WordVectors"


# The names that errors and warnings begin with.
_Supervised.__name__, _Unsupervised.__name__ = "train_supervised", "train_unsupervised"


def supervised(*args: Any, **kwargs: Any) -> Training:
    """Check the arguments of `train_supervised`."""
    values = taken("train_supervised", SUPERVISED, SUPERVISED_DEFAULT, args, kwargs)
    if values["autotuneValidationFile"]:
        raise ParameterError(
            "autotuneValidationFile: snailps does not search settings by itself: train with some "
            "values of lr, epoch, wordNgrams and maxn, and compare test() on the validation file"
        )
    if values["loss"] == "hs":
        raise ParameterError(
            "loss: snailps does not train hierarchical softmax (hs): softmax is the same model for "
            "up to a few thousand labels; ns is fast for more"
        )
    parameters = {
        **_shared(values, OF_CLASSIFIERS),
        "word_ngrams": values["wordNgrams"] or 1,  # as in fastText, 0 means none, too
    }
    if values["loss"] == "ns":
        parameters["negatives"] = values["neg"]
    if parameters["maxn"] or values["wordNgrams"] > 1:
        parameters["bucket"] = values["bucket"]
    return _training(_Supervised, parameters, values)


def unsupervised(*args: Any, **kwargs: Any) -> Training:
    """Check the arguments of `train_unsupervised`."""
    values = taken("train_unsupervised", UNSUPERVISED, {}, args, kwargs)
    if values["loss"] != "ns":
        raise ParameterError(
            f"loss: snailps trains word vectors by negative sampling (ns), got {values['loss']!r}"
        )
    parameters = _shared(values, OF_WORDS)
    if parameters["maxn"]:
        parameters["bucket"] = values["bucket"]
    return _training(_Unsupervised, parameters, values)


def _shared(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters that both kinds of models have, and those of `names`."""
    # fastText takes minn above maxn for no n-grams, and a minn of 0 for 1.
    maxn = values["maxn"] if values["maxn"] >= values["minn"] else 0
    thread, verbose = values["thread"], values["verbose"]
    if isinstance(thread, int):
        thread = min(thread, kernels.cores())
    parameters = {setting: values[argument] for argument, setting in {**SETTINGS, **names}.items()}
    return {
        **parameters,
        "min_count": values["minCount"] or 1,  # as in fastText, 0 keeps all words, too
        "minn": max(1, values["minn"]) if maxn else 0,
        "maxn": maxn,
        "pretrained": os.fspath(values["pretrainedVectors"]),
        "verbose": "auto" if verbose else False,
        # The cluster of a `with` block has its own workers.
        "workers": None if within() else thread,
    }


def _training(
    estimator: type[_Trainer], parameters: Mapping[str, Any], values: Mapping[str, Any]
) -> Training:
    args = {name: values[name] for name in KEPT}
    args |= {"loss": loss_name[values["loss"]], "thread": values["thread"] or kernels.cores()}
    if "bucket" not in parameters:
        args["bucket"] = 0
    # A classifier's minn of 0 means auto.
    chosen = {name: value for name, value in parameters.items() if name != "minn" or value}
    return Training(estimator, chosen, os.fsdecode(values["input"]), args)


def _with_arguments(text: str) -> str:
    """Name fastText's argument where an error, ``who: setting: ...``, names the setting."""
    return re.sub(r"^(\w+: )(\w+)(?=: )", lambda of: of[1] + _ARGUMENTS.get(of[2], of[2]), text)


@signed(SUPERVISED, SUPERVISED_DEFAULT)
def train_supervised(*args: Any, **kwargs: Any) -> Model:
    """Train a classifier on a file of lines that begin with their labels.

    Parameters
    ----------
    input : path
        File, folder, glob or URL.
    lr, dim, ws, epoch, minCount, minCountLabel, minn, maxn, neg, wordNgrams, loss, bucket, ...
        As in fastText, with its defaults and aliases (``min_count``, ``word_ngrams``,
        ``lr_update_rate``, ``label_prefix``, ``pretrained_vectors``).
    thread : int, optional
        Number of workers, at most one a core.  Not read inside a cluster's ``with`` block.

    Raises
    ------
    TypeError
        Unknown name, or an argument given twice.
    ParameterError
        A value of the wrong type or out of range; ``loss="hs"`` and ``autotuneValidationFile``,
        which snailps does not have.
    DataError
        The file is missing or empty.
    ClusterError
        The job failed, for example because no label or no word is left.
    """
    return supervised(*args, **kwargs).run()


@signed(UNSUPERVISED, {})
def train_unsupervised(*args: Any, **kwargs: Any) -> Model:
    """Train word vectors on a file of lines.

    Parameters
    ----------
    input : path
        File, folder, glob or URL.
    model : {"skipgram", "cbow"}
    lr, dim, ws, epoch, minCount, minn, maxn, neg, bucket, t, pretrainedVectors, ...
        As in fastText, with its defaults and aliases.
    loss : {"ns"}
    thread : int, optional
        As in `train_supervised`.

    Raises
    ------
    TypeError, ParameterError
        As in `train_supervised`.
    DataError, ClusterError
        As in `train_supervised`.
    """
    return unsupervised(*args, **kwargs).run()
