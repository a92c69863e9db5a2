"""The rooms of the package: where a reader of the parameter server may stop.

    python tools/rooms.py MODULE...        prints the room of each

A module belongs to the room with the longest name that begins its own.  `CORE` and `FILES` are the
parameter server: they import nothing else (`tests/repo/test_border.py`).  Options are what a
job may ask for: the core runs without them.  Products are what is trained.  `OTHERS` are
doors to all of it, and what several products share.
"""

from __future__ import annotations

import sys

CORE = {
    "core": (
        "_kernels", "_version", "abi", "api", "config", "dataclass", "earlier_names", "errors",
        "kernels._jobs", "kernels._optimizers", "kernels._rows", "kernels._tiles",
        "kernels._wire_types", "master", "node", "outward", "pieces", "pointers", "registry",
        "server", "shard", "store", "transport", "worker",
    ),
}  # fmt: skip
"""What a pull, a push, a lease and a checkpoint go through, and the nodes that do it.

Of the numeric loops: the loops over rows, and the loader of a build.  A build is one compiled
module of all loops, also those of products: `kernels._build` puts them together, as `cli` does
with what is in Python."""
FILES = {"files": ("files",)}
"""Bytes of the input, and files of results: below the core, which reads and writes by it."""
OPTIONS = {
    "rounds": (
        "master.leases.rounds", "master.leases.round_entries", "master.job.round_controller",
    ),
    "rotation": (
        "master.leases.checkouts", "master.leases.chunk_numbers",
        "master.leases.chunks", "master.leases.rotation", "master.leases.speeds",
        "models.rotation", "worker.checkouts",
    ),
    "ranges": ("master.leases.ranges",),
    "server_products": ("shard._product_requests", "transport.client._product_batch"),
    "retention": ("store.core._retention",),
    "tests_in_training": (
        "api.validation", "master.job.epoch_figures", "master.job.epoch_tests",
        "master.job.inspection",
    ),
    "tensorboard": ("monitor.tensorboard_log",),
}  # fmt: skip
"""What a job may ask for.  `server_products`: scalar products that servers compute."""
PRODUCTS = {
    "words": (
        "estimators.words", "kernels._cbow", "kernels._word_pairs", "kernels._word_vectors",
        "kernels._packed_pairs", "kernels._pair_sorter", "models.word_vectors",
        "vectors.evaluate", "vectors.gensim_names", "vectors.query", "vectors.questions",
        "vectors.word_map",
    ),
    "classifier": (
        "cli.autotune", "cli.calibrate", "cli.filter", "cli.labelling", "data._labelled",
        "data.label_words", "estimators.labels", "estimators.text", "estimators.tuning",
        "filtering", "kernels._classifier", "kernels._label_scores", "kernels._labelling",
        "models.classifier", "vectors.calibrating", "vectors.calibration", "vectors.label_arrow",
        "vectors.label_files", "vectors.label_meter", "vectors.label_metrics",
        "vectors.label_prediction", "vectors.label_scores", "vectors.labelled_lines",
        "vectors.labelling",
    ),
    "examples": (
        "data._admission", "data._example_lines", "data._examples", "data.array_files",
        "data.encoding", "data.example_files", "data.examples", "data.feature_rows",
        "data.matrices", "data.matrix_sources", "data.matrix_writer", "estimators.fm",
        "estimators.linear", "estimators.mlp", "estimators.net", "estimators.sparse",
        "kernels._fm", "kernels._linear", "models.layers", "models.losses", "models.mlp",
        "models.sparse",
    ),
    "names": (
        "cli.recommend", "data.name_columns", "data.name_rows", "data.name_tables",
        "estimators.embeddings", "kernels._least_squares", "kernels._triple_order",
        "kernels._triples", "models.embeddings", "serving.recommender",
    ),
    "fedavg": ("cli.fedavg", "models.fedavg"),
    "torch": ("torch",),
    "serving": ("serving",),
    "fasttext": ("fasttext",),
}  # fmt: skip
"""What is trained, and what is built on trained rows.  `examples`: linear models, factorisation
machines, nets; `names`: factors and graphs."""
OTHERS = {
    "doors": ("__init__", "__main__", "cli"),
    "local": ("local",),
    "monitor": ("monitor",),
    "diagnostics": ("diagnostics",),
    "estimators": ("estimators",),
    "models": ("models",),
    "vectors": ("vectors",),
    "data": ("data",),
    "kernels": ("kernels", "_kernel_probes"),
}
"""Doors, who looks on, clusters on one machine; and what several products share: parts of
estimators and models, files of vectors, formats of data, numeric loops."""
ROOMS = {**CORE, **FILES, **OPTIONS, **PRODUCTS, **OTHERS}


def rooms_of(module: str) -> set[str]:
    """Rooms with the longest name that begins a module's, ``transport.frame``: one."""
    begins = {
        name: room
        for room, names in ROOMS.items()
        for name in names
        if f"{module}.".startswith(f"{name}.")
    }
    longest = max(map(len, begins), default=0)
    return {room for name, room in begins.items() if len(name) == longest}


def room_of(module: str) -> str:
    """The room of a module of snailps, with or without ``snailps.`` before it."""
    (room,) = rooms_of(module.removeprefix("snailps").lstrip(".") or "__init__")
    return room


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {room_of(name)}")
