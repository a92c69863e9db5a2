#!/usr/bin/env python3
"""The classifier: snailps beside fastText's supervised mode, on one text, in one run, interleaved.

    apt's lists -> package descriptions, labelled by Section -> train.txt, test.txt
    text, sizes -> both train (A B, B A, ...) -> speed, memory, accuracy
                -> one JSON object a system (--json), a table for docs/benchmarks.md (--table)

Speed is training alone: tokens of the text x epochs / seconds without start-up, vocabulary and
export.  `snailps test` judges the .bin of both.  The text is made here from what a Debian machine
has anyway; --text takes a file of your own instead.  README.md here says more.
"""

import argparse
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from words import ROOT, fail, machine, peers_python, pythonpath, report, say, train_once

LISTS = Path("/var/lib/apt/lists")
CAT_FILE = "/usr/lib/apt/apt-helper"
UPDATE_S = 300
TEST_SHARE = 5
"""One line in this many is for the test."""
LINES_MIN = 1000
FIELD = re.compile(r"^(Package|Section|Description(?:-en)?): (.*(?:\n .*)*)", re.MULTILINE)
TOKEN = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--text", type=Path, help="lines of __label__x and words, instead of apt's descriptions")
    add("--lists", type=Path, default=LISTS, help=f"apt's lists, default {LISTS}")
    add("--loss", choices=("softmax", "ova", "ns", "hs"), default="softmax")
    add("--servers", type=int, default=1)
    add("--workers", type=int, default=1)
    add("--threads", type=int, default=2, help="of one worker; fastText gets workers x threads")
    add("--dim", type=int, default=100)
    add("--epochs", type=int, default=5)
    add("--lr", type=float, default=0.1)
    add("--word-ngrams", type=int, default=1)
    add("--min-count", type=int, default=1)
    add("--minn", type=int, default=0)
    add("--maxn", type=int, default=0)
    add("--bucket", type=int, default=2_000_000)
    add("--negatives", type=int, default=5)
    add("--no-peer", action="store_true", help="snailps only")
    add("--runs", type=int, default=1, help="runs of each system, interleaved")
    add("--seeds", type=int, default=1, help="how many seeds the runs go through")
    add("--limit-s", type=float, default=3600.0, help="longest time of one training")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--peers-python", help="a Python that has fastText, instead of .bench-venv")
    add("--json", action="store_true", help="one JSON object a system on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    if args.text is not None and not args.text.is_file():
        fail(f"no such file: {args.text}")
    return args


# --- the text -----------------------------------------------------------------------------------


def paragraphs(path: Path) -> Iterator[dict[str, str]]:
    """Fields of each package in one of apt's files, however that is packed."""
    done = subprocess.run([CAT_FILE, "cat-file", str(path)], capture_output=True, check=False)
    if done.returncode:
        fail(f"cannot unpack {path}: {done.stderr.decode(errors='replace').strip()}")
    for part in done.stdout.decode("utf-8", "replace").split("\n\n"):
        yield dict(FIELD.findall(part))


def with_translations(lists: Path, scratch: Path) -> Path:
    """A folder of lists that have long descriptions, fetched anew into `scratch` if need be."""
    if any(lists.glob("*_Translation-en*")):
        return lists
    say(f"no Translation-en in {lists}: fetching lists with long descriptions into the scratch")
    fresh = scratch / "lists"
    (fresh / "partial").mkdir(parents=True)
    (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
    options = {
        "Dir::State::Lists": fresh, "Dir::Cache": scratch / "cache", "Acquire::Languages": "en",
        "APT::Sandbox::User": "root",
    }  # fmt: skip
    command = ["apt-get", "update", *(f"-o{key}={value}" for key, value in options.items())]
    try:
        subprocess.run(command, capture_output=True, timeout=UPDATE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"that failed ({type(error).__name__}): taking the short descriptions, which are poor")
        return lists
    return fresh if any(fresh.glob("*_Translation-en*")) else lists


def descriptions(lists: Path, scratch: Path) -> dict[str, str]:
    """Package -> labelled line, of all packages with a Section and a description."""
    if not Path(CAT_FILE).exists():
        fail(f"no {CAT_FILE}: this is no Debian; give a labelled text by --text FILE")
    folder = with_translations(lists, scratch)
    sections: dict[str, str] = {}
    texts: dict[str, str] = {}
    for path in sorted(folder.glob("*_Packages*")):
        for fields in paragraphs(path):
            if "Package" in fields and "Section" in fields:
                sections.setdefault(fields["Package"], fields["Section"].rpartition("/")[2])
                texts.setdefault(fields["Package"], fields.get("Description", ""))
    for path in sorted(folder.glob("*_Translation-en*")):
        for fields in paragraphs(path):
            if "Description-en" in fields and fields.get("Package") in sections:
                texts[fields["Package"]] = fields["Description-en"]
    if not sections:
        fail(f"no packages in {folder}: run apt-get update, or give a labelled text by --text FILE")
    lines = {}
    for package, section in sections.items():
        words = TOKEN.findall(texts[package].lower())
        if words:
            lines[package] = f"__label__{section} {' '.join(words)}\n"
    return lines


def prepare(args: argparse.Namespace, scratch: Path) -> tuple[Path, Path, int]:
    """Write train.txt and test.txt in the order of a hash; tokens of the first, as fastText counts.

    The hash of a package's name (of a line of --text) says which file a line goes to and where:
    both stay the same from day to day, and no two neighbours have to do with each other.
    """
    if args.text is None:
        lines = descriptions(args.lists, scratch)
    else:
        text = args.text.read_text(encoding="utf-8", errors="surrogateescape")
        lines = {line: line + "\n" for line in text.split("\n") if line}
    if len(lines) < LINES_MIN:
        fail(f"expected at least {LINES_MIN} lines, got {len(lines)}")
    hashed = {
        hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest(): line
        for name, line in lines.items()
    }
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for digest in sorted(hashed):
        parts["test" if digest[-1] % TEST_SHARE == 0 else "train"].append(hashed[digest])
    paths = []
    for name, part in parts.items():
        paths.append(scratch / f"{name}.txt")
        paths[-1].write_text("".join(part), encoding="utf-8", errors="surrogateescape")
    tokens = sum(len(line.split()) + 1 for line in parts["train"])
    labels = {word for line in lines.values() for word in line.split() if "__label__" in word}
    sizes = " and ".join(f"{len(part):,} lines to {name}" for name, part in parts.items())
    say(f"{sizes} on, {tokens:,} tokens, {len(labels)} labels")
    return paths[0], paths[1], tokens


# --- training and judging -----------------------------------------------------------------------


def command_of(
    args: argparse.Namespace, system: str, python: str, text: Path, prefix: Path, seed: int
) -> list[str]:
    """Arguments of one training."""
    same = {
        "loss": args.loss, "dim": args.dim, "epochs": args.epochs, "lr": args.lr, "seed": seed,
        "word_ngrams": args.word_ngrams, "min_count": args.min_count, "minn": args.minn,
        "maxn": args.maxn, "bucket": args.bucket, "negatives": args.negatives,
    }  # fmt: skip
    if system == "fasttext":
        job = {"prefix": str(prefix), "model": "supervised", "corpus": str(text), **same}
        job["threads"] = args.workers * args.threads
        return [python, str(ROOT / "bench" / "peers" / "train_fasttext.py"), json.dumps(job)]
    command = [sys.executable, "-m", "snailps", "train", "classifier", "--json", "--overwrite"]
    command += ["--input", str(text), "--output", str(prefix)]
    same |= {"servers": args.servers, "workers": args.workers, "threads": args.threads}
    for name, value in same.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def judge(model: Path, text: Path) -> dict:
    """Precision, recall and F1 of the best label, by `snailps test` for both systems.

    F1 is the mean of the labels that the text has, whatever their number of lines.
    """
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), pythonpath()])))
    done = subprocess.run(
        [sys.executable, "-m", "snailps", "test", str(model), str(text), "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    if done.returncode:
        fail(f"the test of {model.name} failed:\n{done.stderr.strip()[-2000:]}")
    result = json.loads(done.stdout)
    f1 = statistics.fmean(
        # A label that no line got has no precision, and an F1 of 0.
        2 / (1 / one["precision"] + 1 / one["recall"]) if one["precision"] and one["recall"] else 0
        for one in result["labels"]
        if one["lines"]
    )
    return {"f1": f1, **{name: result[name] for name in ("precision", "recall", "lines")}}


def summarise(system: str, runs: list[dict], args: argparse.Namespace, tokens: int) -> dict:
    """One system's runs as one object: medians, and the mean of the quality."""

    def median(name: str) -> float:
        return statistics.median(run[name] for run in runs)

    summary = {
        "system": runs[0].get("version", system),
        "words_per_s": round(median("words_per_s")),
        "wall_s": round(median("wall_s"), 2),
        "peak_rss_mb": round(median("peak_rss_mb"), 1),
        "precision": round(statistics.fmean(run["quality"]["precision"] for run in runs), 4),
        "recall": round(statistics.fmean(run["quality"]["recall"] for run in runs), 4),
        "f1": round(statistics.fmean(run["quality"]["f1"] for run in runs), 4),
        "test_lines": runs[0]["quality"]["lines"],
        "tokens": tokens,
        "threads": args.workers * args.threads,
        "runs": len(runs),
        "seeds": args.seeds,
        "words_per_s_runs": [round(run["words_per_s"]) for run in runs],
        "precision_runs": [round(run["quality"]["precision"], 4) for run in runs],
        "timing": runs[0].get("timing", "snailps: master's clock from first to last block"),
        "machine": machine(),
    }
    sizes = ("loss", "dim", "epochs", "lr", "word_ngrams", "minn", "maxn", "bucket", "min_count")
    summary |= {name: getattr(args, name) for name in sizes}
    if system == "snailps":
        summary |= {"servers": args.servers, "workers": args.workers}
        summary |= {name: runs[0][name] for name in ("blocks", "bytes_per_word")}
    return summary


def table(summaries: list[dict]) -> str:
    """The summaries as a Markdown table."""
    head = ["system", "words/s", "x fastText", "wall s", "peak MB", "P@1", "F1", "blocks", "B/word"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in summaries:
        ratio = one["words_per_s"] / summaries[-1]["words_per_s"]
        cells = [one["system"], f"{one['words_per_s']:,}", f"{ratio:.2f}", f"{one['wall_s']:.0f}"]
        cells += [f"{one['peak_rss_mb']:.0f}", f"{one['precision']:.4f}", f"{one['f1']:.4f}"]
        cells += [str(one.get("blocks", "")), str(one.get("bytes_per_word", ""))]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Make the text, train both, interleaved, judge, print."""
    args = arguments()
    systems = ["snailps"] if args.no_peer else ["snailps", "fasttext"]
    python = "" if args.no_peer else peers_python(args.peers_python)
    results: dict[str, list[dict]] = {system: [] for system in systems}
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as folder:
        scratch = Path(folder)
        train, test, tokens = prepare(args, scratch)
        for run in range(max(args.runs, args.seeds)):
            seed = 1 + run % args.seeds
            # Forth, then back, so that drift (heat, other load) affects both equally.
            for system in systems if run % 2 == 0 else systems[::-1]:
                prefix = scratch / f"{system}-{run}"
                command = command_of(args, system, python, train, prefix, seed)
                figures = train_once(system, command, args, scratch / f"{system}-{run}.log")
                model = Path(f"{prefix}.bin")
                figures["quality"] = judge(model, test)
                results[system].append(figures)
                model.unlink()
    summaries = [summarise(system, results[system], args, tokens) for system in systems]
    report(args, summaries, table(summaries))


if __name__ == "__main__":
    main()
