#!/usr/bin/env python3
"""Files of word vectors against the disk: how fast a cluster's model is written and read again.

    rows in N servers -> .bin, .npz, .vec -> seconds, memory    bytes -> the same disk -> seconds
    .bin -> rows in N servers, as `continue_from` does          .vec -> rows in memory

File and disk are interleaved (A B B A): the disk writes as many bytes, as `dd conv=fsync` does.
This process reads the rows, as the master does.  README.md here says more.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from checkpoint import write_speed
from words import ROOT, machine, say

sys.path.insert(0, str(ROOT))

from snailps import local_cluster
from snailps.api.results import Results
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary
from snailps.local.driver import Driver
from snailps.models.word_vectors.export import write_files
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.models.word_vectors.warm_start import put_words
from snailps.vectors.text_files import read_vec

DIM = 100
TOGETHER = 20_000
FORMATS = ("bin", "npz", "vec")
TURNS = (False, True, True, False)
"""Whether it is the disk's turn."""
CLEAR_PEAK = "5"
"""For /proc/self/clear_refs."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--size", type=float, default=1000.0, help="of the .bin, MB")
    add("--servers", default="1,2,4", help="numbers of servers")
    add("--formats", default=",".join(FORMATS))
    add("--repeat", type=int, default=1, help="turns of A B B A")
    add("--scratch", type=Path, help="folder on the disk that is meant, default the system's")
    add("--json", action="store_true", help="one JSON object a number of servers")
    return parser.parse_args()


class Model:
    """Rows of word vectors in a cluster, and the master's view of them."""

    def __init__(self, driver: Driver, words: int) -> None:
        self._driver = driver
        self.size = words
        counts = np.arange(words, 0, -1) + 5
        names = PackedWords.of([b"word%d" % i for i in range(words)])
        self._summary = Vocabulary(names, counts, int(counts.sum())).to_bytes()

    def fill(self) -> None:
        """Gives every word its rows."""
        rng = np.random.default_rng(1)
        for table in ("input", "output"):
            for at in range(0, self.size, TOGETHER):
                keys = np.arange(at, min(at + TOGETHER, self.size), dtype=np.uint64)
                rows = rng.standard_normal((len(keys), DIM), np.float32) * np.float32(0.3)
                self._driver.push(table, keys, rows)

    def results(self, **settings: object) -> Results:
        """The tables as the master's export and loading see them."""
        tables = self._driver._tables
        return Results(
            WordVectorSettings(dim=DIM, maxn=0, minn=0, **settings), self._summary, {},
            self._driver.client, {name: number for name, (number, _) in tables.items()},
            {name: table for name, (_, table) in tables.items()}, self._driver.route.frag_num,
        )  # fmt: skip


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Seconds, processor seconds, and by how much memory grew at most, MB."""
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    before = memory_mb("VmRSS")
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    wall, spent = time.perf_counter() - begin, time.process_time() - cpu
    return {"s": wall, "cpu_s": spent, "grown_mb": memory_mb("VmHWM") - before}


def memory_mb(name: str) -> float:
    """A figure of this process's memory."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) / 1000


def written(model: Model, folder: Path, name: str, repeat: int) -> dict[str, float]:
    """One format, interleaved with the disk."""
    path = folder / f"m.{name}"
    results = model.results(output=str(folder / "m"), formats=(name,))
    ours: list[dict[str, float]] = []
    disk: list[float] = []
    write_files(results)  # the first one finds memory and files that later ones have
    size = path.stat().st_size
    for is_disk in TURNS * repeat:
        if is_disk:
            disk.append(write_speed(folder, size, 0) / 1e6)
        else:
            ours.append(measured(lambda: write_files(results)))
    direct = write_speed(folder, size, os.O_DIRECT) / 1e6
    return rated(name, size, ours, statistics.median(disk), direct)


def rated(
    name: str, size: int, ours: list[dict[str, float]], disk: float, direct: float = 0.0
) -> dict[str, float]:
    """Medians, and their share of the disk's speed; MB/s."""
    speed = size / 1e6 / statistics.median(one["s"] for one in ours)
    found = {
        "mb": round(size / 1e6), "mb_s": round(speed), "disk_mb_s": round(disk),
        "disk_share": round(speed / disk, 2) if disk else None,
        "cpu_s": round(statistics.median(one["cpu_s"] for one in ours), 2),
        "grown_mb": round(max(one["grown_mb"] for one in ours)),
    }  # fmt: skip
    if direct:
        found["direct_mb_s"] = round(direct)
    say(f"{name}: {found}")
    return found


def read_speed(path: Path) -> float:
    """MB/s of reading a file that is not in the page cache."""
    forget(path)
    begin, size = time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while part := file.read(8 << 20):
            size += len(part)
    return size / 1e6 / (time.perf_counter() - begin)


def forget(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def parts(args: argparse.Namespace, servers: int, folder: Path) -> Iterator[tuple[str, dict]]:
    """All figures of a number of servers."""
    words = int(args.size * 1e6 / (8 * DIM + 20))
    formats = args.formats.split(",")
    with local_cluster(servers=servers, workers=0) as cluster:
        for table in ("input", "output"):
            cluster.table(table, DIM, wire="float32")
        model = Model(cluster._driver, words)
        model.fill()
        for name in formats:
            yield name, written(model, folder, name, args.repeat)
    for name, load in (("bin", load_bin), ("vec", load_vec)):
        path = folder / f"m.{name}"
        if name in formats:
            disk = read_speed(path)
            forget(path)
            size = path.stat().st_size
            yield f"read {name}", rated(f"read {name}", size, [load(path, servers, words)], disk)


def load_bin(path: Path, servers: int, words: int) -> dict[str, float]:
    """Its rows, put into a new cluster."""
    with local_cluster(servers=servers, workers=0) as cluster:
        for table in ("input", "output"):
            cluster.table(table, DIM, wire="float32")
        results = Model(cluster._driver, words).results(continue_from=str(path))
        return measured(lambda: put_words(results))


def load_vec(path: Path, servers: int, words: int) -> dict[str, float]:
    """Its vectors, in pieces."""
    return measured(lambda: [None for _ in read_vec(path)])


def main() -> None:
    """Measures, prints."""
    args = arguments()
    rows = ["| servers | | MB | MB/s | of the disk | processor s | memory, MB |", "|---" * 7 + "|"]
    for servers in map(int, args.servers.split(",")):
        with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as scratch:
            found = dict(parts(args, servers, Path(scratch)))
        if args.json:
            print(json.dumps({"servers": servers, **found, "machine": machine()}), flush=True)
        rows += [
            f"| {servers} | {name} | {f['mb']:,} | {f['mb_s']:,} | {f['disk_share']} "
            f"| {f['cpu_s']} | {f['grown_mb']} |"
            for name, f in found.items()
        ]
    if not args.json:
        print("\n".join(rows))


if __name__ == "__main__":
    main()
