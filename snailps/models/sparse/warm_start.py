"""Continues a model of sparse examples from its file, as `partial_fit` does, with more examples.

    settings + an .npz with the state of its optimizer -> adopt -> settings
    settings + labels of the input -> with_labels -> settings that know the new ones, too
    .npz -> put -> rows with state, before the training; grown if there are more classes

Runs once, at the master, so that no lost worker has written a row that another writes again.  What
an estimator writes for `partial_fit` has no settings, and needs none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Results
from snailps.config import JobSettings, RawConfig, settings_of
from snailps.data.columns import ColumnKind, columns_of, declaration_of
from snailps.data.encoding import Encoding, shown
from snailps.dataclass import dataclass, replace
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import expand
from snailps.files.input_files import InputFiles
from snailps.files.model_file import HEADER, OF_THE_RUN
from snailps.files.scratch import Scratch
from snailps.models.class_weights import BALANCED
from snailps.models.packed_tables import (
    GrownClasses,
    Packed,
    check_model_class,
    opened,
    opened_model,
    put_tables,
    read_packed,
    refuse_other_split,
    state_names,
    with_shape,
)
from snailps.models.shared_settings import TESTED_ON, refuse_untested
from snailps.models.sparse.batch import TABLE
from snailps.models.sparse.model import SparseModel
from snailps.models.sparse.sample import all_labels, entropy, sample_of
from snailps.models.sparse.settings import SparseSettings

log = logging.getLogger(__name__)

S = TypeVar("S", bound=SparseSettings)
_OF_EACH = {"epochs", "formats", "keep_state", "columns"}
"""Settings that each training of a model has for itself, or that are compared separately."""


@dataclass(frozen=True, slots=True)
class _SavedState:
    """What a model's file says about it; `classes` are an estimator's labels in their order, and
    `counts` its examples of each so far (empty: the file does not say)."""

    settings: SparseSettings
    classes: tuple[Any, ...]
    counts: tuple[float, ...]
    declared: tuple[str, ...]
    by_name: bool
    label: str

    @property
    def encoding(self) -> Encoding:
        of_file = Encoding.of_text(self.settings.encoding)
        encoding = replace(of_file, is_measured=True, is_balanced=False)
        if self.classes and all(isinstance(label, str) for label in self.classes):
            numbers = tuple(map(float, range(len(self.classes))))
            return replace(encoding, labels=numbers, names=self.classes)
        return replace(encoding, labels=tuple(map(float, self.classes)) or encoding.labels)

    def classes_of(self, encoding: Encoding) -> list[Any]:
        """The labels of its classes in their order: names, if there are any."""
        return [*(encoding.names or encoding.labels or map(float, range(self.settings.class_num)))]


def _saved(cls: type[SparseModel], s: SparseSettings) -> _SavedState | None:
    """Read what the continued file says of its model; None for a file of an estimator."""
    said = s.continue_from
    with opened_model(s) as model:
        if f"{HEADER}.npy" not in model.members:
            return None
        kept, about = model.settings(), {}
        if "estimator.npy" in model.members:
            about = json.loads(model.read("estimator").tobytes())
        has_state = f"{state_names(TABLE)[0]}.npy" in model.members
        check_model_class(cls, kept, said)
        settings = RawConfig.from_mapping(kept, said).build(cls.Settings)
        assert isinstance(settings, SparseSettings)
        saved = _SavedState(
            settings,
            tuple(about.get("classes", ())) if settings.class_num else (),
            tuple(about.get("counts", ())) if settings.class_num else (),
            tuple(about.get("declared", settings.columns)),
            bool(about.get("hashed", settings.columns)),
            str(about.get("label", settings.label_column)),
        )
    if not has_state:
        raise ConfigError(
            f"{said}: continue_from: the file has weights without the state of their optimizer, "
            "from which training cannot go on: train that model with keep_state: always"
        )
    return saved


def adopt(cls: type[SparseModel], s: S, explicit: Callable[[str], str | None]) -> S:
    """Take the settings of the continued model; `ConfigError` if the user set another shape."""
    if not s.continue_from or (saved := _saved(cls, s)) is None:
        return s
    before, job = saved.settings, settings_of(JobSettings)
    shape = {name: getattr(before, name) for name in (*cls.shape, "hash_bits", "learnt")}
    shape["optimizer"] = before.method
    if explicit("encoding") is None:  # else it was adopted before, where the command began
        encoding = saved.encoding
        if before.class_num:  # with the labels of the input, by `with_names` and `with_labels`
            labels = () if encoding.names else encoding.labels
            encoding = replace(encoding, labels=labels, is_measured=False)
        shape["encoding"] = encoding.text
    classes = ("loss", "classes") if hasattr(before, "classes") else ("loss",)
    if not (explicit("classes") and 0 < before.class_num < s.class_num):  # which adds some
        shape |= {name: getattr(before, name) for name in classes}
    own = {name for name in settings_of(type(s)) if name not in job and name not in OF_THE_RUN}
    others = own - _OF_EACH - shape.keys() - set(classes)
    habits = {name: getattr(before, name) for name in (*others, "seed")}
    if Encoding.of_text(before.encoding).is_balanced:  # its numbers are of its lines and classes
        habits["class_weights"] = (BALANCED,)
    if s.validation:  # it has one of the two
        del habits["held_out"]
    if saved.by_name:
        habits["label_column"] = saved.label
        s = replace(s, columns=_declared(saved, s, explicit("columns")))
    found = with_shape(s, shape, s.continue_from, explicit, habits)
    refuse_other_split(found, before, explicit)
    known = settings_of(type(s))
    refuse_untested(
        found, lambda name: known[name].place(explicit(name) or s.continue_from), TESTED_ON
    )
    named = columns_of(found.columns, needs_label=False)
    has_label = bool(found.label_column) or any(one.kind is ColumnKind.LABEL for one in named)
    if saved.by_name != has_label:
        kinds = ("columns by number", "features by name (label_column, columns)")
        raise ConfigError(
            f"{s.continue_from}: continue_from: the model has {kinds[saved.by_name]}, and the "
            f"input {kinds[not saved.by_name]}"
        )
    return replace(found, keep_state="always") if found.keep_state == "auto" else found


def _declared(saved: _SavedState, s: SparseSettings, where: str | None) -> tuple[str, ...]:
    """The columns of the model, and further columns that the user ignores."""
    if where is None:
        more: tuple[str, ...] = ()
    else:
        more = tuple(one for one in s.columns if one not in saved.declared)
        wrong = [one for one in more if columns_of([one], needs_label=False)[0].is_feature]
        if wrong and saved.declared:
            raise ConfigError(
                f"{where}: columns: got {wrong[0]}: the model of {s.continue_from} has "
                f"{', '.join(saved.declared):.200}"
            )
    if not (saved.label or s.label_column):
        return saved.declared + more
    columns = columns_of(saved.declared, needs_label=False)
    return (
        *map(declaration_of, (one for one in columns if one.kind is not ColumnKind.LABEL)),
        *more,
    )


def with_labels(cls: type[SparseModel], s: S, files: InputFiles) -> S:
    """Encode labels as the model does; labels of the input that it lacks become further classes."""
    saved = _saved(cls, s) if s.continue_from and s.class_num else None
    if saved is None:
        return s
    encoding, now = saved.encoding, Encoding.of_text(s.encoding)
    if bool(now.names) != bool(encoding.names):
        kinds = ("numbers", "texts")
        raise DataError(
            f"input: expected labels that are {kinds[bool(encoding.names)]}, as "
            f"{s.continue_from} has them, got {kinds[bool(now.names)]}"
        )
    labels, weights = all_labels(s, files) or sample_of(s, files).labelled()
    is_known = len(labels) > 0 and not s.class_weights
    constant = entropy(labels, weights, np.unique(labels)) if is_known else 0.0
    encoding = replace(encoding, constant=constant)
    if now.names:
        return replace(s, encoding=replace(encoding, labels=now.labels, names=now.names).text)
    known = np.array(saved.classes_of(encoding))
    every = tuple(np.union1d(known, labels).tolist())
    grows = hasattr(s, "classes") and s.class_num in (len(known), len(every))
    if len(every) != s.class_num and not grows:
        raise DataError(
            f"input: expected labels of {s.class_num} classes, of the input and of "
            f"{s.continue_from} together; got {shown(every)}"
        )
    if len(every) > len(known):
        log.info("labels: %s, of which %d are new", shown(every), len(every) - len(known))
        more: dict[str, Any] = {"loss": "multinomial", "classes": len(every)}
        encoding, s = replace(encoding, labels=every), replace(s, **more)
    return replace(s, encoding=encoding.text)


def _counts(s: SparseSettings) -> NDArray[np.float64]:
    """Sum of the weights of the input's examples in each class."""
    with Scratch(s.scratch_dir, s.scratch_bytes, tables=s.reading()) as scratch:
        files = InputFiles(expand(s.input, scratch), scratch)
        labels, weights = all_labels(s, files) or sample_of(s, files).labelled()
    known = np.array(Encoding.of_text(s.encoding).labels or range(s.class_num), np.float64)
    numbers = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    weights = weights if len(weights) else np.ones(len(labels), np.float32)
    return np.bincount(numbers, weights, minlength=len(known)).astype(np.float64)


def put(cls: type[SparseModel], results: Results) -> None:
    """Set all rows with their state."""
    s = results.settings
    assert isinstance(s, SparseSettings)
    tables: Mapping[str, Packed] = read_packed(opened(s))
    saved = _saved(cls, s)
    if saved is not None and saved.settings.class_num < s.class_num:
        every = np.array(saved.classes_of(Encoding.of_text(s.encoding)))
        places = np.searchsorted(every, np.array(saved.classes_of(saved.encoding)))
        counts = _counts(s)
        if saved.counts:  # as in partial_fit: shares are those of all examples so far
            counts[places] += saved.counts
        classes = GrownClasses.of_counts(places, counts)
        tables = cls.grown(saved.settings, s, classes, tables)
    put_tables(results, tables)
