"""The shard's event loop: connections, frames in, a C handler, frames out."""
