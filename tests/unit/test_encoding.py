"""Labels and values as a model learns them, and what a sample of an input says of them."""

import gzip
import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from completing import completed

import snailps
from snailps import write_matrix
from snailps.data._examples import Examples
from snailps.data.encoding import FARTHEST, LIMIT, Encoding
from snailps.data.table_files import complete
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import expand
from snailps.files.input_files import InputFiles
from snailps.files.scratch import Scratch
from snailps.models.sparse import sample
from snailps.models.sparse.batch import BIAS_KEY, batch_reader
from snailps.models.sparse.fm import FactorizationMachine, FmSettings
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.models.sparse.net import Net, NetSettings
from snailps.models.sparse.sample import PIECE_BYTES, PIECES, SampledExamples
from snailps.models.sparse.settings import SparseSettings


def examples(rows, labels=None):
    """Examples of rows of {key: value}."""
    keys = np.array([key for row in rows for key in row], np.uint64)
    values = np.array([value for row in rows for value in row.values()], np.float32)
    ptr = np.cumsum([0, *map(len, rows)])
    told = np.zeros(len(rows)) if labels is None else np.array(labels, float)
    return Examples(told, ptr, keys, values, np.empty(0, np.int32), 0, np.empty(0, np.float32))


def measured(*pieces, farthest=FARTHEST):
    """The encoding of columns of some examples."""
    sample = SampledExamples(list(pieces), is_whole=True)
    examples = sum(len(piece.labels) for piece in pieces)
    return Encoding().measured(*sample.entries(), examples, farthest=farthest)


def columns_of(keys, factors, centres=None):
    return Encoding().with_columns(keys, factors, [0] * len(keys) if centres is None else centres)


def encoded(settings, **options):
    """The settings with the encoding of their input."""
    with Scratch("", 0, tables=settings.reading()) as scratch:
        files = InputFiles(expand(settings.input, scratch), scratch)
        return sample.encoded(settings, files, **{"has_constant": True} | options)


def sample_of(settings):
    with Scratch("", 0) as scratch:
        return sample.sample_of(settings, InputFiles(expand(settings.input, scratch), scratch))


def settings_of(text, path, **others):
    path.write_text(text)
    return encoded(SparseSettings(input=(str(path),), **others))


def test_text_is_read_back_and_says_only_what_differs():
    assert Encoding().text == "{}"
    assert Encoding.of_text("") == Encoding()
    whole = replace(
        columns_of([3, 1 << 63, (1 << 64) - 2], [0.5, 2.0**-120, 1], [0, -273.25, 1e9]),
        labels=(1.0, 2.0), centre=3.5, deviation=2.0, factor=0.25, is_measured=True,
    )  # fmt: skip
    again = Encoding.of_text(whole.text)
    assert again == whole
    assert again.keys.tolist() == [3, 1 << 63, (1 << 64) - 2]
    assert again.centres.tolist() == [0, -273.25, 1e9]
    others = np.array([0, (1 << 64) - 2, 1 << 63, 3], np.uint64)
    assert again.factors_of(others).tolist() == [0.25, 1, 2.0**-120, 0.5]
    assert again.centred_keys.tolist() == [1 << 63, (1 << 64) - 2]


@pytest.mark.parametrize(
    "text",
    [
        "[]", '{"classes":[1]}', '{"labels":[2,1]}', '{"deviation":0}', '{"factor":NaN}',
        '{"columns":"?"}', '{"columns":"00"}', '{"factor":-1}', "{",
        columns_of([1, 1], [1, 1]).text, columns_of([1], [1], [np.nan]).text,
    ],
)  # fmt: skip
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        Encoding.of_text(text)


def test_features_that_are_there_or_not_stay_as_they_are():
    given = examples([{1: 1, 2: 1}, {2: 1.5}])
    found = measured(given)
    assert found == Encoding(is_measured=True)
    assert found.of_examples(given) is given


@pytest.mark.parametrize("shift", [0, 1 << 40])
def test_columns_of_other_sizes_have_a_mean_square_of_1(shift):
    rng = np.random.default_rng(1)
    sizes = {shift + key: 10.0 ** (key - 3) for key in range(7)}
    rows = [{key: rng.normal() * size for key, size in sizes.items()} for _ in range(500)]
    given = examples(rows)
    found = measured(given)
    values = found.of_examples(given).values
    for key, size in sizes.items():
        own = values[given.keys == key].astype(float)
        assert 0.4 < np.sqrt(np.mean(own**2)) < 2.1, size
    others = found.factors_of(np.array([shift + 100, shift + 50, (1 << 64) - 1], np.uint64))
    assert others.tolist() == [found.factor] * 3


@pytest.mark.parametrize("size", [1e-45, 1e-39, 1e-30, 1e30, 3e38])
def test_columns_of_any_size_have_factors_within_float32(size):
    found = measured(examples([{1: 1.0, 2: 1.0, 3: size}] * 3))
    assert Encoding.of_text(found.text) == found
    (factor,) = found.factors_of(np.array([3], np.uint64))
    assert factor == pytest.approx(min(1 / size, 1e36), rel=0.5)


@pytest.mark.parametrize("listed", [[], [0, 5, 9], [5, 1 << 40]])
def test_values_are_multiplied_by_the_factors_of_their_keys_and_clipped(listed):
    factors = 2.0 ** np.arange(1, len(listed) + 1)
    known = replace(Encoding(factor=0.5), is_measured=True)
    if listed:
        known = known.with_columns(np.array(listed, np.uint64), factors, np.zeros(len(listed)))
    keys = np.array([5, 4, 0, 9, 10, 1 << 41, 5], np.uint64)
    values = np.array([1, -2, 3, 4, 0, 6, -3e38], np.float32)
    ptr = np.array([0, 2, 2, 5, 7])
    given = Examples(np.zeros(4), ptr, keys, values, np.empty(0, np.int32), 0)
    own = dict(zip(listed, factors, strict=True))
    expected = values.astype(float) * [own.get(key, 0.5) for key in keys.tolist()]
    encoded_examples, beyond = known.encoded(given, LIMIT)
    assert encoded_examples.values.tolist() == np.clip(expected, -LIMIT, LIMIT).tolist()
    assert beyond.tolist() == keys[np.abs(expected) > LIMIT].tolist() == [5]
    assert values[-1] == np.float32(-3e38)


@pytest.mark.parametrize("classes", [[3], [-1, 1], [0, 1, 2, 5, 6, 7, 100]])
def test_label_between_classes_is_none_of_them(classes):
    known = Encoding(labels=tuple(map(float, classes)))
    labels = np.array(classes[::-1], np.float32)
    assert known.labels_of(labels).tolist() == list(range(len(classes)))[::-1]
    for wrong in (classes[0] - 1, classes[-1] + 1, classes[0] + 0.5, np.nan):
        with pytest.raises(DataError, match="is none of the classes"):
            known.labels_of(np.array([*classes, wrong]))


def test_many_columns_of_one_size_have_one_factor():
    rows = [dict.fromkeys(range(first, first + 50), 0.01) for first in range(0, 50_000, 50)]
    found = measured(examples(rows))
    assert (found.factor, found.columns) == (128, "")


def test_all_columns_of_a_wide_matrix_have_factors_of_their_own():
    rng = np.random.default_rng(2)
    sizes = 10.0 ** rng.uniform(-9, 9, 30_000)
    far = rng.normal(1, 1e-3, (12, 30_000)) * sizes
    given = examples([dict(enumerate(row)) for row in far])
    found = measured(given)
    values = found.of_examples(given).values.reshape(far.shape)
    assert 0.1 < values.std(0).min() < values.std(0).max() < 2.1
    assert np.abs(values.mean(0)).max() < 1e-2
    assert len(found.text) < 400_000
    whole = measured(given, farthest=0)
    assert np.abs(np.log2(np.abs(whole.of_examples(given).values))).max() < 1.01


def test_columns_far_from_0_are_centred_where_all_examples_have_them():
    rng = np.random.default_rng(3)
    years, kelvins, parts = (
        rng.integers(1990, 2027, 400), rng.normal(290, 8, 400), rng.normal(500, 20, 400)
    )  # fmt: skip
    rows = [
        {1: year, 2: kelvin, 3: part, 4: 7, 5: rng.normal() * 100}
        for year, kelvin, part in zip(years, kelvins, parts, strict=True)
    ]
    del rows[7][3]
    given = examples(rows)
    found = measured(given)
    assert found.centred_keys.tolist() == [1, 2]  # not what one lacks, is constant, or is round 0
    assert found.centres[:2].tolist() == pytest.approx([years.mean(), kelvins.mean()])
    values = found.of_examples(given)
    for key in (1, 2):
        own = values.values[values.keys == key].astype(float)
        assert abs(own.mean()) < 1e-3
        assert 0.5 <= own.std() <= 2
    assert measured(given, farthest=100).centred_keys.tolist() == [2]
    assert len(measured(given, farthest=0).centred_keys) == 0
    assert len(measured(examples(rows[:5])).centred_keys) == 0  # too few to tell


@pytest.mark.parametrize("shift", [0, 1 << 40])
def test_examples_that_lack_a_centred_column_get_its_entry(shift):
    encoding = columns_of([shift + 2, shift + 5, shift + 9], [0.5, 1, 2], [10, 0, -4])
    rows = [
        {2: 12, 5: 3, 9: -3}, {9: -4, 2: 10}, {5: 1}, {2: 14, 7: 1}, {},
        {9: 1, 7: 2}, {2: 10, 9: -4},
    ]  # fmt: skip
    given = examples([{shift + key: value for key, value in row.items()} for row in rows])
    given = given._replace(fields=np.arange(len(given.keys), dtype=np.int32))
    found = encoding.of_examples(given)
    assert len(found.fields) == len(found.values) == len(found.keys) == found.ptr[-1]
    told = [
        dict(zip((found.keys[a:b] - np.uint64(shift)).tolist(), found.values[a:b].tolist(),
                 strict=True))
        for a, b in itertools.pairwise(found.ptr.tolist())
    ]  # fmt: skip
    assert told == [
        {2: (row.get(2, 0) - 10) / 2, 9: (row.get(9, 0) + 4) * 2}
        | {key: value for key, value in row.items() if key in (5, 7)}
        for row in rows
    ]
    assert encoding.of_examples(examples([])).ptr.tolist() == [0]


def test_values_of_a_column_that_an_example_has_twice_add_up():
    encoding = columns_of([2, 3], [0.5, 1], [10, 100])
    keys = np.array([2, 2, 3, 3], np.uint64)  # as many as if each had both
    values = np.array([12, 2, 101, 99], np.float32)
    given = examples([{}, {}])._replace(keys=keys, values=values, ptr=np.array([0, 2, 4]))
    found = encoding.of_examples(given)
    sums = [
        {key: float(found.values[a:b][found.keys[a:b] == key].sum()) for key in (2, 3)}
        for a, b in itertools.pairwise(found.ptr)
    ]
    assert sums == [{2: 2, 3: -100}, {2: -5, 3: 100}]


@pytest.mark.parametrize("wrong", [1e30, -3e38, 99_999])
def test_one_wrong_value_does_not_set_a_columns_scale(tmp_path, wrong):
    rng = np.random.default_rng(4)
    rows = [{1: rng.normal(50, 3), 2: rng.normal()} for _ in range(200)]
    without = measured(examples(rows))
    rows[20] = {1: wrong, 2: wrong}
    given = examples(rows, np.arange(200) % 2)
    found = measured(given)
    assert found.centred_keys.tolist() == [1]
    assert found.centres == pytest.approx(without.centres, rel=1e-2)
    factors = [one.factors_of(np.array([1, 2], np.uint64)).tolist() for one in (found, without)]
    assert factors[0] == factors[1]
    s = LinearSettings(encoding=replace(found, labels=(0.0, 1.0)).text)
    trained, scored = (
        batch_reader(s, trains=trains).numbered(given).values for trains in (True, False)
    )
    assert np.abs(trained).max() == LIMIT
    assert np.abs(scored).max() > 1000 * LIMIT
    assert np.isfinite(scored).all()


def test_rare_large_values_are_no_wrong_ones():
    rows = [{1: 0.01 if at % 50 else 100.0} for at in range(1000)]
    found = measured(examples(rows), farthest=0)
    assert found.factors_of(np.array([1], np.uint64)) == pytest.approx(1 / 14, rel=0.5)


def test_columns_of_another_size_than_before_are_told():
    rng = np.random.default_rng(5)
    before = rng.normal([0, 300, 0], [1, 10, 1000], (100, 3)).astype(np.float32)
    keys = np.tile(np.arange(3, dtype=np.uint64), 100)
    known = Encoding().measured(keys, before.ravel(), 100, farthest=FARTHEST)
    assert known.unlike(keys, before.ravel()) is None
    for column, times in ((0, 1000), (1, 400), (2, 1e-4)):
        after = before.copy()
        after[:, column] *= times
        key, found = known.unlike(keys, after.ravel())
        assert key == column
        assert 300 < max(found, 1 / found) < 20_000
    assert known.unlike(keys, 0 * before.ravel()) is None
    new = np.array([7], np.uint64)
    assert known.unlike(new, np.array([1e6], np.float32))[0] == 7
    assert known.unlike(new, np.array([1e-6], np.float32)) is None


def test_labels_are_numbers_of_classes_and_unknown_ones_are_refused():
    known = Encoding(labels=(1.0, 2.0))
    assert known.labels_of(np.array([2.0, 1, 2])).tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"x\.svm: label 3 is none of the classes .*: 1, 2"):
        known.labels_of(np.array([2.0, 3]), "x.svm")


def test_label_of_an_example_without_weight_may_be_any(tmp_path):
    known, labels = Encoding(labels=(1.0, 2.0)), np.array([2.0, 7, 1])
    assert known.labels_of(labels, weights=np.array([1, 0, 0.5]))[[0, 2]].tolist() == [1, 0]
    with pytest.raises(DataError, match=r"label 7 is none of the classes"):
        known.labels_of(labels, weights=np.array([1, 0.5, 0]))
    path = tmp_path / "w.mx"
    write_matrix(path, np.ones((3, 2)), labels, sample_weight=[1, 0, 0.5])
    settings = encoded(LinearSettings(input=(str(path),)))
    batch = batch_reader(settings).read(path.read_bytes(), str(path))
    assert (batch.labels[[0, 2]].tolist(), batch.weights.tolist()) == ([1, 0], [1, 0, 0.5])


def test_training_that_continues_with_weights_of_0_alone_is_refused(tmp_path):
    path = tmp_path / "w.mx"
    write_matrix(path, np.ones((3, 2)), np.zeros(3), sample_weight=[0, 0, 0])
    known = Encoding(labels=(0.0, 1.0), is_measured=True).text
    settings = LinearSettings(input=(str(path),), continue_from="m.npz", encoding=known)
    with pytest.raises(DataError, match="input: expected an example with a weight above 0"):
        encoded(settings)
    write_matrix(path, np.ones((3, 2)), np.zeros(3), sample_weight=[0, 1, 0])
    assert encoded(settings) == settings


@pytest.mark.parametrize("content", ["\n\n# nothing\n", "\n", "1 a\n0 b\n"])
@pytest.mark.parametrize("kind", [LinearSettings, FmSettings, NetSettings])
@pytest.mark.parametrize("begun", ["", "m.npz"])
def test_input_without_examples_is_refused(tmp_path, content, kind, begun):
    (tmp_path / "e.svm").write_text(content)
    settings = kind(input=(str(tmp_path / "e.svm"),), on_bad_line="skip", continue_from=begun)
    with pytest.raises(DataError, match=r"^input: expected examples, got none"):
        encoded(settings)


@pytest.mark.parametrize("kind", [LinearSettings, FmSettings, NetSettings])
@pytest.mark.parametrize("times", [50, 1e6, 1e-6])
def test_rows_of_weight_0_are_trained_as_if_they_were_not_there(tmp_path, kind, times):
    """They set no scale, and a batch is to the bit the one without them."""
    rng = np.random.default_rng(6)
    rows, labels = rng.normal([0, 2000, 3], [1, 10, 40], (60, 3)), np.arange(60) % 2
    write_matrix(tmp_path / "alone.mx", rows, labels, sample_weight=np.full(60, 0.5))
    mixed, weights = np.repeat(rows, 2, axis=0), np.tile([0.5, 0], 60)
    mixed[1::2] *= times
    write_matrix(tmp_path / "mixed.mx", mixed, np.repeat(labels, 2), sample_weight=weights)
    alone, among = (
        encoded(kind(input=(str(tmp_path / f"{name}.mx"),)), farthest=FARTHEST)
        for name in ("alone", "mixed")
    )
    assert among.encoding == alone.encoding
    assert Encoding.of_text(among.encoding).centred_keys.tolist() == [1]
    without, batch = (
        batch_reader(among, trains=True).read((tmp_path / name).read_bytes(), name)
        for name in ("alone.mx", "mixed.mx")
    )
    for name in ("labels", "ptr", "places", "values", "fields", "keys", "weights", "beyond"):
        assert getattr(batch, name).tobytes() == getattr(without, name).tobytes(), name


def test_examples_of_a_class_of_weight_0_are_left_out(tmp_path):
    (tmp_path / "t.svm").write_text("0 1:1\n1 2:1\n0 3:1\n")
    settings = LinearSettings(class_weights=("0", "2"))
    batch = batch_reader(settings, trains=True).read((tmp_path / "t.svm").read_bytes())
    assert (batch.labels.tolist(), batch.keys.tolist()) == ([1], [2])
    assert batch.weights.tolist() == [2]


def test_targets_are_centred_in_float64_and_given_back():
    targets = 1.7e9 + np.array([0.0, 1, 2, 3])
    found = Encoding().centred(targets, np.empty(0), has_constant=True)
    assert found.labels_of(targets).tolist() == pytest.approx([-1.342, -0.447, 0.447, 1.342], 1e-3)
    assert found.targets_of(found.labels_of(targets)).tolist() == targets.tolist()
    plain = Encoding().centred(np.array([3.0, 4]), np.empty(0), has_constant=False)
    assert (plain.centre, plain.deviation) == (0, pytest.approx(12.5**0.5))


# --- samples of an input -------------------------------------------------------------------------


def test_small_input_is_read_whole_and_a_large_one_in_pieces(tmp_path):
    small, large = tmp_path / "a.svm", tmp_path / "b.svm"
    small.write_text("1 3:1\n0 4:1\n")
    assert [len(one.labels) for one in sample_of(SparseSettings(input=(str(small),))).pieces] == [2]
    lines = "".join(f"{at // 150_000} {at}:1\n" for at in range(300_000))
    large.write_text(lines)
    sample = sample_of(SparseSettings(input=(str(large),)))
    assert not sample.is_whole
    assert len(sample.pieces) == PIECES
    keys = np.concatenate([piece.keys for piece in sample.pieces])
    assert keys.min() < 3000
    assert keys.max() > 297_000
    assert 0.8 * PIECES * PIECE_BYTES / 11 < len(keys) < 1.2 * PIECES * PIECE_BYTES / 9
    assert set(sample.labelled()[0]) == {0, 1}
    both = sample_of(SparseSettings(input=(str(small), str(large))))
    assert not both.is_whole


def test_forms_of_an_input_give_the_same_encoding(tmp_path):
    rng = np.random.default_rng(2)
    x = np.round(rng.normal(size=(200, 3)) * [1, 500, 0.01], 4).astype(np.float32)
    y = np.arange(200) % 2 + 1
    write_matrix(tmp_path / "x.mx", x, y)
    lines = [
        f"{label} " + " ".join(f"{at}:{value:.9g}" for at, value in enumerate(row) if value)
        for row, label in zip(x, y, strict=True)
    ]
    of_text = settings_of("\n".join(lines) + "\n", tmp_path / "x.svm")
    of_matrix = encoded(SparseSettings(input=(str(tmp_path / "x.mx"),)))
    assert of_text.encoding == of_matrix.encoding
    assert Encoding.of_text(of_text.encoding).labels == (1, 2)
    assert Encoding.of_text(of_text.encoding).keys.tolist() == [1, 2]
    table = tmp_path / "x.csv"
    cells = "".join(f"{a:.9g},{b:.9g},{c:.9g},{k}\n" for (a, b, c), k in zip(x, y, strict=True))
    table.write_text(f"a,b,c,k\n{cells}")
    columns = ("a:numeric", "b:numeric", "c:numeric", "k:label")
    named = SparseSettings(input=(str(table),), label_column="k", columns=columns)
    of_table = Encoding.of_text(encoded(named).encoding)
    of_lines = Encoding.of_text(of_text.encoding)
    factors = [sorted(one.factors_of(one.keys)) for one in (of_table, of_lines)]
    assert factors[0] == factors[1]


ROWS = 20_000
"""More than a table's reader has at once."""
FORMS = ("svm", "svm.gz", "csv", "tsv", "csv.gz", "jsonl", "parquet", "mx")


def write_as(form, path, x, y):
    """Examples of two columns in one form; the column of labels, if the form names its columns."""
    if form == "mx":
        write_matrix(path, x, y)
        return ""
    if form == "parquet":
        table = pa.table({"y": y, "a": x[:, 0], "b": x[:, 1]})
        pyarrow.parquet.write_table(table, path)
        return "y"
    told = zip(y.tolist(), x[:, 0].tolist(), x[:, 1].tolist(), strict=True)
    kind = form.removesuffix(".gz")
    line = {
        "svm": "{} 0:{} 1:{}\n", "csv": "{},{},{}\n", "tsv": "{}\t{}\t{}\n",
        "jsonl": '{{"y":{},"a":{},"b":{}}}\n',
    }[kind]  # fmt: skip
    head = {"csv": "y,a,b\n", "tsv": "y\ta\tb\n"}.get(kind, "")
    text = (head + "".join(line.format(*row) for row in told)).encode()
    path.write_bytes(gzip.compress(text, 1) if form.endswith(".gz") else text)
    return "" if kind == "svm" else "y"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", ["label", "feature"])
def test_order_and_form_of_an_input_decide_nothing(tmp_path, monkeypatch, form, order):
    monkeypatch.setattr(sample, "PIECE_BYTES", 1 << 10)
    rng = np.random.default_rng(7)
    x = np.stack([rng.normal(2000, 10, ROWS), rng.lognormal(0, 2, ROWS)], axis=1).round(3)
    y = np.where(rng.random(ROWS) < 0.95, -1, 1)
    targets = np.round(300 + x[:, 1], 3)
    by = np.argsort(-y if order == "label" else x[:, 1], kind="stable")
    for loss, labels in (("logistic", y), ("squared", targets)):
        found = []
        for at, (kind, rows) in enumerate([("svm", rng.permutation(ROWS)), (form, by)]):
            path = tmp_path / f"{loss}{at}.{kind}"
            label = write_as(kind, path, x[rows].astype(np.float32), labels[rows])
            given = LinearSettings(
                input=(str(path),), label_column=label, loss=loss, scratch_dir=str(tmp_path / "s")
            )
            found.append(Encoding.of_text(completed(Linear, given).encoding))
        shuffled, ordered = found
        assert ordered.labels == shuffled.labels == ((-1, 1) if loss == "logistic" else ())
        whole = [
            (one.constant, one.centre, one.deviation) for one in (ordered, shuffled)
        ]  # of all labels
        assert whole[0] == pytest.approx(whole[1], rel=1e-9)
        # By name and by number: a is centred, the factor of b is near that of the shuffled input.
        assert len(ordered.centred_keys) == len(shuffled.centred_keys) == 1
        assert ordered.centres.max() == pytest.approx(2000, abs=2)
        factors = [sorted(one.factors_of(one.keys).tolist()) for one in found]
        assert np.log2(factors[0]) == pytest.approx(np.log2(factors[1]), abs=2)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 1], (0, 1)), ([1, -1], (-1, 1)), ([2, 1], (1, 2)), ([7, 3], (3, 7)),
        ([-2, -1], (-2, -1)),
    ],
)  # fmt: skip
def test_two_labels_are_no_and_yes(tmp_path, labels, expected):
    text = "".join(f"{label} 1:1\n" for label in labels)
    found = settings_of(text, tmp_path / "x.svm")
    assert Encoding.of_text(found.encoding).labels == expected


def test_labels_that_are_not_those_of_the_loss_are_refused(tmp_path):
    path = tmp_path / "x.svm"
    with pytest.raises(DataError, match="two classes, got one only: all 3 are 2"):
        settings_of("2 1:1\n" * 3, path)
    with pytest.raises(DataError, match=r"2 classes, got 3 .*: 0, 1, 2\. .*multinomial"):
        settings_of("0 1:1\n1 1:1\n2 1:1\n", path)
    assert settings_of("0 1:1\n1 1:1\n2 1:1\n", path, loss="squared").encoding


@pytest.mark.parametrize(
    ("label", "expected"), [(0, (0, 1)), (-1, (-1, 1)), (1, (0, 1)), (2, (1, 2))]
)
def test_rare_class_that_a_sample_lacks_is_guessed_and_no_other_is_taken(
    tmp_path, monkeypatch, label, expected
):
    monkeypatch.setattr(sample, "LABELS_BYTES", 0)
    text = "".join(f"{label} {at}:1\n" for at in range(200_000))
    found = settings_of(text, tmp_path / "x.svm")
    assert Encoding.of_text(found.encoding).labels == expected
    with pytest.raises(DataError, match=r"label 7 is none of the classes.* a small file"):
        batch_reader(found).read(b"7 1:1\n", "x.svm")


def rare(labels, lines=200_000):
    """Lines of label 1, and after two fifths of them one each of other labels."""
    found = [f"1 {at}:1\n" for at in range(lines)]
    found[2 * lines // 5 : 2 * lines // 5 + len(labels)] = [f"{label} 1:1\n" for label in labels]
    return "".join(found)


def test_label_that_is_somewhere_in_a_file_of_moderate_size_is_known_before_training(tmp_path):
    path = tmp_path / "x.svm"
    assert Encoding.of_text(settings_of(rare([2]), path).encoding).labels == (1, 2)
    with pytest.raises(DataError, match=r"2 classes, got 3 different ones: 0, 1, 2"):
        settings_of(rare([2, 0]), path)
    path.write_text(rare([7, 3]))
    given = LinearSettings(input=(str(path),), loss="multinomial", classes=3)
    three = encoded(given)
    assert Encoding.of_text(three.encoding).labels == (1, 3, 7)
    with pytest.raises(DataError, match="got one only: all 200,000 are 1"):
        settings_of(rare([]), path)


def test_file_that_cannot_be_read_is_not_taken_for_read(tmp_path):
    (tmp_path / "a.svm").write_text("0 1:1\n" * 10)
    (tmp_path / "b.svm").write_text("no example\n" * 10)
    paths = (str(tmp_path / "a.svm"), str(tmp_path / "b.svm"))
    found = encoded(SparseSettings(input=paths, format="libsvm"))
    assert Encoding.of_text(found.encoding).labels == (0, 1)


def test_index_that_pandas_writes_is_no_column(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2, 3, 4], "y": [0, 1, 0, 1]}).sort_values("y")
    frame.to_parquet(tmp_path / "x.parquet")
    declared = complete([str(tmp_path / "x.parquet")], (), "y")
    assert declared == ("a:numeric", "y:label", "__index_level_0__:ignore")


def test_label_that_a_sample_lacks_is_refused_where_it_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "LABELS_BYTES", 0)
    lines = "".join(f"{at % 2 + 1} {at}:1\n" for at in range(200_000))
    cut = lines.index("1 50010:")
    found = settings_of(lines[:cut] + "3 50010:1\n" + lines[cut:], tmp_path / "x.svm")
    assert Encoding.of_text(found.encoding).labels == (1, 2)
    with pytest.raises(DataError, match="label 3 is none of the classes"):
        batch_reader(found).read((tmp_path / "x.svm").read_bytes(), "x.svm")


def test_classes_from_one_on_are_numbered(tmp_path):
    text = "".join(f"{label} 1:1\n" for label in (1, 2, 3))
    (tmp_path / "x.svm").write_text(text)
    given = LinearSettings(input=(str(tmp_path / "x.svm"),), loss="multinomial", classes=3)
    assert Encoding.of_text(encoded(given).encoding).labels == (1, 2, 3)
    four = LinearSettings(input=(str(tmp_path / "x.svm"),), loss="multinomial", classes=4)
    assert Encoding.of_text(encoded(four).encoding).labels == ()


def test_column_of_ids_is_told(tmp_path, caplog):
    settings_of("0 1:1700000000000000001 2:1\n1 1:1700000000000000002\n", tmp_path / "x")
    assert "if they are ids, declare the column as name:categorical or name:ignore" in caplog.text
    caplog.clear()
    settings_of("0 1:100 2:1\n1 1:200\n", tmp_path / "x")
    assert "ids" not in caplog.text


def test_sorted_labels_are_told_where_the_order_is_kept(tmp_path, caplog):
    path = tmp_path / "x.svm"
    path.write_text("".join(f"{at // 500} {at}:1\n" for at in range(1000)))
    given = SparseSettings(input=(str(path),))
    encoded(given)
    assert caplog.text == ""
    encoded(given, is_drawn=False)
    assert (
        "have a mean of 0, the others 0.556: if they are sorted, set shuffle: true" in caplog.text
    )
    caplog.clear()
    path.write_text("".join(f"{at % 3 % 2} {at}:1\n" for at in range(1000)))
    encoded(given, is_drawn=False)
    assert caplog.text == ""


def test_files_of_one_class_each_are_told_where_they_are_fetched(tmp_path, monkeypatch, caplog):
    paths = [tmp_path / "a.svm", tmp_path / "b.svm"]
    for label, path in enumerate(paths):
        path.write_text(f"{label} 1:1\n" * 1000)
    given = SparseSettings(input=tuple(map(str, paths)))
    encoded(given)
    assert caplog.text == ""
    monkeypatch.setattr(sample, "is_url", lambda path: True)
    encoded(given)
    assert "have a mean of 0, the others 0.556" in caplog.text
    assert "mix the lines of files that are fetched" in caplog.text


def test_loss_of_a_constant_is_that_of_the_shares(tmp_path):
    text = "".join(f"{at % 4 // 3} 1:1\n" for at in range(400))
    found = settings_of(text, tmp_path / "x.svm")
    assert Linear.constant_loss(found) == pytest.approx(
        -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    )
    weighted = settings_of(text, tmp_path / "x.svm", class_weights=("1", "2"))
    assert Linear.constant_loss(weighted) == 0
    squared = settings_of(text, tmp_path / "x.svm", loss="squared")
    assert Linear.constant_loss(squared) == pytest.approx(0.1875 / 2)
    counted = settings_of(text, tmp_path / "x.svm", loss="poisson")
    assert Linear.constant_loss(counted) == pytest.approx(-0.25 * np.log(0.25))


def test_balanced_weights_give_all_classes_the_same_sum_and_are_a_setting_of_the_job(tmp_path):
    text = "".join(f"{'abbb'.index(c)} 1:1\n" for c in "abbb" * 100)
    text = text.replace("1 1:1", "7 1:1").replace("0 1:1", "5 1:1")
    balanced = {"class_weights": ("balanced",)}
    found = settings_of(text, tmp_path / "x.svm", **balanced)
    assert found.weights_of_classes == pytest.approx((2, 2 / 3), rel=1e-5)
    assert Encoding.of_text(found.encoding).is_balanced  # a further training finds its own
    batch = batch_reader(found, trains=True).read(text.encode())
    sums = np.bincount(batch.labels.astype(int), batch.weights)
    assert sums == pytest.approx([200, 200], rel=1e-5)
    again = replace(found, **balanced)  # as of a continued model, whose encoding is known
    assert encoded(again).weights_of_classes == found.weights_of_classes
    three = "".join(f"{at} 1:1\n" for at in (1, 2, 2, 3, 3, 3)) * 10
    (tmp_path / "x.svm").write_text(three)
    settings = LinearSettings(
        loss="multinomial", classes=3, input=(str(tmp_path / "x.svm"),), **balanced
    )
    assert encoded(settings).weights_of_classes == pytest.approx((2, 1, 2 / 3), rel=1e-5)


def test_balanced_weights_count_the_weights_of_examples(tmp_path):
    path = tmp_path / "x.mx"
    write_matrix(path, np.ones((4, 1), np.float32), [0, 1, 1, 0], sample_weight=[3, 1, 1, 3])
    found = encoded(SparseSettings(input=(str(path),), class_weights=("balanced",)))
    assert found.weights_of_classes == pytest.approx((8 / 12, 2), rel=1e-5)


def test_examples_that_all_weigh_0_are_refused(tmp_path):
    path = tmp_path / "x.mx"
    write_matrix(path, np.ones((2, 1), np.float32), [0, 1], sample_weight=[0, 0])
    for more in ({}, {"class_weights": ("balanced",)}):
        with pytest.raises(DataError, match="input: expected an example with a weight above 0"):
            encoded(SparseSettings(input=(str(path),), **more))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"loss": "squared", "class_weights": ("balanced",)}, "expected nothing with loss squared"),
        ({"class_weights": ("balanced", "1")}, "expected balanced, or numbers"),
        ({"class_weights": ("1", "nan")}, "expected balanced, or numbers"),
        ({"weight_column": "w"}, "weight_column: expected label_column as well"),
        ({"weight_column": "y", "label_column": "y"}, "expected another column than label_column"),
    ],
)
def test_weights_that_cannot_be_are_refused(more, said):
    with pytest.raises(ConfigError, match=said):
        LinearSettings(**more).validate(lambda name: name)


def test_what_is_encoded_already_stays(tmp_path):
    known = Encoding(labels=(0.0, 1.0), factor=0.5, is_measured=True).text
    assert settings_of("5 1:100\n6 1:90\n", tmp_path / "x", encoding=known).encoding == known
    labelled = Encoding(labels=(0.0, 5.0, 6.0)).text
    found = settings_of("5 1:100\n6 1:90\n", tmp_path / "x", encoding=labelled)
    assert Encoding.of_text(found.encoding).labels == (0, 5, 6)
    assert Encoding.of_text(found.encoding).factor < 0.02


# --- finished models -----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("cls", [Linear, FactorizationMachine])
def test_finished_model_scores_what_the_one_in_training_does(cls, loss):
    centre, deviation = (300.0, 7.0) if loss == "squared" else (0.0, 1.0)
    encoding = replace(
        columns_of([0, 1, 2], [2.0**-10, 0.25, 16.0], [0, 3, 0 if centre else -0.5]),
        centre=centre, deviation=deviation, factor=0.5, is_measured=True,
    )  # fmt: skip
    kind = LinearSettings if cls is Linear else FmSettings
    s = kind(loss=loss, encoding=encoding.text)
    rng = np.random.default_rng(3)
    keys = np.array([0, 1, 2, BIAS_KEY], np.uint64)
    rows = rng.normal(size=(4, 1 if cls is Linear else s.dim)).astype(np.float32)
    given = examples([{0: 900, 1: 2, 2: 0.05}, {0: -400, 2: 0.1}, {1: 3}, {}])
    scores, centred = [], rows[np.isin(keys, encoding.centred_keys)]
    for encodes, of_keys in ((True, rows), (False, cls.decoded(s, keys, rows, centred))):
        batch = batch_reader(s, bias=True, encodes=encodes).numbered(given)
        places = np.searchsorted(keys, batch.keys)
        scores.append(cls.scores(s, np.ascontiguousarray(of_keys[places]), batch, {}))
    np.testing.assert_allclose(scores[1], encoding.targets_of(scores[0]), rtol=2e-5)


def test_models_without_a_place_for_it_are_not_centred(tmp_path):
    lines = "".join(f"{at % 2} 0:1:{2000 + at}\n" for at in range(40))
    (tmp_path / "x.ffm").write_text(lines)
    given = {"input": (str(tmp_path / "x.ffm"),), "format": "libffm"}
    for cls, settings, expected in (
        (Linear, LinearSettings(**given), 1),
        (Linear, LinearSettings(bias=False, **given), 0),
        (Linear, LinearSettings(min_count=41, **given), 0),  # it has no row then
        (FactorizationMachine, FmSettings(**given), 1),
        (FactorizationMachine, FmSettings(fields=1, **given), 0),
        (Net, NetSettings(**given), 1),
    ):
        found = Encoding.of_text(completed(cls, settings).encoding)
        assert len(found.centred_keys) == expected, settings


@pytest.mark.parametrize("name", ["LogisticRegression", "FMClassifier", "SparseNetClassifier"])
def test_encoding_is_no_parameter(name):
    assert "encoding" not in getattr(snailps, name)().get_params()
