"""The rooms of the package: where a reader of the parameter server may stop.

    python tools/rooms.py MODULE...        prints the room of each
    python tools/rooms.py prices [COMMIT]  prints what each room costs, and what has changed since

The price of a room: promises (`tests/README.md`), lines of code, lines of tests, words of docs/.
A release prints it, and the note that closes an issue.  Blank lines do not count.  A promise of
several rooms is divided among them, and so are the tests that it names.  Tests that no promise
names belong to the rooms that they import; whose room nothing says is in the line "?".

A module belongs to the room with the longest name that begins its own.  `CORE` and `FILES` are the
parameter server: they import nothing else (`tests/repo/test_border.py`).  Options are what a
job may ask for: the core runs without them.  Products are what is trained.  `OTHERS` are
doors to all of it, and what several products share.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from pathlib import Path

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
module of all loops, the loops of products, too: `kernels._build` puts them together, as `cli` does
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
    "tests_in_training": ("master.job.epoch_tests", "master.job.inspection"),
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
    "duplicates": ("datasketch", "datatrove", "duplicates"),
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
"""What is trained, what is built on trained rows, and what chooses texts to train on.  `examples`:
linear models, factorisation machines, nets; `names`: factors and graphs; `duplicates`: copies."""
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
    """The room of a module of snailps, with or without ``snailps.`` before it; "?": none has it."""
    return next(iter(rooms_of(module.removeprefix("snailps").lstrip(".") or "__init__")), "?")


PAGES = {
    "words": ("fasttext.md",),
    "classifier": ("classifier.md", "filter.md"),
    "duplicates": ("duplicates.md",),
    "examples": ("dense_models.md", "sparse_data.md", "sparse_models.md"),
    "names": ("knowledge_graphs.md", "matrix_factorisation.md", "design/least-squares.md"),
    "fedavg": ("fedavg.md",),
    "torch": ("pytorch.md", "api/torch.md"),
    "serving": ("serving.md", "design/serving.md"),
    "fasttext": ("api/fasttext.md",),
    "rotation": ("design/rotation.md", "design/word-pairs.md", "design/shared-rows.md"),
    "retention": ("design/retention.md",),
    "estimators": ("python.md", "api/estimators.md"),
    "monitor": ("page.md", "metrics.md", "design/terminal.md"),
    "files": ("files.md", "design/matrix-files.md"),
    "data": ("design/columns.md", "design/example-parsing.md"),
    "vectors": ("api/vectors.md",),
    "doors": ("commands.md", "tour.md", "how_do_i.md", "index.md", "benchmarks.md"),
}
"""Pages of docs/ that are about one room; the others are the core's."""
COLUMNS = ("promises", "code", "tests", "words")
_CODE = (".py", ".pyx", ".pxd", ".h", ".c", ".cpp")


def text_of(root: Path, commit: str) -> dict[str, str]:
    """Texts of snailps/, tests/ and docs/ in a commit, by path."""
    command = ["git", "-C", str(root), "archive", commit, "snailps", "tests", "docs"]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            data = files.extractfile(member) if member.isfile() else None
            if data is not None and member.name.endswith((*_CODE, ".md")):
                texts[member.name] = data.read().decode("utf-8", "replace")
    return texts


def promised(readme: str) -> list[tuple[list[str], list[str]]]:
    """Tests and rooms of each promise; in a table without the column the room is "?"."""
    found = []
    for line in readme.splitlines():
        if line.startswith("| ") and not line.startswith("| promise |"):
            _, tests, _, rooms, *_ = [*line.strip("|").split("|"), "?"]
            found.append((re.findall(r"`([^`:]+)", tests), rooms.strip().split(", ")))
    return found


def prices(texts: dict[str, str]) -> dict[str, dict[str, float]]:
    """What the rooms cost, by column and room."""
    found: dict[str, dict[str, float]] = {column: defaultdict(float) for column in COLUMNS}
    named: dict[str, Counter[str]] = {}
    for tests, rooms in promised(texts.get("tests/README.md", "")):
        for room in rooms:
            found["promises"][room] += 1 / len(rooms)
            for test in set(tests):
                named.setdefault(f"tests/{test}", Counter())[room] += 1
    pages = {f"docs/{page}": room for room, names in PAGES.items() for page in names}
    for path, text in texts.items():
        lines = sum(map(bool, map(str.strip, text.splitlines())))
        module = path.removeprefix("snailps/").rpartition(".")[0].replace("/", ".")
        if path.startswith("docs/"):
            found["words"][pages.get(path, "core")] += len(text.split())
        elif path.startswith("snailps/") and path.endswith(_CODE):
            found["code"][min(rooms_of(module.removesuffix(".__init__")), default="?")] += lines
        elif path.endswith(".py"):
            rooms_named = named.get(path) or Counter(
                min(rooms_of(name), default="?")
                for name in re.findall(r"^ *from snailps\.([\w.]+) import", text, re.MULTILINE)
            )
            for room, weight in (rooms_named or Counter("?")).items():
                share = lines * weight / (sum(rooms_named.values()) or 1)
                found["tests"][room] += share
    return found


def print_prices(root: Path, commit: str) -> None:
    """Print what each room costs in HEAD, and the change since a commit."""
    now, before = prices(text_of(root, "HEAD")), prices(text_of(root, commit))
    print(f"{'room':18}", *(f"{column:>18}" for column in COLUMNS))
    for room in [*ROOMS, "?", "all"]:
        cells = []
        for column in COLUMNS:
            pair = [
                sum(kind[column].values()) if room == "all" else kind[column][room]
                for kind in (now, before)
            ]
            cells.append(f"{pair[0]:>10,.0f} {pair[0] - pair[1]:>+7,.0f}")
        print(f"{room:18}", *cells)


def last_release(root: Path) -> str:
    """The newest tag of a release; without one, the first commit."""
    for command in ("describe --tags --abbrev=0", "rev-list --max-parents=0 HEAD"):
        answer = subprocess.run(
            ["git", "-C", str(root), *command.split()], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            break
    return answer.stdout.split()[0]


if __name__ == "__main__" and sys.argv[1:2] == ["prices"]:
    checkout = Path(__file__).resolve().parents[1]
    print_prices(checkout, sys.argv[2] if len(sys.argv) > 2 else last_release(checkout))
elif __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {room_of(name)}")
