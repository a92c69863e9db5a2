"""A fuzzer of our own: broken frames and handshakes at a live master and a live shard."""
