"""The fan-out client: pulls and pushes of many keys, spread over all shards."""
