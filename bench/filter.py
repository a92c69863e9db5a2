#!/usr/bin/env python3
"""Pages kept by a classifier, Parquet to Parquet: snailps.filter beside its peers, interleaved.

    corpus -> model and pages of bench/predict.py -> Parquet files -> each system in a process
           -> pages a second -> one JSON object a system (--json), a table
    the same files, many times -> hosts of bench/hosts.py (--hosts) -> one cluster's pages a second

    python bench/filter.py --corpus text8like.txt.gz --table
    python bench/filter.py --hosts 8                # as root

predict: `predict_arrays` on the same texts, which are in memory as a column of Arrow's: what the
model alone takes.  filter: `snailps.filter`, reading and writing included, the model opened and its
hash taken.  datatrove: its own fastText filter in as many local workers.  dolma: its tagger in as
many, from JSON lines, since it reads no Parquet; pages are tagged, not yet filtered.
"""

import argparse
import contextlib
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from predict import WORK, make
from words import ROOT, corpus_of, fail, machine, peers_python, pythonpath, say

PEERS = {"datatrove": "filter", "dolma": "dolma"}
"""Each peer's group of requirements."""
SYSTEMS = ("predict", "filter", *PEERS)
FILES = 8
COPIES = 16
"""Pages of each file for hosts of a cluster: small, so that few tasks remain at the end."""
BOUND = 0.5
KEEP = f'hq["__label__l0"] >= {BOUND}'
KEEP_UNIQUE = "not (dup.contained >= .98 or dup.near >= .85)"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", type=Path, help="default: the one in SNAILPS_DATA")
    add("--work", default="pages", help=f"of {', '.join(WORK)}")
    add("--systems", default=",".join(SYSTEMS), help="the first one is the measure")
    add("--runs", type=int, default=3, help="runs of each system, interleaved")
    add("--threads", type=int, default=2, help="threads, or datatrove's workers")
    add("--scale", type=float, default=1.0, help="of the number of pages")
    add(
        "--hosts",
        type=int,
        default=0,
        help="a cluster of this many hosts, beside as many of one",
    )
    add("--copies", action="store_true", help="with --hosts: a search for pairs of copies instead")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--json", action="store_true", help="one JSON object a system on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    args.systems = args.systems.split(",")
    if unknown := {*args.systems} - {*SYSTEMS}:
        fail(f"unknown: {', '.join(sorted(unknown))}")
    args.corpus = corpus_of(args.corpus)
    return args


def write_tables(texts: Path, folder: Path, documents: Path | None) -> int:
    """The pages in some Parquet files, with a column beside, and as `documents` in packed JSON
    lines; their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = texts.read_text(encoding="utf-8").splitlines()
    folder.mkdir()
    for number in range(FILES):
        some = lines[number::FILES]
        ids = [f"{number}/{at}" for at in range(len(some))]
        pq.write_table(pa.table({"id": ids, "text": some}), folder / f"{number}.parquet")
        if documents is not None:
            documents.mkdir(exist_ok=True)
            with gzip.open(documents / f"{number}.jsonl.gz", "wt", compresslevel=1) as file:
                for one, text in zip(ids, some, strict=True):
                    file.write(json.dumps({"id": one, "text": text, "source": "bench"}) + "\n")
    return len(lines)


def run_ours(job: dict) -> None:
    """A run of snailps in this process."""
    import pyarrow.parquet as pq

    import snailps

    filter_files = snailps.filter  # imported before the clock starts, as what the others take is
    if job["system"] == "predict":
        model = snailps.LabelModel(job["model"])
        texts = pq.read_table(job["input"])["text"]
        model.predict(texts[0].as_py())
        began = time.perf_counter()
        model.predict_arrays(texts, threads=job["threads"])
    else:
        began = time.perf_counter()
        filter_files(
            job["input"], column="text", models={"hq": job["model"]}, keep=KEEP,
            output=job["output"], threads=job["threads"],
        )  # fmt: skip
    print(json.dumps({"seconds": time.perf_counter() - began}))


def run(system: str, python: str, job: dict) -> dict:
    """One run in a process of its own, into a folder of its own."""
    with tempfile.TemporaryDirectory(dir=job["scratch"]) as name:
        job = {**job, "system": system, "output": f"{name}/out", "logs": f"{name}/logs"}
        command = [python, __file__, "--job", json.dumps(job)]
        env = dict(os.environ)
        if system in PEERS:
            peer = ROOT / "bench" / "peers" / f"filter_{system}.py"
            command = [python, str(peer), command[-1]]
        else:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), pythonpath()]))
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False
        )
        if done.returncode:
            fail(f"{system} failed:\n{done.stderr.strip()[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def on_hosts(number: int, model: Path, folder: Path, copies: bool) -> dict:
    """Pages a second of a cluster of so many hosts, and of as many clusters of one at once, each of
    which filters its share of the files; `copies`: keys, and the passes that find pairs."""
    files = sorted((folder / "in").iterdir())
    many = folder / "many"
    many.mkdir()
    for copy in range(COPIES):
        for file in files:
            os.link(file, many / f"{copy}-{file.name}")
    inputs = sorted(map(str, many.iterdir()))
    (whole,) = filter_at_once([inputs], number, model, folder, copies)
    parts = [inputs[at::number] for at in range(number)]
    each = filter_at_once(parts, 1, model, folder, copies)
    return {
        "hosts": number, "files": len(inputs), "pages_per_s": round(whole, 1),
        "beside_pages_per_s": round(sum(each), 1), "share": round(whole / sum(each), 3),
        "machine": machine(),
    }  # fmt: skip


def filter_at_once(
    inputs: list[list[str]], hosts: int, model: Path, folder: Path, copies: bool
) -> list[float]:
    """Pages a second of clusters that filter some files each, all at the same time."""
    sys.path.insert(0, str(ROOT))
    from snailps.config.quoting import quote
    from snailps.filtering.job import FilterCommand, FilterJob, settings_for

    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), pythonpath()])}
    with contextlib.ExitStack() as stack:
        jobs, children = [], []
        for at, some in enumerate(inputs):
            output = folder / f"out-{hosts}-{at}"
            models, keep = ({}, KEEP_UNIQUE) if copies else ({"hq": str(model)}, KEEP)
            command = FilterCommand(tuple(some), "text", models, keep, (), str(output))
            job = FilterJob(command)
            stack.callback(job.close)
            job.begin()
            listed = job.results.list_path
            settings = {"worker_class": "snailps.filtering.worker:Filter", **settings_for(job)}
            if copies:
                job.search.begin()
                listed = job.search.list_for_workers()
                settings |= {"phase": "pairs", "searched": job.search.ranges}
            conf = folder / f"{output.name}.conf"
            conf.write_text("".join(f"{k}: {quote(str(v))}\n" for k, v in settings.items()))
            words = [sys.executable, str(ROOT / "bench" / "hosts.py"), "--conf", str(conf)]
            words += ["--input", str(listed), "--hosts", str(hosts)]
            words += ["--repeat", "1", "--json", "--scratch", str(folder)]
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env
            )
            stack.callback(child.terminate)
            jobs.append(job)
            children.append(child)
        found = [(child.communicate()[0], child.returncode) for child in children]
        if any(code for _, code in found):
            fail(f"a cluster of {hosts} hosts failed")
        for job in jobs:
            if not copies:
                job.finish()  # fails if a task is not done
            elif not job.search.has_all("pairs"):
                fail("pairs are missing")
    return [json.loads(output.splitlines()[-1])["units_per_s"] for output, _ in found]


def main() -> None:
    """Make model and pages, run all, interleaved, print."""
    if sys.argv[1:2] == ["--job"]:
        run_ours(json.loads(sys.argv[2]))
        return
    args = arguments()
    opener = gzip.open if args.corpus.suffix == ".gz" else open
    with opener(args.corpus, "rt", encoding="utf-8") as file:
        words = file.read(60_000_000).split()
    pythons = dict.fromkeys(args.systems, sys.executable)
    for system in pythons.keys() & PEERS if not args.hosts else ():
        pythons[system] = peers_python(None, PEERS[system])
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as name:
        folder = Path(name)
        model, texts = make(words, args.work, args.scale, folder)
        documents = folder / "documents" if "dolma" in args.systems and not args.hosts else None
        pages = write_tables(texts, folder / "in", documents)
        say(f"{pages:,} pages, a model of {model.stat().st_size / 1e6:,.0f} MB")
        if args.hosts:
            print(json.dumps(on_hosts(args.hosts, model, folder, args.copies)))
            return
        job = {"model": str(model), "input": str(folder / "in"), "files": FILES, "bound": BOUND}
        job |= {"documents": str(documents), "threads": args.threads, "scratch": str(folder)}
        seconds: dict[str, list[float]] = {system: [] for system in args.systems}
        for number in range(args.runs):
            for system in args.systems if number % 2 == 0 else args.systems[::-1]:
                seconds[system].append(run(system, pythons[system], job)["seconds"])
    first = statistics.median(seconds[args.systems[0]])
    found = [
        {
            "system": system, "pages_per_s": round(pages / statistics.median(some), 1),
            "ratio": round(first / statistics.median(some), 3), "pages": pages, "work": args.work,
            "seconds": [round(one, 3) for one in some], "threads": args.threads,
            "machine": machine(),
        }
        for system, some in seconds.items()
    ]  # fmt: skip
    if args.json:
        for one in found:
            print(json.dumps(one))
    if args.table:
        print(f"| system | pages/s | x {args.systems[0]} |\n|---|---|---|")
        for one in found:
            print(f"| {one['system']} | {one['pages_per_s']:,.0f} | {one['ratio']:.2f} |")


if __name__ == "__main__":
    main()
