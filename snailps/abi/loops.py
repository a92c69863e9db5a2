"""Loops over rows that servers and clients call, of the best build that this CPU can run.

    abi.builds -> a build -> row_ops, wire_ops: capsules for the store and the transport; init_rows

`snailps.kernels` has the loops of models, which are in the same builds.
"""

from __future__ import annotations

import importlib
import os
from functools import lru_cache

from snailps._kernels import Kernels
from snailps.abi import builds

WIRE_TYPES = {"float32": 0, "float16": 1, "int8": 3}  # of abi/_wire_types.h


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
chosen = load(BUILD)
row_ops = chosen.row_ops
wire_ops = chosen.wire_ops
init_rows = chosen.init_rows


def narrow_pays() -> bool:
    """Whether products of bfloat16 are faster here than of float32; measured once a process.

    False where the environment names a build: that one computes alike in each run.
    """
    return not os.environ.get(builds.VARIABLE) and chosen.narrow_products() == "fast"
