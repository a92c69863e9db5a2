"""The rows of a shard, and the route from a key to its shard.

    keys -> route: fragment -> shard endpoint              (all processes)
    keys -> tables: fragment -> index -> slab -> row        (the shard's own thread)

`tables.pxd` has the rows as C; `_store` is one shard as an object, for commands, files and tests;
``core/`` has index, slab, retention, memory, marks and clock buffer; `checkpoint` the files.  No
sockets, frames or timers: the loop of a shard decides when something happens.
"""
