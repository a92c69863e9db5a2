"""What a classifier's file cannot hold, in a file beside it: how scores become probabilities, and
thresholds of labels.

    MODEL.bin, MODEL.bin.json -> read_calibration -> Calibration, if it is of this model
    Calibration -> write_calibration -> MODEL.bin.json

Must not know how these are fitted (`calibrating`) or used (`label_prediction`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from snailps.dataclass import dataclass, field
from snailps.errors import ModelFileError
from snailps.files.atomic import atomic_file
from snailps.vectors.opening import opened
from snailps.vectors.words import to_text

log = logging.getLogger(__name__)

Path_: TypeAlias = "str | os.PathLike[str]"

_OURS = "snailps calibration"
_FORMAT = f"{_OURS} 1"
_FORMAT_OF_SHIFT = f"{_OURS} 2"
"""With a shift: a program that does not know it must not leave it out."""
_OF_SHIFT = ("shift", "shift_of_others", "apart")
_BYTES_MAX = 1 << 28
_MARKED_BYTES = 1 << 16
"""Bytes at each end of a model's file by which it is recognised: header and first words, and the
last rows of labels, which no two trainings have in common."""
TEMPERATURE_LEAST = 1e-6
"""Least temperature that is read, below all that are fitted: scores divided by it are finite."""
_HOW = "run snailps calibrate again, or remove it"


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the scores of a classifier become probabilities and decisions.

    Attributes
    ----------
    temperature : float
        Scores are divided by it, above 0; 1: they stay.
    shift, shift_of_others : float
        Added to the divided score of a line's best label, and to the scores of its other labels,
        where each label is judged by itself: with the losses ova and ns, and `apart`.
    apart : bool
        Of softmax: a label's score is the logarithm of the odds of its share, ``p / (1 - p)``, and
        the probabilities of a line's labels no longer add up to 1.  For lines of several labels.
    thresholds : mapping of str to float or None
        Least probability of each label, with its prefix; None: the label is never predicted.
        Empty: no thresholds.
    about : mapping
        How they were fitted, for readers of the file.
    """

    temperature: float = 1.0
    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    shift: float = 0.0
    shift_of_others: float = 0.0
    apart: bool = False

    @property
    def changes_probabilities(self) -> bool:
        return self.temperature != 1 or self.has_shift

    @property
    def matters(self) -> bool:
        """Whether answers are others than without it."""
        return self.changes_probabilities or bool(self.thresholds)

    @property
    def has_shift(self) -> bool:
        return self.shift != 0 or self.shift_of_others != 0 or self.apart


def path_beside(path: Path_) -> Path:
    """Return the path of the file beside a model's; a .gz has that of the unpacked file."""
    return Path(os.fspath(path).removesuffix(".gz") + ".json")


def mark_of(model: mmap.mmap | bytes) -> str:
    """Return a hash by which a model's file is recognised; it need not be read as a whole."""
    digest = hashlib.sha256(b"%d " % len(model))
    digest.update(model[:_MARKED_BYTES])
    digest.update(model[-_MARKED_BYTES:])
    return digest.hexdigest()[:32]


def read_calibration(
    path: Path_, model: mmap.mmap | bytes, labels: Sequence[bytes]
) -> Calibration | None:
    """Read what is beside a model's file, whose bytes are `model`; None: nothing of this model.

    A calibration of another model is not used, and a warning says so.

    Raises
    ------
    ModelFileError
        The file cannot be read, or is damaged.
    """
    beside = path_beside(path)
    try:
        with beside.open("rb") as file:
            text = file.read(_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelFileError(f"{beside}: cannot be read: {error.strerror or error}") from error
    try:
        values = json.loads(text) if len(text) <= _BYTES_MAX else None
        if not isinstance(values, dict):
            raise ValueError(f"expected an object of at most {_BYTES_MAX:,} bytes")
        form = values.get("format")
        if form not in (_FORMAT, _FORMAT_OF_SHIFT):
            if isinstance(form, str) and form.startswith(_OURS):
                raise ValueError(f"format {form!r:.60}: use a newer snailps")
            return None  # a file of someone else
        if values.get("model") != mark_of(model):
            log.warning(
                "%s belongs to another model than %s: its calibration and thresholds are not used; "
                "%s", beside, os.fspath(path), _HOW,
            )  # fmt: skip
            return None
        return _checked(values, labels)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{beside}: damaged: {error}; {_HOW}") from None


def _checked(values: Mapping[str, Any], labels: Sequence[bytes]) -> Calibration:
    temperature: Any = values.get("temperature")
    thresholds, about = values.get("thresholds"), values.get("about", {})
    least, most = TEMPERATURE_LEAST, 1 / TEMPERATURE_LEAST
    if not _is_number(temperature) or not least <= temperature <= most:
        raise ValueError(f"temperature: expected {least:g} to {most:g}, got {temperature!r:.60}")
    shifts = [values.get(name, 0.0) for name in _OF_SHIFT[:2]]
    apart = values.get("apart", False)
    for shift in shifts:
        if not _is_number(shift) or not abs(shift) <= most:
            raise ValueError(f"shift: expected {-most:g} to {most:g}, got {shift!r:.60}")
    if not isinstance(apart, bool):
        raise ValueError(f"apart: expected true or false, got {apart!r:.60}")
    if not isinstance(thresholds, dict) or not isinstance(about, dict):
        raise ValueError("expected thresholds and about as objects")
    for label, threshold in thresholds.items():
        if threshold is not None and not (_is_number(threshold) and 0 <= threshold <= 1):
            raise ValueError(f"threshold of {label!r:.60}: expected 0 to 1, got {threshold!r:.60}")
    if thresholds and thresholds.keys() != {to_text(label) for label in labels}:
        raise ValueError("expected a threshold for each label of the model")
    return Calibration(
        float(temperature), thresholds, about, float(shifts[0]), float(shifts[1]), apart
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def refuse_foreign(path: Path_) -> None:
    """Refuse to write a calibration where another program's file is.

    Raises
    ------
    ModelFileError
    """
    beside = path_beside(path)
    values: Any = None
    # What is no JSON may be a calibration that was cut off, which is replaced.
    with suppress(OSError, ValueError, RecursionError):
        values = json.loads(beside.read_bytes())
    if isinstance(values, dict) and not str(values.get("format")).startswith(_OURS):
        raise ModelFileError(
            f"{beside}: expected a calibration or no file, got one that snailps has not written, "
            "which stays as it is: move it away, or calibrate a copy of the model"
        )


def write_calibration(path: Path_, calibration: Calibration) -> Path:
    """Write a calibration beside a model's file, which must be there; return its path.

    Raises
    ------
    ModelFileError
        The model cannot be read, or the file cannot be written or is another program's.
    """
    beside = path_beside(path)
    refuse_foreign(path)
    try:
        with (
            opened(path) as model,  # unpacked: the mark is of what readers map
            mmap.mmap(model.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            mark = mark_of(mapped)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    values = {
        "format": _FORMAT_OF_SHIFT if calibration.has_shift else _FORMAT,
        "model": mark,
        "temperature": calibration.temperature,
        **(
            {name: getattr(calibration, name) for name in _OF_SHIFT}
            if calibration.has_shift
            else {}
        ),
        "about": dict(calibration.about),
        "thresholds": dict(calibration.thresholds),
    }
    with atomic_file(beside) as file:
        file.write(json.dumps(values, indent=1, allow_nan=False).encode() + b"\n")
    return beside
