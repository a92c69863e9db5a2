"""Where rows live, and which shard they live in.

    keys -> route: fragment -> shard endpoint              (everybody)
    keys -> tables: fragment -> index -> slab -> row        (the shard's own thread)

==========================  ====================================================================
`route`                     fragment -> shard -> endpoint; the hash of keys for NumPy arrays
`_store`                    one shard's rows as an object: commands, doors for tests
`_base_store`               its base: fragments, tables and marks; setting up
`_clock_store`              the same with contributions to clocks
``tables.pxd``              the rows of a shard as C: tables, pulls, pushes, marks
``core/_lookup.pxd``        lookups of many keys, their cache misses overlapping
``core/_slab.pxd``          index and slab of one table in one fragment, and how they grow
``core/_arena.pxd``         the memory behind them
``core/_huge_pages.pxd``    where that comes from: huge pages, touched before they are needed
``core/_marks.pxd``         highest push applied, per incarnation
``core/_row_versions.pxd``  pulls of only what changed since the asker's copy
``core/_row_maintenance``   ticks and versions beside rows, expiry, rounds of averages
``core/_row_transfer.pxd``  rows of a fragment as they lie in memory
``core/_clock_buffer.pxd``  contributions to clocks, staged and summed
``core/_sparse_product``    sums of rows where they lie
`checkpoint`                the folder of a job's checkpoints, a file a shard, sections, checksums
==========================  ====================================================================

No sockets and no frames here, and no clocks: a shard's loop decides when something happens.
"""
