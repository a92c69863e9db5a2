"""Numeric kernels of the best build that this CPU can run, and the padded arrays they work on.

    abi.loops -> a build -> its functions, re-exported here

Owns the names of the build's functions and the shape of padded arrays.  Models import kernels from
here, never from a build; tests reach other builds by `load`.  Must not know keys, tables or
sockets.

First values of rows (`_rows.h`) and rows on the wire (`_wire_types.h`) have the same bits in every
build.  Trained rows may differ in the last bits: between builds, because each sums as many numbers
at a time as its vectors hold; between processors, where AdaGrad starts from their own estimates of
roots (docs/consistency.md).
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from snailps._kernels import CENTROIDS as CENTROIDS
from snailps._kernels import GROUP as GROUP
from snailps._kernels import PAD as PAD
from snailps._kernels import PANEL as PANEL
from snailps._kernels import POINTS as POINTS
from snailps._kernels import SHARED as SHARED
from snailps._kernels import TOP as TOP
from snailps._kernels import CheckedBags as CheckedBags
from snailps._kernels import CheckedPaths as CheckedPaths
from snailps._kernels import Kernels as Kernels
from snailps.abi.loops import BUILD as BUILD
from snailps.abi.loops import WIRE_TYPES as WIRE_TYPES
from snailps.abi.loops import builds_available as builds_available
from snailps.abi.loops import chosen
from snailps.abi.loops import init_rows as init_rows
from snailps.abi.loops import load as load
from snailps.abi.loops import narrow_pays as narrow_pays
from snailps.abi.loops import row_ops as row_ops
from snailps.abi.loops import wire_ops as wire_ops
from snailps.abi.memory import private_memory
from snailps.abi.quota import cores as cores
from snailps.kernels._labelling import Labelling

HUGE_BYTES = 1 << 22  # larger arrays get huge pages: rows are visited at random, a TLB miss each
HUGE_PAGE = 1 << 21


LANES = chosen.LANES
train_labels = chosen.train_labels
train_linear = chosen.train_linear
checked_bags = chosen.checked_bags
checked_paths = chosen.checked_paths
train_words = chosen.train_words
open_private = chosen.open_private
close_private = chosen.close_private
near = chosen.near
sort_pairs = chosen.sort_pairs
train_pairs = chosen.train_pairs
copy_rows = chosen.copy_rows
bag_means = chosen.bag_means
ftrl_weights = chosen.ftrl_weights
linear_scores = chosen.linear_scores
fm_scores = chosen.fm_scores
train_fm = chosen.train_fm
train_triples = chosen.train_triples
pair_scores = chosen.pair_scores
train_ratings = chosen.train_ratings
solve_rows = chosen.solve_rows
add_gram = chosen.add_gram
best_products = chosen.best_products
unpack_parts = chosen.unpack_parts
subtract_parts = chosen.subtract_parts
csr_product = chosen.csr_product
labelling = partial(Labelling, chosen)
train_codebook = chosen.train_codebook
encode_rows = chosen.encode_rows
csr_gradients = chosen.csr_gradients
cbow_scratch_floats = chosen.cbow_scratch_floats
cbow_loss = chosen.cbow_loss
train_cbow = chosen.train_cbow
add_weighted_rows = chosen.add_weighted_rows


def padded(n: int, dim: int) -> NDArray[np.float32]:
    """Allocate zeros float32[n, stride], 64-byte aligned.

    stride is `dim` rounded up to a multiple of `PAD`.  Pages are taken when they are first written;
    from `HUGE_BYTES` on they are huge.
    """
    if n < 0 or dim < 1:
        raise ValueError(f"padded needs n >= 0 and dim >= 1, got n={n}, dim={dim}")
    stride = -(-dim // PAD) * PAD
    size = n * stride * 4
    if size >= HUGE_BYTES:
        whole = np.frombuffer(private_memory(size + HUGE_PAGE), np.float32)
        # Older Linux kernels map it at any page, and only aligned 2 MiB can be a huge page.
        skip = -whole.ctypes.data % HUGE_PAGE // 4
        return whole[skip : skip + n * stride].reshape(n, stride)
    room = np.zeros(n * stride + PAD, np.float32)
    skip = -room.ctypes.data % (4 * PAD) // 4
    return room[skip : skip + n * stride].reshape(n, stride)
