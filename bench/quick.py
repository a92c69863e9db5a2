#!/usr/bin/env python3
"""The main ratios, also of jobs that are one option away, at two sizes, kept as a history.

    words.py, classifier.py, sparse.py, fits.py, transport.py, hosts.py, ... -> figures
    figures -> bench/history.jsonl -> docs/bench-history.svg; --fill: the targets of docs/limits.md
    a ratio, its best on such a machine -> red below .9 of that: exit code 1

Sizes `quick` take ten minutes. Sizes `limits` measure the targets in docs/limits.md, in twenty.
Each ratio has both of its sides measured in the same run, interleaved, so that runs of different
days may be compared; the only absolute figures kept are the times of a whole job and of small fits.
Single ratios differ by a tenth on a noisy machine: a red one says that its script is to be run, at
its own size, before anything is claimed.
"""

import argparse
import datetime
import gzip
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from cgroups import Groups, NoQuota
from classifier import LISTS, with_translations
from quick_figures import filled, history, is_like, kind_of, picture, red, table
from words import ROOT, corpus_of, fail, machine, say

HERE = Path(__file__).parent
HISTORY = HERE.resolve() / "history.jsonl"
PICTURE = ROOT / "docs" / "bench-history.svg"
JOB_BYTES, EPOCHS_BYTES = 3_000_000, 20_000_000
LINE_WORDS = 30
END_S = 15.0
"""Of a script that takes too long, to end what it has started."""
SCRIPT_S = 900.0
"""Longest time of one script: a run goes on without its figures."""
CORE = 0.22
"""Of a simulated host."""
SEVERAL = ("--workers", "4", "--servers", "4", "--threads", "1")
TRANSPORT = {
    "pull / bare loop": ("pull_rows_per_s", "limit_pull_rows_per_s"),
    "push add / bare loop": ("push_rows_per_s", "limit_push_rows_per_s"),
    "pull, latency of 100 rows / bare loop": ("small_pull_us", "limit_small_pull_us"),
    "pull float16 / float32": ("pull_rows_per_s_float16", "pull_rows_per_s_float32"),
    "pull int8 / float32": ("pull_rows_per_s_int8", "pull_rows_per_s_float32"),
    "push adagrad / add": ("push_rows_per_s_adagrad", "push_rows_per_s_add"),
    "push ftrl / add": ("push_rows_per_s_ftrl", "push_rows_per_s_add"),
    "push adam / add": ("push_rows_per_s_adam", "push_rows_per_s_add"),
    "lookups of 20 M rows / of 100,000": ("lookup_rate_20m_rows", "lookup_rate_100k_rows"),
}
"""Figures of transport.py whose ratio each is."""
Figures = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """What is measured on.

    Attributes
    ----------
    words_bytes : int
        Of text for word vectors, one epoch.
    words_runs : int
        Runs of word vectors at most, whose peer takes minutes for a large text.
    lines_bytes : int
        Of text for the classifier of several workers.
    examples, csr_rows : int
        Clicks; rows of a matrix.
    transport : str
        Parts of transport.py.
    hosts : int
    without : tuple of str
        Steps that are not measured unless named.
    """

    words_bytes: int
    words_runs: int
    lines_bytes: int
    examples: int
    csr_rows: int
    transport: str
    hosts: int
    without: tuple[str, ...] = ()


SIZES = {
    "quick": Sizes(
        10_000_000, 3, 10_000_000, 400_000, 300_000, "pull,push,wire", 2,
        ("epochs", "descriptions", "commands", "languages", "tls", "hosts-subwords"),
    ),
    "limits": Sizes(
        100_000_000, 1, 20_000_000, 1_000_000, 1_000_000,
        "pull,push,small,wire,access,lookup", 8,
    ),
}  # fmt: skip
RESUMED = ("commit", "machine", "sizes")
"""What a run has in common with the one that it resumes."""


class LeftOut(Exception):
    """A step that cannot be measured here; the text says why."""


class Failed(Exception):
    """A script that failed; the text says how."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--sizes", choices=SIZES, default="quick", help="quick: ten minutes; limits: thirty")
    add(
        "--steps",
        default="",
        help=f"with commas; default: all that the sizes have of {', '.join(STEPS)}",
    )
    add("--corpus", type=Path, help="a text, plain or .gz; default: the one in SNAILPS_DATA")
    add("--peers-python", help="a Python that has the peers, instead of .bench-venv")
    add("--program", type=Path, help="fastText's C++ program, for whole commands of classifiers")
    add("--languages", type=Path, help="lines of bench/languages.py --least 4000, for the same")
    add("--runs", type=int, default=3, help="runs of each system, interleaved")
    add("--draw", action="store_true", help="measure nothing: draw, and fill, from the history")
    add("--fill", type=Path, metavar="PAGE", help="write the table of the last run of sizes limits")
    add("--dry", action="store_true", help="keep nothing")
    add("--resume", action="store_true", help="measure what the last run left out, which has to "
        "be of this commit, machine and sizes")  # fmt: skip
    add("--history", type=Path, default=HISTORY, help="where this run is kept; drawn beside it")
    args = parser.parse_args()
    if not args.draw:
        args.corpus = corpus_of(args.corpus)
    for file in (args.fill, args.program, args.languages):
        if file is not None and not file.is_file():
            fail(f"no such file: {file}")
    if args.fill and not args.draw and args.sizes != "limits":
        fail("--fill needs --sizes limits, or --draw: the targets are of these sizes")
    lacking = SIZES[args.sizes].without
    default = [name for name in STEPS if name not in lacking]
    args.steps = args.steps.split(",") if args.steps else default
    if unknown := [name for name in args.steps if name not in STEPS]:
        fail(f"unknown step {unknown[0]!r}; known: {', '.join(STEPS)}")
    return args


def rows_of(script: str, *words: str) -> list[dict]:
    """JSON objects that a script of this folder prints.

    Raises
    ------
    Failed
        It ended with another code than 0, or took longer than `SCRIPT_S`.
    """
    begin_s = time.monotonic()
    command = [sys.executable, str(HERE / script), *words]
    # In our session: whatever kills that, as a nightly run does at its end, kills the script, too.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            output, _ = child.communicate(timeout=SCRIPT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{script} took longer than {SCRIPT_S:.0f} s") from None
        finally:
            if child.poll() is None:
                stop(child)
    if child.returncode:
        raise Failed(f"{script} ended with code {child.returncode}")
    say(f"{script} took {time.monotonic() - begin_s:.0f} s")
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def stop(child: subprocess.Popen) -> None:
    """End a script, which ends what it has started."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()


def begin_of(corpus: Path, size: int, path: Path) -> Path:
    """The first bytes of a text, up to a word's end, as a file."""
    opened = gzip.open if corpus.suffix == ".gz" else open
    with opened(corpus, "rb") as text:
        data = text.read(size)
    path.write_bytes(data[: data.rfind(b" ") + 1])
    return path


def labelled(text: Path, path: Path) -> Path:
    """The words of a text in lines of `LINE_WORDS`, labelled by the length of the first word."""
    words = text.read_bytes().split()
    lines = (words[at : at + LINE_WORDS] for at in range(0, len(words), LINE_WORDS))
    path.write_bytes(b"".join(b"__label__%d %s\n" % (len(w[0]), b" ".join(w)) for w in lines))
    return path


def by_system(rows: list[dict], job: str = "") -> dict[str, dict]:
    """Rows of one job, by system."""
    return {row["system"]: row for row in rows if not job or row.get("job") == job}


def beside(rows: dict[str, dict], key: str) -> float:
    """Our figure by the other system's."""
    (other,) = rows.keys() - {"snailps"}
    return rows["snailps"][key] / rows[other][key]


class Bench:
    """What all steps share: sizes, options, texts that are made once."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.sizes = SIZES[args.sizes]
        self.peers = ["--peers-python", args.peers_python] if args.peers_python else []
        self.runs = ["--runs", str(args.runs)]

    def text(self, size: int) -> Path:
        """So many bytes of the corpus."""
        path = self.folder / f"text-{size}.txt"
        return path if path.is_file() else begin_of(self.args.corpus, size, path)

    @cached_property
    def lists(self) -> list[str]:
        """Options that name apt's lists with long descriptions."""
        return ["--lists", str(with_translations(LISTS, self.folder))]


def word_vectors(bench: Bench, name: str, options: Sequence[str]) -> Figures:
    """Speed and memory beside fastText; four workers beside one."""
    runs = ["--runs", str(min(bench.args.runs, bench.sizes.words_runs))]
    job = ["--corpus", str(bench.text(bench.sizes.words_bytes)), "--epochs", "1", *runs, *options]
    rows = by_system(rows_of("words.py", *job, "--peers", "fasttext", *bench.peers, "--json"))
    alone = rows["snailps"]["words_per_s"]
    four = by_system(rows_of("words.py", *job, "--peers", "", *SEVERAL, "--json"))
    return {
        f"{name}, words/s / fastText": beside(rows, "words_per_s"),
        f"{name}, speed of the whole job / fastText": 1 / beside(rows, "wall_s"),
        f"{name}, memory / fastText": beside(rows, "peak_rss_mb"),
        f"{name}, four workers / one": four["snailps"]["words_per_s"] / alone,
    }


def five_epochs(bench: Bench) -> Figures:
    """Subwords of a short text, five times."""
    job = ["--corpus", str(bench.text(EPOCHS_BYTES)), "--epochs", "5", "--runs", "1"]
    rows = by_system(rows_of("words.py", *job, "--peers", "fasttext", *bench.peers, "--json"))
    return {"subwords, 5 epochs, words/s / fastText": beside(rows, "words_per_s")}


def whole_job(bench: Bench) -> Figures:
    """Seconds of a command with a short text."""
    job = ["--corpus", str(bench.text(JOB_BYTES)), "--epochs", "5", "--peers", "", *bench.runs]
    [row] = rows_of("words.py", *job, "--snailps-args=--bucket auto", "--json")
    return {"job of 3 MB, s": row["wall_s"]}


def classifier(bench: Bench) -> Figures:
    """Four workers beside one."""
    text = labelled(bench.text(bench.sizes.lines_bytes), bench.folder / "lines.txt")
    job = ["--text", str(text), "--no-peer", *bench.runs, "--json"]
    [one], [four] = (rows_of("classifier.py", *job, *more) for more in ((), SEVERAL))
    return {"classifier, four workers / one": four["words_per_s"] / one["words_per_s"]}


def descriptions(bench: Bench) -> Figures:
    """Classifiers of real lines beside fastText, with single words and with pairs."""
    job = [*bench.lists, *bench.runs, *bench.peers, "--json"]
    single, pairs = (
        by_system(rows_of("classifier.py", *job, "--word-ngrams", ngrams)) for ngrams in "12"
    )
    return {
        "classifier, words/s / fastText": beside(single, "words_per_s"),
        "classifier with pairs, words/s / fastText": beside(pairs, "words_per_s"),
        "classifier with pairs, memory / fastText": beside(pairs, "peak_rss_mb"),
    }


def commands(bench: Bench, work: str, name: str) -> Figures:
    """Processor time of whole commands beside fastText's C++ program."""
    if bench.args.program is None:
        raise LeftOut("needs fastText's C++ program: --program FILE")
    job = ["--program", str(bench.args.program), "--work", work, *bench.runs, "--json"]
    if work == "languages":
        if bench.args.languages is None:
            raise LeftOut("needs lines of bench/languages.py: --languages FILE")
        job += ["--languages", str(bench.args.languages)]
    else:
        job += bench.lists
    ratio = by_system(rows_of("fasttext_place.py", *job))["snailps"]["ratio"]
    return {f"{name}, processor seconds: program / ours": ratio}


def clicks(bench: Bench) -> Figures:
    """Clicks beside Vowpal Wabbit; other ways beside one worker without waiting."""
    job = ["--only", "ctr", "--examples", str(bench.sizes.examples), *bench.runs, "--json"]
    job += ["--data", str(bench.folder)]  # made once
    rates = {
        system: row["examples_per_s"]
        for system, row in by_system(rows_of("sparse.py", *job, *bench.peers), "ctr").items()
    }
    alone = rates.pop("snailps")
    figures = {"clicks, examples/s / Vowpal Wabbit": alone / max(rates.values())}
    ways = {"bsp / async": "--consistency bsp", "four workers / one": " ".join(SEVERAL)}
    for name, options in ways.items():
        rows = rows_of("sparse.py", *job, "--no-peers", f"--snailps-args={options}")
        figures[f"clicks, {name}"] = by_system(rows, "ctr")["snailps"]["examples_per_s"] / alone
    return figures


def csr(bench: Bench) -> Figures:
    """A fit of a matrix on a running cluster beside scikit-learn's."""
    [row] = rows_of("fits.py", "--rows", str(bench.sizes.csr_rows), *bench.runs, "--json")
    return {"CSR, SGDClassifier's time / fit's": row["sgd"]["wall"] / row["fit"]["wall"]}


def small_fits(bench: Bench) -> Figures:
    """The first and later fits of a small array, beside a Python that imports NumPy."""
    times: dict[str, list[float]] = {"import": [], "first": [], "later": []}
    for _ in range(bench.args.runs):
        begin_s = time.monotonic()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True)
        times["import"].append(time.monotonic() - begin_s)
        [seconds] = rows_of("first_try.py", "--times")
        for name in seconds:
            times[name].append(seconds[name])
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    figures = {}
    for name in ("first", "later"):
        figures[f"{name} small fit, s"] = medians[name]
        figures[f"import of NumPy / {name} small fit"] = medians["import"] / medians[name]
    return figures


def transport(bench: Bench) -> Figures:
    """Pulls and pushes beside a bare loop over sockets, and beside each other."""
    [row] = rows_of("transport.py", "--only", bench.sizes.transport, *bench.runs, "--json")
    return {
        name: row[figure] / row[by]
        for name, (figure, by) in TRANSPORT.items()
        if figure in row and by in row
    }


def tls(bench: Bench) -> Figures:
    """Training of two workers with TLS beside one without."""
    job = ["--corpus", str(bench.text(EPOCHS_BYTES)), "--ways", "tls", *bench.runs, "--json"]
    [row] = rows_of("doors.py", *job)
    return {"TLS / plain, words/s": row["tls"] / row["plain"]}


def hosts(bench: Bench, model: str, name: str) -> Figures:
    """Simulated hosts of one cluster beside as many clusters of one host."""
    try:
        with Groups(100.0) as groups:
            groups.add("probe", CORE)
    except NoQuota as error:
        raise LeftOut(f"needs cgroups, as root: {error}") from None
    number, text = bench.sizes.hosts, bench.text(bench.sizes.words_bytes)
    job = ["--model", model, "--input", str(text), "--hosts", str(number), "--core", str(CORE)]
    [row] = rows_of("hosts.py", *job, "--epochs", "2", "--repeat", "1", "--beside", "--json")
    return {f"{name}, hosts / ceiling": row["speed_up_beside"] / number}


STEPS: dict[str, Callable[[Bench], Figures]] = {
    "subwords": partial(word_vectors, name="subwords", options=("--model", "fasttext")),
    "words": partial(word_vectors, name="words", options=("--model", "word2vec")),
    "cbow": partial(word_vectors, name="CBOW", options=("--model", "word2vec", "--cbow")),
    "cbow-subwords": partial(
        word_vectors, name="CBOW with subwords", options=("--model", "fasttext", "--cbow")
    ),
    "epochs": five_epochs,
    "job": whole_job,
    "classifier": classifier,
    "descriptions": descriptions,
    "commands": partial(commands, work="descriptions", name="classifier with pairs"),
    "languages": partial(commands, work="languages", name="classifier of languages"),
    "clicks": clicks,
    "csr": csr,
    "fits": small_fits,
    "transport": transport,
    "tls": tls,
    "hosts-words": partial(hosts, model="word2vec", name="words"),
    "hosts-subwords": partial(hosts, model="fasttext", name="subwords"),
}


def measure(bench: Bench, steps: Sequence[str]) -> dict:
    """Figures of steps, why steps are left out, and which of these failed.

    A step that fails is no end: what the others measured took minutes.  Ctrl-C is.
    """
    figures: Figures = {}
    left_out: dict[str, str] = {}
    failed: list[str] = []
    for number, name in enumerate(steps):
        begin_s = time.monotonic()
        try:
            figures |= STEPS[name](bench)
        except LeftOut as reason:
            left_out[name] = str(reason)
        except KeyboardInterrupt:
            failed += steps[number:]
            left_out |= dict.fromkeys(steps[number:], "interrupted")
            break
        except Exception as error:  # of any kind: a script may have printed anything
            failed.append(name)
            left_out[name] = f"{type(error).__name__}: {error}"
        if name in left_out:
            say(f"{name} is left out: {left_out[name]}")
        say(f"step {name} took {time.monotonic() - begin_s:.0f} s")
    rounded = {name: round(value, 3) for name, value in figures.items()}
    return {"figures": rounded, "left_out": left_out, "failed": failed}


def commit() -> str:
    """The commit of the tree, with a + if what is measured has changes."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "snailps", "bench", ":!bench/history.jsonl")
    return git("describe", "--always", "--exclude=*") + "+" * bool(changed)


def one_run(args: argparse.Namespace, earlier: dict | None) -> dict:
    """Measure all steps, or those that an earlier run has left out."""
    run = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "sizes": args.sizes,
        "runs": args.runs,
    }
    steps, figures, left_out = args.steps, {}, {}
    if earlier is not None:
        if other := [key for key in RESUMED if earlier.get(key) != run[key]]:
            fail(f"the last run is of another {other[0]}: measure anew, without --resume")
        figures, left_out = earlier["figures"], earlier["left_out"]
        steps = [name for name in steps if name in left_out]
        left_out = {name: why for name, why in left_out.items() if name not in steps}
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as folder:
        measured = measure(Bench(args, Path(folder)), steps)
    measured["figures"] = {**figures, **measured["figures"]}
    measured["left_out"] = {**left_out, **measured["left_out"]}
    return {**run, **measured}


def keep(file: Path, runs: Sequence[dict]) -> None:
    """Write a history whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(file.name + ".new")
    fresh.write_text("".join(json.dumps(run) + "\n" for run in runs))
    fresh.replace(file)


def show(run: dict, before: list[dict]) -> None:
    """Print figures, and their change since the last run like this one."""
    last = next((other["figures"] for other in reversed(before) if is_like(run, other)), {})
    width = max(map(len, run["figures"]), default=0)
    for name, value in run["figures"].items():
        change = f"{value / last[name] - 1:+8.0%}" if last.get(name) else ""
        print(f"{name:{width}}  {value:10,.3f}  {change}")
    for step, reason in run["left_out"].items():
        print(f"left out: {step}: {reason}")


def publish(args: argparse.Namespace, runs: list[dict]) -> None:
    """Draw the history of sizes `quick`; write the table of the last run of sizes `limits`."""
    of_sizes: dict[str, list[dict]] = {sizes: [] for sizes in SIZES}
    for run in runs:
        if run["figures"]:
            of_sizes[kind_of(run)[0]].append(run)
    if of_sizes["quick"] and not args.dry:
        to_here = args.history.resolve() == HISTORY
        file = PICTURE if to_here else args.history.with_suffix(".svg")
        file.write_text(picture(of_sizes["quick"]))
    if args.fill:
        if not of_sizes["limits"]:
            fail("no run of sizes limits in the history")
        text, targets = args.fill.read_text(encoding="utf-8"), table(of_sizes["limits"][-1])
        try:
            args.fill.write_text(filled(text, {"targets": targets}), encoding="utf-8")
        except ValueError as error:
            fail(f"{args.fill}: {error}")


def end(signum: int, frame: object) -> None:
    """SIGTERM ends the bench as Ctrl-C does: with all that it has started."""
    raise KeyboardInterrupt


def main() -> None:
    """Measure, keep, draw, fill, print."""
    args = arguments()
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)  # a shell's background job ignores it, and so do its children
    kept, before = history(args.history), history(HISTORY, args.history)
    if args.draw:
        publish(args, before)
        return
    earlier = None
    if args.resume:
        if not kept:
            fail(f"no run in {args.history}: nothing to resume")
        earlier = kept.pop()
        before.remove(earlier)
    run = one_run(args, earlier)
    if not args.dry:
        keep(args.history, [*kept, run])
    show(run, before)
    publish(args, [*before, run])
    fallen = red(run, before)
    for line in fallen:
        print(f"red: {line}")
    if not any(is_like(run, other) for other in before):
        print("no earlier run of these sizes on such a machine: nothing can be red")
    if fallen or run["failed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
