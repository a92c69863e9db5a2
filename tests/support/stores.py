"""Stores with one table, keys for them, and their checkpoints."""

import struct

import numpy as np
from twins import store as twin

from snailps.abi import loops
from snailps.store._store import ShardStore
from snailps.store.checkpoint._sections import FragmentCursor, copy_fragments

ZEROS, UNIFORM, NORMAL = 0, 1, 2
TOP = 2**64 - 1


def make_store(
    frag_num=1, dim=4, access=twin.ADD, init=ZEROS, scale=0.5, seed=7, hyper=None, track=0
):
    """A store that owns every fragment and has table 0."""
    store = ShardStore(frag_num, loops.row_ops())
    store.own(range(frag_num))
    store.add_table(0, dim, access, init, scale, seed, hyper or (0.5, 1e-6, 0, 0), track)
    return store


def keys_of(*keys):
    return np.array(keys, np.uint64)


def some_keys(count, seed=1):
    """Distinct keys, 0 and 2^64 - 1 among them."""
    drawn = np.random.default_rng(seed).integers(1, TOP, 2 * count, dtype=np.uint64)
    return np.concatenate([keys_of(0, TOP), np.unique(drawn)])[:count]


def scan_all(store, table_id, fragment, max_rows):
    cursor, keys, rows = 0, [], []
    while True:
        cursor, more_keys, more_rows = store.scan(table_id, fragment, cursor, max_rows)
        if not len(more_keys):
            return keys, rows
        keys += more_keys.tolist()
        rows += list(more_rows)


SECTION, MARK, TABLE = struct.Struct("<IIIIQQ"), struct.Struct("<QQ"), struct.Struct("<IIIIQ24x")


def sections_of(store, capacity=1 << 20):
    """Every section of a store, as bytes."""
    buffer = np.zeros(capacity, np.uint8)
    cursor, copies = FragmentCursor(store.fragments()), []
    while True:
        used, sections = copy_fragments(store, cursor, buffer)
        assert used == sum(length for _, _, length, _ in sections)
        copies += [buffer[begin : begin + length].copy() for _, begin, length, _ in sections]
        if not sections:
            return copies


def marks_of(store):
    """fragment -> {incarnation: highest push}."""
    by_fragment = {}
    for section in sections_of(store):
        _, fragment, _, marks, _, _ = SECTION.unpack_from(section)
        end = SECTION.size + marks * MARK.size
        entries = MARK.iter_unpack(section[SECTION.size : end].tobytes())
        by_fragment.setdefault(fragment, {}).update(entries)
    return by_fragment


def ticks_of(store, table_id):
    """key -> tick of the last push to its row, of a table that tracks it."""
    ticks = {}
    for section in sections_of(store):
        _, _, tables, marks, _, _ = SECTION.unpack_from(section)
        at = SECTION.size + marks * MARK.size
        for _ in range(tables):
            number, floats, track, row_bytes, rows = TABLE.unpack_from(section, at)
            at += TABLE.size
            lie = section[at : at + rows * row_bytes].reshape(rows, row_bytes)
            if number == table_id:
                assert (track, row_bytes) == (1, 12 + 4 * floats)
                keys = lie[:, :8].copy().view("<u8")[:, 0]
                ticks |= zip(
                    keys.tolist(), lie[:, -4:].copy().view("<u4")[:, 0].tolist(), strict=True
                )
            at += -(-rows * row_bytes // 8) * 8
    return ticks
