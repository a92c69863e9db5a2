#!/usr/bin/env python3
"""Word vectors: snailps beside fastText and gensim, on one corpus, in one run, interleaved.

    corpus, sizes -> every system trains (A B C, C B A, ...) -> speed, memory, quality
                  -> one JSON object a system (--json), a table for docs/benchmarks.md (--table)

Speed is training alone: raw words of the corpus x epochs / seconds without start-up, vocabulary
and export.  Quality is judged by one and the same program for all: `snailps eval` on the .vec
file of each.  The peers live in an environment of their own (.bench-venv, made once).  Figures
are medians over the runs, quality is the mean over them; README.md here says more.
"""

import argparse
import contextlib
import datetime
import gzip
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import watch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VENV = ROOT / ".bench-venv"
PEERS = ("fasttext", "gensim")
LINE_WORDS = 1000
READ_BYTES = 1 << 22
TAIL_LINES = 15


def say(text: str) -> None:
    """Progress goes to standard error: standard output is for the figures."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> None:
    """End with one sentence."""
    sys.exit(f"bench: {text}")


def test_data(name: str) -> Path | None:
    """A file or folder of the test data; None: SNAILPS_DATA does not name their folder."""
    folder = os.environ.get("SNAILPS_DATA")
    return Path(folder) / name if folder else None


def corpus_of(chosen: Path | None) -> Path:
    """The corpus that was chosen, else the test data's; ends where neither is a file."""
    corpus = chosen or test_data("words/text8like.txt.gz")
    if corpus is None:
        fail("no corpus: give --corpus FILE, or set SNAILPS_DATA to the folder of the test data")
    if not corpus.is_file():
        fail(f"no such file: {corpus}")
    return corpus


def report(args: argparse.Namespace, results: list[dict], table: str) -> None:
    """Print what ``--json`` and ``--table`` ask for; a table by default."""
    if args.json:
        for result in results:
            print(json.dumps(result), flush=True)
    if args.table or not args.json:
        print(table, flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", required=True, type=Path, help="a text file, .gz or plain")
    add("--model", choices=("fasttext", "word2vec"), default="fasttext")
    add("--cbow", action="store_true", help="CBOW instead of skip-gram")
    add("--servers", type=int, default=1)
    add("--workers", type=int, default=1)
    add("--threads", type=int, default=2, help="of one worker; peers get workers x threads")
    add("--dim", type=int, default=100)
    add("--epochs", type=int, default=5)
    add("--window", type=int, default=5)
    add("--loss", choices=("ns", "hs"), default="ns")
    add("--negatives", type=int, default=5, help="with ns")
    add("--min-count", type=int, default=5)
    add("--minn", type=int, default=3)
    add("--maxn", type=int, default=6)
    add("--bucket", type=int, default=2_000_000)
    add("--lr", type=float, default=0.05, help="snailps and fastText")
    add("--gensim-lr", type=float, help="default: gensim's own")
    add("--peers", default="fasttext,gensim", help="any of fasttext, gensim; '' for none")
    add("--no-snailps", action="store_true", help="peers only")
    add("--similarity", action="append", default=[], type=Path, metavar="FILE")
    add("--analogies", type=Path, metavar="FILE")
    add("--runs", type=int, default=1, help="runs of each system, interleaved")
    add("--seeds", type=int, default=1, help="how many seeds the runs go through")
    add("--limit-s", type=float, default=3600.0, help="longest time of one training")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--peers-python", help="a Python that has the peers, instead of .bench-venv")
    add("--snailps-args", default="", help="more words for the snailps command line")
    add("--json", action="store_true", help="one JSON object a system on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    args.peers = [name for name in args.peers.split(",") if name]
    unknown = [name for name in args.peers if name not in PEERS]
    if unknown:
        fail(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    if args.model == "word2vec":
        args.minn = args.maxn = 0
    for file in (args.corpus, *args.similarity, *([args.analogies] if args.analogies else [])):
        if not file.is_file():
            fail(f"no such file: {file}")
    return args


def peers_python(named: str | None, group: str = "") -> str:
    """The interpreter that has a group of peers; builds their environment when there is none."""
    if named:
        return named
    requirements = HERE / "peers" / f"requirements{group and f'-{group}'}.txt"
    folder = VENV.with_name(f"{VENV.name}{group and f'-{group}'}")
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    stamp = folder / "made-for"
    python = folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == key:
        return str(python)
    say(f"making {folder.name} with the peers (once; compiles fastText, a minute or two)")
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    made = subprocess.run(
        [*pip, "-r", str(requirements)], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
    )
    if made.returncode:
        fail(
            "the peers could not be installed: g++ and the Python headers are needed;"
            " without peers: --peers ''"
        )
    stamp.write_text(key)
    return str(python)


def prepare(corpus: Path, scratch: Path, with_lines: bool) -> tuple[Path, Path | None, int]:
    """Unpack a .gz, count the raw words, and write the copy that gensim reads.

    Returns
    -------
    plain : Path
        The corpus as plain text.
    lines : Path or None
        The same words, at most 1,000 a line: gensim takes a line for a sentence and hands whole
        lines to its threads, so a corpus of one line would keep one thread busy.
    words : int
        Words between white space.
    """
    plain = corpus
    if corpus.suffix == ".gz":
        plain = scratch / corpus.stem
        say(f"unpacking {corpus.name}")
        with gzip.open(corpus, "rb") as packed, open(plain, "wb") as out:
            shutil.copyfileobj(packed, out, READ_BYTES)
    lines = scratch / "lines.txt" if with_lines else None
    words, rest, in_line = 0, b"", 0
    with open(plain, "rb") as text, contextlib.ExitStack() as stack:
        out = stack.enter_context(open(lines, "wb")) if lines else None
        while chunk := text.read(READ_BYTES):
            chunk = rest + chunk
            # The last word may continue in the next chunk.
            cut = max(chunk.rfind(b" "), chunk.rfind(b"\n"), chunk.rfind(b"\t")) + 1
            chunk, rest = chunk[:cut], chunk[cut:]
            for line in chunk.splitlines(keepends=True):
                found = line.split()
                words += len(found)
                if out:
                    in_line = write_words(out, found, in_line, ends=line.endswith(b"\n"))
        words += bool(rest.strip())
        if out:
            write_words(out, rest.split(), in_line, ends=True)
    return plain, lines, words


def write_words(out, words: list[bytes], in_line: int, *, ends: bool) -> int:
    """Append words to the present line, breaking it at 1,000; returns how many it then has."""
    begin = 0
    while begin < len(words):
        part = words[begin : begin + LINE_WORDS - in_line]
        out.write(b" ".join(part))
        begin, in_line = begin + len(part), in_line + len(part)
        out.write(b"\n" if in_line == LINE_WORDS else b" ")
        in_line %= LINE_WORDS
    if ends and in_line:
        out.write(b"\n")
        in_line = 0
    return in_line


def snailps_command(args: argparse.Namespace, plain: Path, prefix: Path, seed: int) -> list[str]:
    """Command line of snailps."""
    sizes = {
        "--dim": args.dim, "--epochs": args.epochs, "--window": args.window,
        "--loss": args.loss, "--min-count": args.min_count, "--lr": args.lr,
        "--servers": args.servers, "--workers": args.workers, "--threads": args.threads,
        "--seed": seed, "--model": "cbow" if args.cbow else "skipgram",
    }  # fmt: skip
    if args.loss == "ns":
        sizes["--negatives"] = args.negatives
    if args.model == "fasttext":
        sizes |= {"--minn": args.minn, "--maxn": args.maxn, "--bucket": args.bucket}
    command = [sys.executable, "-m", "snailps", "train", args.model, "--input", str(plain)]
    command += ["--output", str(prefix), "--json", "--overwrite"]
    for name, value in sizes.items():
        command += [name, str(value)]
    return command + args.snailps_args.split()


def peer_command(
    args: argparse.Namespace, peer: str, python: str, files: dict, prefix: Path, seed: int
) -> list[str]:
    """A peer's script with its job."""
    job = {
        "prefix": str(prefix), "seed": seed, "model": "cbow" if args.cbow else "skipgram",
        "loss": args.loss,
        "dim": args.dim, "epochs": args.epochs, "window": args.window, "sample": 1e-4,
        "negatives": args.negatives, "min_count": args.min_count, "minn": args.minn,
        "maxn": args.maxn, "bucket": args.bucket, "lr": args.lr, "peer_lr": args.gensim_lr,
        "threads": args.workers * args.threads, **files,
    }  # fmt: skip
    return [python, str(HERE / "peers" / f"train_{peer}.py"), json.dumps(job)]


def train_once(system: str, command: list[str], args: argparse.Namespace, log: Path) -> dict:
    """One training; its figures."""
    begin_s = time.monotonic()
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), pythonpath()])))
    seen = watch.run(
        command, log=log, limit_s=args.limit_s, ends_at_result=system != "snailps",
        env=env if system == "snailps" else None,
    )  # fmt: skip
    if seen.code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        fail(f"{system} ended with code {seen.code}: {' '.join(command)}\n{tail}")
    results = [text for _, text in seen.rows if text.startswith("{")]
    if not results:
        fail(f"{system} printed no JSON figures: {' '.join(command)}")
    figures = json.loads(results[-1])
    figures["wall_s"], figures["peak_rss_mb"] = seen.wall_s, seen.peak_mb
    figures["memory_by"], figures["processes"] = seen.memory_by, seen.processes_max
    all_s = time.monotonic() - begin_s
    say(f"{system}: {figures['words_per_s']:,.0f} words/s, {all_s:.0f} s in all")
    return figures


def pythonpath() -> str:
    """Entries of PYTHONPATH in the caller's environment."""
    return os.environ.get("PYTHONPATH", "")


def judge(args: argparse.Namespace, vec: Path) -> dict:
    """Quality of one .vec file, by `snailps eval` for every system."""
    if not args.similarity and not args.analogies:
        return {}
    command = [sys.executable, "-m", "snailps", "eval", str(vec), "--json"]
    for file in args.similarity:
        command += ["--similarity", str(file)]
    if args.analogies:
        command += ["--analogies", str(args.analogies)]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), pythonpath()])))
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False
    )
    if done.returncode:
        fail(f"the evaluation of {vec.name} failed:\n{done.stderr.strip()[-2000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    quality = {Path(entry["file"]).name: entry["spearman"] for entry in result["similarity"]}
    if args.analogies:
        quality["analogies"] = result["analogies"]["accuracy"]
    return quality


def summarise(system: str, runs: list[dict], args: argparse.Namespace, words: int) -> dict:
    """One system's runs as one object: medians, and the mean of the quality."""

    def median(name: str) -> float:
        return statistics.median(run[name] for run in runs)

    quality = {name: mean([run["quality"][name] for run in runs]) for name in runs[0]["quality"]}
    summary = {
        "system": system,
        "version": runs[0].get("version", ""),
        "words_per_s": round(median("words_per_s")),
        "wall_s": round(median("wall_s"), 2),
        "peak_rss_mb": round(median("peak_rss_mb"), 1),
        "memory_by": runs[0]["memory_by"],
        "quality": quality,
        "model": args.model,
        "mode": "cbow" if args.cbow else "skipgram",
        "lr": runs[0].get("lr", args.lr),
        "threads": args.workers * args.threads,
        "corpus": args.corpus.name,
        "words": words,
        "epochs": args.epochs,
        "runs": len(runs),
        "seeds": args.seeds,
        "words_per_s_runs": [round(run["words_per_s"]) for run in runs],
        "quality_runs": [run["quality"] for run in runs],
        "timing": runs[0].get("timing", "snailps: master's clock from first to last block"),
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
    }
    if system == "snailps":
        summary |= {"servers": args.servers, "workers": args.workers}
        summary |= {k: runs[0][k] for k in ("blocks", "bytes_per_word") if k in runs[0]}
        summary["threads_per_worker"] = args.threads
    # Start-up, vocabulary and export, by two clocks: if negative, one of them is wrong.
    outside_s = summary["wall_s"] - words * args.epochs / summary["words_per_s"]
    summary["outside_training_s"] = round(outside_s, 2)
    if outside_s < -0.02 * summary["wall_s"]:
        summary["warning"] = "words_per_s and wall_s contradict each other: check the clocks"
        say(f"{system}: {summary['warning']}")
    return summary


def mean(scores: list[float | None]) -> float | None:
    """Mean of the runs; None when one of them had too few known words to be scored."""
    known = [score for score in scores if score is not None]
    return round(statistics.fmean(known), 4) if len(known) == len(scores) else None


def machine() -> str:
    """CPU, cores and kernel in one line."""
    name = platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        rows = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(row.partition(":")[2].strip() for row in rows if row.startswith("model name"))
    cores = len(os.sched_getaffinity(0))
    return f"{name}, {cores} cores, Linux {platform.release().split('-')[0]}"


def table(summaries: list[dict]) -> str:
    """The summaries as a Markdown table."""
    names = list(summaries[0]["quality"])
    head = ["system", "words/s", "x first peer", "wall s", "peak MB", *names, "blocks", "B/word"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    peers = [summary for summary in summaries if summary["system"] != "snailps"]
    for summary in summaries:
        ratio = f"{summary['words_per_s'] / peers[0]['words_per_s']:.2f}" if peers else ""
        cells = [summary["system"], f"{summary['words_per_s']:,}", ratio]
        cells += [f"{summary['wall_s']:.0f}", f"{summary['peak_rss_mb']:.0f}"]
        scores = [summary["quality"][name] for name in names]
        cells += ["-" if score is None else f"{score:.3f}" for score in scores]
        cells += [str(summary.get("blocks", "")), str(summary.get("bytes_per_word", ""))]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Prepare, train everything, interleaved, judge, print."""
    args = arguments()
    systems = ([] if args.no_snailps else ["snailps"]) + args.peers
    if not systems:
        fail("nothing to run: --no-snailps and no --peers")
    python = peers_python(args.peers_python) if args.peers else ""
    results: dict[str, list[dict]] = {system: [] for system in systems}
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as folder:
        scratch = Path(folder)
        plain, lines, words = prepare(args.corpus, scratch, "gensim" in systems)
        say(f"{args.corpus.name}: {words:,} words, {args.epochs} epochs, {', '.join(systems)}")
        files = {"corpus": str(plain), "lines": str(lines), "words": words}
        for run in range(max(args.runs, args.seeds)):
            seed = 1 + run % args.seeds
            # Forth, then back, so that drift (heat, other load) affects all equally.
            for system in systems if run % 2 == 0 else systems[::-1]:
                prefix = scratch / f"{system}-{run}"
                if system == "snailps":
                    command = snailps_command(args, plain, prefix, seed)
                else:
                    command = peer_command(args, system, python, files, prefix, seed)
                figures = train_once(system, command, args, scratch / f"{system}-{run}.log")
                figures["quality"] = judge(args, Path(f"{prefix}.vec"))
                results[system].append(figures)
                for left in scratch.glob(f"{prefix.name}*"):
                    left.unlink()
    summaries = [summarise(system, results[system], args, words) for system in systems]
    report(args, summaries, table(summaries))


if __name__ == "__main__":
    main()
