"""Labels and values as a model learns them, and what a sample of an input says of them."""

import numpy as np
import pytest

import snailps
from snailps import write_matrix
from snailps.data._examples import Examples
from snailps.data.encoding import KEYS_MAX, Encoding
from snailps.data.table_files import complete
from snailps.errors import DataError
from snailps.models.sparse import sample
from snailps.models.sparse.batch import BIAS_KEY, batch_reader
from snailps.models.sparse.fm import FactorizationMachine, FmSettings
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.models.sparse.sample import PIECE_BYTES, PIECES, encoded, sample_of
from snailps.models.sparse.settings import SparseSettings


def examples(rows, labels=None):
    """Examples of rows of {key: value}."""
    keys = np.array([key for row in rows for key in row], np.uint64)
    values = np.array([value for row in rows for value in row.values()], np.float32)
    ptr = np.cumsum([0, *map(len, rows)])
    told = np.zeros(len(rows)) if labels is None else np.array(labels, float)
    return Examples(told, ptr, keys, values, np.empty(0, np.int32), 0, np.empty(0, np.float32))


def settings_of(text, path, **others):
    path.write_text(text)
    return encoded(SparseSettings(input=(str(path),), **others), has_constant=True)


def test_text_is_read_back_and_says_only_what_differs():
    assert Encoding().text == "{}"
    assert Encoding.of_text("") == Encoding()
    whole = Encoding((1.0, 2.0), 3.5, 2.0, 0.25, (3, 1 << 63), (0.5, 1e-9), True)
    assert Encoding.of_text(whole.text) == whole


@pytest.mark.parametrize(
    "text",
    [
        "[]", '{"classes":[1]}', '{"labels":[2,1]}', '{"deviation":0}', '{"factor":NaN}',
        '{"keys":[1],"factors":[]}', '{"keys":[2,1],"factors":[1,1]}', '{"factor":-1}', "{",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        Encoding.of_text(text)


def test_features_that_are_there_or_not_stay_as_they_are():
    found = Encoding().measured([examples([{1: 1, 2: 1}, {2: 1.5}])])
    assert found == Encoding(is_measured=True)
    values = np.array([1, 1.5], np.float32)
    assert found.values_of(np.array([1, 2], np.uint64), values) is values


@pytest.mark.parametrize("shift", [0, 1 << 40])
def test_columns_of_other_sizes_have_a_mean_square_of_1(shift):
    rng = np.random.default_rng(1)
    sizes = {shift + key: 10.0 ** (key - 3) for key in range(7)}
    rows = [{key: rng.normal() * size for key, size in sizes.items()} for _ in range(500)]
    given = examples(rows)
    found = Encoding().measured([given])
    values = found.values_of(given.keys, given.values)
    for key, size in sizes.items():
        own = values[given.keys == key].astype(float)
        assert 0.4 < np.sqrt(np.mean(own**2)) < 2.1, size
    others = found.factors_of(np.array([shift + 100, shift + 50, (1 << 64) - 1], np.uint64))
    assert others.tolist() == [found.factor] * 3


@pytest.mark.parametrize("size", [1e-45, 1e-39, 1e-30, 1e30, 3e38])
def test_columns_of_any_size_have_factors_within_float32(size):
    found = Encoding().measured([examples([{1: 1.0, 2: 1.0, 3: size}] * 3)])
    assert Encoding.of_text(found.text) == found
    (factor,) = found.factors
    assert factor == pytest.approx(min(1 / size, 1e36), rel=0.5)


def test_many_columns_of_one_size_have_one_factor():
    rows = [dict.fromkeys(range(first, first + 50), 0.01) for first in range(0, 50_000, 50)]
    found = Encoding().measured([examples(rows)])
    assert (found.factor, found.keys) == (pytest.approx(100), ())
    wild = examples([{key: 1e6 if key % 3 == 0 else 1.0 for key in range(30_000)}])
    assert len(Encoding().measured([wild]).keys) == KEYS_MAX


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
    settings = encoded(LinearSettings(input=(str(path),)), has_constant=True)
    batch = batch_reader(settings).read(path.read_bytes(), str(path))
    assert (batch.labels[[0, 2]].tolist(), batch.weights.tolist()) == ([1, 0], [1, 0, 0.5])


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
    of_matrix = encoded(SparseSettings(input=(str(tmp_path / "x.mx"),)), has_constant=True)
    assert of_text.encoding == of_matrix.encoding
    assert Encoding.of_text(of_text.encoding).labels == (1, 2)
    assert sorted(Encoding.of_text(of_text.encoding).keys) == [1, 2]
    table = tmp_path / "x.csv"
    cells = "".join(f"{a:.9g},{b:.9g},{c:.9g},{k}\n" for (a, b, c), k in zip(x, y, strict=True))
    table.write_text(f"a,b,c,k\n{cells}")
    columns = ("a:numeric", "b:numeric", "c:numeric", "k:label")
    named = SparseSettings(input=(str(table),), label_column="k", columns=columns)
    of_table = Encoding.of_text(encoded(named, has_constant=True).encoding)
    assert sorted(of_table.factors) == pytest.approx(
        sorted(Encoding.of_text(of_text.encoding).factors), rel=1e-5
    )


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
    with pytest.raises(DataError, match=r"label 7 is none of the classes.* A small file"):
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
    three = encoded(given, has_constant=True)
    assert Encoding.of_text(three.encoding).labels == (1, 3, 7)
    with pytest.raises(DataError, match="got one only: all 200,000 are 1"):
        settings_of(rare([]), path)


def test_file_that_cannot_be_read_is_not_taken_for_read(tmp_path):
    (tmp_path / "a.svm").write_text("0 1:1\n" * 10)
    (tmp_path / "b.svm").write_text("no example\n" * 10)
    paths = (str(tmp_path / "a.svm"), str(tmp_path / "b.svm"))
    found = encoded(SparseSettings(input=paths, format="libsvm"), has_constant=True)
    assert Encoding.of_text(found.encoding).labels == (0, 1)


def test_index_that_pandas_writes_is_no_column(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2, 3, 4], "y": [0, 1, 0, 1]}).sort_values("y")
    frame.to_parquet(tmp_path / "x.parquet")
    declared = complete(str(tmp_path / "x.parquet"), (), "y")
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
    assert Encoding.of_text(encoded(given, has_constant=True).encoding).labels == (1, 2, 3)
    four = LinearSettings(input=(str(tmp_path / "x.svm"),), loss="multinomial", classes=4)
    assert Encoding.of_text(encoded(four, has_constant=True).encoding).labels == ()


def test_column_of_ids_is_told(tmp_path, caplog):
    settings_of("0 1:1700000000000000001 2:1\n1 1:1700000000000000002\n", tmp_path / "x")
    assert "if they are ids, declare it as name:categorical or name:ignore" in caplog.text
    caplog.clear()
    settings_of("0 1:100 2:1\n1 1:200\n", tmp_path / "x")
    assert "ids" not in caplog.text


def test_sorted_labels_are_told_where_the_order_is_kept(tmp_path, caplog):
    path = tmp_path / "x.svm"
    path.write_text("".join(f"{at // 500} {at}:1\n" for at in range(1000)))
    given = SparseSettings(input=(str(path),))
    encoded(given, has_constant=True)
    assert caplog.text == ""
    encoded(given, has_constant=True, is_drawn=False)
    assert (
        "have a mean of 0, the others 0.556: if they are sorted, set shuffle: true" in caplog.text
    )
    caplog.clear()
    path.write_text("".join(f"{at % 3 % 2} {at}:1\n" for at in range(1000)))
    encoded(given, has_constant=True, is_drawn=False)
    assert caplog.text == ""


def test_files_of_one_class_each_are_told_where_they_are_fetched(tmp_path, monkeypatch, caplog):
    paths = [tmp_path / "a.svm", tmp_path / "b.svm"]
    for label, path in enumerate(paths):
        path.write_text(f"{label} 1:1\n" * 1000)
    given = SparseSettings(input=tuple(map(str, paths)))
    encoded(given, has_constant=True)
    assert caplog.text == ""
    monkeypatch.setattr(sample, "is_url", lambda path: True)
    encoded(given, has_constant=True)
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
    encoding = Encoding((), centre, deviation, 0.5, (0, 2), (1e-3, 20.0), True)
    kind = LinearSettings if cls is Linear else FmSettings
    s = kind(loss=loss, encoding=encoding.text)
    rng = np.random.default_rng(3)
    keys = np.array([0, 1, 2, BIAS_KEY], np.uint64)
    rows = rng.normal(size=(4, 1 if cls is Linear else s.dim)).astype(np.float32)
    given = examples([{0: 900, 1: 2, 2: 0.05}, {0: -400, 2: 0.1}, {1: 3}])
    scores = []
    for encodes, of_keys in ((True, rows), (False, cls.decoded(s, keys, rows))):
        batch = batch_reader(s, bias=True, encodes=encodes).numbered(given)
        places = np.searchsorted(keys, batch.keys)
        scores.append(cls.scores(s, np.ascontiguousarray(of_keys[places]), batch, {}))
    np.testing.assert_allclose(scores[1], encoding.targets_of(scores[0]), rtol=2e-5)


@pytest.mark.parametrize("name", ["LogisticRegression", "FMClassifier", "SparseNetClassifier"])
def test_encoding_is_no_parameter(name):
    assert "encoding" not in getattr(snailps, name)().get_params()
