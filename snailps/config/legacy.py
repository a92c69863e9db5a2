"""Knows SwiftSnails' names for settings, and what each of them is here.

    name there -> the same name, an `Alias` of a setting here, or `IGNORED` (with the reason)

Aliases are declared with their settings (`snailps.config.settings`).  Owns their conversions, the
names without effect, and remarks for the table in docs/settings.md.
"""

from __future__ import annotations

from snailps.config.fields import parse_bool
from snailps.errors import ConfigError

# Accepted everywhere, without effect; the text ends the notice "... has no effect: ...".
IGNORED = {
    "async_exec_num": (
        "each shard of a server has its own thread (see shard_num), and the other roles need no "
        "service threads"
    ),
    "zlib": (
        "large control messages are packed with lz4 where that makes them smaller, rows never are"
    ),
    "listen_thread_num": "sockets are read by the threads that answer",
    "line_buffer_queue_capacity": "workers read blocks of bytes that the master leases to them",
    "master_longest_alive_duration": "the master ends when the job does; see max_seconds",
    "pull_period": "a worker pulls the rows of each block (see block_bytes)",
    "push_period": "a worker pushes its deltas after each block (see block_bytes)",
    "minibatch": "a worker pulls and pushes once a block (see block_bytes)",
    "num_sents_to_cache": "a worker pulls and pushes once a block (see block_bytes)",
    "local_train": "`snailps local` trains on one machine",
    "min_len": "lines of any length are trained on",
}


def cbow_to_model(text: str, origin: str) -> str:
    """Map ``cbow: 1`` to CBOW, 0 to skip-gram."""
    return "cbow" if _truth(text, f"{origin}: cbow", "model: cbow") else "skipgram"


def adagrad_to_optimizer(text: str, origin: str) -> str | None:
    """Map ``adagrad: 1`` to AdaGrad; 0 leaves the choice to `optimizer`."""
    return "adagrad" if _truth(text, f"{origin}: adagrad", "optimizer: adagrad") else None


def _truth(text: str, where: str, instead: str) -> bool:
    try:
        return parse_bool(text.strip())
    except ValueError:
        raise ConfigError(
            f"{where}: expected true or false (or 1/0); got {text!r}; or write {instead!r}"
        ) from None
