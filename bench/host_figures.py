"""Figures of trainings on simulated hosts: one run's, medians of several, a table.

    figures of the master, samples of counters -> figures_of -> one run
    runs of a number of hosts -> summarise -> medians, speed-up -> table

Pure: no processes, no files, no clock.
"""

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

ROLES = ("master", "server", "worker")
UNITS = ("words", "examples")
RATES = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}
LOOPBACK, UNCAPPED = "loopback", "none"
DIGITS = 5
JOIN_S, JOIN_SPAN_S, JOIN_LEAST_S = 30.0, 30.0, 10.0
"""Until a joined host is expected to be of use; for how long speed is measured, and at least."""
DISTURBANCE = {
    "others_cores": (0.1, "other processes used {:.2f} cores"),
    "unseen_s": (3.0, "this bench was stopped for {:.0f} s, or could not look"),
}
"""Above these limits a run is disturbed: the system itself and this bench use less."""


def link_of(text: str) -> tuple[bool, float | None]:
    """Whether hosts have wires to a switch, and the limit of these in Mbit/s, None for no limit.

    `loopback`: no wires; `none`: wires without a limit; `100mbit`, `1gbit`: with one.
    """
    if text in (LOOPBACK, UNCAPPED):
        return text == UNCAPPED, None
    for unit, factor in RATES.items():
        number = text.removesuffix(unit)
        if number != text:
            rate = float(number) * factor
            if rate > 0:
                return True, rate
    raise ValueError(
        f"a link is {LOOPBACK}, {UNCAPPED}, or a rate as 100mbit or 1gbit, not {text!r}"
    )


def numbers_of(text: str) -> list[int]:
    """Numbers of hosts, of `1,2,4`."""
    numbers = [int(word) for word in text.split(",")]
    if not numbers or min(numbers) < 1:
        raise ValueError(f"numbers of hosts are 1 or more, with commas between them: {text!r}")
    return sorted(set(numbers))


def shares_of(text: str) -> list[float]:
    """Shares of a core, of `0.22,0.22,0.11`; none of nothing."""
    shares = [float(word) for word in text.split(",") if word]
    if any(not share > 0 for share in shares):
        raise ValueError(f"shares of a core are above 0, with commas between them: {text!r}")
    return shares


def unit_of(figures: Mapping[str, Any]) -> str:
    """What a job counts: words or examples."""
    return next(unit for unit in UNITS if f"{unit}_per_s" in figures)


class Samples:
    """Counters that only grow, sampled now and then.

    >>> samples = Samples()
    >>> samples.add(1.0, {"worker": 2.0})
    >>> samples.add(3.0, {"worker": 6.0})
    >>> samples.spent("worker", 1.5, 2.5)
    2.0
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._counters: list[Mapping[str, float]] = []

    def add(self, now: float, counters: Mapping[str, float]) -> None:
        """Counters at a time later than the sample before."""
        self._times.append(now)
        self._counters.append(dict(counters))

    def gap(self, begin: float, end: float) -> float:
        """Longest time between two samples of a span."""
        gaps = [b - a for a, b in pairwise(self._times) if a < end and b > begin]
        return max(gaps, default=0.0)

    @property
    def last(self) -> float:
        """Time of the last sample; 0 without any."""
        return self._times[-1] if self._times else 0.0

    def has(self, name: str) -> bool:
        """Whether a counter is known."""
        return any(name in counters for counters in self._counters)

    def at(self, name: str, time: float) -> float:
        """A counter at a time between two samples, by a straight line; at the ends, theirs."""
        if not self._times:
            return 0.0
        right = bisect.bisect_left(self._times, time)
        if right == 0 or right == len(self._times):
            return self._counters[min(right, len(self._times) - 1)].get(name, 0.0)
        before, after = self._times[right - 1], self._times[right]
        low = self._counters[right - 1].get(name, 0.0)
        high = self._counters[right].get(name, 0.0)
        return low + (high - low) * (time - before) / (after - before)

    def spent(self, name: str, begin: float, end: float) -> float:
        """By how much a counter grew."""
        return self.at(name, end) - self.at(name, begin)


def figures_of(
    told: Mapping[str, Any],
    samples: Samples,
    begin: float,
    *,
    cores: float,
) -> dict[str, Any]:
    """One run: the master's figures, and samples from its training.

    Parameters
    ----------
    told : mapping
        Figures that the master printed.
    samples : Samples
        Processor seconds by role; bytes as ``wire`` and ``lo``, if known; ``periods`` and
        ``throttled`` of the groups; processor seconds of the whole machine, ``machine``, and those
        in which it served interrupts, ``interrupts``.
    begin : float
        When the training began, on the clock of the samples.
    cores : float
        That the hosts have in all; 0: no limit.
    """
    unit = unit_of(told)
    units, train_s = told[unit], told["train_s"]
    if not units or not train_s:
        raise ValueError("nothing was trained")
    end = begin + train_s

    def spent(name: str) -> float:
        return samples.spent(name, begin, end)

    cpu_s = {role: spent(role) for role in ROLES}
    ours_s = sum(cpu_s.values())
    periods = spent("periods")
    return {
        "unit": unit,
        "units": units,
        "units_per_s": units / train_s,
        "train_s": train_s,
        "survey_s": told.get("survey_s"),
        "bytes_per_unit": told.get(f"bytes_per_{unit[:-1]}"),
        **{
            f"{name}_bytes_per_unit": spent(name) / units if samples.has(name) else None
            for name in ("wire", "lo")
        },
        "cpu_us_per_unit": {
            "all": ours_s / units * 1e6,
            **{role: cpu_s[role] / units * 1e6 for role in ROLES},
            "interrupts": spent("interrupts") / units * 1e6,
        },
        # 1: hosts compute all the time; less: they wait for each other or for the network.
        "quota_used": (ours_s - cpu_s["master"]) / (cores * train_s) if cores else None,
        "throttled": spent("throttled") / periods if periods else None,
        "others_cores": max(0.0, (spent("machine") - ours_s) / train_s),
        "unseen_s": samples.gap(begin, end),
        "train_loss": told.get("train_loss"),
        "test": numbers_in(told.get("test", {})),
        "blocks": told.get("blocks"),
        "ended_by": told.get("ended_by"),
    }


def joined_of(progress: Samples, joined: float | None, begin: float | None) -> dict[str, float]:
    """Units a second before a host joined, from `JOIN_S` after it on, and their quotient.

    Each over up to `JOIN_SPAN_S`; empty if the training ended before.

    Parameters
    ----------
    progress : Samples
        ``units`` so far, as the master told.
    joined, begin : float, optional
        When the host's processes were started, and when the training began.
    """
    if joined is None or begin is None or progress.last < joined + JOIN_S + JOIN_LEAST_S:
        return {}
    before = max(begin, joined - JOIN_SPAN_S), joined
    after = joined + JOIN_S, min(progress.last, joined + JOIN_S + JOIN_SPAN_S)
    rates = [progress.spent("units", *span) / (span[1] - span[0]) for span in (before, after)]
    if not rates[0]:
        return {}
    return {
        "before_join_per_s": rates[0],
        "after_join_per_s": rates[1],
        "join_speed_up": significant(rates[1] / rates[0], 4),
    }


def numbers_in(figures: Mapping[str, Any]) -> dict[str, float]:
    """Those figures that are numbers."""
    return {name: value for name, value in figures.items() if type(value) in (int, float)}


def summarise(hosts: int, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians of the runs of a number of hosts; of nested figures, each by its name."""
    counted = [{k: v for k, v in run.items() if k not in ("hosts", "seed")} for run in runs]
    return {
        "hosts": hosts,
        "runs": len(runs),
        "unit": runs[0]["unit"],
        **medians(counted),
        "units_per_s_runs": [round(run["units_per_s"]) for run in runs],
    }


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median of each figure that is a number in some run, as far as it is known there."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run[name] for run in runs if run.get(name) is not None]
        nested = [value for value in values if isinstance(value, Mapping)]
        numbers = [value for value in values if isinstance(value, int | float)]
        if nested and nested == values:
            found[name] = medians(nested)
        elif numbers and numbers == values:
            found[name] = significant(statistics.median(numbers))
    return found


def significant(value: float, digits: int = DIGITS) -> float:
    """Rounded; whole numbers are kept."""
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


def compare(summaries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summaries, fewest hosts first, with `speed_up` and `cpu_ratio` against one host, if there
    is one, and `speed_up_beside` and `cpu_ratio_beside` against as many clusters of one host."""
    ordered = [beside(one) for one in sorted(summaries, key=lambda summary: summary["hosts"])]
    if not ordered or ordered[0]["hosts"] != 1:
        return ordered
    rate, cpu = ordered[0]["units_per_s"], ordered[0]["cpu_us_per_unit"]["all"]
    return [
        {
            **summary,
            "speed_up": significant(summary["units_per_s"] / rate, 4),
            "cpu_ratio": significant(summary["cpu_us_per_unit"]["all"] / cpu, 4) if cpu else None,
        }
        for summary in ordered
    ]


def beside(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary with what compares it with clusters of one host that trained at once."""
    if not summary.get("beside_units_per_s"):
        return summary
    cpu, of_one = summary["cpu_us_per_unit"]["all"], summary["beside_cpu_us"]
    return {
        **summary,
        "speed_up_beside": significant(summary["units_per_s"] / summary["beside_units_per_s"], 4),
        "cpu_ratio_beside": significant(cpu / of_one, 4) if of_one else None,
    }


def table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Summaries as a Markdown table."""
    unit = summaries[0]["unit"]
    one = {"words": "a word", "examples": "an example"}[unit]
    scores = list(dict.fromkeys(name for s in summaries for name in s.get("test", {})))
    scores = [name for name in scores if name not in UNITS]  # how much it was judged on
    head = ["hosts", "seconds", f"{unit}/s", "speed-up", "beside", f"bytes {one}", "on the wire",
            f"us {one}", "of one host", "beside", "master", "servers", "workers", "quota used",
            "loss", *scores]  # fmt: skip
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for s in summaries:
        cpu = s["cpu_us_per_unit"]
        cells = [
            s["hosts"], shown(s.get("train_s"), 1), f"{s['units_per_s']:,.0f}",
            shown(s.get("speed_up"), 2), shown(s.get("speed_up_beside"), 2),
            shown(s.get("bytes_per_unit"), 0), shown(s.get("wire_bytes_per_unit"), 0),
            shown(cpu["all"], 2), shown(s.get("cpu_ratio"), 2),
            shown(s.get("cpu_ratio_beside"), 2), *(shown(cpu[role], 2) for role in ROLES),
            shown(s.get("quota_used"), 2), shown(s.get("train_loss"), 4),
            *(shown(s.get("test", {}).get(name), 4) for name in scores),
        ]  # fmt: skip
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def disturbed(runs: Sequence[Mapping[str, Any]]) -> str:
    """A warning if other processes were at work, or stopped these; else empty."""
    most = {name: max((run.get(name) or 0.0 for run in runs), default=0.0) for name in DISTURBANCE}
    found = [
        text.format(most[name]) for name, (limit, text) in DISTURBANCE.items() if most[name] > limit
    ]
    return "; ".join([*found, "these figures are no results"]) if found else ""


def shown(value: float | None, decimals: int) -> str:
    """A number for people; a dash for none."""
    return "-" if value is None else f"{value:.{decimals}f}"
