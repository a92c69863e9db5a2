"""Made-up statuses of runs of any size, with all keys of a real one.

size, seed -> status -> Status, with all its keys
"""

import random

from snailps.node.status import Status

HOSTILE = "<script>alert('x')</script>&\"</title><img src=x onerror=alert(1)>"
"""A word that must stay text, wherever it is shown."""


def status(servers=2, workers=2, shards=1, *, seed=1, at_s=60.0, word=HOSTILE) -> Status:
    """A training at `at_s` seconds; `shards` a server, each with a standby at the next one."""
    rng = random.Random(seed)
    nodes = [_node(number, "server", rng) for number in range(1, servers + 1)]
    nodes += [_node(servers + number, "worker", rng) for number in range(1, workers + 1)]
    rows = []
    for shard in range(servers * shards):
        primary = shard % servers + 1
        standby = primary % servers + 1 if servers > 1 else 0
        rows.append(_shard(shard, primary, standby, rng))
    return {
        "version": "0.1.0",
        "address": "127.0.0.1:16831",
        "cluster_id": "00000000000000ab",
        "epoch": 1,
        "phase": "training",
        "waiting_for": "",
        "progress": min(1.0, at_s / 600),
        "pass_": "epoch 1 of 5",
        "unit": "words",
        "units": int(at_s * 9e5),
        "units_per_s": 9e5 + rng.uniform(-5e4, 5e4),
        "loss": 2.0 + 60 / (30 + at_s),
        "lr": 0.04,
        "eta_s": None,
        "elapsed_s": at_s,
        "blocks": {"left": 90, "leased": 4, "done": 10},
        "nodes": nodes,
        "shards": rows,
        "tables": [],
        "waits": [{"who": f"worker {servers + 1}", "whom": "server 1 (a pull)", "seconds": 3.5}],
        "requests_per_s": 1234.5,
        "checkpoint": None,
        "loop": {
            "turns": 1,
            "busy_s": 0.1,
            "busy_ms_p999": 1.0,
            "busy_ms_max": 2.0,
            "counts": [[0.1, 3]],
            "cpu_counts": [[0.1, 3]],
        },
        "message": "",
        "validation": {word: [(word + "2", 0.5)]},
        "tests": [{"at_s": at, "progress": at / 600, "rmse": 1 / at} for at in (20.0, 40.0)],
        "figures": {"note": word},
        "session": None,
        "events": [{"at_s": 1.0, "kind": "joined", "who": "server 1", "text": f"{word} joined"}],
        "master": {"host": "host0", "pid": 99, "cpu": 0.1, "rss_bytes": 80_000_000, "metrics": ""},
        "job_name": f"fasttext {word}",
        "output": f"out/{word}",
        "epochs": 5,
        "total_units": 540_000_000,
    }


def _node(number, role, rng):
    works = role == "worker"
    return {
        "role": role,
        "id": number,
        "host": f"host{number // 16}",
        "pid": 1000 + number,
        "address": f"10.0.{number // 250}.{number % 250 + 1}:40000",
        "endpoints": [] if works else [f"10.0.0.{number % 250 + 1}:{5000 + number}"],
        "heartbeat_s": rng.uniform(0, 1),
        "epoch": 1,
        "state": "training" if works else "ready",
        "waits": "",
        "waits_s": 0.0,
        "clock": None,
        "rate": rng.uniform(3e5, 5e5) if works else None,
        "done": 3 if works else 0,
        "leased": 2 if works else 0,
        "block_s": 0.5 if works else None,
        "fetched": 0,
        "lacks": "",
        "cpu": rng.uniform(0.1, 1.0),
        "rss_bytes": rng.randrange(50_000_000, 200_000_000),
    }


def _shard(number, primary, standby, rng):
    return {
        "shard": number,
        "primary": primary,
        "address": f"10.0.0.{primary % 250 + 1}:{5000 + number}",
        "standby": standby,
        "state": "ready" if standby else "none",
        "seeded": 1.0,
        "lag_bytes": 0,
        "lag_s": 0.0,
        "fragments": 16,
        "rows": rng.randrange(10_000, 20_000),
        "bytes": rng.randrange(5_000_000, 9_000_000),
        "pulls_per_s": rng.uniform(100, 900),
        "pushes_per_s": rng.uniform(100, 900),
        "connections": 4,
        "parked": 0,
        "clock": 0,
        "waits": "",
    }
