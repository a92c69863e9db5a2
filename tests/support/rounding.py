"""How far float32 computations may be from the exact value: by the lengths of their sums.

    gamma(n)                 a sum of n products, relative to the sum of their sizes
    of_products(a, b)        each entry of a @ b.T
    of_cosines(dim)          a cosine of two rows
    of_chances(...)          probabilities of a classifier; of_table: fastText's own

With u half of the type's eps, n rounded operations multiply by at most 1 + gamma(n), where gamma(n)
is n u / (1 - n u): in any order of a sum, with fused multiplications or without (Higham, Accuracy
and Stability of Numerical Algorithms, 2002, 3.1).  A bound made of these holds on every processor
and for every BLAS.  It is of one computation against the exact value: two of them are apart by the
sum of both.
"""

from __future__ import annotations

import numpy as np

EXP_ERROR = 3e-7
"""Of the kernels' exp, relative; of their logistic function, absolute (`_tiles.h` states both)."""
TABLE_STEP = 16 / 512
"""Between arguments of fastText's table of the logistic function: 512 from -8 to 8."""


def gamma(n, dtype=np.float32):
    """Relative error of n operations in a row."""
    nu = n * float(np.finfo(dtype).eps) / 2
    return nu / (1 - nu)


def of_products(a, b, dtype=np.float32):
    """Bound of each entry of `a @ b.T`: rows in `a`, rows in `b`."""
    a, b = (np.abs(np.asarray(part, np.float64)) for part in (a, b))
    return gamma(a.shape[-1], dtype) * (a @ b.T)


def of_cosines(dim, dtype=np.float32):
    """Bound of a cosine: two lengths, each a sum of squares, a root and a division; then a product.

    By Cauchy and Schwarz the products of two rows of length 1 have sizes of sum 1 at most.
    """
    return gamma(dim + 2 * (dim + 2), dtype)


def of_softmax(scores_error, labels):
    """Bound of a probability, from the largest error of a score.

    p_i moves by p_i (ds_i - sum p_j ds_j), at most 2 p (1 - p) ds <= ds / 2; then the exponentials,
    their sum and a division, with p <= 1.
    """
    return scores_error / 2 + 2 * EXP_ERROR + gamma(labels + 2)


def of_logistic(scores_error, depth=1):
    """Bound of a product of `depth` logistic functions, from the largest error of a score.

    A product of p_k moves by itself times sum (1 - p_k) ds, which is largest where all p are
    depth / (depth + 1); at depth 1 that is ds / 4.
    """
    return scores_error * (depth / (depth + 1)) ** (depth + 1) + depth * (EXP_ERROR + gamma(2))


def of_table(depth=1):
    """Bound of a product of `depth` entries of fastText's table: arguments a step lower at most."""
    return of_logistic(TABLE_STEP, depth)


def of_chances(sizes, features, outputs, way, depth=1):
    """Bound of the probabilities of a line.

    `sizes` are those of the entries of its features' rows, in the mean or more; `features` counts
    the rows: a sum and a division; then a product with each of `outputs`.
    """
    scores = np.abs(np.asarray(outputs, np.float64)) @ np.abs(np.asarray(sizes, np.float64))
    error = gamma(features + 1 + len(sizes)) * float(scores.max(initial=0))
    if way == "softmax":  # the largest score is subtracted from each
        return of_softmax(error + gamma(1) * 2 * float(scores.max()), len(outputs))
    return of_logistic(error, depth)
