"""A shard: the only place where frames meet tables."""
