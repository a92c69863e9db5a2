"""The table of truth of the data door: the same rows are the same examples in every format.

What reaches a model, and what is decided by it, is compared with one reference a row: the settings
that the master chose (epochs, rate, n-grams, scales, centres, labels, the loss of a constant), the
vocabulary, and every example of an epoch.  Each cell holds in each variant: shuffled, sorted by
label, sorted by a feature, a column that begins late, newlines (commas) in quoted cells, wide
columns that nobody reads.  Heads that readers look at are a fraction of the rows here.

    models                            reference        the same from
    fasttext, word2vec, classifier    lines of text    packed lines, http://; tables
                                                       fit: these, tables in memory, lists
    logistic, squared, poisson,       LIBSVM           packed lines, http://, LIBFFM, matrix files
    multinomial, fm, sparse_net                        fit: arrays, CSR, tables of numbers
    the same, by name                 CSV lines with   tables
                                      declared columns fit: these, tables in memory, dicts
    mf, kge                           lines of tabs    blanks, ::, CSV, packed lines, http://
                                                       fit: tables in memory, lists
    mlp                               a matrix file    .npy, idx; fit: arrays, tables of numbers

Packed lines are .gz (two members), .bz2, .xz, .zst, .lz4; tables CSV, TSV, JSON lines, Parquet,
Arrow (streams and files), packed or not, http://; tables in memory Arrow, pandas, polars.
Refused by name (`REFUSED`): tables whose column is not named, matrix files and arrays by models
of text, tables by mf, kge, mlp, lines that are no examples.  A row without a text is refused with
its number, whatever the format.
"""

import io
import json
from decimal import Decimal

import numpy as np
import pytest
from door import differences, fit_here, learnt, of_fit, reached
from door_data import (
    NUMBERS,
    URLS,
    VARIANTS,
    example_rows,
    frames,
    matrix,
    packed,
    rating_rows,
    separated,
    served,
    svm,
    tables,
    text_lines,
    text_rows,
)

import snailps
from snailps import write_matrix
from snailps.data.formats.table import TableFile
from snailps.errors import DataError, SnailError
from snailps.files import blocks
from snailps.vectors.label_files import read_texts

pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
pq = pytest.importorskip("pyarrow.parquet")
run_end_encode = pytest.importorskip("pyarrow.compute").run_end_encode
csr_matrix = pytest.importorskip("scipy.sparse").csr_matrix
for name in ("aiohttp", "fsspec", "zstandard"):
    pytest.importorskip(name, reason="a format of the table needs it")

PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4")
DECIMAL = pd.ArrowDtype(pa.decimal128(9, 2))


@pytest.fixture(autouse=True)
def small_heads(monkeypatch):
    """Readers look at fewer rows than there are, as at 10,000 of a million."""
    monkeypatch.setattr(TableFile, "head_rows", 40)
    monkeypatch.setattr(TableFile, "batch_rows", 64)
    monkeypatch.setattr(blocks, "STEP_BYTES", 1 << 11)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder, and the address where a web server has it."""
    root = tmp_path_factory.mktemp("site")
    with served(root) as url:
        yield root, url


@pytest.fixture
def write(site):
    """Writes files by name into a folder of their own; their paths, and URLs of some, by name."""
    root, url = site

    def write(files, urls=()):
        own = f"{len(list(root.iterdir()))}"
        (root / own).mkdir()
        for name, data in files.items():
            (root / own / name).write_bytes(data)
        found = {name: str(root / own / name) for name in files}
        return found | {f"http: {name}": f"{url}/{own}/{name}" for name in urls if name in files}

    return write


def with_packed(name, data):
    return {name: data, **{f"{name}{end}": packed(data, end) for end in PACKED}}


# --- texts ---------------------------------------------------------------------------------------

TEXT_MODELS = {
    "fasttext": {"min_count": 1, "dim": 4},
    "word2vec": {"min_count": 1, "dim": 4, "maxn": 0},
    "classifier": {"dim": 4},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_texts_of_each_format_are_the_same(tmp_path, write, model, variant):
    rows, settings = text_rows(variant), TEXT_MODELS[model]
    lines = text_lines(rows)
    if model != "classifier":
        lines = "\n".join(row["text"].replace("\n", " ") for row in rows).encode() + b"\n"
    files = write(with_packed("t.txt", lines), ["t.txt", "t.txt.gz"])
    of_tables = write(tables(rows, variant == "quoted newlines"), URLS)
    named = {"column": "text"} | ({"label_column": "label"} if model == "classifier" else {})
    expected = reached(model, files["t.txt"], tmp_path, **settings)
    assert len(expected.rows) == len(lines.splitlines()) or model != "classifier"
    found = {form: reached(model, path, tmp_path, **settings) for form, path in files.items()}
    for form, path in of_tables.items():
        found[form] = reached(model, path, tmp_path, **settings, **named)
    assert differences(found, expected) == {}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", [snailps.FastText, snailps.Word2Vec, snailps.TextClassifier])
def test_texts_in_memory_and_in_files_are_the_same_in_fit(
    tmp_path, write, monkeypatch, kind, variant
):
    rows = text_rows(variant)
    texts, labels = [[row[name] for row in rows] for name in ("text", "label")]
    of_lists = {"a list": texts, "a generator": iter(texts), "words": [t.split() for t in texts]}
    given = of_lists | frames(rows) | write(tables(rows, variant == "quoted newlines"), URLS)
    y = {"y": "label"} if kind is snailps.TextClassifier else {}
    settings = {"dim": 4} if y else {"dim": 4, "min_count": 1}
    found = {}
    for name, X in given.items():
        how = {"y": labels} if y and name in of_lists else y
        column = {} if name in of_lists else {"column": "text"}
        found[name] = of_fit(monkeypatch, tmp_path, kind(**settings), X, **how, **column)
    expected = found["a list"]
    assert differences(found, expected) == {}
    if y:
        lines = write({"t.txt": text_lines(rows)})["t.txt"]
        assert of_fit(monkeypatch, tmp_path, kind(**settings), lines) == expected
        assert reached("classifier", lines, tmp_path, **settings) == expected


# --- examples ------------------------------------------------------------------------------------

LOSSES = ("logistic", "squared", "poisson", "multinomial")
EXAMPLE_MODELS = {loss: ("logistic", loss) for loss in LOSSES} | {
    "fm": ("fm", "logistic"), "sparse_net": ("sparse_net", "logistic"),
}  # fmt: skip


def settings_of(loss):
    return {"loss": loss} | ({"classes": 3} if loss == "multinomial" else {})


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", EXAMPLE_MODELS)
def test_examples_by_number_are_the_same(tmp_path, write, name, variant):
    model, loss = EXAMPLE_MODELS[name]
    rows, settings = example_rows(variant, loss), settings_of(loss)
    files = write(with_packed("t.svm", svm(rows)) | {"t.ffm": svm(rows, fields=True)}, ["t.svm"])
    X, y = matrix(rows, first=1)
    files["matrix"] = str(tmp_path / "t.matrix")
    write_matrix(files["matrix"], X, y)
    files |= write(with_packed("t.matrix", (tmp_path / "t.matrix").read_bytes()))
    expected = reached(model, files["t.svm"], tmp_path, **settings)
    assert len(expected.rows) == len(rows)
    found = {form: reached(model, path, tmp_path, **settings) for form, path in files.items()}
    assert differences(found, expected) == {}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", EXAMPLE_MODELS)
def test_examples_by_name_are_the_same(tmp_path, write, name, variant):
    model, loss = EXAMPLE_MODELS[name]
    rows, settings = example_rows(variant, loss, named=True), settings_of(loss)
    newlines, ignored = variant == "quoted newlines", {}
    files = write(tables(rows, newlines), URLS)
    if variant == "wide columns":
        ignored = {"columns": ["wide:ignore"]}
    lines = write({"lines.csv": separated(rows, ",", quotes=True, header=False)})["lines.csv"]
    kinds = ["y:label", *(f"{x}:numeric" for x in NUMBERS), "c:categorical", *ignored.values()]
    found = {
        form: reached(model, path, tmp_path, label_column="y", **settings, **ignored)
        for form, path in files.items()
    }
    if newlines:
        expected = found["t.parquet"]  # a cell of lines ends on its line
    else:
        columns = [kind for one in kinds for kind in ([one] if isinstance(one, str) else one)]
        expected = reached(model, lines, tmp_path, columns=columns, **settings)
    assert len(expected.rows) == len(rows)
    assert differences(found, expected) == {}


MISSING = "Fill missing values, or leave such rows out"
ESTIMATORS = {
    "logistic": (snailps.LogisticRegression, "logistic"),
    "multinomial": (snailps.LogisticRegression, "multinomial"),
    "squared": (snailps.LinearRegression, "squared"),
    "poisson": (snailps.PoissonRegressor, "poisson"),
    "fm": (snailps.FMClassifier, "logistic"),
    "fm regression": (snailps.FMRegressor, "squared"),
    "sparse_net": (snailps.SparseNetClassifier, "logistic"),
    "mlp": (snailps.MLPClassifier, "logistic"),
}


SOME = ("shuffled", "by label")
"""Variants of estimators that share the door of `LogisticRegression` and `LinearRegression`."""
FITS = [
    (name, variant)
    for name in ESTIMATORS
    for variant in (VARIANTS if name in ("logistic", "squared", "mlp") else SOME)
]


@pytest.mark.parametrize(("name", "variant"), FITS)
def test_examples_in_memory_and_in_files_are_the_same_in_fit(
    tmp_path, write, monkeypatch, name, variant
):
    """Columns by number: a table of numbers only is as an array, which has no missing values."""
    kind, loss = ESTIMATORS[name]
    rows = example_rows(variant if variant != "wide columns" else "shuffled", loss)
    (X, y), is_dense = matrix(rows), kind is snailps.MLPClassifier
    if is_dense:
        rows = [row | {"x2": row["x2"] or 0} for row in rows]
    given = {"array": (X, y), "a list": (X.tolist(), y.tolist()), "CSR": (csr_matrix(X), y)}
    for form, table in frames(rows).items():
        columns = table.select(NUMBERS) if form != "pandas" else table[list(NUMBERS)]
        given[form] = columns, table["y"]
        if variant == "late column" and not is_dense:
            data, labels = given.pop(form)
            with pytest.raises(DataError, match=MISSING):
                kind().fit(data, labels)
    if variant == "wide columns":  # of files, whose columns may be ignored
        rows = example_rows(variant, loss)
    given |= {form: (path, "y") for form, path in write(tables(rows), URLS).items()}
    given["t.svm"] = write({"t.svm": svm(rows, first=0)})["t.svm"], None
    write_matrix(tmp_path / "t.matrix", X, y, dense=is_dense)
    given["matrix"] = tmp_path / "t.matrix", None
    found = {}
    for form, (data, labels) in given.items():
        is_wide = variant == "wide columns" and isinstance(labels, str)
        ignored = {"columns": ["wide:ignore"]} if is_wide else {}
        found[form] = of_fit(monkeypatch, tmp_path, kind(), data, labels, **ignored)
    assert differences(found, found["array"]) == {}


@pytest.mark.parametrize(
    ("name", "variant"),
    [(name, variant) for name, variant in FITS if name != "mlp" and variant != "wide columns"],
)
def test_tables_with_texts_are_the_same_in_fit(tmp_path, write, monkeypatch, name, variant):
    kind, loss = ESTIMATORS[name]
    rows = example_rows(variant, loss, named=True)
    dicts = [{k: v for k, v in row.items() if k != "y" and v is not None} for row in rows]
    given = {"dicts": (dicts, [row["y"] for row in rows])}
    for form, table in frames(rows).items():
        names = [*NUMBERS, "c"]
        given[form] = (table[names] if form == "pandas" else table.select(names)), table["y"]
    files = write(tables(rows, variant == "quoted newlines"), URLS)
    given |= {form: (path, "y") for form, path in files.items()}
    found = {
        form: of_fit(monkeypatch, tmp_path, kind(), data, labels)
        for form, (data, labels) in given.items()
    }
    assert differences(found, found["t.parquet"]) == {}


def test_numbers_are_numbers_in_each_type_that_a_column_may_have(tmp_path, monkeypatch):
    """Decimals, runs, objects, with a missing one; a categorical of numbers has categories."""
    x = [None, *(at / 4 for at in range(1, 20))]
    y, texts = [at % 2 for at in range(20)], [f"c{at % 3}" for at in range(20)]
    decimals = [None if one is None else Decimal(str(one)) for one in x]
    of_arrow = pa.array(decimals, pa.decimal128(9, 2))
    columns = {
        "pandas": pd.DataFrame({"x": x, "c": texts}),
        "pandas objects": pd.DataFrame({"x": pd.Series(x, dtype=object), "c": texts}),
        "pandas decimals": pd.DataFrame({"x": pd.Series(decimals, dtype=object), "c": texts}),
        "pandas, Arrow's": pd.DataFrame({"x": pd.Series(of_arrow, dtype=DECIMAL), "c": texts}),
        "polars decimals": pl.DataFrame({"x": pl.Series(decimals), "c": texts}),
        "Arrow": pa.table({"x": x, "c": texts}),
        "Arrow decimals": pa.table({"x": of_arrow, "c": texts}),
        "Arrow runs": pa.table({"x": run_end_encode(pa.array(x)), "c": texts}),
        "dicts": [{"x": one, "c": text} for one, text in zip(decimals, texts, strict=True)],
    }
    kind = snailps.LogisticRegression
    found = {form: of_fit(monkeypatch, tmp_path, kind(), X, y) for form, X in columns.items()}
    pq.write_table(columns["Arrow decimals"].append_column("y", [y]), tmp_path / "t.parquet")
    found["Parquet"] = of_fit(monkeypatch, tmp_path, kind(), str(tmp_path / "t.parquet"), "y")
    assert differences(found, found["pandas"]) == {}
    codes = [at % 3 for at in range(20)]
    categories = {
        "texts": pd.DataFrame({"x": list(map(str, codes))}),
        "pandas": pd.DataFrame({"x": pd.Categorical(codes)}),
        "Arrow": pa.table({"x": pa.array(codes).dictionary_encode()}),
    }
    found = {form: of_fit(monkeypatch, tmp_path, kind(), X, y) for form, X in categories.items()}
    assert differences(found, found["texts"]) == {}


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["shuffled", "by label", "by feature", "quoted newlines"])
@pytest.mark.parametrize("model", ["mf", "kge"])
def test_names_are_the_same(tmp_path, write, monkeypatch, model, variant):
    rows = rating_rows(variant)
    if model == "kge":
        rows = [{"head": r["user"], "relation": f"r{r['value']}", "tail": r["item"]} for r in rows]
    tabs = separated(rows, "\t", quotes=False, header=False)
    commas = separated(rows, ",", quotes=True, header=False)
    forms = with_packed("t.txt", tabs) | with_packed("t.csv", commas)
    if variant != "quoted newlines":  # a comma in a name would part it
        forms["blanks.txt"] = tabs.replace(b"\t", b" ")
        forms["movielens.dat"] = tabs.replace(b"\t", b"::")
    if model == "mf":
        forms["header.csv"] = separated(rows, ",", quotes=True)
    found = {
        form: reached(model, path, tmp_path)
        for form, path in write(forms, ["t.txt", "t.csv.gz"]).items()
    }
    names = {"mf": ("user", "item"), "kge": ("head", "relation", "tail")}[model]
    given = {"a list": [tuple(row[name] for name in names) for row in rows]} | {
        form: table[list(names)] if form == "pandas" else table.select(names)
        for form, table in frames(rows).items()
    }
    kind = snailps.MatrixFactorization if model == "mf" else snailps.KnowledgeGraph
    values = [[row["value"] for row in rows]] if model == "mf" else []
    for form, data in given.items():
        found[form] = of_fit(monkeypatch, tmp_path, kind(), data, *values)
    assert differences(found, found["t.txt"]) == {}


# --- arrays --------------------------------------------------------------------------------------


def idx(data):
    codes = {np.dtype("u1"): 8, np.dtype("f4"): 13}
    head = bytes([0, 0, codes[data.dtype], data.ndim])
    sizes = b"".join(size.to_bytes(4, "big") for size in data.shape)
    return head + sizes + data.astype(data.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("variant", ["shuffled", "by label", "by feature"])
def test_arrays_are_the_same_to_mlp(tmp_path, variant):
    """Whole numbers as bytes, too; what is learnt is compared, to the bit."""
    X, y = matrix(example_rows(variant, "logistic"))
    X = np.clip(np.round(abs(X)), 0, 255).astype(np.float32)
    write_matrix(tmp_path / "t.matrix", X, y, dense=True)
    files = {"matrix": (tmp_path / "t.matrix").read_bytes(), "idx": idx(X)}
    files |= {"bytes": idx(X.astype(np.uint8)), "labels": idx(y.astype(np.uint8))}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for name, data in {"npy": X, "double": X.astype(float), "whole": X.astype(np.uint8)}.items():
        np.save(tmp_path / f"{name}.npy", data)
    np.save(tmp_path / "y.npy", y)
    labels = {"idx": "labels", "bytes": "labels", "double.npy": "y.npy", "npy.npy": "y.npy"}
    found = {}
    for form in ("matrix", *labels, "whole.npy", "idx.gz"):
        if form.endswith(".gz"):
            (tmp_path / form).write_bytes(packed((tmp_path / "idx").read_bytes(), ".gz"))
        paths = {"labels": [str(tmp_path / labels.get(form, "labels"))]} if form != "matrix" else {}
        own = tmp_path / f"of {form}"
        own.mkdir()
        found[form] = learnt("mlp", tmp_path / form, own, epochs=2, hidden=["4"], **paths)
    assert len({str(done.losses) for done in found.values()}) == 1
    assert len({str(arrays_of(done.files["out.npz"])) for done in found.values()}) == 1


def arrays_of(data):
    """Arrays of a model file as bytes; of the settings all but how many bytes its input had."""
    with np.load(io.BytesIO(data)) as file:
        arrays = {name: file[name].tobytes() for name in file.files}
    settings = json.loads(arrays.pop("about"))
    assert settings["settings"].pop("learnt")
    return arrays, settings


# --- what no row of the table has ----------------------------------------------------------------

REFUSED = {
    ("classifier", "t.parquet"): "t.parquet is a Parquet file: set column to the name",
    ("fasttext", "t.jsonl"): "t.jsonl has JSON lines: set column to the name",
    ("fasttext", "t.arrow"): "t.arrow is an Arrow file: set column to the name",
    ("word2vec", "t.csv"): r"t.csv has names of columns in its first line .*column='label'",
    ("classifier", "t.matrix"): "t.matrix is no text, but a matrix file of snailps.write_matrix",
    ("fasttext", "t.npy"): "t.npy is no text, but a NumPy array",
    ("logistic", "t.parquet"): "t.parquet is a Parquet file: set label_column to the name",
    ("fm", "t.jsonl"): "t.jsonl has JSON lines: set label_column to the name",
    ("sparse_net", "t.txt"): "t.txt, line 1",
    ("mf", "t.npy"): "t.npy is no text, but a NumPy array",
    ("kge", "t.jsonl"): "expected a table with the columns head relation tail, got 'label', 'text'",
    ("mf", "t.matrix"): "t.matrix is no text, but a matrix file of snailps.write_matrix",
    ("mlp", "t.parquet"): "t.parquet is no text, but a Parquet file",
    ("mlp", "t.svm"): "t.svm is no .*",
    ("mlp", "t.jsonl"): "t.jsonl is no .*",
}


@pytest.mark.parametrize(("model", "name"), REFUSED)
def test_format_that_a_model_does_not_read_is_refused_by_name(tmp_path, write, model, name):
    rows = text_rows("shuffled")
    files = tables(rows) | {"t.txt": text_lines(rows), "t.svm": svm(example_rows("", "logistic"))}
    write_matrix(tmp_path / "t.matrix", np.eye(3, dtype=np.float32), [0, 1, 1])
    np.save(tmp_path / "t.npy", np.arange(300.0))
    files |= {made: (tmp_path / made).read_bytes() for made in ("t.matrix", "t.npy")}
    with pytest.raises(SnailError, match=REFUSED[model, name]):
        reached(model, write(files)[name], tmp_path)


@pytest.mark.parametrize(
    "form", ["t.csv", "t.csv.gz", "t.tsv", "t.jsonl", "t.parquet", "t.arrow", "t.orc"]
)
def test_row_without_a_text_is_refused_by_training_and_has_no_label(tmp_path, write, form):
    """Null, or an empty cell; an empty string, which cells cannot have, is a text."""
    rows = text_rows("shuffled")
    rows[100]["text"] = None
    path = write(tables(rows))[form]
    for model in ("fasttext", "classifier"):
        of_label = {"label_column": "label"} if model == "classifier" else {}
        with pytest.raises(DataError, match=r"row 101 of column 'text' of .* is missing"):
            reached(model, path, tmp_path, column="text", **of_label)
    missing = np.concatenate(
        [
            np.zeros(piece.lines, bool) if piece.missing is None else piece.missing
            for piece in read_texts(path, "text")
        ]
    )
    assert np.flatnonzero(missing).tolist() == [100]


# --- from end to end -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [*TEXT_MODELS, *EXAMPLE_MODELS])
def test_model_files_and_losses_of_each_format_are_the_same_to_the_bit(tmp_path, write, model):
    """One format of each kind, in the order of the rows, by one thread."""
    if model in TEXT_MODELS:
        rows, name, settings = text_rows("quoted newlines"), model, TEXT_MODELS[model]
        forms = {form: tables(rows, newlines=True)[form] for form in ("t.csv", "t.jsonl.zst")}
        if model == "classifier":
            forms, of_table = {"t.txt": text_lines(rows), **forms}, {"label_column": "label"}
        else:
            forms, of_table = {**forms, "t.parquet": tables(rows, newlines=True)["t.parquet"]}, {}
        of_table["column"] = "text"
    else:
        name, loss = EXAMPLE_MODELS[model]
        rows, settings = example_rows("by label", loss, named=True), settings_of(loss)
        forms = {form: tables(rows)[form] for form in ("t.csv.gz", "t.jsonl", "t.parquet", "t.tsv")}
        of_table = {"label_column": "y"}
    found = {}
    for form, path in write(forms).items():
        own = tmp_path / form
        own.mkdir()
        how = {} if form == "t.txt" else of_table
        in_order = {} if model in ("fasttext", "word2vec") else {"shuffle": False}
        found[form] = learnt(name, path, own, epochs=2, **in_order, **settings, **how)
    first, *others = found.values()
    assert all(other.losses == first.losses for other in others)
    assert all(other.files == first.files for other in others), [*found]


@pytest.mark.parametrize("kind", [snailps.TextClassifier, snailps.LogisticRegression])
def test_fitted_model_answers_alike_whatever_it_was_fitted_on(tmp_path, write, monkeypatch, kind):
    fit_here(monkeypatch, tmp_path)
    if kind is snailps.TextClassifier:
        rows = text_rows("shuffled")
        given = {form: (table, "label") for form, table in frames(rows).items()}
        how, X = {"column": "text"}, [row["text"] for row in rows]
    else:
        rows, how = example_rows("shuffled", "logistic"), {}
        X, y = matrix(rows)
        given = {"array": (X, y), "CSR": (csr_matrix(X), y)}
    files = write(tables(rows))
    given |= {form: (files[form], "label" if how else "y") for form in ("t.csv", "t.parquet")}
    answers = {
        form: kind(epochs=2, shuffle=False).fit(*data, **how).predict_proba(X)
        for form, data in given.items()
    }
    first, *others = answers.values()
    for other in others:
        np.testing.assert_array_equal(other, first)
