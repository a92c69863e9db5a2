"""Who has which shard and its standby: planned without I/O, then carried out."""
