# Pulls of only what changed since the asker's own copy of a row.
#
#   keys, numbers held -> rows changed since, a bit a key -> store_pull_changed
#   (table, fragment) -> the number to hold with what is sent now -> store_version
#
# For tables that track versions.  In each fragment a table's changes are counted from 1: a push is
# one, the deletion of a row is one, dropping a fragment that has rows is one.  A row's version is
# the change that wrote it last.  What stands for a key *without* a row is the fragment's newest
# deletion, so that whoever holds a row that is gone is sent its first value; keys that never had a
# row are then sent again, too, which costs bytes and is never wrong.
#
# The number given with a row is the count of changes so far + 1: the number of the next change.
# So a row has changed since number h was given exactly if its version >= h, and h = 0 stands for
# an asker that holds nothing.  All keys asked for are known to be up to date at the new number,
# those that were not sent included.
#
# Numbers are of one (table, fragment) in one Shard, where they never go backwards: neither when
# rows are deleted nor when the fragment is dropped and owned again.  Somewhere else they mean
# nothing.  So an asker holds 0 again when a fragment's shard changes or its process is a new one;
# or else the count comes along: `store_raise_version` before the rows of a fragment that moves.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._prefetch cimport FETCH_AT_SHARD, fetch, fetch_row
from snailps.store.core._lookup cimport BATCH, Batch, batch_rows, copy_rows, find_rows, hash_batch
from snailps.store.core._slab cimport KEY_BYTES, Part, Slab, key_of, part_find
from snailps.store.tables cimport Shard, Table


# The number to hold with what is sent now, at least 1.
cdef inline uint64_t store_version(Table *table, uint32_t fragment) noexcept nogil:
    return table.slab.parts[fragment].version + 1


# Lets a fragment that arrives from elsewhere go on counting there, before its rows are put: the
# changes so far become `version`, unless there were more here.  Every key counts as deleted then.
cdef inline void store_raise_version(Table *table, uint32_t fragment,
                                     uint64_t version) noexcept nogil:
    cdef Part *part = &table.slab.parts[fragment]
    if version > part.version:
        part.version = version
        table.slab.deleted[fragment] = version


# Copies the rows that changed since `held` (n numbers) into `out`, in order of the keys, tightly
# packed, `floats` each as in store_pull.  Sets bit i % 8 of changed[i / 8], (n + 7) / 8 bytes, where
# key i is among them.  Returns their count.  The table must track versions.
cdef inline uint32_t store_pull_changed(Shard *shard, Table *table, uint32_t fragment,
                                        const uint64_t *keys, uint32_t n, const uint64_t *held,
                                        uint8_t *changed, float *out,
                                        uint32_t floats) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef uint64_t deleted = slab.deleted[fragment]
    cdef uint64_t version
    cdef uint32_t row_bytes = KEY_BYTES + floats * <uint32_t>sizeof(float)
    cdef uint32_t most = batch_rows(row_bytes)
    cdef uint32_t done = 0
    cdef uint32_t total = 0
    cdef uint32_t m, i, some
    cdef uint64_t[BATCH] some_keys
    cdef char *row
    cdef Batch batch
    memset(changed, 0, (n + 7) // 8)
    while done < n:
        m = min(n - done, most)
        hash_batch(&batch, part, keys + done, m)
        find_rows(&batch, slab, m, KEY_BYTES)
        for i in range(m):
            if batch.rows[i] != NULL:
                fetch(batch.rows[i] + slab.version_at)
        some = 0
        for i in range(m):
            row = batch.rows[i]
            if row == NULL or key_of(row) != keys[done + i]:
                row = part_find(slab, part, keys[done + i], batch.tags[i])
            version = deleted
            if row != NULL:
                memcpy(&version, row + slab.version_at, sizeof(uint64_t))
            if version >= held[done + i]:
                changed[(done + i) // 8] |= <uint8_t>(1 << (done + i) % 8)
                if row != NULL:
                    fetch_row(row, row_bytes, FETCH_AT_SHARD)
                # The batch shrinks to what changed: place `some` has been looked at already.
                some_keys[some] = keys[done + i]
                batch.rows[some] = row
                batch.tags[some] = batch.tags[i]
                some += 1
        copy_rows(&batch, slab, some_keys, some, out + <uint64_t>total * floats, floats)
        total += some
        done += m
    return total
