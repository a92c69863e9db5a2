"""models.mlp: gradients, steps, files of multilayer perceptrons; models.parameters."""

import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from attach import attach
from idx_files import pictures, write_idx
from shards import Shards
from twins.mlp import Optimizer, gradients

from snailps import Tensor, Worker, write_matrix
from snailps.abi.key_hash import order
from snailps.api.wire_choice import WireChoice
from snailps.api.worker import Results
from snailps.config import JobSettings
from snailps.errors import ConfigError, DataError, ModelFileError, NotFinite
from snailps.files.blocks import InputFile
from snailps.files.model_file import HEADER
from snailps.master.job.input import JobInput
from snailps.models.mlp import Mlp, MlpSettings, files, read_npz
from snailps.models.mlp.model import figures_of_test, trained_steps
from snailps.models.mlp.settings import FIRST, adopted
from snailps.models.parameters import Parameters, Vector, pulled
from snailps.pieces import Piece
from snailps.transport.messages.terms import Step
from tests.support.blocks import held_block

COUNT = 130
NONE = np.zeros(0, np.float32)


@pytest.fixture
def settings(tmp_path):
    """Settings of a net for 130 small pictures; what is given changes them."""
    images, labels = pictures(COUNT, seed=1)
    write_idx(tmp_path / "x", images)
    write_idx(tmp_path / "y", labels)

    def make(**changed):
        return adopted(
            MlpSettings(
                **{"input": (str(tmp_path / "x"),), "labels": (str(tmp_path / "y"),)}
                | {"hidden": ("12", "6"), "batch_size": 20, "seed": 5, "wire": "float32"}
                | {"scratch_dir": str(tmp_path / "scratch")} | changed
            )
        )  # fmt: skip

    return make


def connected(model, cluster):
    """Tables of a model made on shards of this process; the client."""
    numbered = {one.name: (n, one.table()) for n, one in enumerate(model.tables(), 1)}
    for number, table in numbered.values():
        cluster.declare(table, number)
    client = cluster.client()
    attach(model, client, WireChoice(client, cluster.route), numbered)
    return client


class Setup:
    """A net on shards of this process, and a way to train it block by block."""

    def __init__(self, settings):
        self.settings = settings
        self.cluster = Shards(2)
        self.model = Mlp(settings, 1)
        self.client = connected(self.model, self.cluster)
        self.model.setup()
        model = self.model
        self.examples, self.gradients = model._examples, model._gradients
        self.numbers, self.out_of = model._numbers, model._out_of
        path = settings.input[0]
        self.pieces = Mlp.pieces(settings, [InputFile(path, 0)], 1)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.model.finish()
        self.cluster.__exit__(*failure)

    def block(self, number, **changed):
        epoch, index = divmod(number, len(self.pieces))
        piece = Piece(*self.pieces[index])
        return held_block(b"", number, piece, epoch=epoch, seed=1, progress=(0.0, 1.0), **changed)

    def train(self, number):
        block = self.block(number)
        block.prepared = self.model.prepare(block)
        return self.model.train(block)

    def arrays(self):
        self.client.flush()
        return pulled(self.model, self.model.tables())


def encoded(settings, examples):
    """Examples as the net learns them."""
    centres, factors = settings.scales
    return (examples - centres) * factors


def layers_of(settings, arrays):
    """Weights and biases of each layer, float64."""
    weights = [arrays[FIRST], *(arrays[name] for name in settings.layers.names[:-1])]
    edges = np.cumsum((0, *settings.layers.sizes))
    biases = [arrays["biases"][a:b] for a, b in itertools.pairwise(edges)]
    return [w.astype(np.float64) for w in weights], [b.astype(np.float64) for b in biases]


def random_vector(settings, seed=0):
    vector = Vector(settings.tensors)
    random = np.random.default_rng(seed)
    for array in vector.arrays.values():
        array[...] = random.normal(size=array.shape) * 0.3
    return vector


def test_net_that_diverges_is_refused_with_its_table(settings):
    with (
        Setup(settings(optimizer="sgd", lr=1e25)) as net,
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(NotFinite, match=r"^table '.*': .* has diverged: lower its lr"),
    ):
        [net.train(number) for number in range(12)]


# --- mathematics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("hidden", [("5",), ("9", "7", "4")])
def test_gradients_equal_those_of_one_example_at_a_time(settings, activation, hidden):
    s = settings(activation=activation, hidden=hidden)
    with Setup(s) as net:
        weights, found = random_vector(s), Vector(s.tensors)
        x = encoded(s, net.examples.rows(np.arange(30)))
        labels = net.examples.labels[:30]
        loss, weight = net.gradients(x, labels, NONE, weights, found, 30)
    w, b = layers_of(s, weights.arrays)
    expected, of_weights, of_biases = gradients(w, b, x, labels, activation)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert weight == 30
    fw, fb = layers_of(s, found.arrays)
    for mine, theirs in zip([*fw, *fb], [*of_weights, *of_biases], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-6)


def test_gradients_of_parts_add_up_to_that_of_the_batch(settings):
    s = settings()
    with Setup(s) as net:
        weights = random_vector(s)
        x = encoded(s, net.examples.rows(np.arange(50)))
        labels = net.examples.labels[:50]
        whole, total = Vector(s.tensors), np.zeros_like(weights.flat)
        net.gradients(x, labels, NONE, weights, whole, 50)
        for part in np.split(np.arange(50), [11, 30]):
            found = Vector(s.tensors)
            net.gradients(x[part], labels[part], NONE, weights, found, 50)
            total += found.flat
    np.testing.assert_allclose(total, whole.flat, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("method", ["sgd", "momentum", "adagrad", "adam"])
def test_training_takes_the_steps_of_the_plainest_net(settings, method):
    s = settings(optimizer=method, lr=0.05, momentum=0.7, hidden=("12",))
    with Setup(s) as net:
        weights, biases = layers_of(s, net.arrays())
        told = [net.train(number) for number in range(2 * len(net.pieces))]
        arrays = net.arrays()
        examples = net.examples
    optimizer, losses = Optimizer(method, 0.05, 0.7), []
    for epoch in (0, 1):
        numbers = order(COUNT, s.seed, epoch)
        for first in range(0, COUNT, 20):
            own = numbers[first : first + 20]
            loss, of_weights, of_biases = gradients(
                weights, biases, encoded(s, examples.rows(own)), examples.labels[own], "relu"
            )
            losses.append(loss)
            for k in range(2):
                optimizer.step(("w", k), weights[k], of_weights[k])
                optimizer.step(("b", k), biases[k], of_biases[k])
    assert sum(one["loss"] for one in told) == pytest.approx(sum(losses), rel=1e-3)
    assert sum(one["units"] for one in told) == 2 * COUNT
    found = layers_of(s, arrays)
    for mine, theirs in zip([*found[0], *found[1]], [*weights, *biases], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=5e-3, atol=2e-4)
    assert arrays["global_step"].tolist() == [14]


def test_steps_beyond_what_a_float_counts_are_counted(settings):
    with Setup(settings()) as net:
        net.model.push("global_step", [0], [[float(1 << 24)]])
        blocks = len(net.pieces) * -(-(1 << 20) // len(net.pieces))  # whole epochs
        for number in range(blocks, blocks + 3):
            net.train(number)
        net.client.flush()
        declared = {one.name: one.table() for one in net.model.tables()}
        numbers = {name: number for number, name in enumerate(declared, 1)}
        results = Results(net.settings, b"", {}, net.client, numbers, declared, 0)
        assert trained_steps(results) == (1 << 24) + 3


def test_first_weights_are_those_of_the_seed_and_no_two_layers_alike(settings):
    found = []
    for seed in (5, 5, 6):
        with Setup(settings(seed=seed, hidden=("12",))) as net:
            found.append(net.arrays())
    assert np.array_equal(found[0][FIRST], found[1][FIRST])
    assert not np.array_equal(found[0][FIRST], found[2][FIRST])
    first, second = (found[0][name].ravel()[:40] for name in (FIRST, "dense1"))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.5
    assert not found[0]["biases"].any()


# --- blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("consistency", ["async", "bsp"])
def test_blocks_of_an_epoch_have_every_example_once(settings, consistency, shuffle):
    s = settings(consistency=consistency, batch_size=28, micro_batches=4, shuffle=shuffle)
    with Setup(s) as net:
        for epoch in (0, 1):
            first = epoch * len(net.pieces)
            blocks = [net.block(first + index) for index in range(len(net.pieces))]
            numbers = np.concatenate([net.numbers(block) for block in blocks])
            wanted = order(COUNT, s.seed, epoch) if shuffle else np.arange(COUNT)
            assert np.array_equal(numbers, wanted)


def test_micro_batches_weigh_as_all_of_their_clock(settings):
    """130 examples in parts of 7: 19 blocks an epoch, the last one of 4; clocks of 4 blocks."""
    s = settings(consistency="bsp", batch_size=28, micro_batches=4)
    with Setup(s) as net:
        assert len(net.pieces) == 19
        blocks = [net.block(number, terms=Step(number // 4, number % 4, 4)) for number in range(36)]
        found = [net.out_of(block, 7, NONE) for block in blocks]
        assert found[:16] == [28] * 16
        assert found[16:20] == [25] * 4  # epoch 0's last three, the last of 4, and epoch 1's first
        assert found[20:36] == [28] * 16
        last = net.block(37, terms=Step(9, 1, 2))
        assert net.out_of(last, 7, NONE) == 7 + 4
        assert net.out_of(net.block(0), 7, NONE) == 7


def test_line_of_a_small_batch_moves_a_continued_net_as_far_as_in_one_it_has_learnt_with(settings):
    """Of 100 lines a step so far: a step of 7, of 25 in the last of bsp, of 120, weights of 2."""
    with Setup(settings(batch_size=128, learnt_batch=100)) as net:
        assert net.out_of(net.block(0), 7, NONE) == 100
        assert net.out_of(net.block(0), 120, NONE) == 120
        assert net.out_of(net.block(0), 7, np.full(7, 2, np.float32)) == 200
    s = settings(consistency="bsp", batch_size=28, micro_batches=4, learnt_batch=27)
    with Setup(s) as net:
        assert net.out_of(net.block(16, terms=Step(4, 0, 4)), 7, NONE) == 27


def test_smaller_batches_that_a_user_sets_take_full_steps(settings):
    """28 lines are a whole batch then, though the net has learnt 100 a step."""
    with Setup(settings(batch_size=28, learnt_batch=100)) as net:
        assert net.out_of(net.block(0), 28, NONE) == 28
        assert net.out_of(net.block(0), 7, NONE) == 28
    s = settings(consistency="bsp", batch_size=28, micro_batches=4, learnt_batch=100)
    with Setup(s) as net:
        assert net.out_of(net.block(0, terms=Step(0, 0, 4)), 7, NONE) == 28


@pytest.mark.parametrize("given", [{}, {"learnt": 50}, {"learnt_batch": 30}])
def test_what_a_net_has_learnt_comes_from_its_file_unless_it_is_given(tmp_path, monkeypatch, given):
    of_file = {"learnt": "500", "learnt_batch": "100"}
    held = SimpleNamespace(members={f"{HEADER}.npy"}, settings=lambda: of_file)
    where = "snailps.models.mlp.model"
    monkeypatch.setattr(f"{where}.opened_model", lambda settings: nullcontext(held))
    monkeypatch.setattr(f"{where}.adopted", lambda settings: settings)
    wanted = MlpSettings(input=(str(tmp_path / "x"),), continue_from="before.npz", **given)
    found = Mlp.adopt(wanted, {name: str(value) for name, value in given.items()}.get)
    expected = {"learnt": 500, "learnt_batch": 100, **given}
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(("workers", "size"), [(1, 4), (2, 2), (9, 1)])
def test_pieces_hold_a_twentieth_of_an_epoch_at_most(tmp_path, workers, size):
    write_idx(tmp_path / "x", np.zeros((1600, 2), np.uint8))
    s = MlpSettings(batch_size=20, inputs=2, classes=2)
    pieces = Mlp.pieces(s, [InputFile(str(tmp_path / "x"), 0)], workers)
    assert len(pieces) == 80 // size
    assert (pieces[0][1], pieces[-1][2]) == (12, 12 + 2 * 1600)
    assert all(a[2] == b[1] for a, b in itertools.pairwise(pieces))


def test_block_of_a_file_that_is_not_the_workers_is_refused(settings):
    with Setup(settings()) as net:
        net.pieces = [("/elsewhere/x", 16, 16 + 36)]
        with pytest.raises(DataError, match="absolute paths"):
            net.train(0)


# --- parameters ----------------------------------------------------------------------------------


class Owner(Worker):
    """Two tensors, one of them of several rows that it does not fill."""

    def tables(self):
        return [Tensor("a", (3, 2), init="uniform", scale=1.0), Tensor("b", (1500,))]


@pytest.fixture
def parameters():
    with Shards(2) as cluster:
        model = Owner(JobSettings())
        connected(model, cluster)
        yield Parameters(model, model.tables())


def test_vector_arrays_are_parts_of_the_flat_one():
    vector = Vector(Owner(JobSettings()).tables())
    assert len(vector.flat) == 6 + 2048
    vector["b"][...] = 1
    vector["a"][2, 1] = 5
    assert vector.flat.sum() == 1505
    assert vector.flat[5] == 5


def test_parameters_pulled_are_those_pushed_before(parameters):
    before = parameters.use(parameters.pull())["a"].copy()
    for value in (1, 2, 3):
        step = parameters.blank()
        step["a"][...] = value
        step["b"][...] = np.arange(1500)
        parameters.push(step)
    after = parameters.use(parameters.pull())
    np.testing.assert_allclose(after["a"], before + 6, rtol=1e-6)
    assert after["b"].tolist() == [3 * n for n in range(1500)]
    parameters.settle()


def test_vector_in_use_stays_as_it_is_while_others_are_pulled(parameters):
    used = parameters.use(parameters.pull())
    kept = used["a"].copy()
    for _ in range(3):
        step = parameters.blank()
        step["a"][...] = 1
        step["b"][...] = 0
        parameters.push(step)
        coming = parameters.pull()
        coming.wait()
        assert np.array_equal(used["a"], kept)
    assert not np.array_equal(parameters.use(coming)["a"], kept)


def test_pull_of_a_clock_is_made_once(parameters):
    first = parameters.pull(-1)
    assert parameters.pull(-1) is not first


# --- settings and files --------------------------------------------------------------------------


@pytest.mark.parametrize("times", [50, 1e6])
def test_rows_of_weight_0_set_no_scale_and_are_not_clipped(tmp_path, times):
    rows = np.random.default_rng(6).normal([0, 2000, 3], [1, 10, 40], (60, 3))
    labels, mixed = np.arange(60) % 2, np.repeat(rows, 2, axis=0)
    mixed[1::2] *= times
    made = []
    for name, x, weights in (
        ("alone", rows, np.full(60, 0.5)),
        ("mixed", mixed, np.tile([0.5, 0], 60)),
    ):
        path = str(tmp_path / f"{name}.mx")
        write_matrix(path, x, np.repeat(labels, len(x) // 60), sample_weight=weights, dense=True)
        s = adopted(MlpSettings(input=(path,), labels=(path,), scratch_dir=str(tmp_path)))
        made.append(s.encoding)
        with Setup(s) as net:
            assert net.model.prepare(net.block(0)).counts == {}
    assert made[0] == made[1]


def test_adopted_settings_have_the_widths_of_the_files(settings):
    s = settings()
    assert (s.inputs, s.classes) == (36, 4)
    assert settings(classes=7).classes == 7
    assert adopted(MlpSettings()) == MlpSettings()


@pytest.mark.parametrize("name", ["test", "validation"])
def test_examples_that_all_weigh_0_measure_nothing_and_are_refused_before_the_training(
    tmp_path, name
):
    x, y = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1])
    trained, tested = str(tmp_path / "trained"), str(tmp_path / "tested")
    write_matrix(trained, x, y, dense=True)
    write_matrix(tested, x, y, sample_weight=np.zeros(4, np.float32), dense=True)
    of_tested = {name: (tested,), f"{name}_labels": (tested,)}
    with pytest.raises(DataError, match=f"^{name}: expected an example .*; give other files"):
        adopted(MlpSettings(input=(trained,), labels=(trained,), **of_tested))


def test_validation_files_that_are_trained_are_warned_of(settings, caplog):
    s = settings()
    settings(validation=s.input, validation_labels=s.labels)
    (record,) = caplog.records
    assert "is also in the input" in record.getMessage()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": 3}, "expected labels below 3, got 3"),
        ({"labels": ("{x}", "{y}")}, "labels: expected 1 files"),
        ({"labels": ("{x}",)}, "whole numbers along one axis"),
        ({"test": ("{x}",), "test_labels": ("{z}",)}, "expected 130 labels"),
        ({"test": ("{x}",)}, "name their file"),
        ({"test": ("{w}",), "test_labels": ("{v}",)}, "expected examples of 36 values.*got 2"),
    ],
)
def test_files_that_do_not_fit_are_refused_before_the_start(settings, tmp_path, changed, message):
    write_idx(tmp_path / "z", np.zeros(5, np.uint8))
    write_idx(tmp_path / "w", np.zeros((3, 2), np.uint8))
    write_idx(tmp_path / "v", np.zeros(3, np.uint8))
    paths = {name: str(tmp_path / name) for name in "xyzwv"}
    filled = {
        key: tuple(one.format(**paths) for one in value) if isinstance(value, tuple) else value
        for key, value in changed.items()
    }
    with pytest.raises(DataError, match=message):
        settings(**filled)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"hidden": ()}, "hidden"),
        ({"hidden": ("0",)}, "hidden"),
        ({"hidden": ("ten",)}, "hidden"),
        ({"consistency": "bsp", "batch_size": 3, "micro_batches": 4}, "batch_size"),
    ],
)
def test_settings_that_make_no_net_are_refused(changed, name):
    with pytest.raises(ConfigError, match=f"^{name}: expected"):
        MlpSettings(**changed).validate(lambda key: key)


def test_optimizer_that_does_not_run_at_the_servers_is_refused():
    with pytest.raises(ConfigError, match=r"ftrl does not fit Mlp.*momentum"):
        Mlp.check(MlpSettings(optimizer="ftrl"))


def test_net_written_and_read_gives_the_same_scores(settings, tmp_path):
    s = settings(worker_class="snailps.models.mlp:Mlp", lr=0.25)
    arrays = random_vector(s).arrays
    path = files.write_npz(str(tmp_path / "net.npz"), s, arrays, 12)
    again = files.write_npz(str(tmp_path / "again.npz"), s, arrays, 12)
    assert (tmp_path / "net.npz").read_bytes() == (tmp_path / "again.npz").read_bytes(), again
    net = read_npz(path)
    assert (net.settings.hidden, net.settings.activation) == (s.hidden, s.activation)
    x = np.random.default_rng(2).random((9, 36), np.float32)
    assert np.array_equal(net.scores(x), files.scores(s, arrays, x))
    with np.load(path) as file:
        assert file["global_step"].tolist() == [12]


def test_file_that_is_no_net_is_refused(settings, tmp_path):
    path = tmp_path / "net.npz"
    path.write_bytes(b"no file of NumPy's")
    with pytest.raises(ModelFileError, match=r"expected the \.npz of a net.* no sound \.npz"):
        read_npz(path)
    with pytest.raises(ModelFileError, match="cannot be read as a net: No such file"):
        read_npz(tmp_path / "missing.npz")
    arrays = dict(random_vector(settings()).arrays)
    arrays["dense1"] = arrays["dense1"].T
    files.write_npz(str(path), settings(), arrays, 0)
    with pytest.raises(ModelFileError, match="expected arrays"):
        read_npz(path)


@pytest.mark.parametrize(("most", "examples"), [(0, COUNT), (50, 44), (1000, COUNT)])
def test_look_takes_some_test_examples_evenly(settings, tmp_path, monkeypatch, most, examples):
    s = settings(test=(str(tmp_path / "x"),), test_labels=(str(tmp_path / "y"),))
    rng = np.random.default_rng(2)
    arrays = {one.name: rng.normal(size=one.shape).astype(np.float32) for one in s.tensors}
    monkeypatch.setattr("snailps.models.mlp.model.pulled", lambda results, tensors: arrays)
    assert figures_of_test(SimpleNamespace(settings=s), most)["examples"] == examples


def test_pieces_of_the_model_stay_after_a_survey_of_nothing(monkeypatch, tmp_path):
    (tmp_path / "x").write_bytes(bytes(10))
    monkeypatch.setattr(Mlp, "pieces", lambda *_: [(str(tmp_path / "x"), 0, 10)])
    settings = MlpSettings(input=(str(tmp_path / "x"),), continue_from="before.npz")
    found = JobInput(Mlp, settings)
    found.find()
    found.cut(settings, 1, 1)
    blocks = list(found.blocks)
    found.fit(b"")
    found.close()
    assert found.blocks == blocks
