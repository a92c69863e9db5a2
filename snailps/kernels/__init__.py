"""Numeric kernels of the best build that this CPU can run, and the padded arrays they work on.

    abi.builds -> a build -> its functions, re-exported here

Owns the functions of the build (chosen once, at import) and the shape of padded arrays.  The rest
of the package imports kernels from here, never from a build; tests reach other builds by `load`.
Must not know keys, tables or sockets.

First values of rows (`_rows.h`) and rows on the wire (`_wire_types.h`) have the same bits in every
build.  Trained rows may differ in the last bits: between builds, because each sums as many numbers
at a time as its vectors hold; between processors, where AdaGrad starts from their own estimates of
roots (docs/consistency.md).
"""

from __future__ import annotations

import importlib
from functools import lru_cache, partial

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
from snailps._kernels import Kernels
from snailps.abi import builds
from snailps.abi.memory import private_memory
from snailps.kernels._labelling import Labelling
from snailps.kernels.quota import capacity as capacity
from snailps.kernels.quota import cores as cores

WIRE_TYPES = {"float32": 0, "float16": 1, "int8": 3}  # of abi/_wire_types.h
HUGE_BYTES = 1 << 22  # larger arrays get huge pages: rows are visited at random, a TLB miss each
HUGE_PAGE = 1 << 21


def load(build: str) -> Kernels:
    """Load the kernels of build "base", "avx2" or "avx512".

    ConfigError: unknown name, an instruction set that this CPU lacks, or a build that was not
    compiled.
    """
    builds.check(build)
    return _kernels_of(build)


@lru_cache
def _kernels_of(build: str) -> Kernels:
    return Kernels(importlib.import_module(f"snailps._kernels_{build}").table())


def builds_available() -> list[str]:
    """Return the compiled builds that this CPU can run, best first."""
    return list(builds.available())


BUILD = builds.chosen()
_chosen = load(BUILD)
LANES = _chosen.LANES
row_ops = _chosen.row_ops
init_rows = _chosen.init_rows
train_labels = _chosen.train_labels
train_linear = _chosen.train_linear
checked_bags = _chosen.checked_bags
checked_paths = _chosen.checked_paths
train_words = _chosen.train_words
open_private = _chosen.open_private
close_private = _chosen.close_private
near = _chosen.near
sort_pairs = _chosen.sort_pairs
train_pairs = _chosen.train_pairs
copy_rows = _chosen.copy_rows
bag_means = _chosen.bag_means
ftrl_weights = _chosen.ftrl_weights
linear_scores = _chosen.linear_scores
wire_ops = _chosen.wire_ops
fm_scores = _chosen.fm_scores
train_fm = _chosen.train_fm
train_triples = _chosen.train_triples
pair_scores = _chosen.pair_scores
train_ratings = _chosen.train_ratings
solve_rows = _chosen.solve_rows
add_gram = _chosen.add_gram
best_products = _chosen.best_products
unpack_parts = _chosen.unpack_parts
subtract_parts = _chosen.subtract_parts
csr_product = _chosen.csr_product
labelling = partial(Labelling, _chosen)
train_codebook = _chosen.train_codebook
encode_rows = _chosen.encode_rows
csr_gradients = _chosen.csr_gradients
cbow_scratch_floats = _chosen.cbow_scratch_floats
cbow_loss = _chosen.cbow_loss
train_cbow = _chosen.train_cbow
add_weighted_rows = _chosen.add_weighted_rows


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
