"""NumPy twins of snailps/kernels/_wire_types.h: the same bytes by the plainest route.

    float32[n, floats] -> narrow -> uint8[n, row_bytes] -> widen -> float32[n, floats]

float16 is NumPy's own, and int8's scale is rounded by frexp and floor: none of the kernel's
arithmetic on bits.
"""

from __future__ import annotations

import numpy as np

FLOAT32, FLOAT16, INT8 = 0, 1, 3


def to_float16(x: np.ndarray) -> np.ndarray:
    """uint16 of float32: nearest, finite values held at 65,504, NaNs cut short and made quiet."""
    held = np.where(np.isfinite(x), np.clip(x, np.float32(-65504), np.float32(65504)), x)
    with np.errstate(invalid="ignore"):
        half = held.astype(np.float16).view(np.uint16)
    bits = x.view(np.uint32)
    nan = (bits >> 16 & 0x8000) | 0x7E00 | (bits >> 13 & 0x3FF)
    return np.where(np.isnan(x), nan.astype(np.uint16), half)


def scale_of(row: np.ndarray) -> np.float32:
    """max|x| / 127 to 17 bits; NaN for a row that is not finite, 0 where it would be subnormal."""
    if not np.isfinite(row).all():
        return np.uint32(0x7FC00000).view(np.float32)
    exact = np.abs(row).max() * np.float32(1 / 127)
    if exact < np.finfo(np.float32).tiny:
        return np.float32(0)
    mantissa, exponent = np.frexp(np.float64(exact))
    return np.float32(np.ldexp(np.floor(mantissa * 2**17 + 0.5), exponent - 17))


def narrow(wire: int, rows: np.ndarray) -> np.ndarray:
    n = len(rows)
    if wire == FLOAT32:
        return rows.copy().view(np.uint8)
    if wire == FLOAT16:
        return to_float16(rows).view(np.uint8)
    packed = np.zeros((n, 4 + rows.shape[1]), np.uint8)
    for row, out in zip(rows, packed, strict=True):
        scale = scale_of(row)
        out[:4] = np.frombuffer(scale.tobytes(), np.uint8)
        if scale > 0:
            out[4:] = np.rint(row * (np.float32(1) / scale)).astype(np.int8).view(np.uint8)
    return packed


def widen(wire: int, packed: np.ndarray) -> np.ndarray:
    if wire == FLOAT32:
        return packed.copy().view(np.float32)
    if wire == FLOAT16:
        half = packed.copy().view(np.uint16)
        with np.errstate(invalid="ignore"):
            wide = half.view(np.float16).astype(np.float32)
        quiet = wide.view(np.uint32) | 0x400000
        return np.where(np.isnan(wide), quiet, wide.view(np.uint32)).view(np.float32)
    scales = packed[:, :4].copy().view(np.float32)
    return packed[:, 4:].view(np.int8).astype(np.float32) * scales


def narrow_owing(
    wire: int, rows: np.ndarray, residues: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(packed, the new residues)"""
    with np.errstate(invalid="ignore", over="ignore"):
        total = rows + residues
        packed = narrow(wire, total)
        owed = total - widen(wire, packed)
    return packed, np.where(np.isfinite(owed), owed, np.float32(0))


def finite(wire: int, packed: np.ndarray, floats: int) -> int:
    """Values before the first that is not finite once it is widened."""
    with np.errstate(invalid="ignore", over="ignore"):
        return _before(~np.isfinite(widen(wire, packed).reshape(len(packed), floats)))


def fitting(wire: int, rows: np.ndarray) -> int:
    """Values before the first that narrowing would change by more than rounding."""
    limit = 65536 if wire == FLOAT16 else np.inf
    with np.errstate(invalid="ignore"):
        return _before(~(np.abs(rows) < limit))


def _before(bad: np.ndarray) -> int:
    return int(np.argmax(bad)) if bad.any() else bad.size
