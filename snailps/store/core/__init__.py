"""The rows of a shard in memory, as C: index, slab, arena, marks, clock buffer."""
