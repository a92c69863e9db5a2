# cython: language_level=3, embedsignature=True
"""Python's interface to the numeric loops: rows' first values and updates, training, row arithmetic.

    arrays, settings -> checked -> a job (kernels/_jobs.h) -> a build's table -> arrays, changed

The loops are C headers in kernels/, compiled once per instruction set (see setup.py); this module is
compiled once, and `snailps.kernels` picks a build of the loops.  The loops allocate nothing, run
without the GIL and know arrays only: no keys of tables, no threads' lives, no sockets.  This module
checks the sizes and numbers that the loops rely on, and allocates their scratch.  Each loop has a
NumPy twin in tests/support/twins.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport hash_key
from snailps.abi._prefetch cimport fetch
from snailps.abi._row_ops cimport (
    ACCESS_ADAGRAD, ACCESS_FTRL, ACCESS_SGD, INIT_BITS, INIT_ZEROS, state_floats_of,
)
from snailps.kernels cimport _jobs
from snailps.kernels._jobs cimport (
    BY_MODULUS, BY_PRODUCT, HIERARCHICAL, LOSS_NUM, MULTINOMIAL, NO_RELATION, PAIRWISE, ROTATES, SAMPLING,
    SELF_ADVERSARIAL, SOFTMAX, TURNS, BestJob, CbowNet, CodebookJob, Contexts, Csr, EncodeJob,
    KernelTable, LabelsJob, PrivateJob, RatingsJob, SolveJob, SortedBundle, SortJob, SparseJob, TreePaths, TriplesJob,
    Window, WordsJob,
)

import numpy as np

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)

cdef enum:
    C_DIM_MAX = 65536
    C_WINDOW_MAX = 256
    C_PARTS_MAX = 65536     # uint16
    C_BUNDLE_MAX = 1 << 20
    C_SHARED_MAX = 64
    C_NEGATIVES_MAX = 4096
    TILE = 1024             # examples in an order that are laid behind each other, and trained
    TILE_ENTRIES = 1 << 13  # of them, at most, or those of one example: near the first cache
    TILE_AHEAD = 8          # examples that are fetched before they are copied
    TILE_FETCHED = 64       # entries of such a one, every second line of a cache

cdef int C_PAD = _jobs.PAD
cdef int C_PANEL = _jobs.PANEL
cdef int C_CENTROIDS = _jobs.CENTROIDS
cdef int C_BUNDLE_COPY = _jobs.BUNDLE_COPY
cdef int C_TOP = _jobs.TOP

GROUP: int = _jobs.GROUP        # consecutive centres that are trained together, at most
SHARED: int = _jobs.SHARED      # negatives that a group shares, at most
PAD: int = _jobs.PAD            # row strides are multiples of so many floats: a cache line
PANEL: int = _jobs.PANEL        # words of a panel of output weights
POINTS: int = _jobs.POINTS      # columns of points are padded to a multiple of so many
CENTROIDS: int = _jobs.CENTROIDS    # of a codebook
TOP: int = _jobs.TOP            # nodes of the upper levels of a tree, which threads train copies of


# ---- what every call needs -------------------------------------------------------------------------

cdef char *taken(int64_t size) except NULL:
    """Allocate scratch that starts at a cache line; the caller frees it."""
    cdef char *scratch = NULL
    if posix_memalign(<void **>&scratch, 64, <size_t>size) != 0:
        raise MemoryError(f"no memory for {size} bytes of scratch")
    return scratch


cdef char *zeros(int64_t size) except NULL:
    """Allocate such scratch, filled with zeros."""
    cdef char *scratch = taken(size)
    with nogil:
        memset(scratch, 0, <size_t>size)
    return scratch


cdef const int32_t *ints(const int32_t[::1] x) noexcept:
    return &x[0] if x.shape[0] else NULL


cdef const float *floats(const float[::1] x) noexcept:
    return &x[0] if x.shape[0] else NULL


cdef float *first_of(const float[:, ::1] rows) noexcept:
    """Return a pointer to the first row, even of read-only rows; the caller decides whether to write."""
    return <float *>&rows[0, 0] if rows.shape[0] and rows.shape[1] else NULL


cdef object check_rows(str name, const float[:, ::1] rows):
    if rows.shape[1] % C_PAD or (rows.shape[0] and (<uintptr_t>&rows[0, 0]) % (4 * C_PAD)):
        raise ValueError(
            f"{name} must have a stride that is a multiple of {C_PAD} and 64-byte alignment, got "
            f"shape ({rows.shape[0]}, {rows.shape[1]}); allocate it with snailps.kernels.padded")


cdef object check_span(str what, Py_ssize_t first, Py_ssize_t last, Py_ssize_t count):
    if not 0 <= first <= last <= count:
        raise ValueError(f"{what} {first}..{last - 1} must be among the {count} of ptr")


# ---- examples in an order --------------------------------------------------------------------------

ctypedef void (*Training)(const SparseJob *job, char *scratch, double *loss,
                          double *weight) noexcept nogil

ctypedef int64_t (*ScratchOf)(const SparseJob *job) noexcept nogil

cdef struct Tile:
    int64_t *ptr            # TILE + 1, like the next two but one less
    float *labels
    float *weights
    int32_t *places         # `room`, like the next two, of which fields may be NULL
    float *values
    int32_t *fields
    int64_t room


cdef float rate_at(const SparseJob *job, int64_t i) noexcept nogil:
    """Step size before example i."""
    cdef float share = <float>(i - job.first) / <float>(job.last - job.first)
    return job.rate_start + share * (job.rate_stop - job.rate_start)


cdef int64_t tile_bytes(int64_t room) noexcept nogil:
    return 64 + (TILE + 8) * 16 + room * 12


cdef void set_tile(Tile *tile, char *memory, int64_t room) noexcept nogil:
    tile.ptr = <int64_t *>memory
    tile.labels = <float *>(tile.ptr + TILE + 8)
    tile.weights = tile.labels + TILE
    tile.places = <int32_t *>(tile.weights + TILE)
    tile.values = <float *>(tile.places + room)
    tile.fields = <int32_t *>(tile.values + room)
    tile.room = room


cdef int64_t lay_out(const SparseJob *job, const uint32_t *order, int64_t num,
                     Tile *tile) noexcept nogil:
    """Copy examples of an order one after the other; return how many fit."""
    cdef int64_t i, k, begin, count, at = 0
    cdef uint32_t row
    tile.ptr[0] = 0
    for i in range(min(num, <int64_t>TILE)):
        if i + TILE_AHEAD < num:
            begin = job.ptr[order[i + TILE_AHEAD]]
            count = min(job.ptr[order[i + TILE_AHEAD] + 1] - begin, <int64_t>TILE_FETCHED)
            for k in range(0, count + 31, 32):
                fetch(job.places + begin + min(k, count))
                fetch(job.values + begin + min(k, count))
        row = order[i]
        begin = job.ptr[row]
        count = job.ptr[row + 1] - begin
        if at + count > tile.room:
            return i
        memcpy(tile.places + at, job.places + begin, <size_t>(4 * count))
        memcpy(tile.values + at, job.values + begin, <size_t>(4 * count))
        if job.fields:
            memcpy(tile.fields + at, job.fields + begin, <size_t>(4 * count))
        tile.labels[i] = job.labels[row]
        if job.weights:
            tile.weights[i] = job.weights[row]
        at += count
        tile.ptr[i + 1] = at
    return min(num, <int64_t>TILE)


cdef object check_reach(int reach_min, int window):
    """Raise ValueError unless windows have a reach of at least one word, and no more than fit."""
    if not 1 <= window <= C_WINDOW_MAX:
        raise ValueError(f"window must be 1 to {C_WINDOW_MAX}, got {window}")
    if not 1 <= reach_min <= window:
        raise ValueError(f"reach_min must be 1 to window ({window}), got {reach_min}")


cdef object parts_of_words(str name, object parts, Py_ssize_t word_num, int most):
    """Check that each word has a part below `most`; return the parts in the sorter's type."""
    found = np.ascontiguousarray(parts)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(f"{name} must be an array of whole numbers, one a word, got "
                         f"{found.ndim} dimensions of {found.dtype}")
    if word_num >= 0 and len(found) != word_num:
        raise ValueError(f"{name} must have a part for each of {word_num} words, got {len(found)}")
    if len(found) and not 0 <= found.min() <= found.max() < most:
        raise ValueError(f"{name} must lie in 0..{most - 1}, got {found.min()} to {found.max()}")
    return found.astype(np.uint16, copy=False)


cdef class CheckedBags:
    """Bags that `Kernels.checked_bags` has accepted for a table of `row_num` rows."""

    cdef const int64_t[::1] bag_ptr     # keep what the pointers to them stand for
    cdef const int32_t[::1] bag_rows
    cdef Py_ssize_t row_num
    cdef bint own               # whether each bag is the row of its own number

    def __init__(self):
        raise TypeError("checked bags are what kernels.checked_bags returns")

    cdef bint holds(self, const int64_t[::1] bag_ptr, const int32_t[::1] bag_rows,
                    Py_ssize_t row_num) except -1:
        """Whether these arrays were checked, for a table with at least as many rows as then."""
        return (bag_ptr.shape[0] == self.bag_ptr.shape[0]
                and bag_rows.shape[0] == self.bag_rows.shape[0]
                and bag_ptr.shape[0] > 0 and bag_rows.shape[0] > 0
                and &bag_ptr[0] == &self.bag_ptr[0] and &bag_rows[0] == &self.bag_rows[0]
                and self.row_num <= row_num)


cdef class CheckedPaths:
    """Paths of a tree's leaves, which `Kernels.checked_paths` has accepted for `row_num` rows."""

    cdef const int64_t[::1] ptr
    cdef const int32_t[::1] turns
    cdef const int32_t[::1] top
    cdef Py_ssize_t row_num

    def __init__(self):
        raise TypeError("checked paths are what kernels.checked_paths returns")

    def __len__(self) -> int:
        return self.ptr.shape[0] - 1

    cdef TreePaths of(self, Py_ssize_t row_num) except *:
        """The paths for a kernel, whose `outputs` have `row_num` rows."""
        if row_num < self.row_num:
            raise ValueError(f"outputs must have a row for each node of the paths, {self.row_num} at "
                             f"least, got {row_num}")
        cdef TreePaths paths
        paths.ptr, paths.turns, paths.top = &self.ptr[0], ints(self.turns), &self.top[0]
        return paths


cdef class SortedPairs:
    """Skip-gram pairs of a text, as `Kernels.sort_pairs` has sorted them."""

    cdef object _words, _bundles, _pairs
    cdef const KernelTable *table
    cdef SortJob job
    cdef object kept            # alive: what table and job point into

    def __init__(self):
        raise TypeError("sorted pairs are what kernels.sort_pairs returns")

    def __dealloc__(self):
        cdef int part
        if self.job.split != NULL:
            for part in range(self.job.parts):
                free(self.job.split[part].words)
            free(self.job.split)

    @property
    def words(self) -> NDArray[np.int32]:
        """Words of the input partition, int32[n]."""
        return self._words

    @property
    def bundles(self) -> NDArray[np.int64]:
        """Number of bundles of each of `words`, int64[n]."""
        return self._bundles

    @property
    def pairs(self) -> NDArray[np.int64]:
        """Number of pairs of each output partition, including those left out, int64[parts]."""
        return self._pairs

    def take(self, int part) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """Order the bundles of an output partition as they are trained, and free its pairs.

        Returns centres int32[b]; starts int64[b + 1]; contexts int32[pairs]; bundle i has
        the contexts ``contexts[starts[i]:starts[i + 1]]``.  Raises ValueError if there is no such
        part, or if it was taken before.
        """
        cdef SortJob job = self.job
        if not 0 <= part < job.parts:
            raise ValueError(f"part must lie in 0..{job.parts - 1}, got {part}")
        if job.split[part].words == NULL:
            raise ValueError(f"part {part} has been taken")
        cdef int64_t num, pair_num = job.split[part].size
        with nogil:
            num = self.table.count_bundles(&job, part)
        cdef int32_t[:, ::1] bundles = np.empty((num + 1, 2), np.int32)
        cdef int32_t[::1] order = np.empty(max(1, 2 * num), np.int32)
        cdef int32_t[::1] centres = np.empty(max(1, num), np.int32)
        cdef int64_t[::1] starts = np.empty(num + 1, np.int64)
        cdef int32_t[::1] contexts = np.empty(pair_num + C_BUNDLE_COPY, np.int32)
        job.bundles, job.order = <SortedBundle *>&bundles[0, 0], &order[0]
        job.centres, job.starts, job.contexts = &centres[0], &starts[0], &contexts[0]
        with nogil:
            self.table.order_bundles(&job, part, num)
        free(job.split[part].words)
        job.split[part].words = NULL
        return centres.base[:num], starts.base, contexts.base[:pair_num]


cdef class Kernels:
    """The kernels of one build, from its table, a PyCapsule.

    Loops over rows release the GIL.  Arrays of the wrong shape, or numbers out of range, raise
    ValueError.  Ranges are half-open, ``first..last - 1``.  The rate is linear from `lr_start` at the
    first example to `lr_stop` after the last; `seed` is a uint64; `eps` is added to AdaGrad's root.
    """

    cdef readonly object capsule    # keeps what table points into
    cdef const KernelTable *table
    cdef int narrow     # of `narrow_products`; -1: not measured

    def __init__(self, capsule: object):
        self.capsule = capsule
        self.narrow = -1
        self.table = <const KernelTable *>PyCapsule_GetPointer(capsule, b"snailps.kernels")

    @property
    def LANES(self) -> int:
        """float32 lanes of a vector: 4 (base), 8 (avx2), 16 (avx512)."""
        return self.table.lanes

    def narrow_products(self) -> str:
        """Return how products of bfloat16 do here beside those of float32: "none" where this build or
        this processor has no instruction for them, else "slow" or "fast".  The first call measures, in
        about a millisecond; a virtual machine that is moved keeps the answer until the process ends.
        """
        if self.narrow < 0:
            self.narrow = self.table.narrow_products()
        return ("none", "slow", "fast")[self.narrow]

    cdef bint in_range(self, const int32_t[::1] x, int64_t low, int64_t high):
        """Whether all of x is in low..high-1."""
        if x.shape[0] == 0:
            return True
        if high <= low or high > <int64_t>1 << 31:
            return False
        cdef const int32_t *at = &x[0]
        cdef Py_ssize_t n = x.shape[0]
        cdef bint inside
        with nogil:
            inside = self.table.in_range(at, n, <int32_t>low, <int32_t>(high - 1))
        return inside

    cdef object check_ptr(self, const int64_t[::1] bag_ptr, const int32_t[::1] bag_rows,
                          int64_t least, str ptr, str rows, Py_ssize_t first, Py_ssize_t last):
        """Check the offsets of bags with at least `least` entries: of all bags, or of first..last-1."""
        cdef Py_ssize_t w, bag_num = bag_ptr.shape[0] - 1
        cdef int bad = 0
        if bag_num < 0 or bag_ptr[0] != 0 or bag_ptr[bag_num] > bag_rows.shape[0]:
            raise ValueError(
                f"{ptr} must start with 0 and end within {rows} ({bag_rows.shape[0]} entries)")
        if last < 0:
            last = bag_num
        check_span("bags", first, last, bag_num)
        # Compared before they are subtracted: differences of any numbers wrap, and a few huge steps end
        # within the entries again.
        with nogil:
            for w in range(first, last):
                bad |= bag_ptr[w + 1] < bag_ptr[w] or \
                    <uint64_t>bag_ptr[w + 1] - <uint64_t>bag_ptr[w] < <uint64_t>least
        if bad:
            raise ValueError(f"{ptr} must rise by at least {least} from one to the next")
        # Between these two bags all rise; they may still lie outside.
        if not 0 <= bag_ptr[first] <= bag_ptr[last] <= bag_rows.shape[0]:
            raise ValueError(f"{ptr} must lie in 0..{bag_rows.shape[0]}, the entries of {rows}")

    cdef object check_bags(self, const int64_t[::1] bag_ptr, const int32_t[::1] bag_rows,
                           Py_ssize_t row_num, int64_t least, str ptr="bag_ptr",
                           str rows="bag_rows", str table="inputs", Py_ssize_t first=0,
                           Py_ssize_t last=-1):
        """Check that bags have at least `least` rows, all inside the table: all bags, or first..last-1.

        Only the bags of the range are read, so a block that is trained in many spans is checked
        once as a whole.
        """
        self.check_ptr(bag_ptr, bag_rows, least, ptr, rows, first, last)
        if last < 0:
            last = bag_ptr.shape[0] - 1
        if not self.in_range(bag_rows[bag_ptr[first]:bag_ptr[last]], 0, row_num):
            raise ValueError(f"{rows} must lie in 0..{row_num - 1}, the rows of {table}")

    # ---- stored rows -------------------------------------------------------------------------------

    def row_ops(self) -> object:
        """PyCapsule "snailps.row_ops": the static `RowOps` of this build (abi/_row_ops.h)."""
        return PyCapsule_New(<void *>&self.table.rows, b"snailps.row_ops", NULL)

    def init_rows(self, int kind, float scale, uint64_t seed, const uint64_t[::1] keys not None,
                  float[:, ::1] out not None) -> None:
        """Write the initial weights of each key's row into float32[n, dim], dim 1 to 65,536.

        `kind`: 0 zeros; 1 uniform in [-scale, scale); 2 normal of deviation `scale`; 3 the same
        with 0 in column 0; 4 the 64 bits of `seed` in each two words.  Element j takes draw j of the
        SplitMix64 stream of (seed, key).
        """
        cdef Py_ssize_t i, n = keys.shape[0], dim = out.shape[1]
        if not INIT_ZEROS <= kind <= INIT_BITS:
            raise ValueError(f"kind must be 0 (zeros), 1 (uniform), 2 (normal), 3 (factors) or 4 (bits), "
                             f"got {kind}")
        if out.shape[0] != n or not 1 <= dim <= C_DIM_MAX:
            raise ValueError(f"out must have {n} rows, one a key, of 1 to {C_DIM_MAX} numbers, got "
                             f"({out.shape[0]}, {dim})")
        with nogil:
            for i in range(n):
                self.table.rows.init(kind, scale, seed, keys[i], &out[i, 0], <uint32_t>dim)

    # ---- rows on the wire --------------------------------------------------------------------------

    def wire_ops(self) -> object:
        """PyCapsule "snailps.wire_ops": the static `WireOps` of this build (abi/_wire_types.h)."""
        return PyCapsule_New(<void *>&self.table.wire, b"snailps.wire_ops", NULL)

    # ---- word vectors ------------------------------------------------------------------------------

    def checked_bags(self, bag_ptr not None: NDArray[np.int64],
                     bag_rows not None: NDArray[np.int32], Py_ssize_t row_num) -> CheckedBags:
        """Check bags for `train_words` and `train_pairs` once for many calls; the arrays become
        read-only.

        A call with other arrays, or with a table of fewer than `row_num` rows, checks again.
        """
        # The kernels trust what was checked: a change would have them write out of bounds.
        bag_ptr.flags.writeable = bag_rows.flags.writeable = False
        self.check_bags(bag_ptr, bag_rows, row_num, 1)
        cdef CheckedBags checked = CheckedBags.__new__(CheckedBags)
        checked.bag_ptr, checked.bag_rows, checked.row_num = bag_ptr, bag_rows, row_num
        checked.own = len(bag_rows) == len(bag_ptr) - 1 and \
            np.array_equal(bag_rows, np.arange(len(bag_rows)))
        return checked

    def checked_paths(self, ptr not None: NDArray[np.int64], turns not None: NDArray[np.int32],
                      top not None: NDArray[np.int32], Py_ssize_t row_num) -> CheckedPaths:
        """Check the paths of a tree's leaves for many calls; the arrays become read-only.

        Leaf i is reached by ``turns[ptr[i]:ptr[i + 1]]``, from the root down: 2 r + 1 where the path
        goes to the right child of the node whose row is r, 2 r where it goes to the left one.  `top`
        int32[TOP] has the rows of the nodes of the upper levels, numbered as in a heap: 0 is the root,
        2 i + 1 and 2 i + 2 are the children of i; -1: no path meets this node.  Rows are below
        `row_num`.
        """
        ptr.flags.writeable = turns.flags.writeable = top.flags.writeable = False
        cdef CheckedPaths checked = CheckedPaths.__new__(CheckedPaths)
        cdef Py_ssize_t leaf, at, node
        cdef bint right = True
        checked.ptr, checked.turns, checked.top, checked.row_num = ptr, turns, top, row_num
        self.check_ptr(checked.ptr, checked.turns, 0, "ptr", "turns", 0, -1)
        if row_num > 1 << 30 or not self.in_range(checked.turns, 0, 2 * row_num):
            raise ValueError(f"turns must lie in 0..{2 * row_num - 1}: twice a row, and the side")
        if top.shape[0] != C_TOP or not self.in_range(checked.top, -1, row_num):
            raise ValueError(f"top must have {C_TOP} rows of -1..{row_num - 1}")
        with nogil:
            for leaf in range(checked.ptr.shape[0] - 1):
                node = 0
                for at in range(checked.ptr[leaf], checked.ptr[leaf + 1]):
                    if node >= C_TOP:
                        break
                    right &= checked.top[node] == checked.turns[at] >> 1
                    node = 2 * node + 1 + (checked.turns[at] & 1)
        if not right:
            raise ValueError("top must have the rows of the nodes with which paths begin")
        return checked

    cdef bint check_bags_of_words(self, CheckedBags checked, const int64_t[::1] bag_ptr,
                                  const int32_t[::1] bag_rows, Py_ssize_t row_num) except -1:
        """Check the bags of words, unless they were checked before.

        Returns whether every bag is known to be the single row of its word's own number.
        """
        if checked is not None and checked.holds(bag_ptr, bag_rows, row_num):
            return checked.own
        self.check_bags(bag_ptr, bag_rows, row_num, 1)
        return False

    cdef const float *check_weights(self, const float[::1] weights,
                                    const int32_t[::1] bag_rows) except? NULL:
        """Check that there is a weight for each entry of the bags; NULL if there are no weights."""
        if weights is None:
            return NULL
        if weights.shape[0] != bag_rows.shape[0]:
            raise ValueError(f"weights must be as many as bag_rows ({bag_rows.shape[0]}), got "
                             f"{weights.shape[0]}")
        return &weights[0] if weights.shape[0] else NULL

    cdef object check_tables(self, float[:, ::1] inputs, float[:, ::1] outputs, int dim,
                             const int32_t[::1] noise, const float[::1] noise_logit,
                             int negatives, CheckedPaths paths):
        """Check the rows to train, and the negatives, which are numbers of these rows; or no negatives
        beside paths."""
        cdef Py_ssize_t out_num = outputs.shape[0]
        check_rows("inputs", inputs)
        check_rows("outputs", outputs)
        if inputs.shape[1] != outputs.shape[1] or not 1 <= dim <= inputs.shape[1]:
            raise ValueError(f"inputs and outputs must be as wide as each other and at least dim = "
                             f"{dim}, at least 1; got {inputs.shape[1]} and {outputs.shape[1]}")
        if inputs.shape[1] > C_DIM_MAX:
            raise ValueError(f"rows must have at most {C_DIM_MAX} columns, got {inputs.shape[1]}")
        if noise_logit.shape[0] not in (0, out_num):
            raise ValueError(f"noise_logit must be empty or have a number for each of the {out_num} "
                             f"rows of outputs, got {noise_logit.shape[0]}")
        if paths is not None:
            if negatives or noise.shape[0] or noise_logit.shape[0]:
                raise ValueError(f"with paths there are no negatives, got {negatives} of "
                                 f"{noise.shape[0]} words and {noise_logit.shape[0]} logits")
            return
        if negatives < 1 or noise.shape[0] < 1:
            raise ValueError(f"negatives must be at least 1, got {negatives}, and noise must not be "
                             f"empty, got {noise.shape[0]} words")
        if not self.in_range(noise, 0, out_num):
            raise ValueError(f"noise must lie in 0..{out_num - 1}, the rows of outputs")

    cdef object take_words(self, WordsJob *job, float[:, ::1] inputs, float[:, ::1] outputs, int dim,
                           const int64_t[::1] bag_ptr, const int32_t[::1] bag_rows,
                           const int32_t[::1] noise, const float[::1] noise_logit, int negatives,
                           const float[::1] weights, squares, float eps, float lr_start,
                           float lr_stop, uint64_t seed, CheckedPaths paths, bint shared,
                           bint narrow):
        """Check what `train_words` and `train_pairs` share, except AdaGrad's sums.

        The job points into the arrays, so the caller keeps them alive.
        """
        cdef float[:, ::1] input_squares
        cdef float[:, ::1] output_squares
        memset(job, 0, sizeof(job[0]))
        job.epsilon = eps
        job.inputs = &inputs[0, 0]
        job.outputs = &outputs[0, 0]
        job.bag_ptr = &bag_ptr[0]
        job.bag_rows = &bag_rows[0]
        job.bag_weights = self.check_weights(weights, bag_rows)
        job.noise = ints(noise)
        job.noise_logit = floats(noise_logit)
        if paths is not None:
            job.paths = paths.of(outputs.shape[0])
            job.copied = shared and squares is None     # sums of squares have no copies
        job.noise_num = noise.shape[0]
        job.stride = inputs.shape[1]
        job.dim = dim
        job.negatives = negatives
        job.rate_start = lr_start
        job.rate_stop = lr_stop
        job.stream = hash_key(seed)
        if narrow and self.narrow_products() == "none":
            raise ValueError("narrow: this build or processor has no products of bfloat16")
        job.narrow = narrow
        if squares is None:
            return
        input_squares, output_squares = squares
        check_rows("squares of inputs", input_squares)
        check_rows("squares of outputs", output_squares)
        if input_squares.shape[0] != inputs.shape[0] \
                or output_squares.shape[0] != outputs.shape[0] \
                or input_squares.shape[1] != inputs.shape[1] \
                or output_squares.shape[1] != inputs.shape[1]:
            raise ValueError(f"squares must have the shapes of the rows, got "
                             f"{input_squares.shape[0]} x {input_squares.shape[1]} and "
                             f"{output_squares.shape[0]} x {output_squares.shape[1]}")
        if not eps > 0:
            raise ValueError(f"eps must be above 0, got {eps}")
        job.input_squares = &input_squares[0, 0]
        job.output_squares = &output_squares[0, 0]

    def train_words(self, float[:, ::1] inputs, float[:, ::1] outputs, int dim,
                    const int32_t[::1] tokens, bag_ptr: NDArray[np.int64] | NDArray[np.int32],
                    const int32_t[::1] bag_rows, const int32_t[::1] noise,
                    const float[::1] noise_logit, *, int window, int negatives, float lr_start,
                    float lr_stop, uint64_t seed, int reach_min=1,
                    targets: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None,
                    squares: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
                    float eps=1e-8, CheckedBags bags=None,
                    weights: NDArray[np.float32] | None = None, CheckedPaths paths=None,
                    bint shared=False, bint carry=True, bint narrow=False) -> tuple[float, int]:
        """Train CBOW word vectors on `tokens`, in place; returns (sum of losses, centres with a
        context).

        inputs, outputs float32[n, stride] of `kernels.padded`, zeros from column `dim` on; row w of
        `outputs` is the output vector of word w; rows after the words serve as noise only.  Tokens:
        word numbers, already subsampled, -1 ends a sentence.  Word w is the mean of the rows
        ``bag_rows[bag_ptr[w]:bag_ptr[w + 1]]`` (one or more), each of which gets the whole
        gradient.  `weights` float32, as many as `bag_rows` and above 0: how often each entry counts in
        the mean, as it stands for so many equal rows; None: once.  `noise`: rows of `outputs`, drawn
        from the noise distribution.  `noise_logit` float32[n_out] is subtracted from scores:
        ``log(negatives * q(w))`` for NCE; empty for negative sampling.

        Each centre draws its reach from reach_min..window (1 to 256).  The rate is linear from the
        first token to the end of the last. `targets`: ascending offsets in `tokens` of the centres to
        train, and the row of `outputs` of each; None: all words. `squares`: AdaGrad's sums, updated
        with the rows.  `bags`: result of `checked_bags` for these arrays.

        With `paths` (hierarchical softmax) there are no negatives: words and rows of `targets` are leaves,
        and the rows of a leaf's path are stepped.  `shared`: other threads train on the same arrays, so
        each trains copies of the nodes near the root, and exchanges them every 64 groups; not with
        `squares`.

        GROUP centres share CBOW_NOISE noise words, each weighted ``negatives / CBOW_NOISE``; a noise
        word that is the centre does not count for it.  A group reads all its rows before it changes one,
        and several steps at once from the same row overshoot.  So a centre that repeats waits for a later
        group; with bags of several rows, or with `squares`, up to one lane in six is judged in turn, and
        the next centre that repeats ends the group.  `carry`: the bag of a place that two successive
        groups have is summed and stepped once for both, and until then lacks the steps of other places;
        not with `squares`.  `narrow`: factors of products with noise rows are rounded to bfloat16, sums are
        float32; ValueError where `narrow_products` says "none".

        Writers may race (Hogwild). Equal seed and rows, equal bits, on one thread of one build; with
        `squares`, unless the build is base, also only on processors of one maker, because these builds
        use the processor's estimates of roots and reciprocals.
        """
        cdef const int64_t[::1] pointers = np.ascontiguousarray(bag_ptr, dtype=np.int64)
        cdef Py_ssize_t word_num = pointers.shape[0] - 1
        cdef Py_ssize_t out_num = outputs.shape[0]
        cdef Py_ssize_t target_max = out_num if paths is None else len(paths)
        self.check_tables(inputs, outputs, dim, noise, noise_logit, negatives, paths)
        cdef bint own = self.check_bags_of_words(bags, pointers, bag_rows, inputs.shape[0])
        if targets is None and word_num > target_max:
            raise ValueError(
                f"outputs ({out_num} rows), or paths, must have one for each word ({word_num})")
        check_reach(reach_min, window)
        if not self.in_range(tokens, -1, word_num):
            raise ValueError(f"tokens must lie in -1..{word_num - 1}: words that have a bag")
        if tokens.shape[0] == 0 or word_num == 0 or inputs.shape[0] == 0:
            return 0.0, 0           # nothing but sentence ends

        cdef WordsJob job
        cdef char *scratch
        cdef double loss = 0
        cdef int64_t examples = 0
        cdef const int32_t[::1] places, rows
        self.take_words(&job, inputs, outputs, dim, pointers, bag_rows, noise, noise_logit, negatives,
                        weights, squares, eps, lr_start, lr_stop, seed, paths, shared, narrow)
        if targets is not None:
            places, rows = targets
            if places.shape[0] != rows.shape[0]:
                raise ValueError(f"targets must be as many places as rows, got {places.shape[0]} "
                                 f"and {rows.shape[0]}")
            if not self.in_range(places, 0, tokens.shape[0]) \
                    or not self.in_range(rows, 0, target_max):
                raise ValueError(f"targets must be places in the {tokens.shape[0]} tokens, and "
                                 f"{target_max} rows of outputs, or leaves")
            if places.shape[0] == 0:
                return 0.0, 0
            job.targets = &places[0]
            job.target_rows = &rows[0]
            job.target_num = places.shape[0]
        job.tokens = &tokens[0]
        job.token_num = tokens.shape[0]
        job.window, job.reach_min = window, reach_min
        job.carry = carry and squares is None           # rows of a bag take different steps of AdaGrad
        # No bag is empty, so as many rows as bags are one each; a weight makes it several.
        job.single = job.bag_weights == NULL and \
            pointers[pointers.shape[0] - 1] == pointers.shape[0] - 1
        job.own = own
        scratch = zeros(self.table.words_scratch(&job))
        with nogil:
            self.table.words(&job, scratch, &loss, &examples)
            free(scratch)
        return loss, examples

    cdef PrivateJob private_job(self, float[:, ::1] inputs, const int32_t[::1] words,
                                const int64_t[::1] bag_ptr, const int32_t[::1] bag_rows,
                                const float[:, ::1] begins, Py_ssize_t first) except *:
        """Check what `open_private` and `close_private` share; the job points into the arrays."""
        cdef PrivateJob job
        cdef Py_ssize_t word_num = bag_ptr.shape[0] - 1
        memset(&job, 0, sizeof(job))
        self.check_bags(bag_ptr, bag_rows, first, 0)
        if not 0 <= first <= inputs.shape[0] - word_num:
            raise ValueError(f"inputs ({inputs.shape[0]} rows) must have {first} rows of bags, and then a "
                             f"private row for each of {word_num} words")
        if inputs.shape[1] % self.table.lanes or begins.shape[1] != inputs.shape[1] \
                or begins.shape[0] != words.shape[0]:
            raise ValueError(f"begins ({begins.shape[0]} x {begins.shape[1]}) must have a row for each of "
                             f"{words.shape[0]} words, as wide as inputs ({inputs.shape[1]}), in whole "
                             f"vectors of {self.table.lanes}")
        if not self.in_range(words, 0, word_num):
            raise ValueError(f"words must lie in 0..{word_num - 1}: words that have a bag")
        job.stride, job.first, job.num = inputs.shape[1], first, words.shape[0]
        if job.num:
            job.inputs, job.words = &inputs[0, 0], &words[0]
            job.bag_ptr, job.bag_rows = &bag_ptr[0], ints(bag_rows)
        return job

    def open_private(self, float[:, ::1] inputs, const int32_t[::1] words not None,
                     const int64_t[::1] bag_ptr not None, const int32_t[::1] bag_rows not None,
                     float[:, ::1] begins, Py_ssize_t first,
                     weights: NDArray[np.float32] | None = None) -> None:
        """Set the private row of each of `words` to the mean of its bag, and copy it to `begins`.

        inputs float32[n, stride] of `kernels.padded`; the private row of word w is row ``first + w``,
        and bags have rows below `first`.  `begins` float32[len(words), stride].  Bags and `weights`:
        as for `train_words`; an empty bag has the mean 0.  Words may not repeat.
        """
        cdef PrivateJob job = self.private_job(inputs, words, bag_ptr, bag_rows, begins, first)
        job.bag_weights = self.check_weights(weights, bag_rows)
        if job.num:
            with nogil:
                self.table.open_private(&job, &begins[0, 0])

    def close_private(self, float[:, ::1] inputs, const int32_t[::1] words not None,
                      const int64_t[::1] bag_ptr not None, const int32_t[::1] bag_rows not None,
                      float[:, ::1] begins, Py_ssize_t first) -> None:
        """Add what private rows have learnt since `open_private` to each row of their bags.

        Arguments as there; afterwards `begins` has what each has learnt.
        """
        cdef PrivateJob job = self.private_job(inputs, words, bag_ptr, bag_rows, begins, first)
        if job.num:
            with nogil:
                self.table.close_private(&job, &begins[0, 0])

    def near(self, const int32_t[::1] tokens, inputs: NDArray[np.integer], int part, int window, *,
             int64_t first=0, Py_ssize_t skip=0, bint last=True
             ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the tokens within `window` of a centre of `part`, and their offsets in the text.

        This is all of a text that `sort_pairs` needs for the part; -1 marks gaps.
        `tokens` may be a span of the text that begins at offset `first`.  The first `skip` tokens
        serve as context only, and so do the last `window`, unless the span is the `last`.
        """
        cdef Py_ssize_t word_num = -1, n = tokens.shape[0], i, j, num = 0, end
        cdef Py_ssize_t centre_num = 0, done, begin, stop
        cdef int32_t word
        if not 1 <= window <= C_WINDOW_MAX:
            raise ValueError(f"window must be 1 to {C_WINDOW_MAX}, got {window}")
        if first < 0 or first + n > 0x7fffffff:
            raise ValueError(f"places must be below 2^31, got {first} to {first + n}")
        end = max(skip, n if last else n - window)
        if not 0 <= skip <= n:
            raise ValueError(f"skip must be 0 to {n}, got {skip}")
        cdef const uint16_t[::1] of = parts_of_words("inputs", inputs, word_num, C_PARTS_MAX)
        if not self.in_range(tokens, -1, of.shape[0]):
            raise ValueError(f"tokens must lie in -1..{of.shape[0] - 1}: words that have a part")
        cdef int32_t[::1] kept = np.empty(max(1, end - skip), np.int32)
        cdef int32_t[::1] origins = np.empty(max(1, end - skip), np.int32)
        cdef int32_t[::1] centres = np.empty(max(1, n), np.int32)
        with nogil:
            for j in range(max(0, skip - window), n if of.shape[0] else 0):  # no branch in it
                word = tokens[j]
                centres[centre_num] = <int32_t>j
                centre_num += (word >= 0) & (of[word if word >= 0 else 0] == part)
            done = skip
            for j in range(centre_num):
                begin, stop = max(done, centres[j] - window), min(end, centres[j] + window + 1)
                if stop <= begin:
                    continue
                if begin > done:
                    kept[num], origins[num] = -1, 0
                    num += 1
                for i in range(begin, stop):
                    kept[num], origins[num] = tokens[i], <int32_t>(first + i)
                    num += 1
                done = stop
            if done < end:
                kept[num], origins[num] = -1, 0
                num += 1
        return kept.base[:num], origins.base[:num]

    def sort_pairs(self, const int32_t[::1] tokens, int window, uint64_t seed, int most=12, *,
                   int run=1, int reach_min=1, inputs: NDArray[np.integer] | None = None, int part=0,
                   outputs: NDArray[np.integer] | None = None, int parts=1,
                   without: Sequence[int] = (),
                   const int32_t[::1] origins=None) -> SortedPairs:
        """Sort the skip-gram pairs of a text into bundles: a centre word and up to `most` of its
        contexts.

        A reach, reach_min..window, depends only on the seed and the offset in `tokens`, so all parts
        of a text see the same windows.  Up to `run` (1 to 1024) bundles of a centre are consecutive,
        GROUP centres interleaved: `train_pairs` reads and writes the bag of a centre once a run.  Runs of
        a part are in random order.

        `inputs`: part of each word as a centre; only centres of `part` are taken.  `outputs`:
        part of each word as a context.  Arrays of uint16 are not copied.  `without`: output
        partitions whose pairs are left out; the order of the others does not change.  `origins`:
        offset of each token in the text, if `near` has left out tokens.  Time is linear
        in words and pairs, fewer than 2^31 of each.  Raises MemoryError if the pairs do not fit.
        """
        cdef Py_ssize_t word_num = -1
        check_reach(reach_min, window)
        if not 1 <= most <= C_BUNDLE_MAX:
            raise ValueError(f"most must be 1 to {C_BUNDLE_MAX}, got {most}")
        if not 1 <= run <= 1024:
            raise ValueError(f"run must be 1 to 1024, got {run}")
        if not 1 <= parts <= C_PARTS_MAX:
            raise ValueError(f"parts must be 1 to {C_PARTS_MAX}, got {parts}")
        if outputs is None and parts > 1:
            raise ValueError(f"outputs must have the part of each word where there are {parts}")
        if len(without) and parts == 1:
            raise ValueError("without must be empty where there is one part")
        if len(without) and not 0 <= min(without) <= max(without) < parts:
            raise ValueError(f"without must lie in 0..{parts - 1}, got {min(without)} to "
                             f"{max(without)}")
        if tokens.shape[0] > 0x7fffffff:
            raise ValueError(f"tokens must be fewer than 2^31, got {tokens.shape[0]}")
        if origins is not None and origins.shape[0] != tokens.shape[0]:
            raise ValueError(f"origins must be {tokens.shape[0]}, got {origins.shape[0]}")
        cdef const uint16_t[::1] of_centre
        cdef const uint16_t[::1] of_context
        cdef SortJob job
        memset(&job, 0, sizeof(job))
        if inputs is not None:
            of_centre = parts_of_words("inputs", inputs, word_num, C_PARTS_MAX)
            word_num = of_centre.shape[0]
            job.inputs = &of_centre[0] if word_num else NULL
        if outputs is not None:
            of_context = parts_of_words("outputs", outputs, word_num, parts)
            word_num = of_context.shape[0]
            job.outputs = &of_context[0] if word_num else NULL
        if word_num < 0:
            word_num = 1 + (int(np.max(tokens)) if tokens.shape[0] else -1)
        if not self.in_range(tokens, -1, word_num):
            raise ValueError(f"tokens must lie in -1..{word_num - 1}: words that have a part")
        job.tokens = ints(tokens)
        job.origins = NULL if origins is None else ints(origins)
        job.token_num = tokens.shape[0]
        job.word_num = word_num
        job.part = part
        job.parts = parts
        cdef uint32_t[::1] kept = np.ones(parts, np.uint32)
        for one in without:
            kept[one] = 0
        job.kept = &kept[0]
        job.window, job.reach_min = window, reach_min
        job.most = most
        job.run = run
        job.stream = hash_key(seed)

        cdef int32_t[::1] numbers = np.empty(max(1, word_num), np.int32)
        cdef int32_t[::1] words = np.empty(word_num + 1, np.int32)
        cdef int32_t[::1] places = np.empty(max(1, job.token_num), np.int32)
        job.numbers, job.words, job.places = &numbers[0], &words[0], &places[0]
        cdef int64_t centre_num
        with nogil:
            job.input_num = self.table.number_inputs(&job)
            centre_num = self.table.find_centres(&job)
        cdef int32_t[:, ::1] by_word = np.empty((max(1, centre_num), 2), np.int32)
        cdef int32_t[::1] first = np.empty(job.input_num + 1, np.int32)
        cdef intptr_t[::1] ends = np.empty(parts, np.intp)
        cdef uint32_t[:, ::1] counts = np.empty((parts, max(1, job.input_num)), np.uint32)
        cdef int64_t[::1] pairs = np.empty(parts, np.int64)
        job.sorted, job.first, job.ends = <Window *>&by_word[0, 0], &first[0], <int32_t **>&ends[0]
        job.counts, job.pairs = &counts[0, 0], &pairs[0]
        job.split = <Contexts *>zeros(parts * sizeof(Contexts))
        cdef SortedPairs found = SortedPairs.__new__(SortedPairs)
        found.job, found.table, found.kept = job, self.table, (self, words, counts)
        cdef bint enough
        with nogil:
            self.table.sort_centres(&job, centre_num)
            enough = self.table.split_pairs(&job)
        if not enough:
            raise MemoryError(f"there is no memory for the pairs of {centre_num} words")
        cdef int64_t pair_num = int(np.dot(pairs, kept))
        if pair_num > 0x7fffffff:
            raise ValueError(f"tokens make {pair_num} pairs, and must make fewer than 2^31; take "
                             "less of the text")
        found._words = words.base[:job.input_num]
        more = np.uint32(most - 1)
        found._bundles = ((counts.base[:, :job.input_num] + more) // most).sum(axis=0, dtype=np.int64)
        found._pairs = pairs.base
        return found

    def train_pairs(self, float[:, ::1] inputs, float[:, ::1] outputs, int dim,
                    const int32_t[::1] centres, const int64_t[::1] starts,
                    const int32_t[::1] contexts, const int64_t[::1] bag_ptr,
                    const int32_t[::1] bag_rows, const int32_t[::1] noise,
                    const float[::1] noise_logit, *, int negatives, float lr_start, float lr_stop,
                    uint64_t seed,
                    squares: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
                    float eps=1.0, CheckedBags bags=None, int lanes=16,
                    weights: NDArray[np.float32] | None = None, CheckedPaths paths=None,
                    bint shared=False, bint narrow=False) -> tuple[float, int]:
        """Train skip-gram word vectors on sorted pairs, in place; returns (sum of losses, pairs).

        Bundles are those of `sort_pairs` or a range of them with all of `contexts`; the rest is as
        for `train_words`.  Centres are numbers of bags, contexts rows of `outputs`, or leaves.  The rate is
        linear from the first bundle to the end of the last.  `lanes` (1 to GROUP) bundles share SHARED
        noise words, each weighted ``contexts * negatives / SHARED``; a noise word that is the context of
        a pair does not count for it.  A group reads the vectors of its centres, makes one step of each
        noise row, then bundle by bundle one step a context and one of each row of the bag.
        """
        cdef Py_ssize_t n = centres.shape[0], b
        cdef Py_ssize_t out_num = outputs.shape[0] if paths is None else len(paths)
        cdef bint falls = False
        cdef WordsJob job
        self.check_tables(inputs, outputs, dim, noise, noise_logit, negatives, paths)
        self.check_bags_of_words(bags, bag_ptr, bag_rows, inputs.shape[0])
        if not 1 <= lanes <= _jobs.GROUP:
            raise ValueError(f"lanes must be 1 to {GROUP}, got {lanes}")
        if starts.shape[0] != n + 1:
            raise ValueError(f"starts must have one number more than centres ({n}), got "
                             f"{starts.shape[0]}")
        if not 0 <= starts[0] <= starts[n] <= contexts.shape[0]:
            raise ValueError(f"starts must lie in 0..{contexts.shape[0]}, the contexts, got "
                             f"{starts[0]} to {starts[n]}")
        with nogil:
            for b in range(n):
                falls |= starts[b + 1] < starts[b]
        if falls:
            raise ValueError("starts must not fall from one to the next")
        if not self.in_range(centres, 0, bag_ptr.shape[0] - 1):
            raise ValueError(
                f"centres must lie in 0..{bag_ptr.shape[0] - 2}: words that have a bag")
        if not self.in_range(contexts[starts[0]:starts[n]], 0, out_num):
            raise ValueError(f"contexts must lie in 0..{out_num - 1}, the rows of outputs, or the "
                             "leaves of paths")
        if n == 0:
            return 0.0, 0
        cdef char *scratch
        cdef double loss = 0
        cdef int64_t examples = 0
        self.take_words(&job, inputs, outputs, dim, bag_ptr, bag_rows, noise, noise_logit, negatives,
                        weights, squares, eps, lr_start, lr_stop, seed, paths, shared, narrow)
        job.centres = &centres[0]
        job.starts = &starts[0]
        job.contexts = ints(contexts)
        job.bundle_num = n
        job.lanes = lanes
        scratch = zeros(self.table.pairs_scratch(&job))
        with nogil:
            self.table.pairs(&job, scratch, &loss, &examples)
            free(scratch)
        return loss, examples

    # ---- classifier --------------------------------------------------------------------------------

    def train_labels(self, float[:, ::1] inputs, float[:, ::1] outputs, int dim,
                     const int64_t[::1] bag_ptr, const int32_t[::1] bag_rows,
                     const int64_t[::1] label_ptr, const int32_t[::1] labels,
                     const int32_t[::1] noise, *, const float[::1] line_weights=None,
                     const float[::1] label_weights=None, const float[::1] rests=None, int loss,
                     int negatives, bint shared, float lr_start, float lr_stop, uint64_t seed,
                     Py_ssize_t first, Py_ssize_t last, float lead=1,
                     CheckedPaths paths=None) -> tuple[float, float]:
        """Train a linear classifier on mean vectors of lines `first` to `last - 1`.

        Returns (sum of losses, sum of the lines' weights).

        inputs, outputs float32[n, stride] of `kernels.padded`, zeros from column `dim` on.  Line i
        has the features ``bag_rows[bag_ptr[i]:bag_ptr[i + 1]]`` and its labels likewise; lines without
        features or without labels are skipped.  `loss`: 0 softmax, 1 one-versus-all, 2 negative
        sampling, 3 hierarchical softmax; for all but 1 a line of several labels is trained on one of them,
        drawn.  `noise`: labels that negatives are drawn from, for loss 2; a draw that is a label of the
        line is repeated, up to 8 times.  `paths`, for loss 3: labels are their leaves, and `outputs` the
        rows of nodes.
        Weights of at least 0 multiply losses and gradients.  `line_weights`: one a line.  `label_weights`: one
        for each of `labels`; a line is then trained on all its labels, for 0 in one step, for 2 and 3 one after
        the other, and its weight in the sum is multiplied by theirs.  `rests`: likewise, for 1: the weight with
        which the line lacks the label; of other labels it is 1.  None or empty: ones; no rests.
        `shared`: other threads train on the same arrays (Hogwild): output rows are exchanged every
        64 lines, by two copies of them; with `paths` those near the root.  The rate is linear over features.
        `lead`: input rows move this many times as far as their gradients say.
        """
        cdef Py_ssize_t label_num = outputs.shape[0]
        check_rows("inputs", inputs)
        check_rows("outputs", outputs)
        if inputs.shape[1] != outputs.shape[1] or not 1 <= dim <= inputs.shape[1]:
            raise ValueError(f"inputs and outputs must be as wide as each other and at least dim = "
                             f"{dim}, at least 1; got {inputs.shape[1]} and {outputs.shape[1]}")
        if bag_ptr.shape[0] != label_ptr.shape[0] or not 0 <= first <= last < bag_ptr.shape[0]:
            raise ValueError(
                f"lines {first}..{last - 1} must be among those of bag_ptr and label_ptr, "
                f"which have {bag_ptr.shape[0] - 1} and {label_ptr.shape[0] - 1}")
        self.check_bags(bag_ptr, bag_rows, inputs.shape[0], 0, "bag_ptr", "bag_rows", "inputs",
                        first, last)
        if not SOFTMAX <= loss <= HIERARCHICAL or (loss == HIERARCHICAL) != (paths is not None):
            raise ValueError("loss must be 0 (softmax), 1 (one-versus-all), 2 (sampling) or, with paths, "
                             f"3 (hierarchical softmax); got {loss}")
        self.check_bags(label_ptr, labels, label_num if paths is None else len(paths), 0, "label_ptr",
                        "labels", "outputs", first, last)
        if loss == SAMPLING and (negatives < 0 or noise.shape[0] < (negatives > 0)):
            raise ValueError(f"negatives must be at least 0, got {negatives}, and noise not be "
                             f"empty if there are any, got {noise.shape[0]} labels")
        for name, factors, number in (("line_weights", line_weights, label_ptr.shape[0] - 1),
                                      ("label_weights", label_weights, labels.shape[0]),
                                      ("rests", rests, labels.shape[0])):
            if factors is not None and len(factors) not in (0, number):
                raise ValueError(f"{name} must be {number} numbers, or none, got {len(factors)}")
        if not self.in_range(noise, 0, label_num):
            raise ValueError(f"noise must lie in 0..{label_num - 1}, the rows of outputs")
        if not lead >= 1:
            raise ValueError(f"lead must be at least 1, got {lead}")
        if bag_rows.shape[0] == 0 or labels.shape[0] == 0 or first == last:
            return 0.0, 0.0         # no line has both
        cdef LabelsJob job
        cdef char *scratch
        cdef double total = 0, weight = 0
        job.inputs = &inputs[0, 0]
        job.outputs = &outputs[0, 0]
        job.bag_ptr = &bag_ptr[0]
        job.bag_rows = &bag_rows[0]
        job.label_ptr = &label_ptr[0]
        job.labels = &labels[0]
        job.line_weights = NULL if line_weights is None else floats(line_weights)
        job.label_weights = NULL if label_weights is None else floats(label_weights)
        job.rests = NULL if rests is None else floats(rests)
        job.noise = ints(noise)
        job.noise_num = noise.shape[0]
        job.label_num = label_num
        job.stride = inputs.shape[1]
        job.first = first
        job.last = last
        memset(&job.paths, 0, sizeof(job.paths))
        if paths is not None:
            job.paths = paths.of(label_num)
        job.copied = shared and (       # else more to exchange than was written
            loss != SAMPLING or label_num <= _jobs.TOGETHER * (1 + <int64_t>negatives))
        job.loss = loss
        job.negatives = negatives
        job.rate_start = lr_start
        job.rate_stop = lr_stop
        job.lead = lead
        job.stream = hash_key(seed)
        scratch = zeros(self.table.labels_scratch(&job))
        with nogil:
            self.table.labels(&job, scratch, &total, &weight)
            free(scratch)
        return total, weight

    # ---- product quantisation ----------------------------------------------------------------------

    def train_codebook(self, const float[:, ::1] columns, Py_ssize_t point_num,
                       float[:, ::1] centroids, int rounds) -> None:
        """Train 256 centroids by at most `rounds` of k-means; ends early when no point moves.

        columns float32[width, stride]: coordinates of the first `point_num` points, at least 1; stride is a
        multiple of `POINTS`.  centroids float32[256, width]: first values, changed.  A centroid without
        points takes over the farthest point of another one.  All numbers must be finite.
        """
        cdef Py_ssize_t width = columns.shape[0], stride = columns.shape[1]
        if stride % _jobs.POINTS or not 1 <= point_num <= stride or not 1 <= width <= C_DIM_MAX:
            raise ValueError(f"columns must be as wide as a multiple of {_jobs.POINTS}, with 1 to as many "
                             f"points; got {width} x {stride} and {point_num} points")
        if centroids.shape[0] != C_CENTROIDS or centroids.shape[1] != width:
            raise ValueError(f"centroids must be {C_CENTROIDS} x {width}, got "
                             f"{centroids.shape[0]} x {centroids.shape[1]}")
        cdef CodebookJob codebook
        codebook.columns = &columns[0, 0]
        codebook.point_num = point_num
        codebook.stride = stride
        codebook.width = <int>width
        codebook.rounds = rounds
        codebook.centroids = &centroids[0, 0]
        cdef char *scratch = zeros(self.table.codebook_scratch(&codebook))
        with nogil:
            self.table.codebook(&codebook, scratch)
            free(scratch)

    def encode_rows(self, rows: NDArray[np.float32], const float[::1] centroids, Py_ssize_t part_width,
                    uint8_t[:, ::1] codes, const float[::1] scales=None) -> None:
        """Write the number of the nearest centroid of each part of each row into `codes`.

        rows float32[n, dim] at any alignment.  centroids: of all parts in one array, (256, columns of the
        part) each; a part has `part_width` columns, the last one the rest.  codes uint8[n, parts].
        scales: a factor for each row.
        """
        cdef Py_ssize_t n = codes.shape[0], parts = codes.shape[1], dim
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[0] != n \
                or rows.strides != (4 * rows.shape[1], 4):
            raise ValueError(f"rows must be float32[{n}, dim], row by row, got {rows.dtype}{list(rows.shape)}")
        dim = rows.shape[1]
        if not 1 <= part_width <= C_DIM_MAX or parts < 1 \
                or not (parts - 1) * part_width < dim <= parts * part_width \
                or centroids.shape[0] != C_CENTROIDS * dim:
            raise ValueError(f"{parts} parts of {part_width} columns and {centroids.shape[0]} values of "
                             f"centroids do not make rows of {dim} columns")
        if scales is not None and scales.shape[0] != n:
            raise ValueError(f"scales must be a factor for each of {n} rows, got {scales.shape[0]}")
        if n == 0:
            return
        cdef EncodeJob job
        job.rows = <const void *><uintptr_t>rows.__array_interface__["data"][0]
        job.scales = &scales[0] if scales is not None else NULL
        job.dim = dim
        job.centroids = &centroids[0]
        job.part_num = <int>parts
        job.part_width = <int>part_width
        job.codes = &codes[0, 0]
        job.row_num = n
        cdef char *scratch = taken(self.table.encode_scratch(&job))
        with nogil:
            self.table.encode_rows(&job, scratch)
            free(scratch)

    # ---- models of sparse examples -----------------------------------------------------------------

    cdef object take_examples(self, SparseJob *job, const float[:, ::1] rows,
                              const int64_t[::1] ptr, const int32_t[::1] places,
                              const float[::1] values, Py_ssize_t bias, Py_ssize_t first=0,
                              Py_ssize_t last=-1, const uint32_t[::1] order=None):
        """Check that all features of the examples are rows of the table, and the bias too.

        With `first` and `last` only examples first..last-1 are checked; with an order
        `train_examples` checks them as it reaches them.
        """
        if order is None:
            self.check_bags(ptr, places, rows.shape[0], 0, "ptr", "places", "rows", first, last)
        elif order.shape[0] != ptr.shape[0] - 1:
            raise ValueError(f"order ({order.shape[0]}) must be as many as examples "
                             f"({ptr.shape[0] - 1})")
        if values.shape[0] != places.shape[0]:
            raise ValueError(f"values ({values.shape[0]}) must be as many as places "
                             f"({places.shape[0]})")
        if not -1 <= bias < rows.shape[0]:
            raise ValueError(f"bias must be -1 (none) or one of {rows.shape[0]} rows, got {bias}")
        memset(job, 0, sizeof(SparseJob))
        job.rows = first_of(rows)
        job.width = rows.shape[1]
        job.ptr = &ptr[0]
        job.places = ints(places)
        job.values = floats(values)
        job.field_num = 1
        job.bias = bias
        job.last = ptr.shape[0] - 1

    cdef object take_training(self, SparseJob *job, const float[::1] labels,
                              const float[::1] weights, Py_ssize_t row_num, int loss, int method,
                              Py_ssize_t hot, Py_ssize_t first, Py_ssize_t last, double lr_start,
                              double lr_stop, double eps, double l1, double l2, double beta):
        """Check labels, weights, method and rates, which only training needs."""
        cdef Py_ssize_t example_num = job.last
        if method not in (ACCESS_SGD, ACCESS_ADAGRAD, ACCESS_FTRL):
            raise ValueError(f"method must be 1 (sgd), 2 (adagrad) or 4 (ftrl), got {method}")
        if job.width != job.weights_num + state_floats_of(method, <uint32_t>job.weights_num):
            raise ValueError(
                f"rows must have {job.weights_num} columns of weights and "
                f"{state_floats_of(method, <uint32_t>job.weights_num)} of state, got {job.width}")
        if labels.shape[0] != example_num or weights.shape[0] not in (0, example_num):
            raise ValueError(f"labels ({labels.shape[0]}) must be as many as examples "
                             f"({example_num}), weights ({weights.shape[0]}) too, or none")
        if not 0 <= hot <= row_num:
            raise ValueError(f"hot must be 0 to {row_num}, got {hot}")
        if not (lr_start > 0 and lr_stop > 0 and eps >= 0 and l1 >= 0 and l2 >= 0 and beta >= 0):
            raise ValueError(f"rates must be above 0, eps, l1, l2, beta at least 0; got {lr_start}, "
                             f"{lr_stop}, {eps}, {l1}, {l2}, {beta}")
        job.labels = floats(labels)
        job.weights = floats(weights)
        job.hot = hot
        job.first = first
        job.last = last
        job.loss = loss
        job.method = method
        job.rate_start = lr_start
        job.rate_stop = lr_stop
        job.eps = eps
        job.l1 = l1
        job.l2 = l2
        job.beta = beta

    cdef object train_examples(self, Training train, ScratchOf scratch_of, const SparseJob *job,
                               const uint32_t[::1] order, Py_ssize_t row_num, Py_ssize_t place_num):
        """Train examples first..last-1, of an order if there is one; returns the sums of loss and weight.

        Examples of an order are copied one after the other, some at a time, and checked then.
        """
        cdef SparseJob part = job[0]
        cdef double total = 0, weight = 0
        cdef int64_t i, scratch_bytes, entries, n, begin, end, room, first = job.first, last = job.last
        cdef int64_t longest[2]             # an example of as many entries as any of the call
        cdef const uint32_t *in_order
        cdef Tile tile
        cdef char *scratch
        cdef bint right = True, fits = True
        if order is None:
            scratch = zeros(scratch_of(job))
            with nogil:
                train(job, scratch, &total, &weight)
                free(scratch)
            return total, weight
        n = order.shape[0]
        in_order = &order[0]
        # A call trains a few of many examples: no other ones are looked at.
        longest[0] = longest[1] = 0
        with nogil:
            for i in range(first, last):
                if in_order[i] >= n:
                    right = False
                    continue
                begin, end = job.ptr[in_order[i]], job.ptr[in_order[i] + 1]
                fits &= 0 <= begin <= end <= place_num
                longest[1] = max(longest[1], end - begin)
        if not fits:
            raise ValueError(f"ptr must rise within places ({place_num} entries)")
        part.first, part.last, part.ptr = 0, 1, longest
        scratch_bytes = (scratch_of(&part) + 63) // 64 * 64
        room = max(<int64_t>TILE_ENTRIES, longest[1])
        scratch = taken(scratch_bytes + tile_bytes(room))
        with nogil:
            set_tile(&tile, scratch + scratch_bytes, room)
            part.ptr, part.places, part.values = tile.ptr, tile.places, tile.values
            part.labels = tile.labels
            part.weights = tile.weights if job.weights else NULL
            part.fields = tile.fields if job.fields else NULL
            i = first
            while right and i < last:
                part.last = lay_out(job, in_order + i, last - i, &tile)
                entries = tile.ptr[part.last]
                right = entries == 0 or (
                    self.table.in_range(tile.places, entries, 0, <int32_t>min(row_num - 1, 0x7fffffff))
                    and (job.fields == NULL or self.table.in_range(
                        tile.fields, entries, 0, <int32_t>(job.field_num - 1))))
                if right:
                    part.rate_start = rate_at(job, i)
                    part.rate_stop = rate_at(job, i + part.last)
                    memset(scratch, 0, <size_t>scratch_bytes)
                    train(&part, scratch, &total, &weight)
                i += part.last
            free(scratch)
        if not right:
            raise ValueError(f"order must have numbers below {n}, of the examples, places numbers "
                             f"below {row_num}, of the rows, fields below {job.field_num}")
        return total, weight

    def train_linear(self, float[:, ::1] rows, const int64_t[::1] ptr, const int32_t[::1] places,
                     const float[::1] values, const float[::1] labels, const float[::1] weights, *,
                     int outputs, int loss, int method, Py_ssize_t bias, Py_ssize_t hot,
                     float lr_start, float lr_stop, float eps, float l1, float l2, float beta,
                     Py_ssize_t first, Py_ssize_t last,
                     const uint32_t[::1] order=None) -> tuple[float, float]:
        """Train a generalised linear model, one step an example; returns sums of losses and of
        weights.

        rows float32[n, outputs + state]: as the store keeps them.  Example i has the values
        ``values[ptr[i]:ptr[i + 1]]`` in the rows `places`.  `labels`: for loss 0 (logistic) above 0
        for yes, 1 (half the square) a number, 2 (multinomial, outputs > 1) a class number.
        `weights`: weight of each example, 0 or more; empty: 1.  `method`: 1 sgd, 2 adagrad, 4 ftrl.
        `bias`: the row that each example has with value 1, or -1.  With other threads on the same
        rows `hot` is above 0: of the first `hot` rows and the bias each thread trains a copy, and
        adds its differences every 256 examples.  FTRL's rate should not change: its weights follow
        from it.  `l2` times the example's weight times the row is added to the gradients of its
        features (FTRL: a penalty); only FTRL uses `l1`. `order` uint32: numbers of examples;
        `first` and `last` then are positions in it, and a wrong place raises only when it is
        reached, after the examples before it were trained.  A loss is taken before its example's
        step.
        """
        cdef SparseJob job
        cdef Py_ssize_t i, at
        cdef int bad = 0
        check_span("examples", first, last, ptr.shape[0] - 1)
        self.take_examples(&job, rows, ptr, places, values, bias, first, last, order)
        if not 0 <= loss < LOSS_NUM:
            raise ValueError(f"loss must be 0 to {LOSS_NUM - 1}, got {loss}")
        if outputs < 1 or (outputs > 1 and loss != MULTINOMIAL):
            raise ValueError(
                f"outputs must be 1, or more for loss 2 (multinomial), got {outputs}")
        job.weights_num = outputs
        self.take_training(&job, labels, weights, rows.shape[0], loss, method, hot, first, last,
                           lr_start, lr_stop, eps, l1, l2, beta)
        if loss == MULTINOMIAL:
            for i in range(first, last):
                at = i if order is None else min(<Py_ssize_t>order[i], labels.shape[0] - 1)
                bad |= not 0 <= labels[at] < outputs
            if bad:
                raise ValueError(f"labels must be class numbers 0 to {outputs - 1}")
        if first == last or rows.shape[0] == 0:
            return 0.0, 0.0
        return self.train_examples(self.table.linear, self.table.linear_scratch, &job, order,
                                   rows.shape[0], places.shape[0])

    def linear_scores(self, const float[:, ::1] rows, const int64_t[::1] ptr,
                      const int32_t[::1] places, const float[::1] values, *, int outputs,
                      Py_ssize_t bias) -> NDArray[np.float32]:
        """Scores float32[examples, outputs] of a linear model.

        Arguments as in `train_linear`; `rows` may be wider than `outputs`.
        """
        cdef SparseJob job
        self.take_examples(&job, rows, ptr, places, values, bias)
        if not 1 <= outputs <= rows.shape[1]:
            raise ValueError(
                f"outputs must be 1 to {rows.shape[1]}, the columns of rows, got {outputs}")
        scores = np.zeros((ptr.shape[0] - 1, outputs), np.float32)
        if rows.shape[0] == 0 or ptr.shape[0] == 1:
            return scores
        cdef float[:, ::1] out = scores
        job.weights_num = outputs
        with nogil:
            self.table.linear_scores(&job, &out[0, 0])
        return scores

    def ftrl_weights(self, float[:, ::1] rows, *, int outputs, float lr, float l1,
                     float beta) -> None:
        """Recompute FTRL's weights of rows float32[n, 3 * outputs] from their z and n, in place.

        Needed after deltas were added to z and n.
        """
        if outputs < 1 or rows.shape[1] != 3 * outputs:
            raise ValueError(f"rows must have {3 * outputs} columns for {outputs} outputs, at least "
                             f"1; got {rows.shape[1]}")
        if not (lr > 0 and l1 >= 0 and beta >= 0):
            raise ValueError(f"lr must be above 0, l1, beta at least 0; got {lr}, {l1}, {beta}")
        if rows.shape[0]:
            with nogil:
                self.table.ftrl_weights(&rows[0, 0], rows.shape[0], outputs, 1 / lr,
                                        beta / lr, l1)

    cdef object take_machine(self, SparseJob *job, const float[:, ::1] rows,
                             const int64_t[::1] ptr, const int32_t[::1] places,
                             const float[::1] values, const int32_t[::1] fields, Py_ssize_t bias,
                             Py_ssize_t factors, Py_ssize_t field_num, Py_ssize_t first=0,
                             Py_ssize_t last=-1, const uint32_t[::1] order=None):
        """Check the examples of a factorization machine, and its sizes."""
        self.take_examples(job, rows, ptr, places, values, bias, first, last, order)
        if factors < 1 or field_num < 1 or 1 + factors * field_num > C_DIM_MAX:
            raise ValueError(f"factors and field_num must be at least 1, and 1 + their product at "
                             f"most {C_DIM_MAX}; got {factors} and {field_num}")
        if fields.shape[0] != places.shape[0] and (field_num > 1 or fields.shape[0]):
            raise ValueError(f"fields ({fields.shape[0]}) must be as many as places "
                             f"({places.shape[0]}); with field_num 1 they may be none")
        if last < 0:
            last = ptr.shape[0] - 1
        if (fields.shape[0] and order is None
                and not self.in_range(fields[ptr[first]:ptr[last]], 0, field_num)):
            raise ValueError(f"fields must lie in 0..{field_num - 1}")
        check_rows("rows", rows)
        job.weights_num = (factors * field_num + C_PAD) // C_PAD * C_PAD
        job.fields = ints(fields) if field_num > 1 else NULL
        job.field_num = field_num
        job.factors = factors

    def train_fm(self, float[:, ::1] rows, const int64_t[::1] ptr, const int32_t[::1] places,
                 const float[::1] values, const int32_t[::1] fields, const float[::1] labels,
                 const float[::1] weights, *, Py_ssize_t factors, Py_ssize_t field_num, int loss,
                 int method, Py_ssize_t bias, Py_ssize_t hot, float lr_start, float lr_stop,
                 float eps, float l1, float l2, float factor_l2, float beta, Py_ssize_t first,
                 Py_ssize_t last, const uint32_t[::1] order=None) -> tuple[float, float]:
        """Train a factorization machine, as `train_linear` trains a linear model of one output.

        rows float32[n, parts * stride], of `kernels.padded`: a part of weights, then the state of
        `method` (adagrad 1 part, ftrl 2).  A part is w, then `factors` numbers for each of
        `field_num` fields, then zeros up to `stride`, a multiple of PAD.  `fields`: field of each value,
        0..field_num-1; may be empty if `field_num` is 1, the plain machine.  Of the bias row only w
        is used.  `l1` is FTRL's, for all columns; `l2` is for w, `factor_l2` for factors that have
        a gradient; both are multiplied by the example's weight.  The rate changes every 256
        examples.  An example visits each of its rows twice, whatever the number of pairs.
        """
        cdef SparseJob job
        check_span("examples", first, last, ptr.shape[0] - 1)
        self.take_machine(&job, rows, ptr, places, values, fields, bias, factors, field_num, first,
                          last, order)
        if not 0 <= loss < LOSS_NUM or loss == MULTINOMIAL:
            raise ValueError(f"loss must be 0 to {LOSS_NUM - 1}, of one output, got {loss}")
        self.take_training(&job, labels, weights, rows.shape[0], loss, method, hot, first, last,
                           lr_start, lr_stop, eps, l1, l2, beta)
        if not (eps >= 1e-30 and factor_l2 >= 0 and beta > 0):
            raise ValueError(f"eps and beta must be above 0, factor_l2 at least 0; got {eps}, "
                             f"{beta}, {factor_l2}")
        if method == ACCESS_FTRL and lr_start != lr_stop:
            raise ValueError("ftrl's weights follow from one step size: lr_stop must be lr_start")
        job.factor_l2 = factor_l2
        if first == last or rows.shape[0] == 0:
            return 0.0, 0.0
        return self.train_examples(self.table.fm, self.table.fm_scratch, &job, order, rows.shape[0],
                                   places.shape[0])

    def fm_scores(self, const float[:, ::1] rows, const int64_t[::1] ptr, const int32_t[::1] places,
                  const float[::1] values, const int32_t[::1] fields, *, Py_ssize_t factors,
                  Py_ssize_t field_num, Py_ssize_t bias) -> NDArray[np.float32]:
        """Scores float32[examples]; arguments as in `train_fm`, `rows` with any number of parts."""
        cdef SparseJob job
        cdef char *scratch
        self.take_machine(&job, rows, ptr, places, values, fields, bias, factors, field_num)
        if rows.shape[1] < job.weights_num:
            raise ValueError(f"rows must have at least {job.weights_num} columns for {factors} "
                             f"factors and {field_num} fields, got {rows.shape[1]}")
        scores = np.zeros(ptr.shape[0] - 1, np.float32)
        if ptr.shape[0] == 1 or rows.shape[0] == 0:
            return scores
        cdef float[::1] out = scores
        scratch = zeros(self.table.fm_scratch(&job))
        with nogil:
            self.table.fm_scores(&job, scratch, &out[0])
            free(scratch)
        return scores

    # ---- triples, pairs, ratings -------------------------------------------------------------------

    cdef object check_places(self, str name, const int32_t[::1] places, Py_ssize_t row_num,
                             Py_ssize_t count):
        """Refuse row numbers outside of the table."""
        if count >= 0 and places.shape[0] != count:
            raise ValueError(f"{name} must have {count} places, as heads or users, got "
                             f"{places.shape[0]}")
        if not self.table.in_range(ints(places), places.shape[0], 0, <int32_t>(row_num - 1)):
            raise ValueError(f"{name} must be places of the {row_num} rows")

    cdef int64_t weights_of(self, const float[:, ::1] rows, Py_ssize_t dim, int method,
                            double lr_start, double lr_stop, double eps, double l2) except -1:
        """Return the number of floats of a row's weights; refuse a wrong layout and an unknown method."""
        cdef int64_t stride = (dim + C_PAD - 1) // C_PAD * C_PAD
        if method != ACCESS_SGD and method != ACCESS_ADAGRAD:
            raise ValueError(f"method must be 1 (sgd) or 2 (adagrad), got {method}")
        check_rows("rows", rows)
        if dim < 1 or rows.shape[1] != stride * (1 + (method == ACCESS_ADAGRAD)):
            raise ValueError(f"rows must have {stride} columns for dim {dim}, with adagrad twice as "
                             f"many, got {rows.shape[1]}")
        if rows.shape[0] > 0x7fffffff:
            raise ValueError(f"rows must be fewer than 2^31, got {rows.shape[0]}")
        if not (lr_start > 0 and lr_stop > 0 and eps >= 1e-30 and l2 >= 0):
            raise ValueError(f"rates and eps must be above 0, l2 at least 0; got {lr_start}, "
                             f"{lr_stop}, {eps}, {l2}")
        return stride

    def train_triples(self, float[:, ::1] rows, Py_ssize_t dim, const int32_t[::1] heads,
                      const int32_t[::1] relations, const int32_t[::1] tails,
                      const int32_t[::1] noise, *, int relation, int metric, int loss, int method,
                      Py_ssize_t shared, Py_ssize_t negatives, int side, bint normalize,
                      double margin, double temperature, double l2, double eps, float lr_start,
                      float lr_stop, uint64_t seed, Py_ssize_t first, Py_ssize_t last,
                      double turn=1) -> float:
        """Train embeddings of triples on sampled negatives, in place; returns the sum of losses.

        rows float32[n, stride], with AdaGrad [n, 2 stride], of `kernels.padded`: entities and
        relations, `dim` columns, then the state.  Complex numbers are dim / 2 real, then dim / 2
        imaginary parts. heads, relations, tails int32[m]: numbers of rows; `noise`: numbers of
        rows that negatives are drawn from.  `relation`: 0 none (no relations), 1 added (TransE), 2 scales
        (DistMult), 3 complex product (ComplEx), 4 turns phases (RotatE), a phase of 1 by `turn`
        radians.  `metric`: 0 inner product, 1 and 2 negative L1 and L2 distance, 3 negative sum of
        moduli of complex differences.  `loss`: 0 logistic with `margin` and self-adversarial
        `temperature` (0: weights alike), 1 hinge, 2 cross entropy among the candidates, 3 logistic
        of differences (BPR); negatives weigh 1 together. `method`: 1 sgd, 2 adagrad. `shared` (1 to
        64) triples share `negatives`, which replace the ends `side`: 1 tails, -1 heads, 0 drawn for
        each group. `normalize`: each step makes entities unit vectors. `l2` applies to rows of triples,
        not to negatives.  Writers may race.
        """
        cdef TriplesJob job
        cdef char *scratch
        cdef double total = 0
        job.stride = self.weights_of(rows, dim, method, lr_start, lr_stop, eps, l2)
        if not (NO_RELATION <= relation <= TURNS and BY_PRODUCT <= metric <= BY_MODULUS
                and SELF_ADVERSARIAL <= loss <= PAIRWISE and -1 <= side <= 1):
            raise ValueError(f"expected relation 0 to {TURNS}, metric 0 to {BY_MODULUS}, loss 0 to "
                             f"{PAIRWISE}, side -1 to 1; got {relation}, {metric}, {loss}, {side}")
        if (relation >= ROTATES or metric == BY_MODULUS) and dim % 2:
            raise ValueError(f"dim must be even for complex numbers, got {dim}")
        if not (1 <= shared <= C_SHARED_MAX and 1 <= negatives <= C_NEGATIVES_MAX):
            raise ValueError(f"shared must be 1 to {C_SHARED_MAX}, negatives 1 to {C_NEGATIVES_MAX}; "
                             f"got {shared}, {negatives}")
        if not (temperature >= 0 and margin == margin and turn == turn):
            raise ValueError(f"temperature must be at least 0, margin and turn numbers; got "
                             f"{temperature}, {margin}, {turn}")
        check_span("triples", first, last, heads.shape[0])
        self.check_places("heads", heads, rows.shape[0], -1)
        self.check_places("tails", tails, rows.shape[0], heads.shape[0])
        self.check_places("relations", relations, rows.shape[0],
                          heads.shape[0] if relation != NO_RELATION else 0)
        self.check_places("noise", noise, rows.shape[0], -1)
        if first == last:
            return 0.0
        if noise.shape[0] == 0:
            raise ValueError("noise must have candidates of negatives, got none")
        job.rows = first_of(rows)
        job.width = rows.shape[1]
        job.dim = dim
        job.heads = ints(heads)
        job.relations = ints(relations)
        job.tails = ints(tails)
        job.noise = ints(noise)
        job.noise_num = noise.shape[0]
        job.first, job.last = first, last
        job.shared, job.negatives = shared, negatives
        job.relation, job.metric, job.loss, job.method = relation, metric, loss, method
        job.side, job.normalize = side, normalize
        job.turn = turn
        job.margin, job.temperature, job.l2, job.eps = margin, temperature, l2, eps
        job.rate_start, job.rate_stop = lr_start, lr_stop
        job.stream = hash_key(seed)
        scratch = zeros(self.table.triples_scratch(&job))
        with nogil:
            self.table.triples(&job, scratch, &total)
            free(scratch)
        return total

    def pair_scores(self, const float[:, ::1] queries, const float[:, ::1] rows, *, int metric,
                    Py_ssize_t dim) -> NDArray[np.float32]:
        """Scores [b, n] of queries [b, stride] against rows [n, stride]; `metric` as in
        `train_triples`.
        """
        cdef Py_ssize_t stride = rows.shape[1]
        if queries.shape[1] != stride or not 1 <= dim <= stride or not (
                BY_PRODUCT <= metric <= BY_MODULUS) or (metric == BY_MODULUS and dim % 2):
            raise ValueError(f"expected queries as wide as rows ({stride}), dim up to that, even "
                             f"for metric {BY_MODULUS}, metric 0 to {BY_MODULUS}; got "
                             f"{queries.shape[1]}, {dim}, {metric}")
        found = np.empty((queries.shape[0], rows.shape[0]), np.float32)
        if found.size == 0:
            return found
        cdef float[:, ::1] out = found
        with nogil:
            self.table.pair_scores(metric, dim, stride, &queries[0, 0], queries.shape[0],
                                   &rows[0, 0], rows.shape[0], &out[0, 0])
        return found

    def train_ratings(self, float[:, ::1] rows, Py_ssize_t dim, const int32_t[::1] users,
                      const int32_t[::1] items, const float[::1] ratings, *, int method, double l2,
                      double eps, float lr_start, float lr_stop, Py_ssize_t first,
                      Py_ssize_t last) -> float:
        """Train a biased matrix factorisation, in place; returns half the sum of squared errors.

        Rows as in `train_triples`, with a bias in column 0; `users` and `items` number disjoint rows.
        """
        cdef RatingsJob job
        cdef double total = 0
        job.stride = self.weights_of(rows, dim, method, lr_start, lr_stop, eps, l2)
        check_span("ratings", first, last, ratings.shape[0])
        self.check_places("users", users, rows.shape[0], ratings.shape[0])
        self.check_places("items", items, rows.shape[0], ratings.shape[0])
        if first == last:
            return 0.0
        job.rows = first_of(rows)
        job.width = rows.shape[1]
        job.users = ints(users)
        job.items = ints(items)
        job.ratings = floats(ratings)
        job.first, job.last = first, last
        job.method = method
        job.l2, job.eps = l2, eps
        job.rate_start, job.rate_stop = lr_start, lr_stop
        with nogil:
            self.table.ratings(&job, &total)
        return total

    # ---- least squares -----------------------------------------------------------------------------

    def solve_rows(self, const float[:, ::1] others, const float[:, ::1] gram,
                   const int64_t[::1] ptr, const int32_t[::1] places, const float[::1] weights,
                   const float[::1] penalties, float[:, ::1] rows, *, int steps, Py_ssize_t first,
                   Py_ssize_t last) -> float:
        """Write rows `first` to ``last - 1`` of names by `steps` of conjugate gradients from zero.

        Row i minimises the sum over its entries of ``|w| (x.y - [w > 0])^2``, plus ``x G x`` and
        ``penalties[i] |x|^2``; returns the sum of these minima.  others float32[m, stride], rows
        float32[n, stride], of `kernels.padded`; gram float32[stride, stride], symmetric; `places`:
        numbers of `others`, those of name i from ``ptr[i]`` on; `weights` of entries, empty: 1.
        """
        cdef SolveJob job
        cdef char *scratch
        cdef double loss = 0
        cdef Py_ssize_t n = rows.shape[0], stride = rows.shape[1]
        check_rows("rows", rows)
        check_rows("others", others)
        if others.shape[1] != stride or gram.shape[0] != stride or gram.shape[1] != stride:
            raise ValueError(f"others and gram must have the {stride} columns of rows, gram as many "
                             f"rows; got {others.shape[1]}, ({gram.shape[0]}, {gram.shape[1]})")
        self.check_bags(ptr, places, others.shape[0], 0, "ptr", "places", "others")
        if ptr.shape[0] - 1 != n or penalties.shape[0] != n:
            raise ValueError(f"ptr and penalties must be of the {n} rows, got "
                             f"{ptr.shape[0] - 1} and {penalties.shape[0]}")
        if weights.shape[0] and weights.shape[0] != places.shape[0]:
            raise ValueError(f"weights must have a number an entry ({places.shape[0]}) or none, got "
                             f"{weights.shape[0]}")
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        check_span("rows", first, last, n)
        if first == last:
            return 0.0
        job.others, job.gram, job.rows = first_of(others), &gram[0, 0], &rows[0, 0]
        job.stride, job.steps = stride, steps
        job.ptr = &ptr[0]
        job.places = ints(places)
        job.weights = floats(weights)
        job.penalties = floats(penalties)
        job.first, job.last = first, last
        scratch = taken(self.table.solve_scratch(&job))
        with nogil:
            self.table.solve_rows(&job, scratch, &loss)
            free(scratch)
        return loss

    def add_gram(self, const float[:, ::1] rows, double[:, ::1] out, *, Py_ssize_t first,
                 Py_ssize_t last) -> None:
        """Add the outer products of all rows to rows `first` to ``last - 1`` of `out` from its diagonal on,
        and to the columns that mirror these.

        rows float32[n, stride], of `kernels.padded`; out float64[stride, stride], symmetric.  Each
        sum runs in the order of the rows, so threads may divide the rows of `out` without changing a bit.
        """
        cdef Py_ssize_t stride = rows.shape[1]
        check_rows("rows", rows)
        if out.shape[0] != stride or out.shape[1] != stride:
            raise ValueError(f"out must be ({stride}, {stride}), got ({out.shape[0]}, "
                             f"{out.shape[1]})")
        check_span("rows of out", first, last, stride)
        if rows.shape[0] == 0 or first == last:
            return
        cdef char *room = taken((last - first) * stride * <Py_ssize_t>sizeof(float))
        with nogil:
            self.table.add_gram(&rows[0, 0], rows.shape[0], stride, first, last, <float *>room,
                                &out[0, 0])
            free(room)

    def best_products(self, const float[:, ::1] queries, const float[:, :, ::1] across,
                      const float[::1] longest, const int32_t[::1] numbers,
                      const int64_t[::1] ptr, const int32_t[::1] without, *, Py_ssize_t top,
                      Py_ssize_t first, Py_ssize_t last
                      ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The rows with the `top` best products with queries `first` to ``last - 1``, best first, and
        these: int32, float32[last - first, top].

        queries float32[n, dim].  Rows lie in groups, across float32[groups, dim, GROUP], with their
        `numbers`; `longest` bounds their lengths in each group, and falls.  Query i leaves out the
        numbers ``without[ptr[i] : ptr[i + 1]]``, which ascend.  Of equal products the lower number
        comes first.  -1 fills a list with fewer products above -inf.
        """
        cdef BestJob job
        cdef Py_ssize_t n = queries.shape[0], dim = queries.shape[1], groups = across.shape[0]
        cdef char *scratch
        if groups and (across.shape[1] != dim or across.shape[2] != _jobs.GROUP):
            raise ValueError(f"across must be groups of ({dim}, {GROUP}), got "
                             f"({across.shape[1]}, {across.shape[2]})")
        if longest.shape[0] != groups or (numbers.shape[0] + _jobs.GROUP - 1) // _jobs.GROUP != groups:
            raise ValueError(f"expected {groups} bounds and the numbers of as many groups, got "
                             f"{longest.shape[0]} and {numbers.shape[0]} numbers")
        if ptr.shape[0] != n + 1:
            raise ValueError(f"ptr must be of the {n} queries, got {ptr.shape[0] - 1}")
        if top < 0 or not 1 <= dim <= C_DIM_MAX:
            raise ValueError(f"top must be at least 0, dim 1 to {C_DIM_MAX}; got {top}, {dim}")
        check_span("queries", first, last, n)
        self.check_ptr(ptr, without, 0, "ptr", "without", first, last)
        best = np.full((last - first, top), -1, np.int32)
        scores = np.full((last - first, top), -np.inf, np.float32)
        if best.size == 0 or groups == 0:
            return best, scores
        cdef int32_t[:, ::1] out = best
        cdef float[:, ::1] high = scores
        job.queries, job.dim = &queries[0, 0], dim
        job.across, job.longest, job.numbers = &across[0, 0, 0], &longest[0], &numbers[0]
        job.row_num = numbers.shape[0]
        job.ptr, job.without = &ptr[0], ints(without)
        job.first, job.last, job.top = first, last, top
        job.best, job.scores = &out[0, 0], &high[0, 0]
        scratch = taken(self.table.best_scratch())
        with nogil:
            self.table.best_products(&job, scratch)
            free(scratch)
        return best, scores

    # ---- sparse products ---------------------------------------------------------------------------

    cdef object take_csr(self, Csr *x, const int64_t[::1] ptr, const int32_t[::1] rows,
                         const float[::1] values, Py_ssize_t columns, Py_ssize_t dim):
        """Refuse arguments with which the loops would read outside of the arrays."""
        self.check_bags(ptr, rows, columns, 0, "ptr", "rows", "the table")
        if values.shape[0] != rows.shape[0]:
            raise ValueError(f"values must have a number an entry ({rows.shape[0]}), got "
                             f"{values.shape[0]}")
        x.n = ptr.shape[0] - 1
        x.columns = columns
        x.dim = dim
        x.ptr = &ptr[0]
        x.rows = ints(rows)
        x.values = floats(values)

    def csr_product(self, const int64_t[::1] ptr, const int32_t[::1] rows, const float[::1] values,
                    const float[:, :] table, float[:, ::1] out) -> None:
        """``out[i] = sum of values[k] * table[rows[k]], k in ptr[i]..ptr[i + 1] - 1``, in that
        order.

        table float32[n, dim], rows contiguous, of any stride; out float32[m, dim], written.
        """
        cdef Csr x
        self.take_csr(&x, ptr, rows, values, table.shape[0], table.shape[1])
        if out.shape[0] != x.n or out.shape[1] != x.dim:
            raise ValueError(f"out must have a row an example and the table's columns, "
                             f"({x.n}, {x.dim}), got {out.shape[0], out.shape[1]}")
        if x.dim > C_DIM_MAX or table.strides[1] != sizeof(float) \
                or table.strides[0] % sizeof(float):
            raise ValueError(
                f"rows of the table must be contiguous and at most {C_DIM_MAX} wide")
        if x.n == 0 or x.dim == 0:
            return
        cdef const float *first_row = &table[0, 0] if table.shape[0] else NULL
        cdef int64_t stride = table.strides[0] // <Py_ssize_t>sizeof(float)
        with nogil:
            self.table.csr_times_rows(&x, first_row, stride, &out[0, 0])

    def csr_gradients(self, const int64_t[::1] ptr, const int32_t[::1] rows,
                      const float[::1] values, const float[:, ::1] dz, float[:, ::1] out) -> None:
        """The transpose of `csr_product`: ``out[j] = sum of values[k] * dz[i]`` where ``rows[k] =
        j``.

        dz float32[m, dim], out float32[n, dim], written; scratch of 16 bytes an entry.
        """
        cdef Csr x
        self.take_csr(&x, ptr, rows, values, out.shape[0], out.shape[1])
        if dz.shape[0] != x.n or dz.shape[1] != x.dim or x.dim > C_DIM_MAX:
            raise ValueError(f"dz must have a row an example ({x.n}) and the columns of out "
                             f"({x.dim}), got {dz.shape[0], dz.shape[1]}")
        if x.columns == 0 or x.dim == 0:
            return
        cdef int64_t[::1] starts = np.empty(x.columns + 2, np.int64)
        cdef int32_t[::1] examples = np.empty(max(rows.shape[0], 1), np.int32)
        cdef float[::1] by_column = np.empty(max(rows.shape[0], 1), np.float32)
        cdef const float *gradient = first_of(dz)
        with nogil:
            self.table.csr_columns(&x, &starts[0], &examples[0], &by_column[0])
            self.table.csr_gradient(&x, &starts[0], &examples[0], &by_column[0], gradient,
                                    &out[0, 0])

    # ---- the CBOW network --------------------------------------------------------------------------

    cdef object take_windows(self, CbowNet *net, const int32_t[:, ::1] windows,
                             const float[:, ::1] embedding, const float[:, :, ::1] output):
        """Refuse arguments with which the loops would read outside of the network."""
        cdef Py_ssize_t i, j, words = embedding.shape[0], width = embedding.shape[1]
        cdef Py_ssize_t window = windows.shape[1], panels = (words + C_PANEL - 1) // C_PANEL
        cdef int64_t wrong = 0
        if words < 1 or width < 1 or width % C_PAD or width > C_DIM_MAX:
            raise ValueError(f"embedding must have a row or more and a multiple of {C_PAD} columns, "
                             f"got ({words}, {width})")
        if output.shape[0] != panels or output.shape[1] != width + 1 \
                or output.shape[2] != C_PANEL:
            raise ValueError(
                f"output must be ({panels}, {width + 1}, {C_PANEL}) for {words} words, got "
                f"{output.shape[0], output.shape[1], output.shape[2]}")
        if window < 3 or window % 2 == 0 or window > C_WINDOW_MAX:
            raise ValueError(f"windows must have an odd number of columns, 3 to {C_WINDOW_MAX - 1}, "
                             f"got {window}")
        with nogil:
            for i in range(windows.shape[0]):
                for j in range(window):
                    wrong += windows[i, j] < 0 or windows[i, j] >= words
        if wrong:
            raise ValueError(f"windows hold {wrong} numbers that are none of 0..{words - 1}")
        memset(net, 0, sizeof(CbowNet))
        net.words = words
        net.width = width
        net.window = window

    def cbow_scratch_floats(self, Py_ssize_t words, Py_ssize_t width, Py_ssize_t window,
                            Py_ssize_t batch) -> int:
        """Floats of scratch for `train_cbow` and `cbow_loss`, batches of up to `batch`: the
        exponentials of a whole batch, some ``words * batch``.
        """
        if words < 1 or width < 1 or width % C_PAD or window < 3 or batch < 1:
            raise ValueError(
                f"no scratch for {words} words, width {width}, window {window}, batch {batch}")
        return self.table.cbow_scratch(words, width, window, batch)

    cdef object check_scratch(self, const CbowNet *net, const float[::1] scratch,
                              Py_ssize_t batch):
        if batch < 1:
            raise ValueError(f"batch must be 1 or more, got {batch}")
        needed = self.table.cbow_scratch(net.words, net.width, net.window, batch)
        if scratch.shape[0] < needed:
            raise ValueError(f"scratch must have {needed} floats (cbow_scratch_floats), got "
                             f"{scratch.shape[0]}")

    def cbow_loss(self, const int32_t[:, ::1] windows, const float[:, ::1] embedding,
                  const float[:, :, ::1] output, float[::1] scratch, *, Py_ssize_t batch) -> float:
        """Sum of the losses (natural logarithms) of windows under a network, in a fixed order.

        windows int32[n, window], window odd: the middle is the target. embedding float32[words,
        width], width a multiple of PAD. output float32[panels, width + 1, PANEL]: panel p has the
        words from ``p * PANEL`` on, its row d the d-th weight of each, its last row their biases.
        """
        cdef CbowNet net
        cdef double loss
        self.take_windows(&net, windows, embedding, output)
        self.check_scratch(&net, scratch, batch)
        if windows.shape[0] == 0:
            return 0.0
        net.embedding.weights = <float *>&embedding[0, 0]       # only read
        net.output.weights = <float *>&output[0, 0, 0]
        with nogil:
            loss = self.table.cbow_loss(&net, &windows[0, 0], windows.shape[0], batch,
                                        &scratch[0])
        return loss

    def train_cbow(self, const int32_t[:, ::1] windows, float[:, :, ::1] embedding,
                   float[::1] counts, float[:, :, :, ::1] output, float[::1] scratch, *,
                   Py_ssize_t batch, int64_t steps, double lr, double beta1, double beta2,
                   double eps) -> float:
        """Steps of Adam on a CBOW network with a full softmax, in place, one a batch; the sum of
        losses.

        embedding float32[3, words, width] and output float32[3, panels, width + 1, PANEL]: weights,
        first and second moments; otherwise as in `cbow_loss`.  The hidden vector is the mean of
        the context's rows, the loss of a batch the mean of its windows' losses. In the embedding
        only the rows of a batch make a step (`counts` float32[words]: steps of each, exact up to
        2^24), in the output all rows; `steps`: steps that the output has made.  Equal input gives
        equal bits, in one build.
        """
        cdef CbowNet net
        cdef double loss
        if embedding.shape[0] != 3 or output.shape[0] != 3 \
                or counts.shape[0] != embedding.shape[1]:
            raise ValueError(
                "embedding and output must be weights, first and second moments, and counts a "
                f"number a word; got {embedding.shape[0]} and {output.shape[0]} arrays, "
                f"{counts.shape[0]} counts for {embedding.shape[1]} words")
        self.take_windows(&net, windows, embedding[0], output[0])
        if steps < 0 or not lr > 0 or not eps > 0 or not (0 <= beta1 < 1 and 0 <= beta2 < 1):
            raise ValueError(f"expected steps >= 0, lr > 0, eps > 0 and betas from 0, below 1; got "
                             f"{steps}, {lr}, {eps}, {beta1}, {beta2}")
        self.check_scratch(&net, scratch, batch)
        if windows.shape[0] == 0:
            return 0.0
        net.embedding.weights = &embedding[0, 0, 0]
        net.embedding.first = &embedding[1, 0, 0]
        net.embedding.second = &embedding[2, 0, 0]
        net.counts = &counts[0]
        net.output.weights = &output[0, 0, 0, 0]
        net.output.first = &output[1, 0, 0, 0]
        net.output.second = &output[2, 0, 0, 0]
        net.lr = lr
        net.beta1 = <float>beta1
        net.beta2 = <float>beta2
        net.eps = <float>eps
        with nogil:
            loss = self.table.cbow(&net, &windows[0, 0], windows.shape[0], batch, steps,
                                   &scratch[0])
        return loss

    # ---- row arithmetic ----------------------------------------------------------------------------

    def copy_rows(self, const float[:, ::1] src, float[:, ::1] dst) -> None:
        """``dst[i, :dim] = src[i]``, then zeros; src float32[n, dim], dst float32[n, stride]."""
        cdef Py_ssize_t n = src.shape[0], dim = src.shape[1], stride = dst.shape[1]
        if n != dst.shape[0] or dim > stride:
            raise ValueError(f"src ({n} x {dim}) must have as many rows as dst "
                             f"({dst.shape[0]} x {stride}) and not be wider")
        if n == 0 or stride == 0:
            return
        cdef const float *source = first_of(src)
        with nogil:
            self.table.copy_rows(source, dim, &dst[0, 0], stride, n)

    def bag_means(self, const float[:, ::1] inputs, bag_ptr: NDArray[np.int64] | NDArray[np.int32],
                  const int32_t[::1] bag_rows, float[:, ::1] out,
                  weights: NDArray[np.float32] | None = None) -> None:
        """``out[w] = mean of inputs[bag_rows[bag_ptr[w]:bag_ptr[w + 1]], :dim]``; 0 of an empty
        bag.  `weights`: as for `train_words`.
        """
        cdef const int64_t[::1] pointers = np.ascontiguousarray(bag_ptr, dtype=np.int64)
        cdef Py_ssize_t n = out.shape[0], dim = out.shape[1], stride = inputs.shape[1]
        self.check_bags(pointers, bag_rows, inputs.shape[0], 0)
        if pointers.shape[0] - 1 != n or dim > stride:
            raise ValueError(f"out ({n} x {dim}) must have a row for each of "
                             f"{pointers.shape[0] - 1} bags and not be wider than inputs ({stride})")
        if n == 0 or dim == 0:
            return
        cdef const float *rows = first_of(inputs)
        cdef const int32_t *members = ints(bag_rows)
        cdef const float *counts = self.check_weights(weights, bag_rows)
        with nogil:
            self.table.bag_means(rows, stride, &pointers[0], members, counts, &out[0, 0], dim, n)

    cdef Py_ssize_t check_packed(self, const float[:, ::1] packed, const float[:, ::1] rows,
                                 Py_ssize_t dim, Py_ssize_t parts) except -1:
        """Stride of the parts of `rows`."""
        if dim < 1 or parts < 1 or packed.shape[1] != dim * parts \
                or rows.shape[0] != packed.shape[0]:
            raise ValueError(f"packed ({packed.shape[0]} x {packed.shape[1]}) must have as many "
                             f"rows as rows ({rows.shape[0]}) and {parts} parts of {dim} columns")
        if rows.shape[1] % parts or rows.shape[1] // parts < dim:
            raise ValueError(f"rows must have {parts} parts of at least {dim} columns, got "
                             f"{rows.shape[1]} columns")
        return rows.shape[1] // parts

    def unpack_parts(self, const float[:, ::1] packed, float[:, ::1] rows, Py_ssize_t dim,
                     Py_ssize_t parts) -> None:
        """packed float32[n, parts * dim] -> rows float32[n, parts * stride], each part followed
        by zeros.

        Threads may work on different row ranges (slices) at once.
        """
        cdef Py_ssize_t stride = self.check_packed(packed, rows, dim, parts)
        if packed.shape[0]:
            with nogil:
                self.table.unpack_parts(&packed[0, 0], &rows[0, 0], dim, parts, stride,
                                        packed.shape[0])

    def subtract_parts(self, const float[:, ::1] rows, float[:, ::1] packed, Py_ssize_t dim,
                       Py_ssize_t parts) -> None:
        """``packed = rows - packed``, part by part, without the padding of `rows`; as
        `unpack_parts`.
        """
        cdef Py_ssize_t stride = self.check_packed(packed, rows, dim, parts)
        if packed.shape[0]:
            with nogil:
                self.table.subtract_parts(&rows[0, 0], &packed[0, 0], dim, parts, stride,
                                          packed.shape[0])

    def add_weighted_rows(self, const float[:, ::1] rows, const float[::1] weights,
                          float[:, ::1] out) -> None:
        """``out[i] += weights[i] * rows[i]``; rows of weight 0 are not read.  Threads: as
        `unpack_parts`.
        """
        cdef Py_ssize_t i, n = rows.shape[0], dim = rows.shape[1]
        if weights.shape[0] != n or out.shape[0] != n or out.shape[1] != dim:
            raise ValueError(f"rows ({n}, {dim}), weights ({weights.shape[0]}) and out "
                             f"({out.shape[0]}, {out.shape[1]}) do not fit each other")
        if dim == 0:
            return
        with nogil:
            for i in range(n):
                if weights[i] != 0:
                    self.table.add_weighted(dim, &out[i, 0], &rows[i, 0], weights[i])
