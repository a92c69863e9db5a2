"""Checkpoints on disk: folder, manifest, a file a shard, sections of fragments."""
