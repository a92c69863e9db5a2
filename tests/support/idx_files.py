"""idx files for tests: any array, and small pictures that a net can tell apart."""

import gzip
import struct

import numpy as np

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
    """An array as an idx file, by the format's page."""
    code = CODES[array.dtype.str[1:]]
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    values = array.astype(array.dtype.newbyteorder(">"))
    return bytes([0, 0, code, array.ndim]) + sizes + values.tobytes()


def write_idx(path, array):
    """Writes an array; packed if the path ends in .gz."""
    data = idx_bytes(array)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def pictures(count, seed, classes=4, side=6, noise=70):
    """Bytes (n, side, side) and labels: a picture a class, under noise that hides single pixels."""
    clean = np.random.default_rng(99).integers(0, 2, (classes, side, side)) * 150
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    noisy = clean[labels] + random.normal(40, noise, (count, side, side))
    return noisy.clip(0, 255).astype(np.uint8), labels.astype(np.uint8)


def write_pictures(folder, name, count, seed):
    """Files NAME and NAME-labels of `pictures`."""
    images, labels = pictures(count, seed)
    write_idx(folder / name, images)
    write_idx(folder / f"{name}-labels", labels)
