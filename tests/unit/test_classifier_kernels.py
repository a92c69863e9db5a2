"""kernels.train_labels against its NumPy twin, in every build, and what its door refuses."""

import itertools

import numpy as np
import pytest
from twins import labels as twin
from workers_in_order import ORDERS, train_pieces

from snailps import kernels

builds = pytest.mark.parametrize("build", kernels.builds_available())
losses = pytest.mark.parametrize("loss", [0, 1, 2])
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

    def copies(self):
        pair = kernels.padded(*self.inputs.shape), kernels.padded(*self.outputs.shape)
        for copy, own in zip(pair, (self.inputs, self.outputs), strict=True):
            copy[:] = own
        return pair

    def train(self, build=kernels.BUILD, **changed):
        inputs, outputs = self.copies()
        train = kernels.load(build).train_labels
        done = train(inputs, outputs, *self.rest, **SETTINGS | self.all | changed)
        return inputs, outputs, *done

    def twin(self, **changed):
        pair = self.inputs, self.outputs
        return twin.train_labels(*pair, *self.rest, **SETTINGS | self.all | changed)


def assert_close(got, want, dim):
    np.testing.assert_allclose(got[0][:, :dim], want[0], atol=3e-5)
    np.testing.assert_allclose(got[1][:, :dim], want[1], atol=3e-5)
    assert got[2] == pytest.approx(want[2], rel=1e-5)
    assert got[3] == want[3]


@builds
@losses
@pytest.mark.parametrize("dim", [21, 100])
def test_train_labels_equals_twin(build, loss, dim):
    toy = Toy(dim=dim)
    got = toy.train(build, loss=loss)
    assert_close(got, toy.twin(loss=loss), dim)
    assert not got[0][:, dim:].any()
    assert not got[1][:, dim:].any()


@builds
@losses
def test_train_labels_alone_but_sharing_is_the_same(build, loss):
    toy = Toy(lines=400)
    got = toy.train(build, loss=loss, shared=True)
    assert_close(got, toy.twin(loss=loss), toy.dim)


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

    def train(_, first, last):
        part = {"loss": loss, "shared": True, "first": first, "last": last}
        return kernels.train_labels(inputs, outputs, *toy.rest, **SETTINGS | part)

    spans = list(itertools.pairwise(range(0, 4001, 1000)))
    done = train_pieces(train, (inputs, outputs), spans, 50, ORDERS[order])
    assert sum(count for _, count in done) == alone[3]
    assert sum(loss for loss, _ in done) == pytest.approx(alone[2], rel=0.1)
    again = kernels.train_labels(
        inputs, outputs, *toy.rest, **SETTINGS | toy.all | {"loss": loss, "lr_start": 0.0,
                                                           "lr_stop": 0.0}
    )  # fmt: skip
    before = toy.train(loss=loss, lr_start=0.0, lr_stop=0.0)
    assert again[0] < before[2]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"loss": 3}, "loss must be"),
        ({"first": 5, "last": 4}, "lines"),
        ({"last": 151}, "lines"),
        ({"first": -1}, "lines"),
        ({"loss": 2, "negatives": -1}, "negatives"),
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
