# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Triples in the order in which several workers train them: which pass, which partition, which run.

    triples, codes of entities -> own_triples -> a part's triples, pass by pass
    triples of a pass -> in_order -> places of their rows, by output partition, in runs

Every worker goes through all triples once an epoch, so `own_triples` must cost little: each triple is
drawn by its number, and one that another worker trains is not kept.  Must not know rows or leases
(`models/embeddings/triple_rotation.py`); the loops run without the GIL.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

import numpy as np

from snailps.abi._key_hash cimport GOLDEN, mix64

cdef enum:
    CODES = 256
    BITS = 8
    KINDS = 4                   # of runs: the end that is replaced is head or tail, of either side


cdef inline uint64_t draw(uint64_t stream, uint64_t k) noexcept nogil:
    return mix64(stream + GOLDEN * (k + 1))


cdef inline int64_t below(uint64_t random, uint64_t bound) noexcept nogil:
    """0 to bound - 1, by the high half."""
    return <int64_t>(((random >> 32) * bound) >> 32)


def own_triples(const int32_t[:, ::1] triples, const uint8_t[::1] codes,
                const int16_t[:, ::1] part_of, int part, uint64_t stream
                ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Draw the pass of each triple, and keep the triples of a part.

    triples (3, n), heads, relations, tails; codes (entities,), a bit for each of the passes;
    ``part_of[p, c]`` is the part of input rows with code c in pass p.  A triple is drawn one of the
    passes in which the bits of its ends differ, or with equal codes one in which both are 0; it
    belongs to the part of the end whose bit is 0.  Returns this part's triples (3, m), pass by pass, and
    the bounds of the passes (passes + 1,).
    """
    cdef Py_ssize_t n = triples.shape[1], passes = part_of.shape[0], i
    cdef Py_ssize_t entities = codes.shape[0]
    if triples.shape[0] != 3 or part_of.shape[1] != CODES or not 0 < passes <= BITS:
        raise ValueError(f"expected triples (3, n) and parts (1 to {BITS}, {CODES}), got "
                         f"{triples.shape[0]} rows and {passes} by {part_of.shape[1]}")
    pass_array, bounds_array = np.empty(n, np.uint8), np.zeros(passes + 2, np.int64)
    cdef uint8_t[::1] pass_of = pass_array          # of a triple of this part; `passes`: of another
    cdef int64_t[::1] bounds = bounds_array
    cdef uint8_t bit_count[CODES]
    cdef uint8_t bits[CODES][BITS]
    cdef int c, bit, pass_, every = (1 << passes) - 1
    cdef uint8_t head, tail, separate, outer, inner
    for c in range(CODES):
        bit_count[c] = 0
        for bit in range(passes):
            if c >> bit & 1:
                bits[c][bit_count[c]] = <uint8_t>bit
                bit_count[c] += 1
        if not bit_count[c]:
            bits[c][0] = 0
            bit_count[c] = 1
    cdef bint fits = True
    with nogil:
        for i in range(n):
            if not (0 <= triples[0, i] < entities and 0 <= triples[2, i] < entities):
                fits = False
                break
            head, tail = codes[triples[0, i]], codes[triples[2, i]]
            separate = head ^ tail
            if separate == 0:
                separate = <uint8_t>(every & ~head)
            pass_ = bits[separate][below(draw(stream, i), bit_count[separate])]
            outer = <uint8_t>-(head >> pass_ & 1)          # all bits, or none: no branch to mispredict
            inner = (tail & outer) | (head & ~outer)
            pass_ = pass_ if part_of[pass_, inner] == part else <int>passes
            pass_of[i] = <uint8_t>pass_
            bounds[pass_ + 1] += 1
    if not fits:
        raise ValueError(f"expected entities below {entities}, got {triples[0, i]} and {triples[2, i]}")
    for c in range(passes):
        bounds[c + 1] += bounds[c]
    own_array, next_array = np.empty((3, bounds[passes]), np.int32), bounds_array.copy()
    cdef int32_t[:, ::1] own = own_array
    cdef int64_t[::1] next_of = next_array
    cdef Py_ssize_t j
    with nogil:
        for i in range(n):
            if pass_of[i] < passes:
                j = next_of[pass_of[i]]
                next_of[pass_of[i]] = j + 1
                own[0, j], own[1, j], own[2, j] = triples[0, i], triples[1, i], triples[2, i]
    return own_array, bounds_array[: passes + 1]


def in_order(const int32_t[:, ::1] triples, int64_t first, int64_t stop, const int16_t[::1] output_of,
             const int32_t[::1] place_of, int64_t relations_at, int64_t outputs, int64_t run_lines,
             uint64_t stream
             ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Order the triples of a lease, for its checkouts.

    They are `first` to `stop` - 1 of triples (3, n); ``output_of[e]`` is the output partition of entity
    e, -1: an input row; ``place_of[e]`` is the place of its row, ``relations_at`` that of the first
    relation.  The order is random, within output partitions.  The end of a triple that negatives replace is drawn.
    Runs are of a kind: 2 if that end is an output row, plus 1 if it is the tail.  A checkout has
    rounds of a run of each kind, of `run_lines` triples on average, so that none is trained long.

    Returns the places of the rows (3, stop - first), the bounds of the output partitions (outputs + 1,), and
    where runs stop: run ``KINDS * r + kind`` is of round r, counted over all checkouts.  Rounds of
    checkout p end before those of p + 1 begin; it has ``max(1, count // (KINDS * run_lines))``.
    """
    cdef Py_ssize_t n = stop - first, i, j
    cdef Py_ssize_t entities = output_of.shape[0]
    cdef int64_t rank, kind
    cdef int32_t number, head, tail
    cdef int16_t output
    cdef bint fits = (place_of.shape[0] == entities and triples.shape[0] == 3 and run_lines > 0
                      and 0 <= first <= stop <= triples.shape[1] < <int64_t>1 << 31
                      and 0 <= outputs < 1 << 15)
    if not fits:
        raise ValueError(f"expected triples (3, n) from 0 to n, fewer than 2^31, fewer than 2^15 "
                         f"output partitions, got {outputs}, and as many places as outputs, got "
                         f"{triples.shape[0]} by {triples.shape[1]}, {first} to {stop}, "
                         f"{place_of.shape[0]} places and {entities} outputs")
    order_array, key_array = np.empty(n, np.int32), np.empty(n, np.int32)
    ends_array, bounds_array = np.empty((3, n), np.int32), np.zeros(outputs + 1, np.int64)
    cdef int32_t[::1] order = order_array, key = key_array
    cdef int32_t[:, ::1] ends = ends_array
    cdef int64_t[::1] bounds = bounds_array
    with nogil:
        for i in range(n):              # a shuffle
            j = below(draw(stream, i), i + 1)
            order[i] = order[j]
            order[j] = <int32_t>(first + i)
        for i in range(n):
            number = order[i]
            head, tail = triples[0, number], triples[2, number]
            if not (0 <= head < entities and 0 <= tail < entities):
                fits = False
                break
            output = max(output_of[head], output_of[tail])
            if output < 0:              # both are input rows: any checkout will do
                output = <int16_t>below(draw(~stream, i), outputs)
            if output >= outputs:
                fits = False
                break
            key[i] = output             # until rounds are known
            bounds[output + 1] += 1
    if not fits:
        raise ValueError(f"expected entities below {entities}, of {outputs} outputs, got {head} and "
                         f"{tail}")
    counts = bounds_array[1:].copy()
    rounds_array = np.maximum(1, counts // (KINDS * run_lines))
    begin_array = np.concatenate(([0], np.cumsum(rounds_array)))
    stops_array = np.zeros(KINDS * begin_array[outputs] + 1, np.int64)
    rank_array = np.zeros(outputs, np.int64)
    cdef const int64_t[::1] count = counts, rounds = rounds_array
    cdef const int64_t[::1] begin = begin_array
    cdef int64_t[::1] stops = stops_array, ranks = rank_array
    with nogil:
        for i in range(outputs):
            bounds[i + 1] += bounds[i]
        for i in range(n):
            number, output = order[i], <int16_t>key[i]
            rank = ranks[output]
            ranks[output] += 1
            kind = <int64_t>(draw(~stream, i) & 1)
            kind += 2 * (output_of[triples[2 if kind else 0, number]] >= 0)
            key[i] = <int32_t>(KINDS * (begin[output] + rank * rounds[output] // count[output]) + kind)
            stops[key[i] + 1] += 1
        for i in range(stops.shape[0] - 1):
            stops[i + 1] += stops[i]
        for i in range(n):              # stops[k] moves from where run k begins to where it stops
            number = order[i]
            j = stops[key[i]]
            stops[key[i]] += 1
            ends[0, j] = place_of[triples[0, number]]
            ends[1, j] = <int32_t>(relations_at + triples[1, number])
            ends[2, j] = place_of[triples[2, number]]
    return ends_array, bounds_array, stops_array[: KINDS * begin_array[outputs]]
