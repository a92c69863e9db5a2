"""Examples that are held out of sparse models: which, where faults are, bits, figures."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from connected import block_of, connected, flush, in_order, results_of, train

from snailps.config import RawConfig
from snailps.data._text import hashes_of_rows
from snailps.data.encoding import Encoding
from snailps.data.examples import ExampleReader, entries_in
from snailps.data.held_out import HeldOut, Side
from snailps.data.matrix_writer import write_matrix
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import expand
from snailps.files.input_files import InputFiles
from snailps.files.model_file import model_settings, write_model
from snailps.files.scratch import Scratch
from snailps.master.job.beginning import prepare
from snailps.master.job.job import Job
from snailps.models.packed_tables import state_names
from snailps.models.sparse import evaluate
from snailps.models.sparse.fm import FactorizationMachine, FmSettings
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.models.sparse.net import Net
from snailps.models.sparse.settings import SparseSettings
from snailps.models.sparse.warm_start import adopt

SPLIT = HeldOut.of(0.3, 4)
TRAINED, HELD = Side(SPLIT), Side(SPLIT, is_held=True)
COLUMNS = "y:label, a:numeric, b:categorical"


def lines_of(count, kind, seed=1):
    """Lines with two labels, by a feature that is seen in the label; `count` // 2 differ."""
    rng = np.random.default_rng(seed)
    lines = []
    for feature, value in rng.integers(1, 40, (count // 2, 2)).tolist() * 2:
        label = int(feature + value > 40)
        lines.append(
            {
                "libsvm": f"{label} {feature}:1 {value + 50}:{value / 40}",
                "libffm": f"{label} 0:{feature}:1 1:{value + 50}:{value / 40}",
                "csv": f"{label},{feature},{value}",
            }[kind]
        )
    return "".join(f"{line}\n" for line in lines).encode()


def same(one, other):
    for name in ("labels", "ptr", "keys", "values", "fields", "weights"):
        assert (getattr(one, name) == getattr(other, name)).all(), name


# --- which ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["libsvm", "libffm", "csv"])
def test_a_side_is_read_as_if_the_other_lines_were_not_there(kind):
    text, columns = lines_of(400, kind), COLUMNS if kind == "csv" else ""
    head = b"y,a,b\n" if kind == "csv" else b""
    plain = ExampleReader(columns=columns)
    for side in (TRAINED, HELD):
        alone = side.lines(text)
        assert 0 < len(alone) < len(text)
        reader = ExampleReader(columns=columns, side=side)
        same(reader.read(head + text), plain.read(head + alone))
        cut = text.find(b"\n", len(text) // 3) + 1  # parts of a block
        parts = [reader.read(text, part=part) for part in ((0, cut), (cut, len(text)))]
        assert np.concatenate([part.labels for part in parts]).tolist() == (
            plain.read(alone).labels.tolist()
        )


@pytest.mark.parametrize("kind", ["libsvm", "libffm"])
def test_rows_of_matrix_files_have_a_side_by_label_and_entries_whatever_they_weigh(tmp_path, kind):
    examples = ExampleReader(kind).read(lines_of(400, kind))
    kept = {side: side.rows(examples) for side in (TRAINED, HELD)}
    assert sum(len(part.labels) for part in kept.values()) == 400
    assert 60 < len(kept[HELD].labels) < 180

    def shown(part):
        edges = zip(part.ptr, part.ptr[1:], strict=False)
        return [
            (part.labels[i], *part.keys[a:b], *part.values[a:b], *part.fields[a:b])
            for i, (a, b) in enumerate(edges)
        ]

    assert not {*shown(kept[TRAINED])} & {*shown(kept[HELD])}  # each line is there twice
    weights = np.arange(1, 401, dtype=np.float32)
    weighed = HELD.rows(examples._replace(weights=weights))
    same(weighed._replace(weights=kept[HELD].weights), kept[HELD])
    assert {*weighed.weights} < {*weights}
    dense = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    write_matrix(tmp_path / "m.mx", dense, np.arange(300) % 2)
    data = (tmp_path / "m.mx").read_bytes()
    every, trained = (ExampleReader(side=side).read(data) for side in (None, TRAINED))
    same(TRAINED.rows(every), trained)
    parts = [ExampleReader(side=TRAINED).read(data, part=part) for part in ((0, 100), (100, 300))]
    assert sum(len(part.labels) for part in parts) == len(trained.labels) < 300


@pytest.mark.parametrize(
    ("ptr", "what"), [([0, 3], "row 0"), ([2, 1], "row 0"), ([-1, 1], "row 0"), ([0], "2 pointers")]
)
def test_rows_that_refer_to_missing_entries_have_no_hash(ptr, what):
    keys, values = np.zeros(2, np.uint64), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=what):
        hashes_of_rows(np.zeros(1), np.array(ptr), keys, values, np.zeros(0, np.int32), 1)


def test_a_fault_of_one_side_has_its_place_in_the_file(tmp_path):
    lines = lines_of(60, "libsvm").splitlines(keepends=True)
    for number in range(0, 60, 7):
        wrong = b"1 %d:x\n" % number
        text = b"".join([*lines[:number], wrong, *lines[number:]])
        path = tmp_path / "wrong.svm"
        path.write_bytes(text)
        side = HELD if HELD.lines(wrong) else TRAINED
        other = TRAINED if side is HELD else HELD
        where = rf"wrong\.svm, line {number + 1}, column {wrong.index(b':') + 2}: .* got 'x'"
        with pytest.raises(DataError, match=where):
            ExampleReader(side=side).read(text, str(path))
        ExampleReader(side=other).read(text, str(path))
        counts = text.replace(wrong, b"-3 1:1\n")
        path.write_bytes(counts)
        side = HELD if HELD.lines(b"-3 1:1\n") else TRAINED
        with pytest.raises(DataError, match=rf"line {number + 1}, column 1: .* at least 0"):
            ExampleReader(side=side, label_min=0.0).read(counts, str(path))


# --- a job ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (Linear, LinearSettings(held_out=0.3, seed=4)),
        (Linear, LinearSettings(held_out=0.3, seed=4, optimizer="adagrad")),
        (FactorizationMachine, FmSettings(held_out=0.3, seed=4, factors=3)),
    ],
)
def test_training_is_bit_for_bit_that_of_a_text_without_the_held_out_lines(model, settings):
    text, rows = lines_of(400, "libsvm"), []
    with connected(model) as make:
        for s, data in ((settings, text), (replace(settings, held_out=0.0), TRAINED.lines(text))):
            trained = in_order(make(s))
            for number in range(2):
                train(trained, data, number)
            flush(trained)
            keys = ExampleReader().read(text).keys
            rows.append(trained.pull("weights", np.unique(keys)))
    assert rows[0].any()
    assert (rows[0] == rows[1]).all()


def test_features_of_held_out_lines_alone_are_not_counted():
    text = lines_of(100, "libsvm")
    settings = LinearSettings(held_out=0.3, seed=4, min_count=2)
    parts = [
        Linear(s, 1).survey(block_of(data))
        for s, data in ((settings, text), (replace(settings, held_out=0.0), TRAINED.lines(text)))
    ]
    assert parts[0] == parts[1] != Linear(replace(settings, held_out=0.0), 1).survey(block_of(text))


@pytest.mark.parametrize("is_matrix", [False, True])
def test_the_sample_is_one_of_trained_examples(tmp_path, is_matrix):
    text = lines_of(400, "libsvm")
    rare = b"1 3:1e9\n"  # would change the factor of its column
    while not HELD.lines(rare):
        rare = rare.replace(b":1", b":11", 1)
    path, examples = tmp_path / "input", ExampleReader().read(text)
    if is_matrix:
        columns = int(examples.keys.max()) + 1
        dense = np.zeros((400, columns), np.float32)
        dense[np.repeat(np.arange(400), 2), examples.keys.astype(int)] = examples.values
        write_matrix(path, dense, examples.labels)
    else:
        path.write_bytes(text + rare)
    settings = LinearSettings(held_out=0.3, seed=4, input=(str(path),), class_weights=("balanced",))

    def measured(settings):
        with Scratch(str(tmp_path / "scratch"), 1 << 30) as scratch:
            return Linear.measure(settings, InputFiles(expand(settings.input, scratch), scratch))

    found = measured(settings)
    other = tmp_path / "trained"
    if is_matrix:
        ones = TRAINED.rows(ExampleReader().read(path.read_bytes()))
        dense = np.zeros((len(ones.labels), columns), np.float32)
        dense[np.repeat(np.arange(len(ones.labels)), np.diff(ones.ptr)), ones.keys.astype(int)] = (
            ones.values
        )
        write_matrix(other, dense, ones.labels)
    else:
        other.write_bytes(TRAINED.lines(text))
    wanted = measured(replace(settings, held_out=0.0, input=(str(other),)))
    assert (found.encoding, found.class_weights) == (wanted.encoding, wanted.class_weights)


def test_numbers_by_which_epochs_are_chosen_are_those_of_trained_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("snailps.data.examples.ROWS_BYTES", 1000)  # several pieces
    path = tmp_path / "m.mx"
    dense = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    write_matrix(path, dense, np.arange(300) % 2)
    rows = len(ExampleReader(side=TRAINED).read(path.read_bytes()).labels)
    assert 150 < rows < 270
    with Scratch(str(tmp_path / "scratch"), 1 << 30) as scratch:
        files = InputFiles(expand((str(path),), scratch), scratch)
        assert entries_in(files, ExampleReader(), 10**6) == 300 * 5
        assert entries_in(files, ExampleReader(side=TRAINED), 10**6) == rows * 5
        assert entries_in(files, ExampleReader(side=HELD), 10**6) == (300 - rows) * 5
        assert entries_in(files, ExampleReader(side=TRAINED), 100) == 100


def test_all_lines_held_out_are_refused(tmp_path):
    path, line = tmp_path / "input", b"1 3:1\n"
    while not HELD.lines(line):
        line = line.replace(b":1", b":11")
    path.write_bytes(line)
    settings = LinearSettings(held_out=0.3, seed=4, input=(str(path),))
    with Scratch(str(tmp_path / "scratch"), 1 << 30) as scratch:
        files = InputFiles(expand(settings.input, scratch), scratch)
        with pytest.raises(DataError, match=r"held_out: .* got none: 0\.3 of .* Hold out fewer"):
            Linear.measure(settings, files)


def test_figures_after_an_epoch_are_those_of_a_file_of_the_held_out_lines(tmp_path, monkeypatch):
    text, path, held = lines_of(400, "libsvm"), tmp_path / "input", tmp_path / "held"
    path.write_bytes(text)
    held.write_bytes(HELD.lines(text))
    settings = LinearSettings(held_out=0.3, seed=4, input=(str(path),), stop_after=2)
    with connected(Linear) as make:
        model = in_order(make(settings))
        results, validation = results_of(model), Linear.validation(settings)
        assert (validation.stop_after, validation.better) == (2, "lower")
        seen = []
        for number in range(2):
            train(model, text, number)
            model.push_all()
            seen.append(validation.test(results))
            wanted = evaluate.evaluate(Linear, results, (str(held),))
            assert seen[-1] == {k: v for k, v in wanted.items() if isinstance(v, float)}
        path.unlink()  # the few examples are in memory
        assert validation.test(results) == seen[-1]
        assert seen[0] != seen[1]
        path.write_bytes(text)
        monkeypatch.setattr(evaluate, "KEPT_BYTES", 1)
        results = results_of(model)
        assert validation.test(results) == validation.test(results) == seen[-1]
        path.unlink()
        with pytest.raises(DataError, match="held_out: input not found"):
            validation.test(results)


def test_no_held_out_example_is_refused_before_the_training(tmp_path):
    path, line = tmp_path / "input", b"1 3:1\n"
    while HELD.lines(line):
        line = line.replace(b":1", b":11")
    path.write_bytes(line)
    settings = LinearSettings(held_out=0.3, seed=4, input=(str(path),))
    refused = pytest.raises(DataError, match=r"held_out: expected an example .*; hold out more")
    with connected(Linear) as make, refused:
        Linear.validation(settings).test(results_of(make(settings)))
    other = b"0 3:1\n"
    while HELD.lines(other):
        other = other.replace(b":1", b":11")
    path.write_bytes(line + other)
    with Scratch(str(tmp_path / "scratch"), 1 << 30) as scratch, refused:
        Linear.measure(settings, InputFiles(expand(settings.input, scratch), scratch))


@pytest.mark.parametrize("model", ["linear:Linear", "fm:FactorizationMachine", "net:Net"])
def test_validation_examples_that_all_weigh_0_are_refused_before_the_training(tmp_path, model):
    for name, weight in (("train", 1), ("test", 0)):
        lines = [f"{number % 2},{weight},{number}.5\n" for number in range(4)]
        (tmp_path / f"{name}.csv").write_text("y,w,a\n" + "".join(lines))
    job = {"worker_class": f"snailps.models.sparse.{model}", "label_column": "y"}
    job |= {"weight_column": "w", "input": str(tmp_path / "train.csv")}
    made = Job(RawConfig.from_mapping(job | {"validation": str(tmp_path / "test.csv")}, "test"))
    with pytest.raises(DataError, match=r"^validation: expected an example .*; give other files"):
        prepare(made, 1)
    made.close()


def test_held_out_beside_validation_and_stop_after_without_either_are_refused():
    def build(values):
        return RawConfig.from_mapping(values, "job.conf:{key}")

    with pytest.raises(ConfigError, match=r"expected 0 with validation"):
        build({"held_out": 0.1, "validation": "v.svm"}).build(SparseSettings)
    with pytest.raises(ConfigError, match=r"expected held_out, such as 0\.1, or, of a command, fi"):
        build({"stop_after": 2}).build(SparseSettings)
    assert build({"stop_after": 2, "held_out": 0.1}).build(LinearSettings).stop_after == 2


def continued(path, before, caplog, **settings):
    """Settings of a training that continues a model with settings `before`."""
    header = model_settings(before) | {"worker_class": "snailps.models.sparse.linear:Linear"}
    rows = {name: np.zeros(0, np.uint64) for name in state_names("weights")}
    write_model(str(path), rows, header)
    caplog.clear()
    raw = RawConfig.from_mapping({"continue_from": str(path), **settings}, "--{key}")
    built = raw.build(LinearSettings)
    return adopt(Linear, built, {name: f"--{name}".replace("_", "-") for name in settings}.get)


def test_continued_training_holds_out_the_lines_of_its_file_or_is_refused(tmp_path, caplog):
    path, before = tmp_path / "m.npz", LinearSettings(held_out=0.2, seed=3)
    one = continued(path, before, caplog, stop_after=2)  # by the file's held_out
    assert (one.held_out, one.seed, one.stop_after) == (0.2, 3, 2)
    assert one.side(is_held=True) == before.side(is_held=True)
    continued(path, before, caplog, seed=3, held_out=0.1)
    continued(path, before, caplog, seed=4, held_out=0)
    assert not caplog.text
    with pytest.raises(ConfigError, match=r"^--seed: expected 3, by which lines .* got 4, .*set h"):
        continued(path, before, caplog, seed=4)
    with pytest.raises(ConfigError, match=r"^--stop-after: expected held_out, such as"):
        continued(path, before, caplog, stop_after=2, held_out=0)
    with pytest.raises(ConfigError, match=r"^--stop-after: expected held_out"):
        continued(path, LinearSettings(), caplog, stop_after=2)
    continued(path, before, caplog, held_out=0.3)
    assert "held_out: 0.3, and 0.2 were held out of" in caplog.text
    continued(path, LinearSettings(seed=3), caplog, seed=4, held_out=0.1)
    assert "held_out: 0.1, and 0 were held out of" in caplog.text


def test_a_class_of_held_out_lines_alone_is_refused_with_advice_that_fits(tmp_path):
    line = b"2 3:1\n"
    while not HELD.lines(line):
        line = line.replace(b":1", b":11")
    path = tmp_path / "input"
    path.write_bytes(lines_of(100, "libsvm") + line)
    settings = LinearSettings(held_out=0.3, seed=4, input=(str(path),))
    text = r"label 2 is none of .* has: 0, 1\. Lines that are held out .*0\.3\): set another seed"
    with Scratch(str(tmp_path / "scratch"), 1 << 30) as scratch:
        files = InputFiles(expand(settings.input, scratch), scratch)
        with pytest.raises(DataError, match=f"^input: .*{text}"):
            Linear.measure(settings, files)
    encoded = replace(settings, encoding=Encoding(labels=(0.0, 1.0)).text, input=())
    with connected(Linear) as make:
        test = partial(Linear.validation(settings).test, results_of(make(encoded)))
        with pytest.raises(DataError, match=f"^held_out: .*{text}"):
            test()


@pytest.mark.parametrize("model", [Linear, Net])
def test_validation_that_is_trained_is_told_once(tmp_path, caplog, model):
    path = tmp_path / "input"
    path.write_bytes(lines_of(100, "libsvm"))
    settings = model.Settings(input=(str(path),), validation=(str(path),))
    model.check(settings)
    with Scratch(str(tmp_path / "scratch"), 1 << 30) as scratch:
        model.measure(settings, InputFiles(expand(settings.input, scratch), scratch))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"validation: {path} is also in the input")


# --- epochs: auto ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "lines", "given", "tests"),
    [
        ("fm:FactorizationMachine", 1000, {}, True),
        ("net:Net", 2000, {}, True),
        ("fm:FactorizationMachine", 998, {}, False),  # a tenth of them decides nothing
        ("linear:Linear", 2000, {}, False),  # which learns none by heart
        ("net:Net", 2000, {"epochs": "7"}, False),
        ("net:Net", 2000, {"max_steps": "7"}, False),
        ("net:Net", 2000, {"consistency": "bsp"}, False),
        ("fm:FactorizationMachine", 60_000, {}, False),  # whose epochs are those of large inputs
    ],
)
def test_epochs_of_few_lines_are_decided_by_a_tenth_that_is_held_out(
    tmp_path, kind, lines, given, tests
):
    path = tmp_path / "few.svm"
    path.write_bytes(lines_of(lines, "libsvm"))
    job = {"worker_class": f"snailps.models.sparse.{kind}", "input": str(path)} | given
    made = Job(RawConfig.from_mapping(job, "test"))
    prepare(made, 1)
    made.close()
    held_out = (made.settings.held_out, made.settings.stop_after)
    assert held_out == ((0.1, 10) if tests else (0, 0))
    assert bool(made.model.by_input.at("epoch")) == tests


@pytest.mark.parametrize("one_class", [False, True])
def test_few_lines_that_cannot_be_tested_are_all_trained_where_nobody_asked(tmp_path, one_class):
    path, split = tmp_path / "few.svm", Side(HeldOut.of(0.1, 1), is_held=True)
    equal = [f"{number % 2} 3:{number}\n".encode() for number in range(2, 60)]
    trained = [line for line in equal if not split.lines(line)]
    held = next(line for line in equal if split.lines(line))
    lines = trained * (1500 // len(trained))
    if one_class:  # of the held-out line alone
        lines, held = [line for line in trained if line[:1] != held[:1]] * 50, [held]
        lines = (lines * 2)[:1500] + held
    path.write_bytes(b"".join(lines))
    job = {"worker_class": "snailps.models.sparse.net:Net", "input": str(path), "seed": "1"}
    made = Job(RawConfig.from_mapping(job, "test"))
    prepare(made, 1)
    made.close()
    assert (made.settings.held_out, made.settings.stop_after) == (0.0, 0)
    asked = Job(RawConfig.from_mapping(job | {"held_out": "0.1"}, "test"))
    with pytest.raises(DataError, match=r"held_out|held out"):
        prepare(asked, 1)
    asked.close()


@pytest.mark.parametrize("model", ["linear:Linear", "fm:FactorizationMachine", "net:Net"])
def test_few_lines_of_a_continued_model_are_tested_only_if_the_user_asks(tmp_path, model):
    name = f"snailps.models.sparse.{model}"
    cls = {"l": Linear, "f": FactorizationMachine, "n": Net}[model[0]]
    before = cls.Settings(held_out=0.1, seed=1, encoding=Encoding(labels=(0.0, 1.0)).text)
    rows = {array: np.zeros(0, np.uint64) for array in state_names("weights")}
    write_model(str(tmp_path / "m.npz"), rows, model_settings(before) | {"worker_class": name})
    path, split = tmp_path / "few.svm", Side(HeldOut.of(0.1, 1), is_held=True)
    lines = [line for line in lines_of(100, "libsvm").splitlines(True) if not split.lines(line)]
    job = {"worker_class": name, "continue_from": str(tmp_path / "m.npz"), "input": str(path)}

    def held_out(**given):
        made = Job(RawConfig.from_mapping(job | given, "test"))
        try:
            prepare(made, 1)
        finally:
            made.close()
        return made.settings.held_out, bool(made.model.by_input.at("epoch"))

    path.write_bytes(b"".join(lines[:6]))
    assert held_out() == (0.0, False)
    for asked in ({"held_out": "0.1"}, {"stop_after": "2"}):
        with pytest.raises(DataError, match=r"^held_out: expected an example .*hold out more"):
            held_out(**asked)
    path.write_bytes(lines_of(1000, "libsvm"))
    assert held_out() == (0.1, True)


def test_lines_that_are_held_out_already_decide_alone(tmp_path):
    path = tmp_path / "few.svm"
    path.write_bytes(lines_of(2000, "libsvm"))
    job = {"worker_class": "snailps.models.sparse.net:Net", "input": str(path), "held_out": "0.3"}
    made = Job(RawConfig.from_mapping(job, "test"))
    prepare(made, 1)
    made.close()
    assert (made.settings.held_out, made.settings.stop_after) == (0.3, 0)
