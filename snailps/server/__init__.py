"""A server process: its shards, the master's orders to them, checkpoint I/O."""
