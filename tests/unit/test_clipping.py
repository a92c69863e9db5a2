"""Values beyond what a column's scale foresaw: counted, predicted as trained, refused if many."""

from dataclasses import replace

import numpy as np
import pytest

from snailps.data._examples import Examples
from snailps.data.encoding import LIMIT, Encoding
from snailps.models.mlp.settings import MlpSettings
from snailps.models.sparse.batch import batch_reader
from snailps.models.sparse.clipping import counts_of, judged, names_of_keys
from snailps.models.sparse.linear import LinearSettings
from snailps.models.sparse.net import NetSettings

SCALED = replace(
    Encoding().with_columns([0, 1], [1, 2.0**-4], [0, 300]), labels=(0.0, 1.0), is_measured=True
)
"""Column 0 as it is, column 1 less 300, by 16."""


def examples(rows):
    """Dense examples of two columns, or sparse ones where None is no entry."""
    keys = np.array([key for row in rows for key, x in enumerate(row) if x is not None], np.uint64)
    values = np.array([x for row in rows for x in row if x is not None], np.float32)
    ptr = np.cumsum([0, *(sum(x is not None for x in row) for row in rows)])
    labels = np.arange(len(rows)) % 2.0
    return Examples(labels, ptr, keys, values, np.empty(0, np.int32), 0, np.empty(0, np.float32))


@pytest.mark.parametrize("last", [0.5, None])
def test_clipped_values_are_counted_by_column(last):
    rows = [[64, 300], [65, 1e30], [-1e30, 300 + 16 * 65], [1, 300 - 16 * 64], [last, 300]]
    settings = LinearSettings(encoding=SCALED.text)
    batch = batch_reader(settings, trains=True).numbered(examples(rows))
    assert np.abs(batch.values).max() == LIMIT
    assert counts_of([batch.beyond, batch.beyond]) == {"count 0": 4, "count 1": 4}
    few = batch_reader(settings, trains=True).numbered(examples([[1, 2]]))
    assert counts_of([few.beyond]) == {}


@pytest.mark.parametrize("encodes", [False, True])
def test_finished_model_takes_values_of_clipped_columns_as_they_were_trained(encodes):
    rows = [[1e9, 300], [65, 1e30], [-65, -1e30], [3, 310]]
    found = judged(LinearSettings(encoding=SCALED.text), {"1": 3.0}, 1000)
    assert found.figures == {"clipped": {"1": 3}}
    assert not found.refused
    values = batch_reader(found.settings, encodes=encodes).numbered(examples(rows)).values
    own = values.reshape(4, 2)
    assert own[:, 0].tolist() == [1e9, 65, -65, 3]  # no value of it was clipped
    reach = [0, LIMIT, -LIMIT, 10 / 16]
    assert own[:, 1].tolist() == (reach if encodes else [300 + 16 * x for x in reach])


def test_many_clipped_values_of_a_column_are_refused_by_its_name():
    names = names_of_keys(["a", "b"], 0)
    (key,) = [key for key, name in names.items() if name == "b"]
    settings = LinearSettings(label_column="y", columns=("y:label", "a:numeric", "b:numeric"))
    assert judged(settings, {f"{key}": 10.0}, 1000).refused == ""
    refused = judged(settings, {f"{key}": 11.0, "7": 1.0}, 1000)
    assert "11 of 1,000 examples have a value of column b that is beyond 64" in refused.refused
    assert refused.figures == {"clipped": {"b": 11, "7": 1}}
    assert Encoding.of_text(refused.settings.encoding).clipped == tuple(sorted({7, key}))


def test_rows_of_all_columns_are_cut_as_others_are():
    rows = np.array([[1e9, 1e30], [3, 310]], np.float32)
    cut = replace(SCALED, clipped=(1,))
    assert cut.bounded_rows(rows).tolist() == [[1e9, 300 + 16 * LIMIT], [3, 310]]
    assert cut.bounded(examples(rows.tolist())).values.tolist() == [1e9, 300 + 16 * LIMIT, 3, 310]
    assert SCALED.bounded_rows(rows) is rows


@pytest.mark.parametrize("kind", [MlpSettings, NetSettings])
@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 100),  # 1,000 examples in 10 steps
        ({"consistency": "bsp"}, 100),  # of whole blocks
        ({"continue_from": "x.npz", "learnt_batch": 300}, 300),
        ({"continue_from": "x.npz", "learnt_batch": 60}, 100),
        ({"continue_from": "x.npz"}, 0),  # of a version that did not say
    ],
)
def test_model_says_the_largest_mean_batch_that_it_has_learnt_with(kind, given, size):
    counts = {"steps": 10.0, "stepped": 1000.0}
    assert judged(kind(**given), counts, 1000).settings.learnt_batch == size
    # A checkpoint of a version that counted no steps, or not their examples, has more examples.
    for earlier in ({}, {"batches": 40.0}):
        assert judged(kind(**given), {**counts, **earlier}, 5000).settings.learnt_batch == size
