"""kernels.train_labels against its NumPy twin, in every build, and what its door refuses."""

import itertools

import numpy as np
import pytest
from twins import labels as twin
from workers_in_order import ORDERS, train_pieces

from snailps import kernels
from snailps.data.huffman import Tree

builds = pytest.mark.parametrize("build", kernels.builds_available())
losses = pytest.mark.parametrize("loss", [0, 1, 2, 3])
SETTINGS = {"negatives": 3, "shared": False, "lr_start": 0.2, "lr_stop": 0.05, "seed": 9}


class Toy:
    """Small random lines, some of them without features or labels."""

    def __init__(self, lines=150, rows=40, labels=7, dim=21, seed=4):
        rng = np.random.default_rng(seed)
        self.dim = dim
        self.inputs, self.outputs = kernels.padded(rows, dim), kernels.padded(labels, dim)
        self.inputs[:, :dim] = rng.uniform(-1, 1, (rows, dim))
        self.outputs[:, :dim] = rng.uniform(-1, 1, (labels, dim))
        sizes, own = rng.integers(0, 12, lines), rng.integers(0, 3, lines)
        self.bag_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.bag_rows = rng.integers(0, rows, sizes.sum()).astype(np.int32)
        self.label_ptr = np.concatenate([[0], np.cumsum(own)]).astype(np.int64)
        self.labels = rng.integers(0, labels, own.sum()).astype(np.int32)
        self.noise = rng.integers(0, labels, 50).astype(np.int32)
        self.rest = (dim, self.bag_ptr, self.bag_rows, self.label_ptr, self.labels, self.noise)
        self.all = {"first": 0, "last": lines}
        # A row more than inner nodes, as in files; some paths are longer than a register.
        self.paths = Tree.of(np.array([2**k for k in range(labels)][::-1])).paths()

    def paths_of(self, changed):
        return {"paths": self.paths} if changed.get("loss") == 3 else {}

    def copies(self):
        pair = kernels.padded(*self.inputs.shape), kernels.padded(*self.outputs.shape)
        for copy, own in zip(pair, (self.inputs, self.outputs), strict=True):
            copy[:] = own
        return pair

    def train(self, build=kernels.BUILD, **changed):
        inputs, outputs = self.copies()
        train = kernels.load(build).train_labels
        changed |= {name: p.checked(len(outputs)) for name, p in self.paths_of(changed).items()}
        done = train(inputs, outputs, *self.rest, **SETTINGS | self.all | changed)
        return inputs, outputs, *done

    def twin(self, **changed):
        pair = self.inputs, self.outputs
        changed |= self.paths_of(changed)
        return twin.train_labels(*pair, *self.rest, **SETTINGS | self.all | changed)


def assert_close(got, want, dim):
    np.testing.assert_allclose(got[0][:, :dim], want[0], atol=3e-5)
    np.testing.assert_allclose(got[1][:, :dim], want[1], atol=3e-5)
    assert got[2] == pytest.approx(want[2], rel=1e-5)
    assert got[3] == want[3]


@builds
@losses
@pytest.mark.parametrize(("dim", "labels"), [(16, 8), (21, 7), (100, 7), (130, 1)])
def test_train_labels_equals_twin(build, loss, dim, labels):
    toy = Toy(dim=dim, labels=labels)
    got = toy.train(build, loss=loss)
    assert_close(got, toy.twin(loss=loss), dim)
    assert not got[0][:, dim:].any()
    assert not got[1][:, dim:].any()


@builds
@losses
def test_train_labels_moves_input_rows_that_lead_so_many_times_as_far(build, loss):
    toy = Toy()
    got = toy.train(build, loss=loss, lead=2.5)
    assert_close(got, toy.twin(loss=loss, lead=2.5), toy.dim)


@builds
@losses
def test_train_labels_alone_but_sharing_is_the_same(build, loss):
    toy = Toy(lines=400)
    got = toy.train(build, loss=loss, shared=True)
    assert_close(got, toy.twin(loss=loss), toy.dim)


@builds
def test_train_labels_of_paths_beyond_the_top_and_a_register_equals_twin(build):
    """40 labels in a row: leaf 39 has 39 nodes, of which six are in the top."""
    toy = Toy(labels=40, lines=300)
    for shared in (False, True):
        assert_close(toy.train(build, loss=3, shared=shared), toy.twin(loss=3), toy.dim)


def test_train_labels_refuses_a_loss_without_paths_and_paths_without_the_loss():
    toy = Toy()
    names = toy.rest, SETTINGS | toy.all
    for changed in ({"loss": 3}, {"loss": 0, "paths": toy.paths.checked(6)}):
        with pytest.raises(ValueError, match="with paths"):
            kernels.train_labels(*toy.copies(), *names[0], **names[1] | changed)
    with pytest.raises(ValueError, match="row for each node"):
        kernels.train_labels(
            toy.copies()[0],
            kernels.padded(5, toy.dim),
            *toy.rest[:-1],
            toy.noise[:0],
            **names[1] | {"loss": 3, "paths": toy.paths.checked(6)},
        )


@losses
def test_train_labels_of_a_range_leaves_the_other_lines_alone(loss):
    toy = Toy()
    part = {"first": 20, "last": 77, "loss": loss}
    assert_close(toy.train(**part), toy.twin(**part), toy.dim)


def test_train_labels_of_a_range_checks_no_other_lines():
    toy = Toy()
    toy.bag_rows[: toy.bag_ptr[20]] = toy.bag_rows[toy.bag_ptr[77] :] = 1000
    toy.train(first=20, last=77, loss=0)
    for first, last in ((16, 77), (20, 81)):
        with pytest.raises(ValueError, match="bag_rows must lie in"):
            toy.train(first=first, last=last, loss=0)


def test_train_labels_softmax_known_step():
    """One line of two features, two labels, zero output rows: p = 1/2, so only outputs move."""
    inputs, outputs = kernels.padded(2, 2), kernels.padded(2, 2)
    inputs[0, :2], inputs[1, :2] = (1, 0), (0, 2)
    ptr, rows = np.array([0, 2], np.int64), np.array([0, 1], np.int32)
    one, label = np.array([0, 1], np.int64), np.array([1], np.int32)
    loss, count = kernels.train_labels(
        inputs, outputs, 2, ptr, rows, one, label, rows, loss=0, negatives=0, shared=False,
        lr_start=0.5, lr_stop=0.5, seed=0, first=0, last=1,
    )  # fmt: skip
    assert (loss, count) == (pytest.approx(np.log(2), abs=1e-6), 1)
    np.testing.assert_array_equal(inputs[:, :2], [[1, 0], [0, 2]])
    np.testing.assert_allclose(outputs[:, :2], [[-0.125, -0.25], [0.125, 0.25]], atol=1e-7)


class Weighed(Toy):
    """The same lines with weights of lines and labels; every fifth of either is 0."""

    def __init__(self, **options):
        super().__init__(**options)
        rng = np.random.default_rng(5)
        numbers = [rng.uniform(0, 2, n).astype(np.float32) for n in (len(self.bag_ptr) - 1,
                                                                     len(self.labels))]  # fmt: skip
        for weights in numbers:
            weights[::5] = 0
        self.line_weights, self.label_weights = numbers
        self.rests = np.maximum(0, 1 - self.label_weights)


@builds
@losses
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "names",
    [["line_weights"], ["label_weights"], ["line_weights", "label_weights", "rests"]],
)
def test_train_labels_with_weights_equals_twin(build, loss, names, shared):
    toy = Weighed(lines=300)
    weights = {name: getattr(toy, name) for name in names}
    got = toy.train(build, loss=loss, shared=shared, **weights)
    want = toy.twin(loss=loss, **weights)
    assert_close(got[:3] + want[3:], want, toy.dim)
    assert got[3] == pytest.approx(want[3], rel=1e-6)


@losses
def test_train_labels_with_weights_of_one_gives_rows_of_the_same_bits(loss):
    toy = Toy()
    toy.label_ptr[:] = np.minimum(np.arange(len(toy.label_ptr)), len(toy.labels))  # a label a line
    plain = toy.train(loss=loss)
    weighed = toy.train(
        loss=loss,
        line_weights=np.ones(len(toy.bag_ptr) - 1, np.float32),
        label_weights=np.ones(len(toy.labels), np.float32),
        rests=np.zeros(len(toy.labels), np.float32),
    )
    for got, want in zip(weighed[:2], plain[:2], strict=True):
        np.testing.assert_array_equal(got, want)
    assert weighed[2:] == pytest.approx(plain[2:], rel=1e-7)  # two loops may round sums apart


@losses
def test_train_labels_with_weight_zero_is_as_if_the_line_were_not_there(loss):
    toy = Toy()
    weights = np.zeros(len(toy.bag_ptr) - 1, np.float32)
    inputs, outputs, total, weight = toy.train(loss=loss, line_weights=weights)
    np.testing.assert_array_equal(inputs, toy.inputs)
    np.testing.assert_array_equal(outputs, toy.outputs)
    assert (total, weight) == (0, 0)


@losses
@pytest.mark.parametrize("weight", [2, 3])
def test_train_labels_with_a_whole_weight_is_the_line_as_often(loss, weight):
    toy = Toy()
    bag, label = np.arange(5, dtype=np.int32), np.array([3], np.int32)

    def train(times, weights):
        toy.rest = (
            toy.dim, np.arange(times + 1) * len(bag), np.tile(bag, times),
            np.arange(times + 1), np.tile(label, times), toy.noise,
        )  # fmt: skip
        return toy.train(loss=loss, lr_stop=0.2, first=0, last=times, line_weights=weights)

    weighed = train(1, np.array([weight], np.float32))
    repeated = train(weight, None)
    for got, want in zip(weighed[:2], repeated[:2], strict=True):
        np.testing.assert_array_equal(got, want)
    assert weighed[3] == repeated[3] == weight


@losses
@pytest.mark.parametrize("weight", [100.0, 1e6])
def test_train_labels_with_a_large_weight_stays_finite(loss, weight):
    """Two labels of the same features pull at the rows, one of them with all its weight."""
    inputs, outputs = kernels.padded(1, 4), kernels.padded(2, 4)
    inputs[0, :4] = 1
    lines = 1000
    labels = np.arange(lines, dtype=np.int32) % 2
    weights = np.where(labels == 1, weight, 1).astype(np.float32)
    tree = {"paths": Tree.of(np.array([2, 1])).paths().checked(2)} if loss == 3 else {}
    loss_sum, total = kernels.train_labels(
        inputs, outputs, 4, np.arange(lines + 1), np.zeros(lines, np.int32),
        np.arange(lines + 1), labels, labels, line_weights=weights, loss=loss, negatives=2,
        shared=False, lr_start=0.5, lr_stop=0.0, seed=0, first=0, last=lines, **tree,
    )  # fmt: skip
    assert np.abs(inputs).max() < 100
    assert np.abs(outputs).max() < 100
    assert np.isfinite(loss_sum)
    assert total == pytest.approx(weights.sum(dtype=np.float64), rel=1e-5)


@pytest.mark.parametrize("loss", [0, 1])
def test_train_labels_with_soft_labels_learns_their_probabilities(loss):
    """One line over and over: softmax and one-versus-all end at the weights of its labels."""
    lines, want = 4000, np.array([0.6, 0.3, 0.1])
    inputs, outputs = kernels.padded(1, 4), kernels.padded(3, 4)
    inputs[0, :4] = 1
    weights = np.tile(want, lines).astype(np.float32)
    kernels.train_labels(
        inputs, outputs, 4, np.arange(lines + 1), np.zeros(lines, np.int32),
        np.arange(lines + 1) * 3, np.tile(np.arange(3, dtype=np.int32), lines),
        np.zeros(0, np.int32), label_weights=weights, rests=1 - weights, loss=loss, negatives=0,
        shared=False, lr_start=0.5, lr_stop=0.0, seed=0, first=0, last=lines,
    )  # fmt: skip
    powers = np.exp(outputs[:, :4] @ inputs[0, :4])
    chances = powers / powers.sum() if loss == 0 else powers / (1 + powers)
    np.testing.assert_allclose(chances, want, atol=1e-3)


def test_train_labels_sampling_with_noise_that_is_all_the_own_label_ends():
    toy = Toy(labels=1)
    got = toy.train(loss=2)
    assert np.isfinite(got[2])
    assert_close(got, toy.twin(loss=2), toy.dim)


@losses
@pytest.mark.parametrize("order", ORDERS)
def test_train_labels_of_workers_that_share_rows_loses_no_lines_and_learns(loss, order):
    """Threads at once: test_hot_rows."""
    toy = Toy(lines=4000)
    inputs, outputs = toy.copies()
    alone = toy.train(loss=loss)
    paths = {name: p.checked(len(outputs)) for name, p in toy.paths_of({"loss": loss}).items()}

    def train(_, first, last):
        part = {"loss": loss, "shared": True, "first": first, "last": last, **paths}
        return kernels.train_labels(inputs, outputs, *toy.rest, **SETTINGS | part)

    spans = list(itertools.pairwise(range(0, 4001, 1000)))
    done = train_pieces(train, (inputs, outputs), spans, 50, ORDERS[order])
    assert sum(count for _, count in done) == alone[3]
    assert sum(loss for loss, _ in done) == pytest.approx(alone[2], rel=0.1)
    again = kernels.train_labels(
        inputs, outputs, *toy.rest, **SETTINGS | toy.all | paths | {"loss": loss, "lr_start": 0.0,
                                                                   "lr_stop": 0.0}
    )  # fmt: skip
    before = toy.train(loss=loss, lr_start=0.0, lr_stop=0.0)
    assert again[0] < before[2]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"loss": 4}, "loss must be"),
        ({"first": 5, "last": 4}, "lines"),
        ({"last": 151}, "lines"),
        ({"first": -1}, "lines"),
        ({"loss": 2, "negatives": -1}, "negatives"),
        ({"line_weights": np.ones(149, np.float32)}, "line_weights must be 150"),
        ({"label_weights": np.ones(3, np.float32)}, "label_weights must be"),
        ({"rests": np.ones(3, np.float32)}, "rests must be"),
        ({"lead": 0.5}, "lead must be"),
        ({"lead": np.nan}, "lead must be"),
    ],
)
def test_train_labels_with_bad_number_refuses(changed, what):
    with pytest.raises(ValueError, match=what):
        Toy().train(**{"loss": 0, **changed})


@pytest.mark.parametrize(
    ("place", "change", "what"),
    [
        ("bag_rows", lambda x: x + 35, "bag_rows"),
        ("labels", lambda x: x + 1, "labels must lie"),
        ("noise", lambda x: x - 1, "noise"),
        ("bag_ptr", lambda x: x[::-1].copy(), "bag_ptr"),
        ("label_ptr", lambda x: x[:-1].copy(), "lines"),
        ("label_ptr", lambda x: x + 1, "label_ptr"),
    ],
)
def test_train_labels_with_bad_array_refuses(place, change, what):
    toy = Toy()
    names = ["dim", "bag_ptr", "bag_rows", "label_ptr", "labels", "noise"]
    at = names.index(place)
    toy.rest = (*toy.rest[:at], change(toy.rest[at]), *toy.rest[at + 1 :])
    with pytest.raises(ValueError, match=what):
        toy.train(loss=0)
