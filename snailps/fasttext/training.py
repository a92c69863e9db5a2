"""fastText's two trainings: what its arguments mean as parameters of a job.

    arguments -> supervised, unsupervised -> Training -> run -> Model

What snailps does not train is refused by name.
"""

from __future__ import annotations

import mmap
import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from snailps import kernels
from snailps.dataclass import dataclass, replace
from snailps.errors import ParameterError
from snailps.estimators.base import Data
from snailps.estimators.quantizing import shrinks_to
from snailps.estimators.text_base import OF_TEXT, TextEstimator
from snailps.estimators.tuning import Tunable
from snailps.fasttext.arguments import (
    ALIASES,
    SUPERVISED,
    SUPERVISED_DEFAULT,
    UNSUPERVISED,
    arguments_in,
    loss_name,
    signed,
    taken,
    unsupervised_default,
)
from snailps.fasttext.model import Model
from snailps.files.unpacking import is_url
from snailps.local.session import within
from snailps.models.classifier.search import TUNED
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.classifier.tuning import Effort, Shrink, Tuner
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors.fasttext_bin import BinModel, read_bin
from snailps.vectors.label_metrics import PRECISION_AT_RECALL, RECALL_AT_PRECISION, Metric
from snailps.vectors.labelled_lines import labelled_text

SETTINGS = {
    "dim": "dim",
    "lr": "lr",
    "epoch": "epochs",
    "loss": "loss",
    "minCount": "min_count",
    "seed": "seed",
    "normalize": "normalize",
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


_TUNED = {
    "lr": "lr",
    "epoch": "epochs",
    "dim": "dim",
    "wordNgrams": "word_ngrams",
    "minn": "minn",
    "maxn": "maxn",
    "bucket": "bucket",
}  # fmt: skip
"""Setting of each argument that `autotuneValidationFile` chooses, unless it is given."""
_METRICS = {
    "precisionAtRecall": PRECISION_AT_RECALL,
    "recallAtPrecision": RECALL_AT_PRECISION,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FastTextJob:
    """A job: the estimator that runs it, its parameters, and attributes of the model."""

    estimator: type[_Trainer]
    parameters: Mapping[str, Any]
    input: str
    args: Mapping[str, Any]
    autotune: Autotune | None = None
    epochs_chosen: bool = False
    """Whether a search has chosen the epochs."""

    def run(self) -> Model:
        try:
            if self.autotune is None:
                return Model.of_bin(self.trained(), self.args)
            tuned = self.autotune.search(self)
            return self.autotune.model_of(tuned, tuned.trained())
        except ParameterError as error:
            raise ParameterError(_with_arguments(str(error))) from None

    def trained(self) -> BinModel:
        data = Data(_source(self.input), epochs_chosen=self.epochs_chosen)
        return self.estimator(**self.parameters).trained(data)


@dataclass(frozen=True, slots=True)
class Autotune:
    """A search before the training: `size` bounds the bytes of a quantised model; 0: none."""

    validation: str
    fixed: frozenset[str]
    metric: Metric
    predictions: int
    effort: Effort
    size: int

    def search(self, training: FastTextJob) -> FastTextJob:
        """Return the training with the best settings."""
        given = training.parameters
        if "bucket" not in self.fixed:
            given = {**given, "bucket": "auto"}
        texts = Data(_source(training.input)), Data(_source(self.validation))
        shrink = self._shrink(training)
        fixed = self.fixed & {*TUNED}
        goal = fixed, self.metric, self.predictions, self.effort, shrink
        tuning = _Supervised(**given)._tuned(*texts, lambda settings: Tuner(settings, *goal))
        chosen = tuning.settings
        parameters = {**given, **chosen}
        if not chosen["minn"]:  # which would mean auto
            del parameters["minn"]
        return replace(training, parameters=parameters, epochs_chosen="epochs" not in fixed)

    def model_of(self, tuned: FastTextJob, model: BinModel) -> Model:
        """Quantise what was trained, if its size is bounded."""
        shrink = self._shrink(tuned)
        if shrink is not None:
            small = shrink(model, partial(labelled_text, tuned.input))
            if small is not model:
                model = replace(small, mapped=mmap.mmap(-1, 1))  # else it is saved as the file
        values = {**arguments_in(model.header), "lr": tuned.parameters["lr"]}
        args = {name: value for name, value in values.items() if name in _TUNED}
        return Model.of_bin(model, {**tuned.args, **args})

    def _shrink(self, training: FastTextJob) -> Shrink | None:
        return shrinks_to(self.size, training.parameters["seed"]) if self.size else None


def _source(path: str) -> str | Path:
    return path if is_url(path) else Path(path)  # a Path is never taken for a text


class _Trainer(TextEstimator):
    """An estimator whose model is the opened file."""

    _model: BinModel
    _warns_at = 6  # through `trained` twice, `run` and the function that users call

    def trained(self, data: Data) -> BinModel:
        self._learn(data)
        return self._model

    def _remarks_on(self, figures: Mapping[str, Any]) -> Iterator[str | Warning]:
        for remark in super()._remarks_on(figures):
            yield type(remark)(str(remark).replace("(epochs=", "(epoch="))

    @staticmethod
    def _open(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> BinModel:
        return read_bin(path, file=file)


class _Supervised(_Trainer, Tunable, settings=ClassifierSettings, extra=OF_TEXT):
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


def supervised(*args: Any, **kwargs: Any) -> FastTextJob:
    """Check the arguments of `train_supervised`."""
    values = taken("train_supervised", SUPERVISED, SUPERVISED_DEFAULT, args, kwargs)
    parameters = {
        **_shared(values, OF_CLASSIFIERS),
        "word_ngrams": values["wordNgrams"] or 1,  # as in fastText, 0 means none, too
    }
    if values["loss"] == "ns":
        parameters["negatives"] = values["neg"]
    given = {ALIASES.get(name, name) for name in kwargs} | {*SUPERVISED[: len(args)]}
    # A search may choose n-grams, which then have the rows that are given.
    may_search = bool(values["autotuneValidationFile"]) and "bucket" in given
    if parameters["maxn"] or values["wordNgrams"] > 1 or may_search:
        parameters["bucket"] = values["bucket"]
    made = _training(_Supervised, parameters, values)
    if values["autotuneValidationFile"]:
        return replace(made, autotune=_autotune(values, given))
    given -= {"autotuneValidationFile"}
    if without := sorted(name for name in given if name.startswith("autotune")):
        warnings.warn(
            f"train_supervised: {', '.join(without)}: no effect without autotuneValidationFile",
            stacklevel=3,
        )
    return made


def _autotune(values: Mapping[str, Any], given: Collection[str]) -> Autotune:
    """Read the arguments of a search; what is given by hand keeps its value."""
    seconds, predictions = values["autotuneDuration"], values["autotunePredictions"]
    for name, value in (("autotuneDuration", seconds), ("autotunePredictions", predictions)):
        if type(value) is not int or value < 1:
            raise ParameterError(
                f"train_supervised: {name}: expected a whole number of at least 1; got "
                f"{value!r:.80}"
            )
    if "minn" in given and values["minn"] < 1:  # as in fastText, none then
        given = {*given, "maxn"}
    return Autotune(
        os.fsdecode(values["autotuneValidationFile"]),
        frozenset(setting for argument, setting in _TUNED.items() if argument in given),
        _metric_of(values["autotuneMetric"]),
        predictions,
        Effort(seconds, threads=values["thread"] or 0),
        _size_of(values["autotuneModelSize"]),
    )


def _metric_of(text: Any) -> Metric:
    """Read ``f1[:LABEL]``, ``precisionAtRecall:30[:LABEL]`` (in percent) or the reverse."""
    name, _, rest = str(text).partition(":")
    if name == "f1":
        return Metric.of(str(text))
    level, _, label = rest.partition(":")
    try:
        share = float(level) / 100
    except ValueError:
        share = 0.0
    if name not in _METRICS or not 0 < share <= 1:
        raise ParameterError(
            "train_supervised: autotuneMetric: expected f1, precisionAtRecall:R or "
            f"recallAtPrecision:P, R and P in percent, with :LABEL for one label; got {text!r:.80}"
        )
    return Metric(_METRICS[name], share, label)


def _size_of(text: Any) -> int:
    """Read a number of bytes such as 2M: K, M and G are powers of 1000, as in fastText."""
    match = re.fullmatch(r"(\d{1,15})([kKmMgG]?)", str(text) or "0")
    if match is None:
        raise ParameterError(
            "train_supervised: autotuneModelSize: expected a number of bytes such as 500K or 2M, "
            f"got {text!r:.80}"
        )
    power: int = 1000 ** " KMG".index(match[2].upper() or " ")
    return int(match[1]) * power


def unsupervised(*args: Any, **kwargs: Any) -> FastTextJob:
    """Check the arguments of `train_unsupervised`."""
    values = taken("train_unsupervised", UNSUPERVISED, {}, args, kwargs)
    if values["loss"] not in ("ns", "hs"):
        raise ParameterError(
            "loss: snailps trains word vectors by negative sampling (ns) or hierarchical softmax "
            f"(hs), got {values['loss']!r}"
        )
    parameters = _shared(values, OF_WORDS)
    if values["loss"] == "hs":
        del parameters["negatives"]
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
) -> FastTextJob:
    args = {name: values[name] for name in unsupervised_default if name != "model"}
    args["input"] = os.fsdecode(values["input"])
    args |= {"loss": loss_name[values["loss"]], "thread": values["thread"] or kernels.cores()}
    if "bucket" not in parameters:
        args["bucket"] = 0
    # A classifier's minn of 0 means auto.
    chosen = {name: value for name, value in parameters.items() if name != "minn" or value}
    path = os.fsdecode(values["input"])
    if not path:  # as a folder it would be the current one
        raise ParameterError(f"{estimator.__name__}: input: expected the path of a text, got ''")
    return FastTextJob(estimator, chosen, path, args)


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
    normalize : str
        Normal form of texts, such as ``nfkc,lower``, which the model keeps; fastText has none.
    autotuneValidationFile : path, optional
        Labelled lines by which lr, epoch, dim, wordNgrams, minn, maxn and bucket are chosen, except
        those that are given.
    autotuneMetric, autotunePredictions, autotuneDuration, autotuneModelSize
        As in fastText.  With a model size the model is quantised.

    Raises
    ------
    TypeError
        Unknown name, or an argument given twice.
    ParameterError
        A value of the wrong type or out of range.
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
    loss : {"ns", "hs"}
    thread, normalize
        As in `train_supervised`.

    Raises
    ------
    TypeError, ParameterError
        As in `train_supervised`.
    DataError, ClusterError
        As in `train_supervised`.
    """
    return unsupervised(*args, **kwargs).run()
