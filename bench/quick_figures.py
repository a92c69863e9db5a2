"""What quick.py measures, by name; its history, which figures are red, and its table and picture.

    figures, runs before -> red figures
    runs -> a picture     figures, targets -> a table

No processes, no clock.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curves import Series, chart

RED = 0.9
"""A ratio below this share of its best is red; where less is better, above the reciprocal."""


@dataclass(frozen=True)
class Row:
    """A figure.

    Attributes
    ----------
    name : str
        As in the history.  A ratio has a slash with spaces beside it.
    job : str
        What it is measured on at the sizes `limits`.
    target : float, optional
        None: only watched.
    is_lower_better : bool
    missed : str
        Why, if it is missed; Markdown in a page of docs/.
    """

    name: str
    job: str
    target: float | None = None
    is_lower_better: bool = False
    missed: str = ""

    @property
    def is_ratio(self) -> bool:
        """Whether both sides were measured in one run: an absolute figure is never red."""
        return " / " in self.name

    def is_met(self, value: float) -> bool | None:
        """Whether a value meets the target; None without one."""
        if self.target is None:
            return None
        return value <= self.target if self.is_lower_better else value >= self.target


OTHERS = "[others](#others)"
PRIVATE = "[private rows](design/word-pairs.md#private-rows)"


def words(
    name: str, job: str, *, rate: float | None = None, whole: float | None = None,
    memory: float | None = None, four: float | None = None, missed: str = "",
) -> list[Row]:  # fmt: skip
    """Rows of a training of word vectors with their targets; why the speeds are missed."""
    return [
        Row(f"{name}, words/s / fastText", f"{job}, one run", rate, missed=missed),
        Row(f"{name}, speed of the whole job / fastText",
            "the same, from the start until the model is on disk", whole, missed=missed),
        Row(f"{name}, memory / fastText", "the same", memory, is_lower_better=True,
            missed="some 600 bytes a row in worker and server ([4](#word-vectors))"),
        Row(f"{name}, four workers / one",
            "the same; 4 workers of 1 thread and 4 servers, 1 worker of 2 threads", four,
            missed=f"workers exchange rows of n-grams ({PRIVATE})"),
    ]  # fmt: skip


BIG = "100 MB, one epoch"
ROWS = {
    row.name: row
    for row in [
        *words("subwords", BIG, rate=14, memory=0.8),
        Row("subwords, 5 epochs, words/s / fastText", "20 MB, 5 epochs, one run", 10),
        *words("words", BIG, rate=18, memory=0.8),
        *words("CBOW", f"{BIG}, words only", rate=14, memory=0.8,
            missed="counting, encoding and the last push ([2](#word-vectors))"),
        *words("CBOW with subwords", BIG, whole=7.5, four=0.8,
            missed=f"each target reads and writes 14 to 20 rows of n-grams ({PRIVATE})"),
        Row("classifier with pairs, words/s / fastText", "Debian's descriptions, pairs of words", 4,
            missed=f"rows beyond the second cache, new rows, the last push ({OTHERS})"),
        Row("classifier with pairs, memory / fastText", "the same", 1, is_lower_better=True),
        Row("classifier, words/s / fastText", "Debian's descriptions, single words", 4,
            missed="its time was accounted for with pairs only"),
        Row("classifier, four workers / one", "20 MB in lines of 30 words, single words"),
        Row("classifier with pairs, processor seconds: program / ours",
            "whole commands, fastText's C++ program", 4.5),
        Row("classifier of languages, processor seconds: program / ours",
            "whole commands, 200,000 lines of 60 languages", 6,
            missed=f"the start of a job, and reading n-grams ({OTHERS})"),
        Row("job of 3 MB, s", "3 MB of text, 5 epochs, the whole command", 5,
            is_lower_better=True),
        Row("clicks, examples/s / Vowpal Wabbit", "1 M examples, its faster learner", 2.5,
            missed=f"Python between blocks, start and end on one thread ({OTHERS})"),
        Row("clicks, bsp / async", "1 M examples"),
        Row("clicks, four workers / one", "1 M examples"),
        Row("CSR, SGDClassifier's time / fit's", "1 M rows of 40 values, one epoch", 1,
            missed="Python of blocks and of the job ([account](design/csr-fits.md))"),
        Row("first small fit, s", "150 rows of 4 columns, a process's first", 0.6,
            is_lower_better=True,
            missed="imports and the start of the cluster ([account](design/start.md))"),
        Row("later small fit, s", "the same process's next", 0.05, is_lower_better=True,
            missed="work of master and worker between epochs ([account](design/start.md))"),
        Row("import of NumPy / first small fit", "the same"),
        Row("import of NumPy / later small fit", "the same"),
        Row("pull / bare loop", "100,000 rows of dim 100", 0.92),
        Row("push add / bare loop", "the same", 0.85,
            missed=f"one copy more, in the order of the shards ({OTHERS})"),
        Row("pull, latency of 100 rows / bare loop", "100 rows", 1.3, is_lower_better=True,
            missed="two processes wake each other for each request"),
        Row("pull float16 / float32", "100,000 rows", 1.5, missed="both ends convert rows"),
        Row("pull int8 / float32", "100,000 rows", 1.9, missed="both ends convert rows"),
        *(
            Row(f"push {access} / add", "100,000 rows", target,
                missed=f"800 to 1,200 bytes read and written a row ({OTHERS})")
            for access, target in (("adagrad", 0.85), ("ftrl", 0.75), ("adam", 0.7))
        ),
        Row("lookups of 20 M rows / of 100,000", "100,000 random keys", 0.6,
            missed=f"2.5 lines of memory a row ({OTHERS})"),
        Row("TLS / plain, words/s", "12 MB, 2 workers", 0.9,
            missed="the relays' encryption takes processor time from the training"),
        Row("words, hosts / ceiling", "8 hosts of .22 core, 100 MB, 2 epochs", 0.76,
            missed="exchange of rows, sorting of pairs ([scaling](scaling.md))"),
        Row("subwords, hosts / ceiling", "the same", 0.75,
            missed="rows of n-grams, which all hosts need ([scaling](scaling.md))"),
    ]
}  # fmt: skip
"""All figures, by name, in the order of the table."""

Run = Mapping[str, Any]


def kind_of(run: Run) -> tuple[str, str]:
    """Sizes, and processor with cores: runs of other ones say little of each other."""
    return run.get("sizes", "quick"), run["machine"].partition(", Linux")[0]


def is_like(run: Run, other: Run) -> bool:
    """Whether two runs may be compared."""
    return kind_of(run) == kind_of(other)


def history(*files: Path) -> list[dict]:
    """Runs of all these files that exist, each file once."""
    existing = [name for name in dict.fromkeys(file.resolve() for file in files) if name.is_file()]
    lines = [line for name in existing for line in name.read_text().splitlines()]
    return [json.loads(line) for line in lines if line]


def red(run: Run, before: Sequence[Run]) -> list[str]:
    """Say of each ratio that is below `RED` of its best what that was, and when.

    The best is of the same sizes on the same kind of machine: between an Intel Xeon and an AMD EPYC
    of two cores, clicks differ by 1.4 and pulls by 1.3.
    """
    fallen = []
    for name, value in run["figures"].items():
        row = ROWS.get(name, Row(name, ""))
        comparable = [other for other in before if is_like(run, other) and name in other["figures"]]
        if not row.is_ratio or not comparable:
            continue
        sign = -1 if row.is_lower_better else 1
        best = max(comparable, key=lambda other: sign * other["figures"][name])
        share = (value / best["figures"][name]) ** sign
        if share < RED:
            then = f"{best['figures'][name]:.3g}, {best['commit']}, {best['date']}"
            fallen.append(f"{name}: {value:.3g}, {share:.2f} of the best ({then})")
    return fallen


def picture(runs: Sequence[Run]) -> str:
    """Ratios where more is better, as multiples of their first value: SVG.

    The runs of the newest one's machine and sizes.
    """
    alike = [run for run in runs if is_like(run, runs[-1])]
    names = [
        name
        for name in dict.fromkeys(name for run in alike for name in run["figures"])
        if (row := ROWS.get(name)) and row.is_ratio and not row.is_lower_better
    ]
    series = []
    for name in names:
        points = [
            (number, run["figures"][name])
            for number, run in enumerate(alike, 1)
            if name in run["figures"]
        ]
        series.append(Series(name, [(number, value / points[0][1]) for number, value in points]))
    title = f"Ratios over the runs of bench/quick.py, {kind_of(alike[-1])[1]}"
    return chart(title, "run", "of the first run", series)


def table(run: Run) -> str:
    """Figures beside their targets, and what is left out: Markdown."""
    figures = run["figures"]
    rows = [ROWS[name] for name in ROWS if name in figures]
    verdicts = {row.name: row.is_met(figures[row.name]) for row in rows}
    met, judged = (
        sum(v in wanted for v in verdicts.values()) for wanted in ((True,), (True, False))
    )
    lines = [
        f"`bench/quick.py --sizes {kind_of(run)[0]}`, commit {run['commit']}, {run['date']}, "
        f"{run['machine']}: {met} of {judged} targets met.",
        "",
        "| | measured on | value | target | |",
        "|---" * 5 + "|",
    ]
    for row in rows:
        target = "" if row.target is None else f"{row.target:g}"
        verdict = {True: "met", False: f"*missed*: {row.missed}".removesuffix(": "), None: ""}
        lines.append(
            f"| {row.name} | {row.job} | {figures[row.name]:.3g} | {target} "
            f"| {verdict[verdicts[row.name]]} |"
        )
    left_out = run.get("left_out", {})
    if left_out:
        lines += ["", "Left out:", ""]
        lines += [f"- {step}: {reason}" for step, reason in left_out.items()]
    return "\n".join(lines)


def filled(text: str, tables: Mapping[str, str]) -> str:
    """`text` with each table between ``<!-- NAME -->`` and ``<!-- end -->``.

    Raises
    ------
    ValueError
        It has no such place.
    """
    for name, content in tables.items():
        head, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"no place for a table: <!-- {name} --> and <!-- end --> below it")
        text = f"{head}{mark}\n{content}\n\n{end}{tail}"
    return text
