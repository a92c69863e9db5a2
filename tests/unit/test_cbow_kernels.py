"""kernels.train_cbow and cbow_loss against their NumPy twin, in every build."""

import numpy as np
import pytest
from twins.cbow import Cbow

from snailps import kernels
from snailps.models.fedavg.network import Network, plain_output

builds = pytest.mark.parametrize("build", kernels.builds_available())
ADAM = {"lr": 0.05, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6}


class Toy:
    """A small random network and windows of its words."""

    def __init__(self, words=300, dim=20, window=5, windows=70, seed=3, scale=0.5):
        rng = np.random.default_rng(seed)
        self.network = Network(words, dim, 3)
        self.network.put_embedding(0, rng.uniform(-scale, scale, (words, dim)).astype(np.float32))
        rows = rng.uniform(-scale, scale, (self.network.panels, self.network.output_dim))
        self.network.put_output(0, rows.astype(np.float32))
        self.windows = rng.integers(0, words, (windows, window)).astype(np.int32)
        self.dim = dim

    def plain(self):
        network = self.network
        rows = network.output_rows(network.output[0])
        return network.embedding[0, :, : self.dim], *plain_output(rows, network.words, self.dim)

    def twin(self):
        return Cbow(*self.plain(), *ADAM.values())

    def loss(self, batch, build=kernels.BUILD):
        network = self.network
        scratch = network.scratch(self.windows.shape[1], batch)
        return kernels.load(build).cbow_loss(
            self.windows, network.embedding[0], network.output[0], scratch, batch=batch
        )

    def train(self, batch, build=kernels.BUILD, steps=0, **changed):
        network = self.network
        scratch = network.scratch(self.windows.shape[1], batch)
        return kernels.load(build).train_cbow(
            self.windows, network.embedding, network.counts, network.output, scratch,
            batch=batch, steps=steps, **ADAM | changed,
        )  # fmt: skip


@builds
@pytest.mark.parametrize(
    ("words", "dim", "batch"),
    [(1, 1, 70), (127, 16, 70), (128, 20, 7), (128, 20, 70), (129, 32, 100), (1000, 48, 70)],
)
def test_cbow_loss_equals_twin(build, words, dim, batch):
    toy = Toy(words, dim)
    assert toy.loss(batch, build) == pytest.approx(toy.twin().loss(toy.windows), rel=2e-5)


@builds
@pytest.mark.parametrize(
    ("words", "dim", "window"), [(100, 1, 3), (128, 16, 5), (300, 20, 5), (400, 33, 9)]
)
def test_train_cbow_equals_twin(build, words, dim, window):
    batch = 16
    toy = Toy(words, dim, window)
    twin = toy.twin()
    loss = toy.train(batch, build)
    assert loss == pytest.approx(twin.train(toy.windows, batch), rel=1e-4)
    embedding, weights, biases = toy.plain()
    np.testing.assert_allclose(embedding, twin.embedding, atol=2e-4)
    np.testing.assert_allclose(weights, twin.weights, atol=2e-4)
    np.testing.assert_allclose(biases, twin.biases, atol=2e-4)
    np.testing.assert_array_equal(toy.network.counts, twin.steps[0].counts)
    assert not toy.network.embedding[:, :, dim:].any()
    assert not toy.network.output[:, :, dim : toy.network.width].any()


def test_train_cbow_in_two_calls_gives_the_same_bits_as_in_one():
    once, twice = Toy(), Toy()
    whole = once.train(10)
    windows = twice.windows
    twice.windows = windows[:40]
    parts = twice.train(10)
    twice.windows = windows[40:]
    parts += twice.train(10, steps=4)
    assert parts == pytest.approx(whole, rel=1e-12)
    np.testing.assert_array_equal(once.network.embedding, twice.network.embedding)
    np.testing.assert_array_equal(once.network.output, twice.network.output)


@builds
def test_train_cbow_with_logits_far_apart_stays_finite(build):
    toy = Toy(words=700, dim=16, windows=20)
    toy.network.output[0, :, toy.network.width] = np.float32(0)
    toy.network.output[0, 0, toy.network.width, 0] = 300  # the first panel's word is all but sure
    toy.network.output[0, -1, toy.network.width, 0] = 400  # until the last panel says otherwise
    twin = toy.twin()
    assert toy.train(20, build) == pytest.approx(twin.train(toy.windows, 20), rel=1e-5)
    assert np.isfinite(toy.network.output).all()
    np.testing.assert_allclose(toy.plain()[1], twin.weights, atol=1e-3)


def test_train_cbow_over_and_over_learns_the_windows():
    toy = Toy(words=300, dim=32)
    first = toy.loss(70)
    for step in range(100):
        toy.train(70, steps=step)
    assert toy.loss(70) < first / 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"windows": np.full((2, 5), 300, np.int32)}, "10 numbers that are none of 0..299"),
        ({"windows": np.full((2, 5), -1, np.int32)}, "10 numbers"),
        ({"windows": np.zeros((2, 4), np.int32)}, "odd number"),
        ({"windows": np.zeros((2, 1), np.int32)}, "odd number"),
        ({"batch": 0}, "batch must be 1"),
        ({"steps": -1}, "steps >= 0"),
        ({"lr": 0.0}, "lr > 0"),
        ({"lr": float("nan")}, "lr > 0"),
        ({"beta2": 1.0}, "below 1"),
        ({"scratch": np.zeros(10, np.float32)}, "scratch must have"),
        ({"counts": np.zeros(299, np.float32)}, "counts"),
        ({"embedding": np.zeros((3, 300, 17), np.float32)}, "multiple of"),
        ({"output": np.zeros((3, 3, 33, 127), np.float32)}, "output must be"),
        ({"output": np.zeros((3, 2, 33, 128), np.float32)}, "output must be"),
    ],
)
def test_train_cbow_with_wrong_arguments_refuses(change, said):
    toy = Toy()
    network = toy.network
    arguments = {
        "windows": toy.windows, "embedding": network.embedding, "counts": network.counts,
        "output": network.output, "scratch": network.scratch(5, 70), "batch": 70, "steps": 0,
        **ADAM,
    } | change  # fmt: skip
    with pytest.raises(ValueError, match=said):
        kernels.train_cbow(**arguments)
