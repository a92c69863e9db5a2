"""Where rows live, and which shard they live in.

    keys -> route: fragment -> shard endpoint              (all processes)
    keys -> tables: fragment -> index -> slab -> row        (the shard's own thread)

======================  ========================================================================
`route`                 fragment -> shard -> endpoint; the hash of keys for NumPy arrays
``tables.pxd``          the rows of a shard as C: tables, pulls, pushes, products, marks
`_store`                one shard as an object, for commands, files and tests
``core/_slab``          index and slab of one table in one fragment, and how they grow
``core/_retention``   which rows a part makes and keeps: admission by count, a limit
``core/_arena``         the memory behind them: huge pages, touched before they are needed
``core/_marks``         highest push applied, per incarnation
``core/_clock_buffer``  contributions to clocks, staged and summed
`checkpoint`            the folder of a job's checkpoints, a file a shard, sections, checksums
======================  ========================================================================

No sockets, frames or timers: the loop of a shard decides when something happens.
"""
