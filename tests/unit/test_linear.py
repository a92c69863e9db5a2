"""models.sparse.linear: settings, blocks at one worker, files, predictions."""

import gzip
import os
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from connected import block_of, connected, flush, keep, results_of, train
from twins import linear as twin

from snailps.config import RawConfig
from snailps.data._admission import Admitted
from snailps.data.encoding import Encoding
from snailps.data.matrix_writer import write_matrix
from snailps.errors import ConfigError, DataError, ModelFileError
from snailps.files.joined import open_parts
from snailps.files.scratch import Scratch
from snailps.models.copied_rows import CopiedRows
from snailps.models.packed_tables import Packed, write_packed
from snailps.models.sparse.batch import BIAS_KEY, TABLE
from snailps.models.sparse.export import read_npz
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.models.sparse.worker import PERIOD_BLOCKS
from snailps.pieces import JoinedFile, Piece
from tests.support.blocks import HeldContent, held_block

FEATURES = 40
TRUE = np.random.default_rng(0).normal(0, 1.5, FEATURES)
METHODS = ("sgd", "adagrad", "ftrl")


def planted(n, seed, loss="logistic"):
    """Lines whose labels follow planted weights, features 1 to 40, 5 a line."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        keys = np.sort(rng.choice(FEATURES, 5, replace=False))
        score = TRUE[keys].sum()
        label = {
            "logistic": int(rng.random() < 1 / (1 + np.exp(-score))),
            "squared": round(score + rng.normal(0, 0.1), 4),
            "multinomial": int(np.digitize(score, [-1.5, 1.5])),
        }[loss]
        made.append(" ".join([str(label), *(f"{key + 1}:1" for key in keys)]))
    return "\n".join(made) + "\n"


# --- settings ----------------------------------------------------------------------------------


def settings_of(**values):
    return RawConfig.from_mapping(values, "job.conf:{key}").build(LinearSettings)


def read(model, text):
    """The examples of a text, as the model reads a block."""
    return model._reader.read(text.encode())


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (
            {"loss": "multinomial"},
            ["job.conf:loss", "needs the number of classes", "for example --classes 3"],
        ),
        ({"classes": 3}, ["job.conf:classes", "classes", "multinomial"]),
        ({"format": "csv"}, ["job.conf:format", "columns"]),
        ({"columns": "a:what"}, ["job.conf:columns", "a"]),
        ({"formats": "npz, doc"}, ["job.conf:formats", "doc"]),
        ({"class_weights": "1, -2"}, ["job.conf:class_weights", "-2"]),
        ({"class_weights": "0, 0"}, ["job.conf:class_weights", "above 0", "got 0, 0"]),
        ({"class_weights": "1, x"}, ["class_weights", "x"]),
        ({"class_weights": "1"}, ["class_weights", "expected 2 numbers", "got 1"]),
        ({"class_weights": "1, 2", "loss": "squared"}, ["expected 0 numbers", "squared"]),
        (
            {"format": "csv", "columns": "y:label, a:categorical", "formats": "liblinear"},
            ["formats", "hash_bits"],
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(values, parts):
    with pytest.raises(ConfigError) as refused:
        settings_of(**values)
    for part in parts:
        assert part in str(refused.value)


def test_check_of_optimizer_that_does_not_fit_refuses():
    with pytest.raises(ConfigError, match="l1: 1"):
        Linear.check(LinearSettings(optimizer="sgd", l1=1.0))


def test_check_of_missing_test_file_refuses():
    with pytest.raises(DataError, match=r"test: input not found: no/such\.svm"):
        Linear.check(LinearSettings(test=("no/such.svm",)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 3:1\nrubbish\n", "test: .*t.svm, line 2, column 1: expected a label.*got 'rubbish'"),
        ("y,age\n1,30\n", "line 1, column 1.*set columns, for example: label:label, age:numeric"),
        ("1\t30\tRome\n", "set columns, for example"),
        ("1 -3:1\n", "expected index:value.*got '-3:1'. Correct the line"),
        ("1 3:1\n2 3:1\n", "t.svm: expected labels 0 to 1, as classes: 2 says, got 2"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_check_reads_the_first_lines_of_hold_out_files(tmp_path, text, said, packed):
    path = tmp_path / ("t.svm.gz" if packed else "t.svm")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    known = Encoding(is_measured=True).text  # what labels mean is decided
    settings = LinearSettings(test=(str(path),), loss="multinomial", classes=2, encoding=known)
    with pytest.raises(DataError, match=said.replace("t.svm", re.escape(path.name))):
        Linear.check(settings)
    if "rubbish" in text:
        Linear.check(replace(settings, on_bad_line="skip"))


def test_check_leaves_alone_what_has_no_first_line(tmp_path):
    (tmp_path / "endless").write_bytes(b"1 " * 100_000)
    Linear.check(LinearSettings(test=(str(tmp_path / "endless"),)))


def test_check_refuses_a_pipe_as_a_test_file_without_opening_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    with pytest.raises(DataError, match="test: expected a regular file"):
        Linear.check(LinearSettings(test=(str(tmp_path / "pipe"),)))


# --- one worker, block by block ----------------------------------------------------------------


@pytest.fixture
def make():
    """Makes models that are connected to shards."""
    with connected(Linear, 2) as make:
        yield make


@pytest.fixture
def scratch(tmp_path):
    """An empty scratch folder."""
    scratch = Scratch(str(tmp_path / "scratch"), 1 << 30)
    yield scratch
    scratch.close()


def train_all(model, texts):
    """Trains block by block, each prepared while the one before it trains, as a worker does."""
    blocks = [block_of(text, number, (0.0, 0.1)) for number, text in enumerate(texts)]
    blocks[0].prepared = model.prepare(blocks[0])
    results, prepared = [], 1
    for number, block in enumerate(blocks):
        for following in blocks[prepared : number + 1 + model.prefetch]:
            following.prepared = model.prepare(following)
            prepared += 1
        results.append(model.train(block))
    flush(model)
    return results


def copy(model):
    """Has a worker train copies of rows, as with bsp."""
    model.rows = (CopiedRows(model.sgd, TABLE),)


def keys_pulled(model):
    """The keys of all rows that the model pulls from now on."""
    pulled, pull_async = [], model.pull_async

    def noted(table, keys, *given, **named):
        pulled.extend(keys)
        return pull_async(table, keys, *given, **named)

    model.pull_async = noted
    return pulled


def shifted(text, by):
    """The same lines with features `by` higher."""
    lines = [line.split() for line in text.splitlines()]
    made = []
    for label, *entries in lines:
        keys = (int(entry.split(":")[0]) + by for entry in entries)
        made.append(" ".join([label, *(f"{key}:1" for key in keys)]))
    return "\n".join(made) + "\n"


@pytest.mark.parametrize(
    ("kept", "prefetch"), [(0, 1), (60, 1), (60, 2), (1000, 1), (1000, 2)]
)  # of 0: copies
@pytest.mark.parametrize("method", ["adagrad", "ftrl"])
def test_model_over_prefetched_blocks_equals_twin_on_whole_text(make, method, prefetch, kept):
    text = planted(700, 1) + shifted(planted(200, 2), 20)  # 41 rows, then 61: one more than 60
    rows = text.splitlines(keepends=True)
    settings = LinearSettings(optimizer=method, l2=0.01, shuffle=False)
    model = make(settings)
    keep(model, kept) if kept else copy(model)
    model.prefetch = prefetch
    # Blocks of whole groups of examples that are trained together.
    results = train_all(model, ["".join(rows[at : at + 96]) for at in range(0, 900, 96)])
    batch = read(model, text)
    start = np.zeros((len(batch.keys), 1 + {"adagrad": 1, "ftrl": 2}[method]), np.float32)
    want, loss, _ = twin.train_linear(
        start, batch.ptr, batch.places, batch.values, batch.labels, batch.weights,
        outputs=1, loss=0, method={"adagrad": 2, "ftrl": 4}[method], bias=batch.bias,
        lr_start=0.1, lr_stop=0.1, eps=1e-8, l1=0.0, l2=0.01, beta=1.0, first=0, last=900,
    )  # fmt: skip
    got = model.pull(TABLE, batch.keys, state=True)
    np.testing.assert_allclose(got, want, atol=2e-4, rtol=1e-3)
    assert sum(result["loss"] for result in results) == pytest.approx(loss, rel=1e-3)
    assert sum(result["units"] for result in results) == 900


@pytest.mark.parametrize(
    ("begin", "first", "model_file", "workers", "pulls"),
    [
        (0.0, True, "", 1, False),
        (0.1, True, "", 1, False),  # where time is limited
        (0.0, False, "", 1, True),  # the first block, given back by another worker
        (0.5, False, "", 1, True),
        (0.0, True, "before.npz", 1, True),
        (0.0, True, "", 2, True),
    ],
)
def test_new_rows_are_pulled_only_if_servers_may_have_some(
    make, begin, first, model_file, workers, pulls
):
    model = make(LinearSettings(continue_from=model_file), workers=workers)
    pulled = keys_pulled(model)
    block = block_of(planted(50, 1), 0, (begin, 0.6), first)
    block.prepared = model.prepare(block)
    model.train(block)
    assert len(set(pulled)) == (FEATURES + 1 if pulls else 0)
    flush(model)


def test_new_rows_of_a_subclass_that_sets_rows_itself_are_pulled(make, monkeypatch):
    monkeypatch.setattr(Linear, "loader", classmethod(lambda cls, settings: lambda results: None))
    model = make(LinearSettings())
    pulled = keys_pulled(model)
    train(model, planted(50, 1), 0)
    assert len(set(pulled)) == FEATURES + 1
    flush(model)


def test_blocks_of_a_file_are_read_in_parts_by_threads_once_the_format_is_known(
    make, monkeypatch, tmp_path, scratch
):
    """The rows are those of texts that were read as one; only the first block is."""
    texts = [planted(200, seed).encode() for seed in range(3)]
    monkeypatch.setattr("snailps.models.sparse.batch.PIECE_BYTES", len(texts[0]) // 6 - 20)
    monkeypatch.setattr("snailps.models.sparse.worker.PIECE_BYTES", len(texts[0]) // 6 - 20)
    path = tmp_path / "t.svm"
    path.write_bytes(b"".join(texts))
    rows, reads = [], []

    def read(number):
        reads.append(number)
        return texts[number]

    for in_parts in (False, True):
        reads.clear()
        model, start = make(LinearSettings(shuffle=False)), 0
        for number, text in enumerate(texts):
            stop = start + len(text)
            piece, content = Piece(str(path), start, stop), HeldContent(partial(read, number))
            block = held_block(content, number, piece)
            if in_parts:
                files = [JoinedFile(str(path), 0, stop)]
                content.open_parts = partial(open_parts, files, start, stop, scratch=scratch)
            block.prepared, start = model.prepare(block), stop
            assert len(block.prepared.batch) == 6
            model.train(block)
        flush(model)
        assert reads == ([0] if in_parts else [0, 1, 2])
        rows.append(model.pull(TABLE, np.arange(1, FEATURES + 1, dtype=np.uint64)))
    # Where a part ends may differ by a line.
    np.testing.assert_allclose(rows[1], rows[0], atol=0.02)
    assert np.abs(rows[0]).mean() > 0.1


@pytest.mark.parametrize("format", ["libsvm", "auto"])
def test_model_in_pieces_of_blocks_equals_twin_on_whole_text(make, monkeypatch, format):
    text = planted(384, 4)
    monkeypatch.setattr("snailps.models.sparse.batch.PIECE_BYTES", len(text) // 8)
    model = make(LinearSettings(format=format, shuffle=False))  # of one thread
    block = block_of(text)
    block.prepared = model.prepare(block)
    assert len(block.prepared.batch) == 8
    result = model.train(block)
    flush(model)
    batch = read(model, text)
    start = np.zeros((len(batch.keys), 3), np.float32)
    want, loss, _ = twin.train_linear(
        start, batch.ptr, batch.places, batch.values, batch.labels, batch.weights,
        outputs=1, loss=0, method=4, bias=batch.bias, lr_start=0.1, lr_stop=0.1, eps=1e-8,
        l1=0.0, l2=0.0, beta=1.0, first=0, last=384,
    )  # fmt: skip
    # Groups of examples that are trained together end with a piece.
    np.testing.assert_allclose(model.pull(TABLE, batch.keys)[:, 0], want[:, 0], atol=0.01)
    assert result["loss"] == pytest.approx(loss, rel=1e-2)


@pytest.mark.parametrize(
    ("options", "workers", "expected"),
    [
        ({}, 1, 8 << 20),
        ({}, 2, 16 << 20),
        ({"expire_after": 1}, 1, 16 << 20),
    ],
)
def test_block_bytes_of_kept_rows_are_less_for_an_only_worker(options, workers, expected):
    assert Linear.block_bytes(LinearSettings(**options, epochs=5), 1 << 33, workers) == expected


def test_model_owes_pushes_until_the_fourth_block(make):
    model = make(LinearSettings(epochs=5))
    owed = []
    for number in range(PERIOD_BLOCKS + 1):
        train(model, planted(50, number), number)
        owed.append(model.unpushed)
    assert owed == [*range(1, PERIOD_BLOCKS), 0, 1]


@pytest.mark.parametrize(
    ("method", "workers", "expected"),
    [("ftrl", 8, 16), ("adagrad", 8, 7), ("ftrl", 1, 47), ("adagrad", 1, 47)],
)
def test_model_owes_pushes_until_a_part_of_an_epoch_is_trained(make, method, workers, expected):
    """A sixteenth, a fortieth, three sixteenths; of 500 blocks of two epochs."""
    model = make(LinearSettings(optimizer=method, epochs=2), workers=workers)
    text, number = planted(5, 1), 0
    while not number or model.unpushed:
        train(model, text, number, (number / 500, (number + 1) / 500))
        number += 1
    assert number == expected


@pytest.mark.parametrize(
    ("more", "waits"),
    [({}, True), ({"checkpoint_interval": 60.0}, False), ({"optimizer": "adagrad"}, False)],
)
def test_rare_rows_wait_with_ftrl_unless_checkpoints_are_made(make, monkeypatch, more, waits):
    model, pushed = make(LinearSettings(format="libsvm", epochs=2, **more), workers=2), []
    push = model.push_async

    def noted(table, keys, *given, **named):
        pushed.extend(keys.tolist())
        return push(table, keys, *given, **named)

    monkeypatch.setattr(model, "push_async", noted)
    often, number = "1 1:1\n0 2:1\n" * 40, 0
    while not number or model.unpushed:
        train(
            model, often + "1 9:1\n" * (number == 0), number, (number / 5000, (number + 1) / 5000)
        )
        number += 1
    assert pushed  # of the bias, at least: others may be ripe or not, by how far they have drifted
    assert (9 in pushed) != waits
    model.finish()
    assert {1, 2, 9} <= set(pushed)


@pytest.mark.parametrize(("workers", "limit"), [(1, "_ALONE"), (2, "")])
def test_model_owes_pushes_of_so_many_examples_at_most(make, monkeypatch, workers, limit):
    monkeypatch.setattr(f"snailps.models.sparse.worker.PERIOD_EXAMPLES{limit}", 40)
    model = make(LinearSettings(), workers=workers)
    for number in range(8):
        train(model, planted(5, number), number, (number / 5000, (number + 1) / 5000))
        assert model.unpushed == (number + 1) % 8


def test_model_with_sgd_falls_to_rate_zero(make):
    model = make(LinearSettings(optimizer="sgd", lr=0.5))
    assert train(model, planted(20, 1), progress=(0.5, 1.0))["lr"] == pytest.approx(0, abs=1e-6)


def test_model_of_block_without_examples_counts_nothing(make):
    model = make(LinearSettings(format="libsvm"))
    assert train(model, "# nothing\n\n") == {"units": 0.0, "lr": 0.1, "bad_lines": 0.0}


def test_model_of_several_workers_without_bias_counts_examples_without_features(make):
    model = make(LinearSettings(format="libsvm", bias=False), workers=2)
    assert train(model, "1\n0\n")["units"] == 2  # there is no row yet
    assert train(model, "1\n0 3:1\n", 1)["loss"] == pytest.approx(2 * np.log(2))


def test_model_with_class_weights_leans_to_the_heavy_class(make):
    text = planted(600, 2)
    found = []
    for weights in ((), ("1", "5")):
        model = make(LinearSettings(class_weights=weights))
        train_all(model, [text])
        bias = model.pull(TABLE, np.array([BIAS_KEY], np.uint64))
        found.append(float(bias[0, 0]))
    assert found[1] > found[0] + 0.3


@pytest.mark.parametrize("method", ["adagrad", "ftrl"])
def test_several_workers_know_how_far_steps_go_after_very_many_examples(make, method):
    model = make(LinearSettings(optimizer=method), workers=8)
    train(model, planted(200, 0), 0)
    train(model, planted(200, 1), 1)
    measured = model.shares.estimate.a_step
    keys = np.array([BIAS_KEY], np.uint64)
    others = np.zeros((1, 3 if method == "ftrl" else 2), np.float32)
    others[0, -1] = 1 << 25  # one more is lost beside it
    model.push(TABLE, keys, others, state=True)
    for number in range(2, 6):
        train(model, planted(200, number), number)
    assert model.shares.estimate.a_step == pytest.approx(measured, rel=0.5)
    flush(model)


@pytest.mark.parametrize("method", METHODS)
def test_differences_of_copies_of_one_of_several_workers_are_no_larger(make, method):
    rows = []
    for workers in (1, 4):
        model = make(LinearSettings(optimizer=method), workers=workers)
        copy(model)
        train_all(model, [planted(500, 3)])
        keys = np.array([*range(1, FEATURES + 1), BIAS_KEY], np.uint64)
        rows.append(np.abs(model.pull(TABLE, keys)[:, 0]))
    assert (rows[1] <= rows[0] + 1e-6).all()
    assert (rows[1] > 0).all()


def test_survey_of_blocks_admits_what_came_often_enough(make):
    settings = LinearSettings(min_count=3, expected_features=1000, format="libsvm")
    surveyor = Linear.surveyor(settings)
    model = make(settings)
    for text in ("1 5:1 6:1\n0 5:1\n", "1 5:1 7:1\n"):
        surveyor.add(model.survey(block_of(text)))
    model.summary = surveyor.result()
    model.setup()
    prepared = model.prepare(block_of("1 5:1 6:1 7:1 8:1\n"))
    (batch,) = prepared.batch
    assert batch.keys.tolist() == [5, BIAS_KEY]
    assert prepared.asked[0].new_keys[batch.places].tolist() == [5]


def test_survey_admits_rare_features_that_the_continued_model_has(make, tmp_path):
    known = Packed(np.array([6, BIAS_KEY], np.uint64), np.ones((2, 3), np.float32))
    path = write_packed(str(tmp_path / "before.npz"), {TABLE: known})
    settings = LinearSettings(min_count=3, expected_features=1000, continue_from=path)
    surveyor = Linear.surveyor(settings)
    surveyor.add(make(settings).survey(block_of("1 5:1 6:1\n0 5:1\n1 5:1 7:1\n")))
    admitted = Admitted(surveyor.result()).admit(np.array([5, 6, 7, 8], np.uint64))
    assert admitted.tolist() == [True, True, False, False]


def test_survey_with_part_that_is_none_refuses():
    with pytest.raises(DataError, match="10 bytes"):
        Linear.surveyor(LinearSettings(min_count=2, expected_features=10)).add(b"x" * 10)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"cannot be read as a model of sparse examples: No such file"),
        (b"hello", r"expected the \.npz of a model.* got a file that is no sound"),
        (b"", r"no sound \.npz"),
        ({"keys": np.zeros(1)}, r"got an \.npz without about, rows"),
    ],
)
def test_read_npz_of_another_file_says_what_was_expected(content, said, tmp_path):
    path = tmp_path / "model.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    with pytest.raises(ModelFileError, match=said) as caught:
        read_npz(path)
    assert "pickle" not in str(caught.value)


def test_read_npz_of_a_lone_array_refuses(tmp_path):
    path = tmp_path / "model.npz"
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ModelFileError, match=r"expected the \.npz"):
        read_npz(path)


def test_validation_examples_that_all_weigh_0_are_refused(make, tmp_path):
    for weight in (0, 1):
        path = tmp_path / f"{weight}.mx"
        write_matrix(path, np.eye(2), [0, 1], sample_weight=[0, weight])
        settings = LinearSettings(validation=(str(path),))
        test = partial(Linear.validation(settings).test, results_of(make(settings)))
        if weight:
            assert test()["log_loss"] == pytest.approx(np.log(2))
        else:
            with pytest.raises(DataError, match="validation: expected an example with a weight"):
                test()
