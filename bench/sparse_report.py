"""Targets for the rows of sparse.py, and their tables.

rows (a system and a job each) -> targets: value, bound, met or not -> Markdown
"""

from collections.abc import Iterator

HEAD = ("system", "workers", "threads", "examples_per_s", "training_examples_per_s", "wall_s",
        "peak_rss_mb", "log_loss", "auc", "calibration", "correlation", "best_log_loss",
        "log_loss_spread")  # fmt: skip
"""Columns, in order; a job's table has those that any of its rows has."""
NOISE_MIN = 0.0005
"""Differences of log loss below it are noise, even if a few seeds differ less."""


def targets(rows: list[dict], quick: bool) -> list[dict]:
    """Targets, results, met or not; None: the sizes differ from the target's."""
    found = []
    for judge in (of_a9a, of_ctr, of_workers):
        for name, value, sign, bound in judge(rows):
            met = value <= bound if sign == "<=" else value >= bound
            what = {"target": f"{name} {sign} {bound:.5g}", "value": round(value, 5)}
            found.append(what | {"met": None if quick else met})
    return found


Verdict = tuple[str, float, str, float]
"""The figure, its value, <= or >=, the bound."""


def split(rows: list[dict], job: str) -> tuple[dict | None, list[dict]]:
    """Our row of a job, and the peers'."""
    here = [row for row in rows if row["job"] == job]
    ours = next((row for row in here if row["system"] == "snailps"), None)
    return ours, [row for row in here if row["system"] != "snailps"]


def of_a9a(rows: list[dict]) -> Iterator[Verdict]:
    """As good as the converged solver, and as Vowpal Wabbit."""
    ours, peers = split(rows, "a9a")
    solver = [row for row in peers if row["system"] == "scikit-learn"]
    wabbits = [row for row in peers if row["system"] != "scikit-learn"]
    for name, those in (("scikit-learn", solver), ("vowpal wabbit", wabbits)):
        if ours and those:
            loss = ours["log_loss"] - min(row["log_loss"] for row in those)
            area = max(row["auc"] for row in those) - ours["auc"]
            yield f"a9a: log loss - {name}'s", loss, "<=", 0.002
            yield f"a9a: {name}'s AUC - ours", area, "<=", 0.002


def of_ctr(rows: list[dict]) -> Iterator[Verdict]:
    """Faster than the faster of Vowpal Wabbit's two, as good as the better."""
    ours, peers = split(rows, "ctr")
    if not ours or not peers:
        return
    ratio = ours["examples_per_s"] / max(row["examples_per_s"] for row in peers)
    loss = ours["log_loss"] - min(row["log_loss"] for row in peers)
    known = max(row["correlation"] for row in peers)
    yield "ctr: examples/s / vowpal wabbit's faster", ratio, ">=", 1.5
    yield "ctr: log loss - vowpal wabbit's better", loss, "<=", 0.001
    yield "ctr: correlation with planted weights", ours["correlation"], ">=", 0.9
    yield "ctr: vowpal wabbit's correlation - ours", known - ours["correlation"], "<=", 0.01


def of_workers(rows: list[dict]) -> Iterator[Verdict]:
    """The loss does not depend on the number of workers."""
    here = [row for row in rows if row["job"] == "workers"]
    for row in here[1:]:
        off = abs(row["log_loss"] - here[0]["log_loss"])
        noise = max(here[0]["log_loss_spread"], row["log_loss_spread"], NOISE_MIN)
        yield f"{row['workers']} workers: |log loss - one worker's|", off, "<=", noise


def table(rows: list[dict], verdicts: list[dict]) -> str:
    """Rows and targets as Markdown, a table a job."""
    lines = []
    for job in dict.fromkeys(row["job"] for row in rows):
        own = [row for row in rows if row["job"] == job]
        head = [name for name in HEAD if any(name in row for row in own)]
        lines += [f"{job}:", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for row in own:
            cells = [shown(row.get(name, "")) for name in head]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    if verdicts:
        lines += ["| target | value | |", "|---|---|---|"]
    for verdict in verdicts:
        said = {True: "met", False: "missed", None: "other sizes"}[verdict["met"]]
        lines.append(f"| {verdict['target']} | {shown(verdict['value'])} | {said} |")
    return "\n".join(lines)


def shown(value: object) -> str:
    """A cell."""
    return f"{value:,}" if isinstance(value, int) else str(value)
