#!/usr/bin/env python3
"""A fastText user's work: snailps beside fastText's C++ program, interleaved, in processor seconds.

    package descriptions, messages of 60 languages -> train.txt, test.txt
    both train (A B, B A, ...) a whole command each -> seconds, precision by length of the line

    make -C fastText fasttext
    python bench/languages.py --output languages.txt --least 4000
    python bench/fasttext_place.py --program fastText/fasttext --languages languages.txt
    python bench/predict.py --work lid-2100-5 --systems fasttext,fasttext-new,snailps-1
    python bench/predict.py --work lines --systems fasttext,snailps-arrow

A command reads its text, trains with two threads and writes a `.bin`.  Processor seconds count all
its processes and threads, and hold where other load takes the cores; wall seconds do not.  A first
training, not counted, writes Python's bytecode, which an installed package has.
*descriptions*: pairs of words, fastText's defaults.  *languages*: letters 2 to 4 of messages, each
cut after 8 to 60 letters.  Both `.bin` are read by one reader; precision is of the best label, of
all lines and of lines of up to 15 letters.
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import classifier
import numpy as np
from words import ROOT, fail, machine, pythonpath, say

SHORT = 15
"""Letters of a short line, at most."""
LANGUAGES, LINES = 60, 250_000
"""Labels with most lines that are taken of `--languages`, and lines of them."""
SHORTEST, LONGEST = 8, 60
"""Letters after which a message is cut."""
SETTINGS = {
    "descriptions": {"word_ngrams": 2},
    "languages": {"minn": 2, "maxn": 4, "dim": 16, "lr": 0.5, "bucket": 500_000},
}
DEFAULTS = {
    "dim": 100, "epochs": 5, "lr": 0.1, "word_ngrams": 1, "minn": 0, "maxn": 0,
    "bucket": 2_000_000, "min_count": 1,
}  # fmt: skip
OF_PROGRAM = {"epochs": "epoch", "word_ngrams": "wordNgrams", "min_count": "minCount"}
PROGRAM, OURS = "program", "snailps"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--program", type=Path, required=True, help="fastText's C++ program")
    add("--work", default=",".join(SETTINGS), help=f"of {', '.join(SETTINGS)}")
    add("--languages", type=Path, help="lines of bench/languages.py, for the work of this name")
    add("--lists", type=Path, default=classifier.LISTS, help="apt's lists")
    add("--threads", type=int, default=2)
    add("--runs", type=int, default=3, help="runs of each system, each with another seed")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--json", action="store_true", help="one JSON object a system and work")
    args = parser.parse_args()
    for path in (args.program, args.languages):
        if path is not None and not path.is_file():
            fail(f"no such file: {path}")
    args.work = args.work.split(",")
    if unknown := {*args.work} - {*SETTINGS}:
        fail(f"unknown: {', '.join(sorted(unknown))}")
    if "languages" in args.work and args.languages is None:
        fail("the work languages needs --languages FILE, which bench/languages.py makes")
    return args


def short_lines(path: Path, folder: Path) -> Path:
    """Messages of the languages that have most, cut by a hash of each."""
    lines = path.read_text(encoding="utf-8").splitlines()
    counts = Counter(line.partition(" ")[0] for line in lines)
    most = {label for label, _ in counts.most_common(LANGUAGES)}
    cut = {}
    for line in lines:
        label, _, text = line.partition(" ")
        digest = hashlib.sha256(line.encode()).digest()
        letters = SHORTEST + digest[0] % (LONGEST - SHORTEST + 1)
        if label in most and text[:letters].strip():
            cut.setdefault(f"{label} {text[:letters].strip()}", digest)
    chosen = sorted(cut, key=lambda line: cut[line])[:LINES]
    output = folder / "languages.txt"
    output.write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")
    return output


def command_of(system: str, work: str, text: Path, prefix: Path, seed: int, args) -> list[str]:
    """Arguments of one training."""
    settings = {**DEFAULTS, **SETTINGS[work], "seed": seed}
    if system == PROGRAM:
        options = {OF_PROGRAM.get(name, name): value for name, value in settings.items()}
        options = {"input": text, "output": prefix, "thread": args.threads, **options}
        words = [word for name, value in options.items() for word in (f"-{name}", str(value))]
        return [str(args.program), "supervised", *words, "-verbose", "0"]
    options = {"input": text, "output": prefix, "threads": args.threads, **settings}
    options = {name.replace("_", "-"): value for name, value in options.items()}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "snailps", "train", "classifier", "--overwrite", "--json"]
    return [*command, *words]


def train(command: list[str]) -> dict:
    """Seconds of a command, wall and of all processors."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), pythonpath()]))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False
    )
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        fail(f"{command[0]} failed:\n{done.stderr.strip()[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu_s, "wall_s": wall_s}


def judge(model: Path, test: Path) -> dict:
    """Precision of the best label, of all lines and of the short ones."""
    from snailps.vectors.label_prediction import LabelModel

    pairs = [line.partition(" ")[::2] for line in test.read_text(encoding="utf-8").splitlines()]
    reader = LabelModel(str(model))
    best, _ = reader.predict_arrays([text for _, text in pairs])
    names = [label.decode() for label in reader.labels]
    right = np.array(
        [names[place] == label for place, (label, _) in zip(best[:, 0], pairs, strict=True)]
    )
    short = np.array([len(text) <= SHORT for _, text in pairs])
    figures = {"precision": float(right.mean())}
    return figures | ({f"to_{SHORT}": float(right[short].mean())} if short.sum() > 1000 else {})


def main() -> None:
    """Make the texts, train both, interleaved, judge, print."""
    args = arguments()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as name:
        folder = Path(name)
        for work in args.work:
            args.text = short_lines(args.languages, folder) if work == "languages" else None
            text, test, tokens = classifier.prepare(args, folder)
            runs: dict[str, list[dict]] = {PROGRAM: [], OURS: []}
            train(command_of(OURS, work, test, folder / "bytecode", 1, args))  # which this writes
            for run in range(args.runs):
                # Forth, then back, so that drift (heat, other load) affects both equally.
                for system in list(runs)[:: 1 if run % 2 == 0 else -1]:
                    prefix = folder / system
                    figures = train(command_of(system, work, text, prefix, 1 + run, args))
                    figures |= judge(Path(f"{prefix}.bin"), test)
                    runs[system].append(figures)
                    say(f"{work}, {system}: {json.dumps(figures)}")
            of_peer = statistics.median(figures["cpu_s"] for figures in runs[PROGRAM])
            for system, of_system in runs.items():
                summary = {
                    key: (statistics.median if key.endswith("_s") else statistics.fmean)(
                        figures[key] for figures in of_system
                    )
                    for key in of_system[0]
                }
                summary["ratio"] = of_peer / summary["cpu_s"]
                if args.json:
                    about = {"work": work, "system": system, "runs": args.runs, "tokens": tokens}
                    print(json.dumps({**about, **summary, "machine": machine()}), flush=True)
                else:
                    cells = ", ".join(f"{key} {value:.4g}" for key, value in summary.items())
                    print(f"{work}, {system}: {cells}", flush=True)


if __name__ == "__main__":
    main()
