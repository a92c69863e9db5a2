"""Which server has which shard and standby: planned without I/O, then carried out."""
