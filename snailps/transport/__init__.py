"""How bytes travel: frames, messages, handshake, the shard loop and the fan-out client."""
