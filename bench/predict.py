#!/usr/bin/env python3
"""Labels of pages and lines: snailps beside fastText and its forks, on one model, interleaved.

    corpus -> pages of 600 words, lines of 60 bytes, planted labels -> snailps train classifier
    model, texts -> each system in a process of its own (A B C, C B A, ...) -> texts a second
                 -> one JSON object a system and work (--json), a table for docs/benchmarks.md

    python bench/predict.py --corpus text8like.txt.gz --table
    python bench/predict.py --work pages,lid --systems fasttext,snailps-1,snailps-2 --repeat 5
    python bench/predict.py --text languages.txt --table    # lines of bench/languages.py

Time is of the call for all texts; loading the model before it is a column of its own.
`equal` is the share of texts whose best label is fastText's, `right` of those whose best label is
the planted one, or the line's.  snailps-1 has one thread, snailps-2 two, snailps-arrow two and
Arrow in and out in the place of lists; snailps-one is called for each text.  program is fastText's
C++ program (--program PATH, built by its Makefile): the time of its own loop, without the load.
"""

import argparse
import gzip
import hashlib
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from words import ROOT, corpus_of, fail, machine, peers_python, pythonpath, say

MODULES = {
    "fasttext": ("predict", "fasttext"), "fasttext-predict": ("predict-only", "fasttext"),
    "fasttext-new": ("predict-new", "fasttext_new"),
    "fasttext-turbo": ("predict-turbo", "fasttext"),
    "fasttext-threaded": ("predict-threaded", "fasttext_threaded"),
}  # fmt: skip
OURS = {"snailps-1": 1, "snailps-2": 2, "snailps-arrow": 2, "snailps-one": 1}
PROGRAM = "program"
RARE_OUT = {"min_count": 5}
# Work: words of a text, texts, labels, settings.
WORK = {
    "pages": (600, 8000, 20, {"dim": 100, "word_ngrams": 2, "bucket": 550_000}),
    "lid": (600, 4000, 176, {"dim": 16, "minn": 2, "maxn": 4, "bucket": 1_000_000, **RARE_OUT}),
    "lid-2100": (
        600, 2000, 2100, {"dim": 256, "minn": 2, "maxn": 4, "bucket": 200_000, **RARE_OUT},
    ),
    "lid-2100-5": (
        600, 2000, 2100, {"dim": 256, "minn": 2, "maxn": 5, "bucket": 200_000, **RARE_OUT},
    ),
    "lines": (10, 300_000, 20, {"dim": 16, "word_ngrams": 2, "bucket": 200_000}),
    "random": (600, 4000, 20, {"dim": 256, "word_ngrams": 5, "bucket": 3_900_000}),
}  # fmt: skip
TEXT = "text"
"""The work of `--text`, with the settings of `lid`."""
TEST_SHARE = 5
"""One of its lines in this many is labelled, the others are for training."""
HINTED = 4
"""One word in this many hints at the label in training; in other texts as many, or fewer."""
LANGUAGES = ("lid", "lid-2100", "lid-2100-5")
"""Work whose labels are languages, the letters of each being others; of a text to label up to a
quarter is in none of them."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", type=Path, help="default: the one in SNAILPS_DATA")
    add("--work", default="pages,lid,lid-2100,lines", help=f"of {', '.join(WORK)}")
    add(
        "--text", type=Path, help="labelled lines to train on and to label, instead of planted ones"
    )
    add("--systems", default=",".join((*MODULES, *OURS)), help="the first one is the measure")
    add("--program", type=Path, help="fastText's C++ program, for the system of this name")
    add("--runs", type=int, default=3, help="runs of each system, interleaved")
    add("--repeat", type=int, default=3, help="times that a run answers all texts")
    add("--threads", type=int, default=2, help="of the forks that have some")
    add("--scale", type=float, default=1.0, help="of the number of texts")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--json", action="store_true", help="one JSON object a system on standard output")
    add("--table", action="store_true", help="a Markdown table on standard output")
    args = parser.parse_args()
    for name in ("work", "systems"):
        setattr(args, name, getattr(args, name).split(","))
    if args.text is not None:
        args.work = [TEXT]
        WORK[TEXT] = (0, 0, 0, {**WORK["lid"][3], "min_count": 1})
    unknown = {*args.work} - {*WORK} | {*args.systems} - {*MODULES, *OURS, PROGRAM}
    if unknown:
        fail(f"unknown: {', '.join(sorted(unknown))}")
    if PROGRAM in args.systems and not (args.program and args.program.is_file()):
        fail(f"the system {PROGRAM} needs --program PATH, fastText's C++ program")
    if args.text is None:
        args.corpus = corpus_of(args.corpus)
    elif not args.text.is_file():
        fail(f"no such file: {args.text}")
    return args


def write_texts(
    words: list[str], work: str, scale: float, folder: Path
) -> tuple[Path, Path, list[str]]:
    """A labelled text to train on, other texts to label, and their labels."""
    size, count, labels, _ = WORK[work]
    drawn = random.Random(work)

    letters = string.ascii_lowercase
    languages = [
        str.maketrans(letters, "".join(random.Random(label).sample(letters, 26)))
        for label in range(labels)
    ]

    def text(label: int, hints: int) -> str:
        at = drawn.randrange(len(words) - size)
        found = words[at : at + size]
        if work in LANGUAGES:
            own = size - size // 4 + hints
            return " ".join((" ".join(found[:own]).translate(languages[label]), *found[own:]))
        for _ in range(hints):
            found[drawn.randrange(size)] = f"hint{label}"
        return " ".join(found)

    train, asked = folder / "train.txt", folder / "texts.txt"
    shown = max(5 * labels, min(count, 4_000_000 // size))
    with train.open("w", encoding="utf-8") as file:
        for number in range(shown):
            label = number % labels
            file.write(f"__label__l{label} {text(label, size // HINTED)}\n")
    with asked.open("w", encoding="utf-8") as file:
        for number in range(int(count * scale)):
            file.write(text(number % labels, drawn.randrange(size // HINTED + 1)) + "\n")
    return train, asked, [f"__label__l{at % labels}" for at in range(int(count * scale))]


def split(text: Path, folder: Path) -> tuple[Path, Path, list[str]]:
    """The same of labelled lines, by a hash of each."""
    known = []
    train, asked = folder / "train.txt", folder / "texts.txt"
    with (
        text.open(encoding="utf-8") as lines,
        train.open("w", encoding="utf-8") as shown,
        asked.open("w", encoding="utf-8") as hidden,
    ):
        for line in lines:
            if hashlib.sha256(line.encode()).digest()[-1] % TEST_SHARE:
                shown.write(line)
            else:
                label, _, rest = line.partition(" ")
                known.append(label)
                hidden.write(rest)
    return train, asked, known


def make(words: list[str], work: str, scale: float, folder: Path) -> tuple[Path, Path]:
    """A trained classifier, and texts to label."""
    train, texts, _ = write_texts(words, work, scale, folder)
    return trained_on(train, work, folder), texts


def trained_on(train: Path, work: str, folder: Path) -> Path:
    """A classifier of this text."""
    command = [sys.executable, "-m", "snailps", "train", "classifier", "--input", str(train)]
    command += ["--output", str(folder / "model"), "--epochs", "5", "--lr", "0.5"]
    command += ["--json"]
    for option, value in ({"min_count": 1} | WORK[work][3]).items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), pythonpath()])}
    trained = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False
    )
    if trained.returncode:
        fail(f"the training failed:\n{trained.stderr.strip()[-2000:]}")
    return folder / "model.bin"


def run_ours(job: dict) -> None:
    """A run of snailps, as peers/predict_fasttext.py is one of a peer."""
    from snailps.vectors.label_prediction import LabelModel

    with open(job["text"], encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in file]
    began = time.perf_counter()
    model = LabelModel(job["model"])
    model.predict(texts[0])
    load_s = time.perf_counter() - began
    asked = texts
    if job["system"] == "snailps-arrow":
        import pyarrow

        asked = pyarrow.array(texts)
    seconds = []
    for _ in range(job["repeat"]):
        began = time.perf_counter()
        if job["system"] == "snailps-one":
            one_each = [model.predict(text)[0] for text in texts]
        elif asked is texts:
            best, _ = model.predict_arrays(asked, threads=job["threads"])
        else:
            found = model.predict_arrow(asked, threads=job["threads"])
        seconds.append(time.perf_counter() - began)
    if job["system"] == "snailps-one":
        found = {"label": [best.label for best, *_ in one_each]}
    elif asked is texts:
        found = {"label": [model.labels[label].decode() for label in best[:, 0]]}
    with open(job["labels"], "w", encoding="utf-8") as file:
        file.writelines(f"{label}\n" for label in found["label"])
    print(json.dumps({"seconds": seconds, "load_s": load_s}))


def run_program(program: str, job: dict) -> dict:
    """A run of the C++ program: what all texts take beyond the first one."""

    def seconds_of(text: str, labels: str) -> float:
        began = time.perf_counter()
        with open(labels, "wb") as output:
            command = [program, "predict", job["model"], text]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, check=True)
        return time.perf_counter() - began

    first = f"{job['text']}.first"
    with open(job["text"], "rb") as whole, open(first, "wb") as file:
        file.write(whole.readline())
    load_s = min(seconds_of(first, os.devnull) for _ in range(job["repeat"]))
    seconds = [seconds_of(job["text"], job["labels"]) - load_s for _ in range(job["repeat"])]
    return {"seconds": seconds, "load_s": load_s}


def run(system: str, pythons: dict[str, str], job: dict) -> dict:
    """One run in a process of its own."""
    job = {**job, "system": system}
    env = dict(os.environ)
    if system == PROGRAM:
        return run_program(pythons[system], job)
    if system in OURS:
        job["threads"] = OURS[system]
        command = [sys.executable, __file__, "--job", json.dumps(job)]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), pythonpath()]))
    else:
        job["module"] = MODULES[system][1]
        peer = str(ROOT / "bench" / "peers" / "predict_fasttext.py")
        command = [pythons[system], peer, json.dumps(job)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False
    )
    if done.returncode:
        fail(f"{system} failed:\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(work: str, args: argparse.Namespace, pythons: dict[str, str], words: list[str]) -> list:
    """All systems on one work."""
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as name:
        folder = Path(name)
        if args.text is None:
            train, texts, known = write_texts(words, work, args.scale, folder)
        else:
            train, texts, known = split(args.text, folder)
        model = trained_on(train, work, folder)
        size, lines = model.stat().st_size / 1e6, len(known)
        mean = sum(map(len, texts.read_text(encoding="utf-8").splitlines())) / lines
        say(f"{work}: {lines:,} texts of {mean:,.0f} characters, a model of {size:,.0f} MB")
        found: dict[str, list[dict]] = {system: [] for system in args.systems}
        labels = {system: folder / f"{system}.labels" for system in args.systems}
        for number in range(args.runs):
            # Forth, then back, so that drift (heat, other load) affects all equally.
            for system in args.systems if number % 2 == 0 else args.systems[::-1]:
                job = {"model": str(model), "text": str(texts), "labels": str(labels[system])}
                job |= {"repeat": args.repeat, "threads": args.threads}
                found[system].append(run(system, pythons, job))
        of = {
            system: path.read_text(encoding="utf-8").splitlines() for system, path in labels.items()
        }
        first, summaries = args.systems[0], []
        for system, runs in found.items():
            seconds = statistics.median(min(one["seconds"]) for one in runs)
            same = sum(a == b for a, b in zip(of[system], of[first], strict=True))
            right = sum(a == b for a, b in zip(of[system], known, strict=True))
            summaries.append({
                "work": work, "system": system, "texts_per_s": round(lines / seconds, 1),
                "texts": lines, "characters": round(mean), "labels": len({*known}),
                "model_mb": round(size), "load_s": round(statistics.median(
                    one["load_s"] for one in runs), 3),
                "equal": same / lines, "right": right / lines,
                "runs": args.runs, "machine": machine(),
                "texts_per_s_runs": [round(lines / min(one["seconds"]), 1) for one in runs],
            })  # fmt: skip
        for one in summaries:
            one["ratio"] = round(one["texts_per_s"] / summaries[0]["texts_per_s"], 2)
        return summaries


def table(summaries: list[dict]) -> str:
    """The summaries as a Markdown table."""
    first = summaries[0]["system"]
    head = ["work", "system", "texts/s", f"x {first}", "load s", f"labels as {first}", "right"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in summaries:
        cells = [one["work"], one["system"], f"{one['texts_per_s']:,.0f}", f"{one['ratio']:.2f}"]
        cells += [f"{one['load_s']:.2f}", f"{one['equal']:.2%}", f"{one['right']:.1%}"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Train, ask all, interleaved, print."""
    if sys.argv[1:2] == ["--job"]:
        run_ours(json.loads(sys.argv[2]))
        return
    args = arguments()
    pythons = {one: peers_python(None, MODULES[one][0]) for one in args.systems if one in MODULES}
    pythons[PROGRAM] = str(args.program)
    words: list[str] = []
    if args.text is None:
        opener = gzip.open if args.corpus.suffix == ".gz" else open
        with opener(args.corpus, "rt", encoding="utf-8") as file:
            words = file.read(60_000_000).split()
    summaries: list[dict] = []
    for work in args.work:
        some = measure(work, args, pythons, words)
        summaries += some
        if args.json:
            for one in some:
                print(json.dumps(one), flush=True)
    if args.table or not args.json:
        print(table(summaries), flush=True)


if __name__ == "__main__":
    main()
