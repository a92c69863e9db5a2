#!/usr/bin/env python3
"""Quantised models: snailps beside fastText's `quantize`, on one model, in one run, interleaved.

    model.bin, labelled text -> both quantise it (A B, B A, ...) -> seconds, size, precision
                             -> texts a second from both files, in one thread
    vectors.bin, word pairs, analogies -> snailps alone -> size and scores before and after

    python bench/quantise.py sections.bin --test held-out.txt --table
    python bench/quantise.py sections.bin --test held-out.txt --set qnorm --set cutoff=100000
    python bench/quantise.py words.bin --similarity ws353.txt --analogies questions-words.txt

Time is of a whole process: load, quantise, save.  fastText uses one thread, snailps one per core;
processor time is of all threads.  `snailps test` scores both files.  fastText refuses word vectors.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import predict
from words import ROOT, fail, machine, peers_python, pythonpath, report, say

PEER = ROOT / "bench" / "peers" / "quantise_fasttext.py"
FASTTEXT, OURS = "fasttext", "snailps"
REPEAT = 3
"""Times that a run answers all texts."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("model", type=Path, help="the .bin of a classifier or of word vectors")
    add("--test", type=Path, help="labelled text, for a classifier")
    add("--similarity", type=Path, action="append", default=[], help="word pairs, for vectors")
    add("--analogies", type=Path, help="analogies, for vectors")
    add("--set", action="append", default=[], help="qnorm, qout, dsub=N, cutoff=N; several times")
    add("--runs", type=int, default=3, help="runs of each system, interleaved")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--peers-python", help="a Python that has fastText, instead of the bench's own")
    add("--json", action="store_true", help="one JSON object a system on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    if (args.test is None) == (not args.similarity and args.analogies is None):
        fail("give --test for a classifier, --similarity or --analogies for word vectors")
    return args


def settings_of(args: argparse.Namespace) -> dict[str, int | bool]:
    """Keyword arguments of both `quantize`."""
    pairs = (text.partition("=") for text in args.set)
    return {name: int(value) if value else True for name, _, value in pairs}


def snailps(*words: object) -> dict:
    """JSON of a command of ours."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), pythonpath()])))
    done = subprocess.run(
        [sys.executable, "-m", "snailps", *map(str, words), "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    if done.returncode:
        fail(f"snailps {words[0]} failed:\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def quantise(system: str, python: str, args: argparse.Namespace, output: Path) -> dict:
    """One run in a process of its own."""
    settings = settings_of(args)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    if system == OURS:
        options = [
            f"--{name}" if value is True else f"--{name}={value}"
            for name, value in settings.items()
        ]
        snailps("quantize", args.model, "--output", output, "--overwrite", *options)
    else:
        job = {"model": str(args.model), "output": str(output), "settings": settings}
        subprocess.run([python, PEER, json.dumps(job)], stdin=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say(f"{system}: {wall:.1f} s, {cpu:.1f} processor seconds")
    return {"seconds": wall, "cpu_s": cpu}


def scores_of(model: Path, args: argparse.Namespace) -> dict[str, float]:
    """Quality of one file."""
    if args.test is not None:
        return {"precision": snailps("test", model, args.test)["precision"]}
    options = [word for path in args.similarity for word in ("--similarity", path)]
    if args.analogies is not None:
        options += ["--analogies", args.analogies]
    figures = snailps("eval", model, *options)
    scores = {Path(pairs["file"]).stem: pairs["spearman"] for pairs in figures["similarity"]}
    if figures["analogies"] is not None:
        scores["analogies"] = figures["analogies"]["accuracy"]
    return scores


def texts_a_second(models: dict[str, Path], python: str, args: argparse.Namespace) -> dict:
    """Predictions of each file by its own system, in one thread, interleaved."""
    texts = args.scratch / "texts.txt"
    lines = args.test.read_text(encoding="utf-8").splitlines()
    texts.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    names = {FASTTEXT: "fasttext", OURS: "snailps-1"}
    seconds: dict[str, list[float]] = {system: [] for system in models}
    for number in range(args.runs):
        for system in list(models) if number % 2 == 0 else list(models)[::-1]:
            job = {"model": str(models[system]), "text": str(texts), "repeat": REPEAT}
            job |= {"labels": os.devnull, "threads": 1}
            run = predict.run(names[system], {"fasttext": python}, job)
            seconds[system].append(min(run["seconds"]))
    return {system: len(lines) / statistics.median(runs) for system, runs in seconds.items()}


def measure(args: argparse.Namespace) -> list[dict]:
    """All runs; one summary a system, and one of the model itself."""
    systems = [FASTTEXT, OURS] if args.test is not None else [OURS]
    python = peers_python(args.peers_python, "predict") if len(systems) > 1 else ""
    outputs = {system: args.scratch / f"{system}.ftz" for system in systems}
    runs: dict[str, list[dict]] = {system: [] for system in systems}
    for number in range(args.runs):
        # Forth, then back, so that drift (heat, other load) affects both equally.
        for system in systems if number % 2 == 0 else systems[::-1]:
            runs[system].append(quantise(system, python, args, outputs[system]))
    summaries = [{"system": "model", "bytes": args.model.stat().st_size}]
    summaries[0] |= scores_of(args.model, args)
    speeds = texts_a_second(outputs, python, args) if args.test is not None else {}
    for system in systems:
        medians = {
            name: round(statistics.median(run[name] for run in runs[system]), 2)
            for name in ("seconds", "cpu_s")
        }
        summary = {"system": system, "bytes": outputs[system].stat().st_size, **medians}
        summary |= scores_of(outputs[system], args)
        if speeds:
            summary["texts_per_s"] = round(speeds[system])
        summary |= {"settings": settings_of(args), "runs": args.runs, "machine": machine()}
        summaries.append(summary)
    return summaries


def table(summaries: list[dict]) -> str:
    """The summaries as a Markdown table."""
    names = [name for name in summaries[-1] if name not in ("settings", "runs", "machine")]
    rows = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for summary in summaries:
        cells = [summary.get(name, "") for name in names]
        shown = [f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in cells]
        rows.append("| " + " | ".join(shown) + " |")
    return "\n".join(rows)


def main() -> None:
    """Quantise, score, print."""
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as folder:
        args.scratch = Path(folder)
        summaries = measure(args)
    report(args, summaries, table(summaries))


if __name__ == "__main__":
    main()
