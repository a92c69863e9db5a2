"""Kernels on rows of any width, a vector of each build and one more or less, and on almost no data.

`make sanitize` runs these: an access beside a row, or behind the last one, is an error there.  Wide
rows are small, as the kernels' logistic function ends at a score of 30.
"""

import numpy as np
import pytest
import test_cbow_kernels as cbow
import test_classifier_kernels as classifier
import test_csr_kernels as csr
import test_fm_kernels as fm
import test_kernels as words
import test_labelling as labelling
import test_least_squares_kernels as least_squares
import test_pair_kernels as pairs
import test_triples_kernels as triples
from test_best_products import lists_of, of_whole_numbers, sorted_lists

from snailps import kernels

builds = pytest.mark.parametrize("build", kernels.builds_available())
dims = pytest.mark.parametrize("dim", [1, 3, 15, 16, 17, 255, 1000])
few = pytest.mark.parametrize("count", [1, 2, 15, 16, 17])


@builds
@dims
def test_words_and_pairs(build, dim):
    for toy in (words.Toy(5, 15, dim, subwords=2), pairs.Toy(5, 15, dim, subwords=2)):
        words.assert_close(toy.train(build), toy.twin(), dim)


@builds
@few
def test_texts_of_few_tokens_and_words(build, count):
    for toy in (words.Toy(1, count, 3), pairs.Toy(1, count, 3), pairs.Toy(count, 17, 3)):
        words.assert_close(toy.train(build), toy.twin(), 3)


@builds
@dims
@pytest.mark.parametrize("loss", range(4))
def test_lines_of_a_classifier(build, dim, loss):
    toy = classifier.Toy(lines=9, rows=7, labels=3, dim=dim)
    toy.inputs *= min(1, 30 / dim)
    classifier.assert_close(toy.train(build, loss=loss), toy.twin(loss=loss), dim)


@builds
@few
@pytest.mark.parametrize("loss", range(4))
def test_few_lines_rows_and_labels(build, count, loss):
    for sizes in ((1, 1, count), (count, 1, 2), (3, count, 2)):
        toy = classifier.Toy(*sizes, dim=3)
        classifier.assert_close(toy.train(build, loss=loss), toy.twin(loss=loss), 3)


@builds
@dims
@pytest.mark.parametrize("way", ["softmax", "each", "tree"])
def test_probabilities_of_labels(build, dim, way):
    for labels, lines in ((3, 17), (1, 1), (17, 0)):
        case = labelling.Case(labels, dim, lines, way)
        _, found = case.labelling(build).chances(case.ptr, case.features)
        labelling.assert_within(found, case.chances(), case.bounds()[0])


@builds
@dims
def test_factors(build, dim):
    toy = fm.Toy(examples=9, row_num=16, factors=dim)
    fm.assert_close(toy.train(build), toy.twin())


def graph_of(model, dim):
    """Three triples with scores of a few units."""
    graph = triples.Graph(model, dim, entities=30, triples=3)
    graph.rows *= min(1, 12 / dim)
    return graph


@builds
@dims
@pytest.mark.parametrize("model", ["distmult", "transe_l1", "transe_l2"])
def test_triples(build, dim, model):
    graph_of(model, dim).check(build)


@builds
@pytest.mark.parametrize(
    ("model", "dim"),
    [*(("complex", n) for n in (2, 14, 16, 18, 254)), *(("rotate", n) for n in (2, 14, 16, 18))],
)
def test_triples_of_complex_numbers(build, dim, model):
    graph_of(model, dim).check(build)


@builds
@pytest.mark.parametrize("dim", [1, 3, 15, 16, 17, 255])
def test_least_squares(build, dim):
    """Residuals of 5 steps are compared where as many solve nearly all of it."""
    system = least_squares.System(dim, others=9, counts=(1, 0, 4, 17))
    loss = system.solve(build)
    rows, wanted = least_squares.twin.solve_rows(*system.arguments, 5)
    np.testing.assert_allclose(system.rows, rows, atol=3e-4)
    assert loss == pytest.approx(wanted, rel=1e-3)


@builds
@dims
def test_lists_of_best_products(build, dim):
    for rows in (1, 15, 17):
        asked, candidates, left_out = of_whole_numbers(dim, queries=5, rows=rows)
        found = lists_of(build, asked, candidates, 3, left_out)
        wanted = sorted_lists(asked, candidates, 3, left_out)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours[:, :rows], theirs)


@builds
@dims
def test_windows(build, dim):
    toy = cbow.Toy(words=3, dim=dim, window=3, windows=5)
    twin = toy.twin()
    assert toy.train(2, build) == pytest.approx(twin.train(toy.windows, 2), rel=1e-4)
    np.testing.assert_allclose(toy.plain()[0], twin.embedding, atol=2e-4)


@builds
@dims
def test_sparse_products(build, dim):
    for examples, columns in ((5, 1), (17, 3)):
        ptr, rows, values, table, _ = csr.toy(dim, examples, columns, entries=3)
        z = np.full((examples, dim), np.nan, np.float32)
        kernels.load(build).csr_product(ptr, rows, values, table, z)
        exact = csr.twin.csr_product(ptr, rows, values, table)
        assert np.allclose(z, exact, rtol=1e-5, atol=1e-4)
