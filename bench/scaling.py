#!/usr/bin/env python3
"""Words/s of real hosts, predicted from trainings on simulated ones.

    files of hosts.py -> measurements -> constants (processor time of a word and of its bytes,
                         bytes a word, waits) -> words/s of N hosts with C cores and a link
                      -> errors against the simulated hosts, tables, curves (--svg)

The model and what it leaves out are in docs/lab/scaling.md.  No processes, no clock.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import curves
from host_figures import link_of, numbers_of, shown, significant

LINK_SHARE = 0.94
"""Payload of TCP over Ethernet, with frames of 1,500 bytes and acknowledgements."""
HOST_US = 0.001
"""Of word vectors: each worker looks through the text for its own words, 1 to 4 ns a word that
subsampling leaves, a third of all."""
WORD_VECTORS = ("word2vec", "fasttext")
FILE_KEYS = ("about", "summary", "runs")


@dataclass(frozen=True)
class Measured:
    """Medians of one number of hosts.

    `cpu_us`: of servers and workers together, a unit; `busy`: share of the quotas that they used,
    None without quotas; `mbit`: limit of a wire, None for none; `shared`: how much more processor
    time a unit takes because so many hosts share a machine, whatever they do.
    """

    hosts: int
    units_per_s: float
    cpu_us: float
    server_us: float
    master_us: float
    blocks_per_unit: float
    bytes_per_unit: float
    busy: float | None
    cores: float
    mbit: float | None
    shared: float = 1.0

    @property
    def own_us(self) -> float:
        """Processor time of a unit on hosts that share no machine."""
        return self.cpu_us / self.shared


@dataclass(frozen=True)
class Host:
    """What a host has.  `cores` may be a share of one; `mbit` is None for a link without limit."""

    cores: float
    mbit: float | None
    shards: int = 8


@dataclass(frozen=True)
class Constants:
    """Measurements on simulated hosts; docs/lab/scaling.md has the formulas.

    Attributes
    ----------
    one_us, kernel_us : float
        Processor time of a unit without any exchange: of a single host, which deals work with no
        other, and of each of several.
    host_us : float
        Processor time of a unit for each of several hosts: what each worker does for the units of
        all.
    byte_us : float
        Processor time of a byte that is exchanged, at both ends together.
    one_bytes : float
        Bytes a unit of a single host.
    form : str
        Of the bytes a unit of two hosts and more: ``affine``, ``a + b N``, or ``power``, ``a N^b``.
    a, b : float
    wait, wait_log : float
        Elapsed over processor time: ``wait + wait_log x log2 N``.
    server_share : float
        Of the processor time that servers take.
    master_host, master_block_us : float
        Share of a core that the master takes for each host, and processor time of a block.
    blocks, blocks_host : float
        Blocks a unit: ``blocks + blocks_host x N``.
    overlap : float
        Share of the shorter one of exchange and computing that the longer one hides.
    core_loss : float
        How much one more core costs each core of a host: C cores do ``C / (1 + loss (C - 1))``.
    """

    one_us: float
    kernel_us: float
    host_us: float
    byte_us: float
    one_bytes: float
    form: str
    a: float
    b: float
    wait: float = 1.0
    wait_log: float = 0.0
    server_share: float = 0.0
    master_host: float = 0.0
    master_block_us: float = 0.0
    blocks: float = 0.0
    blocks_host: float = 0.0
    overlap: float = 1.0
    core_loss: float = 0.0

    def bytes_at(self, hosts: int) -> float:
        """Bytes a unit."""
        return self.one_bytes if hosts == 1 else value(self.form, self.a, self.b, hosts)

    def cpu_at(self, hosts: int) -> float:
        """Processor time of servers and workers a unit, microseconds."""
        own_us = self.one_us if hosts == 1 else self.kernel_us + self.host_us * hosts
        return own_us + self.byte_us * self.bytes_at(hosts)

    def master_seconds(self, hosts: int) -> float:
        """Seconds a unit for which the master is busy, if it has a core; infinite if hosts alone
        keep it busy."""
        left = 1 - self.master_host * hosts
        blocks = self.blocks + self.blocks_host * hosts
        return blocks * self.master_block_us * 1e-6 / left if left > 0 else math.inf


@dataclass(frozen=True)
class Prediction:
    """Units/s of all hosts, and what limits them: processors, network, shards, or master."""

    hosts: int
    units_per_s: float
    limit: str
    network_share: float
    """How much of its link a host uses, each way."""


# --- constants ------------------------------------------------------------------------------------


def shares(
    first: Sequence[float], second: Sequence[float], ys: Sequence[float]
) -> tuple[float, float]:
    """`a` and `b`, neither below 0, so that ``a first + b second`` is nearest to `ys`.

    The sum of squares of relative errors is the least; no `y` may be 0.
    """
    if not ys:
        raise ValueError("no measurements to fit constants to")
    us = [x / y for x, y in zip(first, ys, strict=True)]
    vs = [x / y for x, y in zip(second, ys, strict=True)]
    u, v = sum(us), sum(vs)
    uu, vv = sum(x * x for x in us), sum(x * x for x in vs)
    uv = sum(x * y for x, y in zip(us, vs, strict=True))
    determinant = uu * vv - uv * uv
    alone = [(u / uu if uu else 0.0, 0.0), (0.0, v / vv if vv else 0.0)]
    if determinant > 1e-9 * uu * vv:
        a, b = (u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant
        if a >= 0 and b >= 0:
            return a, b
    return min(
        alone,
        key=lambda ab: sum((ab[0] * x + ab[1] * y - 1) ** 2 for x, y in zip(us, vs, strict=True)),
    )


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """`a` and `b`, neither below 0, so that ``a + b x`` is nearest to `ys`; as `shares`."""
    return shares([1.0] * len(xs), xs, ys)


def power(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """`a` and `b`, this from 0 to 1, so that ``a x^b`` has the least errors of the logarithm."""
    logs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True)]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread if spread else 0.0
    slope = min(1.0, max(0.0, slope))
    return math.exp(mean_y - slope * mean_x), slope


FITS = {"affine": line, "power": power}


def value(form: str, a: float, b: float, x: float) -> float:
    """``a + b x`` or ``a x^b``."""
    return a + b * x if form == "affine" else a * x**b


def bytes_form(measured: Sequence[Measured]) -> tuple[str, float, float]:
    """The form of the bytes a unit that fits better, and its constants."""
    several = [m for m in measured if m.hosts > 1]
    if not several:  # nothing is known of more hosts
        return "affine", measured[0].bytes_per_unit, 0.0
    xs = [float(m.hosts) for m in several]
    ys = [max(m.bytes_per_unit, 1e-9) for m in several]
    found = {form: (form, *make(xs, ys)) for form, make in FITS.items()}

    def error(form: str) -> float:
        return sum((value(*found[form], x) / y - 1) ** 2 for x, y in zip(xs, ys, strict=True))

    # Two points fit both forms.  Of rotations, whose bytes grow by about as much with each doubling
    # of the hosts, a line through two of them overstates what more hosts move.
    return found["affine" if error("affine") < error("power") - 1e-6 else "power"]


def fit(measured: Sequence[Measured], core_loss: float = 0.0, host_us: float = 0.0) -> Constants:
    """Constants of measurements; the overlap is of those with a limited link, the rest of others.

    `host_us` is measured elsewhere: a slope of few numbers of hosts on one machine is that of its
    noise.

    Raises
    ------
    ValueError
        All links are limited: what the hosts themselves can do does not show.
    """
    free = sorted((m for m in measured if m.mbit is None), key=lambda m: m.hosts)
    if not free:
        raise ValueError("measurements without a limit of the link are needed: --link loopback")
    form, a, b = bytes_form(free)
    byte_us = exchange_us(free)
    kernels = [
        m.own_us - byte_us * m.bytes_per_unit - (host_us * m.hosts if m.hosts > 1 else 0.0)
        for m in free
    ]
    one_us = [us for m, us in zip(free, kernels, strict=True) if m.hosts == 1]
    kernel_us = [us for m, us in zip(free, kernels, strict=True) if m.hosts > 1]
    waits = [(math.log2(m.hosts), 1 / min(1.0, m.busy)) for m in free if m.busy]
    wait, wait_log = line(*zip(*waits, strict=True)) if waits else (1.0, 0.0)
    master_host, master_block = shares(
        [float(m.hosts) for m in free],
        [m.blocks_per_unit * m.units_per_s for m in free],
        [max(1e-9, m.master_us * 1e-6 * m.units_per_s) for m in free],
    )
    blocks, blocks_host = line(
        [float(m.hosts) for m in free], [max(1e-12, m.blocks_per_unit) for m in free]
    )
    constants = Constants(
        one_us=statistics.mean(one_us or kernel_us), kernel_us=statistics.mean(kernel_us or one_us),
        host_us=host_us, byte_us=byte_us, one_bytes=free[0].bytes_per_unit,
        form=form, a=a, b=b, wait=wait, wait_log=wait_log,
        server_share=sum(m.server_us for m in free) / sum(m.cpu_us for m in free),
        master_host=master_host, master_block_us=master_block * 1e6, blocks=blocks,
        blocks_host=blocks_host, core_loss=core_loss,
    )  # fmt: skip
    overlaps = [
        share
        for m in measured
        if m.mbit is not None and (share := overlap_of(constants, m)) is not None
    ]
    if not overlaps:
        return constants
    return replace(constants, overlap=sum(overlaps) / len(overlaps))


def exchange_us(measured: Sequence[Measured]) -> float:
    """Processor time of a byte, both ends together: twice the servers', which do nothing else.

    It may not be so much that it leaves less than half of the processor time for the rest.
    """
    moved = sum(m.bytes_per_unit for m in measured)
    if not moved:
        return 0.0
    most = min(m.own_us / m.bytes_per_unit for m in measured if m.bytes_per_unit)
    return min(2 * sum(m.server_us / m.shared for m in measured) / moved, most / 2)


def overlap_of(constants: Constants, m: Measured) -> float | None:
    """How much of the shorter one of exchange and computing was hidden; None if both are short."""
    cpu_s = m.cpu_us * 1e-6 * waited(constants, m.hosts) / (m.hosts * m.cores)
    network_s = network_seconds(m.bytes_per_unit, m.hosts, m.mbit)
    short, long = sorted((cpu_s, network_s))
    if short < 0.05 * long:
        return None
    return min(1.0, max(0.0, 1 - (1 / m.units_per_s - long) / short))


def waited(constants: Constants, hosts: int) -> float:
    """Elapsed over processor time."""
    return max(1.0, constants.wait + constants.wait_log * math.log2(hosts))


def network_seconds(bytes_per_unit: float, hosts: int, mbit: float | None) -> float:
    """Seconds a unit for which the links of all hosts are busy, each way.

    Keys are spread evenly: one part in `hosts` stays in its host, and each host sends and receives
    as much as the others.
    """
    if mbit is None:
        return 0.0
    remote = bytes_per_unit * (hosts - 1) / hosts
    return remote / (hosts * mbit * 125_000 * LINK_SHARE)


# --- predictions ----------------------------------------------------------------------------------


def predict(constants: Constants, hosts: int, host: Host, shared: float = 1.0) -> Prediction:
    """Units/s of this many hosts; `shared` as in `Measured`."""
    cores = host.cores
    if cores > 1:
        cores /= 1 + constants.core_loss * (cores - 1)
    cpu_us = constants.cpu_at(hosts) * shared
    cpu_s = cpu_us * 1e-6 * waited(constants, hosts) / (hosts * cores)
    network_s = network_seconds(constants.bytes_at(hosts), hosts, host.mbit)
    short, long = sorted((cpu_s, network_s))
    seconds = {
        "processors" if cpu_s >= network_s else "network": long + (1 - constants.overlap) * short,
        "shards": constants.server_share * cpu_us * 1e-6 / (hosts * host.shards),
        "master": constants.master_seconds(hosts),
    }
    limit = max(seconds, key=lambda name: seconds[name])
    units_per_s = 1 / seconds[limit]
    return Prediction(hosts, units_per_s, limit, network_s * units_per_s)


def errors(constants: Constants, measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Predicted and measured speed of simulated hosts; `error` is relative."""
    found = []
    for m in sorted(measured, key=lambda m: (m.mbit or math.inf, m.hosts)):
        # Its one shard shares the quota, and the one thread of a worker is never more than a core.
        guess = predict(constants, m.hosts, Host(m.cores, m.mbit, shards=1), m.shared)
        found.append(
            {
                "hosts": m.hosts,
                "mbit": m.mbit,
                "predicted": guess.units_per_s,
                "measured": m.units_per_s,
                "error": guess.units_per_s / m.units_per_s - 1,
                "limit": guess.limit,
            }
        )
    return found


# --- files ----------------------------------------------------------------------------------------


def measured_of(data: Mapping[str, Any]) -> list[Measured]:
    """Measurements of a file of hosts.py.

    Raises
    ------
    ValueError
        It is none, or its hosts had no share of a core each.
    """
    if not all(key in data for key in FILE_KEYS):
        raise ValueError(f"expected a file of hosts.py --out, with {', '.join(FILE_KEYS)}")
    about = data["about"]
    if not about["core"]:
        raise ValueError("hosts without a share of a core (--core 0) compete: nothing is known")
    return [
        Measured(
            hosts=s["hosts"], units_per_s=s["units_per_s"],
            cpu_us=s["cpu_us_per_unit"]["server"] + s["cpu_us_per_unit"]["worker"],
            server_us=s["cpu_us_per_unit"]["server"], master_us=s["cpu_us_per_unit"]["master"],
            blocks_per_unit=s["blocks"] / s["units"],
            bytes_per_unit=s["bytes_per_unit"], busy=s.get("quota_used"), cores=about["core"],
            mbit=link_of(about["link"])[1],
        )
        for s in data["summary"]
    ]  # fmt: skip


def compared(files: Sequence[dict[str, Any]]) -> None:
    """Completes summaries of files that have no run of one host, or of clusters beside each other,
    by those of other files of the same job: neither has a network, nor a standby.

    `speed_up` and `one_cpu_us` are then against one host, `speed_up_beside` and `beside_cpu_us`
    against clusters of one host that trained at once.
    """
    ones: dict[object, Mapping[str, Any]] = {}
    besides: dict[object, Mapping[str, Any]] = {}
    for data in files:
        for s in data["summary"]:
            if s["hosts"] == 1 and (link_of(data["about"]["link"])[1] is None):
                ones[job_of(data)] = s
            if s.get("beside_cpu_us"):
                besides[job_of(data), s["hosts"]] = s
    for data in files:
        for s in data["summary"]:
            if one := ones.get(job_of(data)):
                s["speed_up"] = significant(s["units_per_s"] / one["units_per_s"], 4)
                s["one_cpu_us"] = one["cpu_us_per_unit"]["all"]
            if beside := besides.get((job_of(data), s["hosts"])):
                for name in ("beside_units_per_s", "beside_cpu_us"):
                    s[name] = beside[name]
                s["speed_up_beside"] = significant(s["units_per_s"] / s["beside_units_per_s"], 4)


def job_of(data: Mapping[str, Any]) -> tuple[object, ...]:
    """What a file has in common with others whose single hosts did the same."""
    about = data["about"]
    names = ("model", "conf", "input", "core", "epochs", "threads")
    # The wire alone may differ: links are measured with a narrow one, too.
    settings = sorted(pair for pair in about.get("set") or () if not pair.startswith("wire="))
    return (*(about.get(name) for name in names), *settings)


def host_us_of(data: Mapping[str, Any], given: float | None) -> float:
    """`Constants.host_us` of a file's model: as given, else `HOST_US` for word vectors alone."""
    if given is not None:
        return given
    return HOST_US if data["about"]["model"] in WORD_VECTORS else 0.0


def sharing(files: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Factor of processor time that hosts need more because they share a machine.

    That is the time of as many clusters of one host that trained at once (`beside`), over that of
    one alone.  Empty where that was not measured.
    """
    found: dict[int, list[float]] = {}
    for s in (s for data in files for s in data["summary"]):
        if s.get("one_cpu_us") and s.get("beside_cpu_us"):
            found.setdefault(s["hosts"], []).append(s["beside_cpu_us"] / s["one_cpu_us"])
    return {hosts: max(1.0, statistics.median(some)) for hosts, some in found.items()}


def name_of(data: Mapping[str, Any], *, linked: bool = True) -> str:
    """What a file measured, for a legend; `linked`: with its link."""
    about = data["about"]
    parts = [about["model"] or Path(about["conf"]).stem]
    if about.get("input"):
        parts.append(Path(about["input"]).stem)
    if about["replication"] != "none":
        parts.append(f"replication {about['replication']}")
    if linked and link_of(about["link"])[1] is not None:
        parts.append(about["link"])
    wires = [pair.partition("=")[2] for pair in about.get("set", ()) if pair.startswith("wire=")]
    if wires and wires[-1] != "float32":
        parts.append(f"wire {wires[-1]}")
    return ", ".join(parts)


def load(path: Path) -> dict[str, Any]:
    """A file of hosts.py; ends the program with one sentence if it is none."""
    try:
        data = json.loads(path.read_text())
        measured_of(data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"bench: {path}: {error}")
    return data


# --- output ---------------------------------------------------------------------------------------


def error_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Errors as a Markdown table."""
    rows = ["| hosts | link | measured | predicted | error |", "|---" * 5 + "|"]
    for one in found:
        link = "-" if one["mbit"] is None else f"{one['mbit']:g} Mbit/s"
        rows.append(
            f"| {one['hosts']} | {link} | {one['measured']:,.0f} | {one['predicted']:,.0f} | "
            f"{one['error']:+.1%} |"
        )
    return "\n".join(rows)


def measured_table(files: Sequence[Mapping[str, Any]]) -> str:
    """The measurements as a Markdown table."""
    rows = [
        "| | hosts | units/s | speed-up | beside | bytes a unit | us a unit | beside | waits "
        "| loss |",
        "|---" * 10 + "|",
    ]
    for data in files:
        name = name_of(data)
        for s in data["summary"]:
            all_us, of_one = s["cpu_us_per_unit"]["all"], s.get("beside_cpu_us")
            busy = s.get("quota_used")
            cells = [
                name, s["hosts"], f"{significant(s['units_per_s'], 3):,.0f}",
                shown(s.get("speed_up"), 2), shown(s.get("speed_up_beside"), 2),
                shown(s["bytes_per_unit"], 0), shown(all_us, 2),
                shown(all_us / of_one if of_one else None, 2),
                shown(1 - busy if busy else None, 2), shown(s.get("train_loss"), 3),
            ]  # fmt: skip
            rows.append("| " + " | ".join(map(str, cells)) + " |")
            name = ""
    return "\n".join(rows)


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


def prediction_table(constants: Constants, hosts: Sequence[int], host: Host) -> str:
    """Predictions as a Markdown table."""
    rows = ["| hosts | predicted units/s | speed-up | link used | limited by |", "|---" * 5 + "|"]
    one = predict(constants, 1, host).units_per_s
    for number in hosts:
        found = predict(constants, number, host)
        rows.append(
            f"| {number} | {significant(found.units_per_s, 3):,.0f} | "
            f"{found.units_per_s / one:.1f} | "
            f"{found.network_share:.0%} | {found.limit} |"
        )
    return "\n".join(rows)


def measured_chart(files: Sequence[Mapping[str, Any]], what: str) -> str:
    """Curves of the simulated hosts: `speed-up` or `bytes`."""
    series, most = [], 1
    for data in files:
        found = [s for s in data["summary"] if what == "bytes" or "speed_up" in s]
        key = "speed_up" if what == "speed-up" else "bytes_per_unit"
        points = [(float(s["hosts"]), float(s[key])) for s in found]
        if points:
            series.append(curves.Series(name_of(data), points))
            most = max(most, *(s["hosts"] for s in found))
    if what == "speed-up":
        series.append(curves.Series("ideal", [(1.0, 1.0), (float(most), float(most))], dashed=True))
        return curves.chart("Simulated hosts: speed-up", "hosts", "times one host", series)
    unit = files[0]["summary"][0]["unit"][:-1]
    return curves.chart(f"Simulated hosts: bytes per {unit}", "hosts", f"bytes per {unit}", series)


def predicted_chart(
    constants: Mapping[str, Constants], hosts: Sequence[int], host: Host, unit: str
) -> str:
    """Curves of real hosts, a constant's name each, both axes logarithmic."""
    series = [
        curves.Series(
            name,
            [
                (float(n), rate)
                for n in hosts
                if (rate := predict(c, n, host).units_per_s)  # 0: the master is busy with hosts
            ],
        )
        for name, c in constants.items()
    ]
    link = "" if host.mbit is None else f", {host.mbit / 1000:g} Gbit/s"
    title = f"Predicted: hosts of {host.cores:g} cores{link}"
    return curves.chart(title, "hosts", f"{unit}/s", series, log=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("files", nargs="+", type=Path, help="files of hosts.py --out; joined if of one model")
    add("--fit", help="numbers of hosts that constants are taken from; default: all")
    add("--hosts", default="1,2,4,8,16,32,64", help="of the prediction")
    add("--cores", type=float, default=16.0, help="of each of these hosts")
    add("--link", default="10gbit", help="of each of these hosts; none: without limit")
    add("--shards", type=int, default=8, help="of each of these hosts")
    add("--host-us", type=float,
        help="processor time that a unit costs each worker of several; default: "
        f"{HOST_US:g} for word vectors, else 0")  # fmt: skip
    add("--core-loss", type=float, default=0.0,
        help="relative cost of one more core: 2 / (speed of two threads / of one) - 1")  # fmt: skip
    add("--svg", type=Path, metavar="PREFIX", help="writes PREFIX-speed-up.svg and two more")
    add(
        "--fill",
        type=Path,
        metavar="PAGE",
        help="writes its tables: with --fit the test, else the rest",
    )
    add("--json", action="store_true", help="constants, errors and predictions as JSON")
    args = parser.parse_args()
    try:
        args.hosts = numbers_of(args.hosts)
        args.fit = numbers_of(args.fit) if args.fit else None
        args.link = link_of(args.link)[1]
    except ValueError as error:
        sys.exit(f"bench: {error}")
    return args


def main() -> None:
    """Fit, test, predict, draw."""
    args = arguments()
    files: list[dict[str, Any]] = [load(path) for path in args.files]
    host = Host(args.cores, args.link, args.shards)
    compared(files)
    groups: dict[str, list[dict[str, Any]]] = {}
    for data in files:
        groups.setdefault(name_of(data, linked=False), []).append(data)
    units = {name: some[0]["summary"][0]["unit"] for name, some in groups.items()}
    constants: dict[str, Constants] = {}
    tested, predicted = [], []
    for name, some in groups.items():
        shared = sharing(some)
        measured = [
            replace(m, shared=shared.get(m.hosts, 1.0)) for data in some for m in measured_of(data)
        ]
        chosen = [m for m in measured if args.fit is None or m.hosts in args.fit]
        numbers = {m.hosts for m in chosen if m.mbit is None}
        if 1 not in numbers or len(numbers) < 3:
            text = "is not predicted: that takes runs of one host and of two other numbers"
            print(f"bench: {name}: {text}", file=sys.stderr)
            continue
        try:
            constants[name] = fit(chosen, args.core_loss, host_us_of(some[0], args.host_us))
        except ValueError as error:
            print(f"bench: {name}: {error}", file=sys.stderr)
            continue
        found = errors(constants[name], measured)
        if args.json:
            guesses = [asdict(predict(constants[name], n, host)) for n in args.hosts]
            shown_ = {"name": name, "unit": units[name], "constants": asdict(constants[name])}
            print(json.dumps({**shown_, "errors": found, "predictions": guesses}))
        tested.append(f"{name}:\n\n{error_table(found)}")
        predicted.append(f"{name}:\n\n{prediction_table(constants[name], args.hosts, host)}")
    if not constants:
        sys.exit("bench: nothing to predict from")
    tables = {
        "measured": measured_table(files),
        "tested": "\n\n".join(tested),
        "predicted": "\n\n".join(predicted),
    }
    if not args.json:
        print("\n\n".join([*map(str, constants.items()), *tables.values()]))
    drawn: list[Path] = []
    if args.svg:
        kinds = {"speed-up": measured_chart(files, "speed-up")}
        for unit in sorted(set(units.values())):
            some = [data for data in files if data["summary"][0]["unit"] == unit]
            mine = {name: c for name, c in constants.items() if units[name] == unit}
            kinds[f"bytes-{unit}"] = measured_chart(some, "bytes")
            kinds[f"predicted-{unit}"] = predicted_chart(mine, args.hosts, host, unit)
        for kind, text in kinds.items():
            path = args.svg.with_name(f"{args.svg.name}-{kind}.svg")
            path.write_text(text)
            print(f"bench: {path}", file=sys.stderr)
            drawn.append(path)
    if args.fill:
        # Constants of some numbers of hosts are there for the test alone.
        told = ("tested",) if args.fit else ("measured", "predicted")
        places = {name: tables[name] for name in told}
        if drawn:
            places["curves"] = "\n".join(f"![{path.stem}]({path.name})" for path in drawn)
        try:
            args.fill.write_text(filled(args.fill.read_text(), places))
        except (OSError, ValueError) as error:
            sys.exit(f"bench: {args.fill}: {error}")


if __name__ == "__main__":
    main()
