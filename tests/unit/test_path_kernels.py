"""kernels.train_pairs and train_words by paths in a tree, against their twins, in every build."""

import itertools

import numpy as np
import pytest
import test_kernels
import test_pair_kernels

from snailps import kernels
from snailps.data.huffman import Tree

builds = pytest.mark.parametrize("build", kernels.builds_available())
NOISE = {"noise": np.zeros(0, np.int32), "noise_logit": np.zeros(0, np.float32), "negatives": 0}
SKEWED = np.array([2**k for k in range(40)][::-1])
"""Counts of a tree in which word 39 has 39 nodes: more than a register, and than the top."""
EVEN = np.ones(40, np.int64)


class WithPaths:
    """A toy whose output rows are inner nodes."""

    counts = SKEWED

    @property
    def paths(self):
        return Tree.of(self.counts).paths()

    def train(self, build=kernels.BUILD, **changed):
        checked = self.paths.checked(len(self.outputs))
        return super().train(build, paths=checked, **{**changed, "negatives": 0})

    def twin(self, **changed):
        return super().twin(paths=self.paths, **{**changed, "negatives": 0})


class Pairs(WithPaths, test_pair_kernels.Toy):
    def rest(self):
        return self.bag_ptr, self.bag_rows, NOISE["noise"], NOISE["noise_logit"]


class Windows(WithPaths, test_kernels.Toy):
    def arguments(self):
        return (*super().arguments()[:6], NOISE["noise"], NOISE["noise_logit"])


toys = pytest.mark.parametrize("toy_of", [Pairs, Windows])


@builds
@toys
@pytest.mark.parametrize("counts", [SKEWED, EVEN])
@pytest.mark.parametrize("subwords", [0, 6])
@pytest.mark.parametrize("shared", [False, True])
def test_training_by_paths_equals_twin(build, toy_of, counts, subwords, shared):
    toy = toy_of(tokens=500, subwords=subwords)
    toy.counts = counts
    got = toy.train(build, shared=shared)
    test_kernels.assert_close(got, toy.twin(), toy.dim)
    assert not got[0][:, toy.dim :].any()
    assert not got[1][:, toy.dim :].any()
    assert (got[1][len(counts) - 1 :] == toy.outputs[len(counts) - 1 :]).all()  # no inner nodes


@builds
def test_pairs_of_words_that_stay_in_their_lane_equal_twin(build):
    toy = Pairs(tokens=800, most=4, run=8, subwords=6)
    weights = np.random.default_rng(8).integers(1, 5, len(toy.bag_rows)).astype(np.float32)
    want = toy.twin(weights=weights)
    test_kernels.assert_close(toy.train(build, weights=weights), want, toy.dim)


@builds
def test_pairs_with_adagrad_equal_twin(build):
    toy = Pairs()
    squares = tuple(toy.copies(0.1))
    want = toy.twin(squares=squares, eps=0.1)
    got = toy.train(build, squares=squares, eps=0.1, shared=True)
    test_kernels.assert_close(got, want, toy.dim)
    for sums, theirs in zip(squares, want[4:], strict=True):
        np.testing.assert_allclose(sums[:, : toy.dim], theirs, rtol=1e-4, atol=1e-6)


def test_targets_of_a_list_are_leaves():
    toy = Windows()
    places = np.flatnonzero(toy.tokens >= 0).astype(np.int32)
    rates = {"lr_start": 0.05, "lr_stop": 0.05}  # which fall by places, or by targets
    alike = toy.train(targets=(places, toy.tokens[places]), **rates)
    for got, want in zip(alike, toy.train(**rates), strict=True):
        np.testing.assert_array_equal(got, want)


@toys
def test_training_by_paths_descends(toy_of):
    toy = toy_of(tokens=2000)
    toy.counts = EVEN
    losses = []
    for _ in range(4):
        inputs, outputs, loss, _ = toy.train(lr_start=0.02, lr_stop=0.02)
        toy.inputs, toy.outputs = inputs, outputs
        losses.append(loss)
    assert all(after < before for before, after in itertools.pairwise(losses))


@pytest.mark.parametrize("name", NOISE)
@toys
def test_noise_beside_paths_is_refused(toy_of, name):
    toy = toy_of()
    given = {**NOISE, name: {"negatives": 5}.get(name, np.zeros(len(toy.outputs)))}
    if name != "negatives":
        given[name] = given[name].astype(NOISE[name].dtype)
    train = kernels.train_pairs if toy_of is Pairs else kernels.train_words
    middle = toy.pairs if toy_of is Pairs else (toy.tokens,)
    extra = {} if toy_of is Pairs else {"window": 5}
    with pytest.raises(ValueError, match="with paths there are no negatives"):
        train(
            toy.inputs, toy.outputs, toy.dim, *middle, toy.bag_ptr, toy.bag_rows,
            lr_start=0.1, lr_stop=0.1, seed=1, paths=toy.paths.checked(39), **extra, **given,
        )  # fmt: skip


@toys
def test_contexts_that_are_no_leaves_are_refused(toy_of):
    toy = toy_of()
    toy.counts = SKEWED[:20]
    with pytest.raises(ValueError, match=r"leaves|for each word"):
        toy.train()
