"""Where rows live, and which shard they live in.

    keys -> route: fragment -> shard endpoint              (everybody)
    keys -> _tables: fragment -> index -> slab -> row       (the shard's own thread)

================  ==============================================================================
`route`           fragment -> shard -> endpoint; the hash of keys for NumPy arrays
`_store`          one shard's rows as an object: commands, doors for tests
`_owned`          its base: fragments, tables and marks; setting up
``_tables.pxd``   the same as C: tables, pulls, pushes, marks
``_changed.pxd``  pulls of only what changed since the asker's copy
``_batch.pxd``    lookups of many keys, their cache misses overlapping
``_slab.pxd``     index and slab of one table in one fragment, and how they grow
``_upkeep.pxd``   ticks and versions beside rows, expiry, rounds of averages
``_arena.pxd``    the memory behind them
``_regions.pxd``  where that comes from: huge pages, touched before they are needed
``_marks.pxd``    highest push applied, per incarnation
`_sections`       a fragment as bytes, copied out and put back
`_crc32c`         the checksum of all that is written
`shard_file`      the file of one shard in a checkpoint
`manifest`        what a checkpoint says of itself
`checkpoints`     the folder of a job's checkpoints
================  ==============================================================================

No sockets and no frames here, and no clocks: a shard's loop decides when something happens.
"""
