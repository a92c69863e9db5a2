"""Quantised copies of models: known answers, fastText's own program, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import official_fasttext
import pytest
from typer.testing import CliRunner

import snailps
from snailps.cli.main import app_for
from snailps.data._labelled import KeptGrams
from snailps.errors import DataError, ModelFileError, ModelWriteError
from snailps.models.classifier.model import Classifier
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.word_vectors import warm_start
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors.fasttext_bin import BinHeader, read_bin, write_bin
from snailps.vectors.files import load
from snailps.vectors.label_prediction import LabelModel, evaluate_labels
from snailps.vectors.quantising import Codebooks, pruned, quantise_rows
from snailps.vectors.saving import save_bin

DIM = 8
LABELS = 4
KNOWN = [f"word{i}" for i in range(300)]


def rows_of(count, dim=DIM, seed=1):
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def of_few_places(rows, places, dim=DIM, width=2, seed=1):
    """Rows each of whose parts is one of some places."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(places, dim)).astype(np.float32)
    chosen = rng.integers(0, places, (rows, -(-dim // width)))
    return np.concatenate(
        [
            table[chosen[:, at], start : start + width]
            for at, start in enumerate(range(0, dim, width))
        ],
        axis=1,
    )


def write_classifier(path, labels=LABELS, bucket=400, dim=DIM, **more):
    """A classifier whose word i stands for label i modulo the number of labels."""
    rows = 0.05 * rows_of(len(KNOWN) + 1 + bucket, dim)
    outputs = 4 * rows_of(labels, dim, seed=2)
    for i in range(len(KNOWN)):
        rows[1 + i] += outputs[i % labels] / (1 + i / 100)
    header = BinHeader(
        dim=dim, bucket=bucket, word_ngrams=2, loss="softmax", model="supervised", **more
    )
    words = [b"</s>", *(word.encode() for word in KNOWN)]
    names = [f"__label__l{i}".encode() for i in range(labels)]
    counts = np.arange(len(words), 0, -1)
    write_bin(
        path, header, words, counts, [rows], [outputs], names, np.arange(labels, 0, -1)
    )  # fmt: skip
    return path


def write_texts(path, lines=400, labels=LABELS, seed=1):
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines):
            label = rng.integers(labels)
            words = [KNOWN[label + labels * k] for k in rng.integers(0, 300 // labels, 3)]
            file.write(f"__label__l{label} {' '.join(words)}\n")
    return path


@pytest.mark.parametrize("dim", [1, 7, 8])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_rows_of_few_places_are_kept_exactly(dim, width):
    if width > dim:
        return
    rows = of_few_places(900, 250, dim, width)
    made = quantise_rows(rows, Codebooks(width=width, threads=1))
    np.testing.assert_allclose(made[:], rows, atol=1e-6)


def test_norms_keep_short_rows_apart_from_long_ones():
    """Lengths of .01 to 100: with norms a row's error is a share of its length, whatever it is."""
    rng = np.random.default_rng(2)
    rows = (
        rows_of(5000) * np.geomspace(0.01, 100, 5000, dtype=np.float32)[rng.permutation(5000), None]
    )
    lengths = np.linalg.norm(rows, axis=1)
    errors = [
        np.linalg.norm(quantise_rows(rows, Codebooks(norms=norms))[:] - rows, axis=1) / lengths
        for norms in (True, False)
    ]
    short = lengths < 0.1
    assert errors[0].max() < 0.4
    assert 2 * errors[0][short].mean() < errors[1][short].mean()


def test_rows_of_length_zero_stay_zero():
    rows = rows_of(600)
    rows[::3] = 0
    for norms in (False, True):
        found = quantise_rows(rows, Codebooks(norms=norms))[:]
        np.testing.assert_allclose(found[::3], 0, atol=0.05)


def test_error_is_small_for_random_rows():
    """256 centroids in two columns of a normal distribution: some 2 % of the variance is lost."""
    rows = rows_of(70_000, 4)
    found = quantise_rows(rows, Codebooks())[:]
    assert ((found - rows) ** 2).mean() < 0.025


def test_result_depends_on_the_seed_and_not_on_threads():
    rows = rows_of(3000, 9)
    one, same, other = (
        quantise_rows(rows, Codebooks(seed=seed, threads=threads, norms=True))[:]
        for seed, threads in ((1, 1), (1, 3), (2, 1))
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


@pytest.mark.parametrize(
    "settings", [{}, {"qnorm": True}, {"dsub": 3}, {"cutoff": 500}, {"dsub": 9, "qnorm": True}]
)
def test_classifier_predicts_nearly_the_same_from_its_ftz(tmp_path, settings):
    path, small = write_classifier(tmp_path / "m.bin"), tmp_path / "m.ftz"
    report = snailps.quantize(path, small, **settings)
    assert report.bytes_after == small.stat().st_size < report.bytes_before
    assert report.rows_after == settings.get("cutoff", report.rows_before)
    text = write_texts(tmp_path / "text")
    model = LabelModel(small)
    assert "quantised" in repr(model)
    before, after = (evaluate_labels(LabelModel(p), text).precision for p in (path, small))
    assert after >= 0.97 * before
    model.save(tmp_path / "again.ftz")
    assert (tmp_path / "again.ftz").read_bytes() == small.read_bytes()


@pytest.mark.parametrize(
    "settings",
    [{}, {"qnorm": True}, {"qout": True}, {"qout": True, "qnorm": True, "cutoff": 270}],
)
def test_official_package_predicts_the_same_from_the_ftz(tmp_path, settings):
    path, small = write_classifier(tmp_path / "m.bin", labels=300), tmp_path / "m.ftz"
    snailps.quantize(path, small, **settings)
    theirs, ours = official_fasttext.module().load_model(str(small)), LabelModel(small)
    assert theirs.is_quantized()
    for line in ("word1 word2", "word7", "none of them", "word200 word100 word3"):
        expected = {label: p for p, label in theirs.f.predict(line + "\n", -1, 0.0, "strict")}
        for label, chance in ours.predict(line, k=5)[0]:
            assert chance + 1e-5 == pytest.approx(expected[label], abs=2e-5)


def test_cutoff_keeps_the_rows_that_the_official_package_keeps(tmp_path):
    fasttext = official_fasttext.module()
    path = write_classifier(tmp_path / "m.bin", bucket=300)
    theirs = fasttext.load_model(str(path))
    theirs.quantize(cutoff=280)
    theirs.save_model(str(tmp_path / "theirs.ftz"))
    expected = read_bin(tmp_path / "theirs.ftz", quantised=True)
    ours = pruned(read_bin(path), 280)
    assert list(ours.words) == list(expected.words)
    assert ours.counts.tolist() == expected.counts.tolist()
    assert b"</s>" in list(ours.words)
    assert set(ours.pruned.pairs[:, 0]) == set(expected.pruned.pairs[:, 0])
    n = len(ours.words)
    full = read_bin(path)
    numbers = {word: i for i, word in enumerate(full.words)}
    np.testing.assert_array_equal(ours.input[:n], full.input[[numbers[w] for w in ours.words]])
    buckets, rows = ours.pruned.pairs.T
    np.testing.assert_array_equal(ours.input[n + rows], full.input[len(full.words) + buckets])


@pytest.mark.parametrize("features_max", [1 << 28, 400])
def test_retraining_on_a_sorted_text_learns_what_it_does_on_a_shuffled_one(
    tmp_path, monkeypatch, features_max
):
    """In the order of the file all but the last labels were forgotten; a text too long for memory
    is read again for each part of an epoch."""
    monkeypatch.setattr("snailps.models.classifier.retraining.FEATURES_MAX", features_max)
    path = write_classifier(tmp_path / "m.bin")
    text = write_texts(tmp_path / "text", lines=300)
    ordered = tmp_path / "sorted"
    ordered.write_text("".join(sorted(text.read_text().splitlines(keepends=True))))
    right = []
    for name in (text, ordered):
        output = tmp_path / f"{name.name}.ftz"
        snailps.quantize(path, output, cutoff=260, threads=1, retrain=name, lr=1.0, epochs=3)
        right.append(evaluate_labels(LabelModel(output), text).precision)
    assert right[0] > 0.8
    assert right[1] > right[0] - 0.03


def test_retraining_takes_frames_lists_and_pairs_as_files(tmp_path):
    import pandas

    path, text = write_classifier(tmp_path / "m.bin"), write_texts(tmp_path / "text", 300)
    lines = text.read_text().splitlines()
    labels = [line.split()[0].removeprefix("__label__") for line in lines]
    texts = [" ".join(line.split()[1:]) for line in lines]
    frame = pandas.DataFrame({"text": texts, "y": labels, "w": [1.0] * len(lines)})
    columns = {"column": "text", "label_column": "y"}
    soft = tmp_path / "soft"
    soft.write_text("".join(f"__label__:0 __label__{labels[0]} {one}\n" for one in texts))
    made = []
    for data, more in (
        (text, {}),
        (lines, {}),
        ((texts, labels), {}),
        (frame, columns),
        (frame, {**columns, "weight_column": "w"}),
        ((texts, [{label: 1.0} for label in labels]), {}),
        # Lines of weight 0 teach nothing.
        (
            (texts * 2, [*({label: 1.0} for label in labels), *({labels[0]: 0.0} for _ in texts)]),
            {},
        ),
    ):
        output = tmp_path / f"{len(made)}.ftz"
        snailps.quantize(path, output, cutoff=260, threads=1, retrain=data, lr=0.5, **more)
        made.append(output.read_bytes())
    assert len({*made[:-1]}) == 1
    assert evaluate_labels(LabelModel(output), text).precision > 0.7
    with pytest.raises(DataError, match="no line has both a label"):
        snailps.quantize(
            path, output, cutoff=260, threads=1, retrain=soft, soft_labels=True, lr=0.5
        )  # fmt: skip


def test_calibration_of_a_copy_replaces_no_file_of_another_program(tmp_path):
    path, text = write_classifier(tmp_path / "m.bin"), write_texts(tmp_path / "text", 300)
    snailps.calibrate(path, text)
    foreign = tmp_path / "q.ftz.json"
    foreign.write_text('{"license": "MIT"}')
    with pytest.raises(ModelFileError, match=r"q\.ftz\.json: expected a calibration or no file"):
        snailps.quantize(path, tmp_path / "q.ftz")
    assert not (tmp_path / "q.ftz").exists()
    assert foreign.read_text() == '{"license": "MIT"}'


def test_retraining_restores_what_the_cutoff_lost(tmp_path):
    path, text = write_classifier(tmp_path / "m.bin"), write_texts(tmp_path / "text", 2000)
    done = []
    made = {}
    for name, more in {
        "cut": {},
        "trained": {"retrain": text, "lr": 0.5, "progress": lambda *step: done.append(step)},
    }.items():
        snailps.quantize(path, tmp_path / f"{name}.ftz", cutoff=260, threads=1, **more)
        made[name] = evaluate_labels(LabelModel(tmp_path / f"{name}.ftz"), text).precision
    assert made["trained"] > made["cut"]
    assert {step for step, _ in done} == {"retrain", "quantize"}
    for step in ("retrain", "quantize"):
        shares = [share for name, share in done if name == step]
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1)
    again = tmp_path / "again.ftz"
    snailps.quantize(path, again, cutoff=260, threads=1, retrain=text, lr=0.5)
    assert again.read_bytes() == (tmp_path / "trained.ftz").read_bytes()


# --- word vectors ---------------------------------------------------------------------------------


def write_vectors(path, bucket=40_000, dim=DIM):
    rows = rows_of(len(KNOWN) + bucket, dim)
    header = BinHeader(dim=dim, bucket=bucket, minn=3, maxn=4)
    words = [word.encode() for word in KNOWN]
    write_bin(path, header, words, range(900, 600, -1), [rows], [rows[: len(words)]])
    return path


def test_word_vectors_lose_unused_rows_and_output_rows(tmp_path):
    path, small = write_vectors(tmp_path / "v.bin"), tmp_path / "v.ftz"
    report = snailps.quantize(path, small, qnorm=True)
    assert report.bytes_after < report.bytes_before / 20
    full, quantised = load(path), load(small)
    assert list(quantised.words) == list(full.words)
    cosines = np.einsum("ij,ij->i", full.normalised, quantised.normalised)
    assert cosines.mean() > 0.98
    assert quantised.neighbours("word7", k=1)[0].word in [
        word for word, _ in full.neighbours("word7", k=5)
    ]
    assert len(read_bin(small, quantised=True).output) == 0


def test_official_package_has_the_same_vectors_from_the_ftz(tmp_path):
    path, small = write_vectors(tmp_path / "v.bin"), tmp_path / "v.ftz"
    for settings in ({}, {"qnorm": True}, {"cutoff": 500}):
        snailps.quantize(path, small, **settings)
        theirs, ours = official_fasttext.module().load_model(str(small)), load(small)
        for word in ("word7", "word299", "words"):
            np.testing.assert_allclose(theirs.get_word_vector(word), ours[word], atol=1e-6)
        theirs_near = [word for _, word in theirs.get_nearest_neighbors("word7", k=5)]
        assert theirs_near == [word for word, _ in ours.neighbours("word7", k=5)]


def test_cutoff_of_word_vectors_keeps_all_words(tmp_path):
    path, small = write_vectors(tmp_path / "v.bin"), tmp_path / "v.ftz"
    report = snailps.quantize(path, small, cutoff=400)
    model = read_bin(small, quantised=True)
    assert report.rows_after == len(model.input) == 400
    assert list(model.words) == [word.encode() for word in KNOWN]
    assert len(model.pruned) == 100
    snailps.quantize(path, small, cutoff=1)
    assert len(read_bin(small, quantised=True).input) == len(KNOWN)


def test_vectors_of_floret_are_quantised_without_pruning(tmp_path):
    path, small = tmp_path / "f.bin", tmp_path / "f.ftz"
    header = BinHeader(dim=DIM, bucket=500, minn=3, maxn=4, hashes=2)
    words, rows = [word.encode() for word in KNOWN[:100]], of_few_places(600, 250)
    write_bin(path, header, words, range(200, 100, -1), [rows], [rows[:100]])
    snailps.quantize(path, small, qnorm=False)
    full, quantised = load(path), load(small)
    for word in ("word7", "words"):
        np.testing.assert_allclose(quantised[word], full[word], atol=1e-5)
    with pytest.raises(ModelFileError, match="floret's own mode shares its rows"):
        snailps.quantize(path, small, cutoff=300)


def test_vectors_that_lost_rows_before_are_quantised_but_lose_no_more(tmp_path):
    path, small = tmp_path / "v.bin", tmp_path / "v.ftz"
    save_bin(path, pruned(read_bin(write_vectors(tmp_path / "whole.bin")), 350))
    snailps.quantize(path, small)
    assert load(small).words == load(path).words
    with pytest.raises(ModelFileError, match=r"v\.bin: the model is pruned already"):
        snailps.quantize(path, small, cutoff=320)


# --- refusals -------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(tmp_path):
    path, small = write_classifier(tmp_path / "m.bin"), tmp_path / "m.ftz"
    vectors = write_vectors(tmp_path / "v.bin")
    text = write_texts(tmp_path / "text")
    for given, settings, message in (
        (path, {"dsub": 0}, "dsub: expected a number of columns of at least 1, got 0"),
        (path, {"cutoff": -1}, "cutoff: expected"),
        (path, {"threads": -1}, "threads: expected"),
        (path, {"cutoff": 255}, "255 rows, and its codebooks 256"),
        (path, {"qout": True}, "leave outputs .qout. out"),
        (path, {"retrain": text}, "retrain: only a classifier whose rows were reduced"),
        (path, {"cutoff": 300, "retrain": text, "epochs": 0}, "number of epochs, at least 1"),
        (path, {"cutoff": 300, "retrain": text, "epochs": 1.5}, "number of epochs, at least 1"),
        (path, {"cutoff": 300, "retrain": text, "lr": 1e30}, "retrain: the training diverged"),
        (path, {"dsub": 2.5}, "dsub: expected"),
        (path, {"dsub": "2"}, "dsub: expected"),
        (path, {"cutoff": 299.5}, "cutoff: expected"),
        (path, {"size": "2M"}, "size: expected"),
        (path, {"seed": -1}, "seed: expected"),
        (path, {"cutoff": 300, "retrain": text, "lr": float("nan")}, "learning rate"),
        (vectors, {"qout": True}, "word vectors have none"),
        (vectors, {"cutoff": 300, "retrain": text}, "retrain: only a classifier"),
    ):
        with pytest.raises(DataError, match=message):
            snailps.quantize(given, small, **settings)
    unlabelled = tmp_path / "unlabelled"
    unlabelled.write_text("word1 word2\n__label__other word3\n", encoding="utf-8")
    with pytest.raises(DataError, match="unlabelled: no line has both"):
        snailps.quantize(path, small, cutoff=300, retrain=unlabelled)
    assert not small.exists()


def test_output_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    path, steps = write_classifier(tmp_path / "m.bin"), []
    with pytest.raises(ModelWriteError, match="does not exist"):
        snailps.quantize(path, tmp_path / "none/m.ftz", progress=lambda *done: steps.append(done))
    (tmp_path / "folder.ftz").mkdir()
    with pytest.raises(ModelWriteError, match="it is a folder"):
        snailps.quantize(path, tmp_path / "folder.ftz", progress=lambda *done: steps.append(done))
    assert not steps


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    small = tmp_path / "m.ftz"
    path = write_classifier(tmp_path / "m.bin", bucket=0)  # with pairs of words, which need rows
    with pytest.raises(ModelFileError, match=r"m\.bin: damaged header: n-grams"):
        snailps.quantize(path, small)
    rows, label_rows = rows_of(300), np.full((1, DIM), np.inf, np.float32)
    words = [word.encode() for word in KNOWN]
    header = BinHeader(dim=DIM, model="supervised", loss="softmax")
    write_bin(path, header, words, np.ones(300), [rows], [label_rows], [b"__label__a"], [1])
    with pytest.raises(ModelFileError, match=r"m\.bin: expected finite rows, and labels have NaN"):
        snailps.quantize(path, small)
    assert not small.exists()


def test_files_that_cannot_be_quantised_are_refused(tmp_path):
    path, small = write_classifier(tmp_path / "m.bin"), tmp_path / "m.ftz"
    with pytest.raises(ModelFileError, match=r"ends in \.ftz"):
        snailps.quantize(path, tmp_path / "m.small")
    with pytest.raises(ModelFileError, match="no such file"):
        snailps.quantize(tmp_path / "none.bin", small)
    (tmp_path / "text").write_text("a text of some words\n", encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"expected the \.bin of a classifier"):
        snailps.quantize(tmp_path / "text", small)
    snailps.quantize(path, small)
    with pytest.raises(ModelFileError, match=r"m\.ftz: .*quantised already"):
        snailps.quantize(small, tmp_path / "n.ftz")
    with pytest.raises(ModelFileError, match=r"ends in \.ftz, because the model is quantised"):
        LabelModel(small).save(tmp_path / "n.bin")
    with pytest.raises(ModelFileError, match=r"ends in \.bin, because the model is not"):
        LabelModel(path).save(tmp_path / "n.ftz")
    data = bytearray(path.read_bytes())
    full = read_bin(path)
    at = bytes(data).index(full.input[5].tobytes())
    data[at : at + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"row 5 of the input matrix is not finite"):
        snailps.quantize(path, tmp_path / "n.ftz")


def test_training_that_continues_refuses_a_quantised_file_before_it_counts(tmp_path):
    small = tmp_path / "m.ftz"
    snailps.quantize(write_classifier(tmp_path / "m.bin"), small)
    for adopt, settings_class in (
        (Classifier.adopt, ClassifierSettings),
        (warm_start.adopt, WordVectorSettings),
    ):
        with pytest.raises(ModelFileError, match=r"m\.ftz: a quantised or pruned .* Use the \.bin"):
            adopt(settings_class(continue_from=str(small)), lambda name: None)


# --- the command ----------------------------------------------------------------------------------


def test_command_does_not_praise_a_file_that_grew(tmp_path):
    path, output = write_classifier(tmp_path / "m.bin", bucket=10, dim=4), tmp_path / "m.ftz"
    command = ["quantize", str(path), "--output", str(output), "--dsub", "1"]
    done = CliRunner().invoke(app_for(["quantize"]), command)
    assert done.exit_code == 0, done.output
    assert output.stat().st_size > path.stat().st_size
    assert f"no smaller than {path}, whose 311 rows are too few" in done.stderr


def test_command_prints_sizes_and_precision(tmp_path):
    path, small = write_classifier(tmp_path / "m.bin"), tmp_path / "m.ftz"
    text = write_texts(tmp_path / "text")
    command = ["quantize", str(path), "--output", str(small), "--qnorm", "--test", str(text)]
    done = CliRunner().invoke(app_for(["quantize"]), command)
    assert done.exit_code == 0, done.output
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["bytes", "rows", "precision"]
    assert rows[0][1:] == [str(path.stat().st_size), str(small.stat().st_size)]
    assert float(rows[2][2]) >= 0.97 * float(rows[2][1])
    assert "times smaller" in done.stderr
    again = CliRunner().invoke(app_for(["quantize"]), command)
    assert again.exit_code != 0
    assert "--overwrite" in str(again.exception)
    done = CliRunner().invoke(app_for(["quantize"]), [*command, "--overwrite", "--json"])
    figures = json.loads(done.stdout)
    assert figures["bytes_after"] == small.stat().st_size
    assert 0 < figures["precision_after"] <= 1
    done = CliRunner().invoke(app_for(["quantize"]), [*command[:-2], "--overwrite", "--json"])
    assert "test" not in json.loads(done.stdout)


def test_quantised_copy_keeps_the_normal_form(tmp_path):
    path, small = write_classifier(tmp_path / "m.bin", normalize="lower"), tmp_path / "m.ftz"
    snailps.quantize(path, small)
    assert read_bin(small, quantised=True).header.normalize == "lower"
    model = LabelModel(small)
    assert model.predict("WORD1 Word2") == model.predict("word1 word2")


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("size", [15_500, 16_123])
def test_a_file_has_at_most_the_size_and_as_many_rows_as_fit(tmp_path, size, norms):
    model, output = write_classifier(tmp_path / "model.bin"), tmp_path / "small.ftz"
    report = snailps.quantize(model, output, size=size, qnorm=norms)
    assert size - 30 < report.bytes_after <= size  # the next row, with its word, does not fit
    assert LabelModel(output).predict("word1 word5")
    assert report.bytes_after == output.stat().st_size


def test_a_size_that_suits_all_rows_leaves_none_out(tmp_path):
    model = write_classifier(tmp_path / "model.bin")
    whole = snailps.quantize(model, tmp_path / "whole.ftz")
    same = snailps.quantize(model, tmp_path / "same.ftz", size=whole.bytes_after)
    assert (tmp_path / "same.ftz").read_bytes() == (tmp_path / "whole.ftz").read_bytes()
    less = snailps.quantize(model, tmp_path / "less.ftz", size=whole.bytes_after - 1)
    assert less.rows_after < same.rows_after == whole.rows_after


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"size": 5_000}, "size: expected at least .* bytes for a quantised model"),
        ({"size": 9_500, "cutoff": 300}, "size: only for classifiers, and without cutoff"),
        ({"size": -1}, "size: expected"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path, options, says):
    with pytest.raises(DataError, match=says):
        snailps.quantize(write_classifier(tmp_path / "model.bin"), tmp_path / "x.ftz", **options)


def test_a_trials_model_is_pruned_like_its_file(tmp_path):
    """Of a model that lists its n-grams, the same rows are kept, under their buckets."""
    whole = read_bin(write_classifier(tmp_path / "model.bin"))
    grams = np.arange(0, 400, 3, dtype=np.int32)
    rows = np.concatenate((np.arange(301), 301 + grams))
    pairs = np.stack((grams, np.arange(len(grams), dtype=np.int32)), axis=1)
    listed = replace(whole, input=np.array(whole.input)[rows], pruned=KeptGrams(pairs))
    small = pruned(listed, 350)
    numbers = dict(small.pruned.pairs.tolist())
    assert 0 < len(numbers) < len(grams)
    assert set(numbers) <= set(grams.tolist())
    for bucket, row in numbers.items():
        np.testing.assert_array_equal(
            small.input[len(small.words) + row], whole.input[301 + bucket]
        )
