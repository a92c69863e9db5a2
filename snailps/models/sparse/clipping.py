"""Values far beyond the scale of their column: counted where they are trained, judged at the end.

    batches -> counts_of, `STEPPED` -> metrics of a block -> sums of the job -> judged -> Counted

A column's scale comes from a sample of the whole input.  Training clips values beyond `LIMIT` times
the scale, and predictions clip them alike: the model's `Encoding.clipped` names their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.counting import COUNT, Counted
from snailps.data._examples import hash_bytes
from snailps.data.columns import ColumnKind, columns_of
from snailps.data.encoding import LIMIT, Encoding
from snailps.dataclass import replace
from snailps.files._matrix import wide_keys
from snailps.files.matrix_file import KEY_LIMIT
from snailps.models.sparse.settings import SparseSettings

if TYPE_CHECKING:
    from snailps.models.mlp.settings import MlpSettings

SHARE_MAX = 0.01
"""Share of examples with a clipped value of one column from which the job is refused."""
STEPS_TAKEN, STEPPED = f"{COUNT}steps", f"{COUNT}stepped"
"""Metrics of networks: a block's steps, and its examples; their mean goes into the model's file.
What a version without them has trained counts in neither."""
NAMES_MAX = 64
"""Most columns that a block counts: those with the most clipped values."""
SHOWN = 8


def counts_of(beyond: Sequence[NDArray[Any]]) -> dict[str, float]:
    """Count clipped values, given by their keys, as metrics of a block, by column."""
    if not any(map(len, beyond)):
        return {}
    keys, counts = np.unique(np.concatenate(beyond), return_counts=True)
    most = np.argsort(-counts, kind="stable")[:NAMES_MAX]
    found = zip(keys[most].tolist(), counts[most].tolist(), strict=True)
    return {f"{COUNT}{key}": float(count) for key, count in found}


def judged(
    settings: SparseSettings | MlpSettings, counts: Mapping[str, float], units: int
) -> Counted:
    """Have predictions clip as the training did; refuse a job that clipped too many values."""
    counts = dict(counts)
    steps, stepped = (counts.pop(name.removeprefix(COUNT), 0) for name in (STEPS_TAKEN, STEPPED))
    counts.pop("batches", 0)  # steps of a checkpoint that lacks their examples
    if steps:  # of networks alone
        settings = _with_batch(settings, round(stepped / steps))
    if not counts:
        return Counted(settings)
    encoding, names = Encoding.of_text(settings.encoding), _names_in(settings)
    by_key = {int(key): int(count) for key, count in counts.items()}
    clipped = tuple(sorted({*encoding.clipped, *by_key}))
    most = sorted(by_key, key=lambda key: -by_key[key])
    figures = {names.get(key, f"{key}"): by_key[key] for key in most[:SHOWN]}
    refused, first = "", by_key[most[0]]
    if first > SHARE_MAX * units:
        name = names.get(most[0], f"{most[0]}")
        refused = (
            f"input: {first:,} of {units:,} examples have a value of column {name} that is beyond "
            f"{LIMIT:g} times its scale, and would be clipped to that. The scale comes from a "
            "sample of the input, or from the training that is continued. Take logarithms "
            "(columns: NAME:numeric log), correct wrong values, or train with all of the data"
        )
    made = replace(settings, encoding=replace(encoding, clipped=clipped).text)
    return Counted(made, {"clipped": figures}, refused)


def _with_batch(settings: Any, size: int) -> Any:
    """Settings of a network whose steps had `size` examples each in this training."""
    before = settings.learnt_batch
    if settings.continue_from and not before:  # its file does not say, and this is a part
        return settings
    return replace(settings, learnt_batch=max(before, size))


def names_of_keys(names: Sequence[str], hash_bits: int) -> dict[int, str]:
    """Map the keys of columns of numbers to the columns' names."""
    hashes = [hash_bytes(hash_bytes(0, name.encode()), b"") >> 1 for name in names]
    keys, _ = wide_keys(np.array(hashes, np.uint64), KEY_LIMIT, True, hash_bits)
    return dict(zip(keys.tolist(), names, strict=True))


def _names_in(settings: SparseSettings | MlpSettings) -> dict[int, str]:
    if not isinstance(settings, SparseSettings):
        return {}
    columns = columns_of(settings.columns, needs_label=False) if settings.columns else ()
    numeric = [column.name for column in columns if column.kind is ColumnKind.NUMERIC]
    return names_of_keys(numeric, settings.hash_bits)
