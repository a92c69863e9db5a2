"""Checks of a machine's set-up for a cluster; each returns a list of findings.

    settings, addresses, /proc -> Finding(level, check, text, cure)

Each checks this machine alone, or tries to reach one address. `snailps doctor` runs them all
(`diagnostics/doctor.py`); a process whose start-up wait is half over runs those that may explain
it. Must not know messages or handshakes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from snailps.abi import loops
from snailps.abi.numa import NumaNode, are_alike
from snailps.abi.quota import memory
from snailps.api.tables import Table
from snailps.config import ClusterSettings, ListenerSettings, parse_addr, parse_port_range
from snailps.config.output import check_output
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, SnailError
from snailps.files.blocks import openable
from snailps.transport.control import Address, route_host, show
from snailps.transport.security.trust import is_loopback

log = logging.getLogger(__name__)

Level = Literal["ok", "note", "warning", "error"]
REACH_S = 3.0
"""Limit of a connection attempt: TCP sends a lost SYN again after 1 s."""
ROW_OVERHEAD_BYTES = 24
"""Bytes of a row besides its floats: key, and index at half its load (`store`)."""
SPARE_FILES = 64
"""Descriptors that a process needs besides the sockets of its peers."""
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    # ``ok``, ``note`` (worth knowing), ``warning`` (degraded), ``error`` (will not work)
    level: Level
    check: str  # name, interface, port, reach, clock, version, memory, files, disk, ...
    text: str
    cure: str = ""  # empty if none is needed

    def __str__(self) -> str:
        return f"{self.check}: {self.text}" + (f" -> {self.cure}" if self.cure else "")


# --- names and addresses ----------------------------------------------------------------------


def check_name(address: str, setting: str) -> list[Finding]:
    """Check that the host of an address resolves here, to an address that other hosts can reach."""
    host, port = parse_addr(address, setting)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        why = error.strerror or str(error)
        text = f"{host} ({setting}) has no address on this host: {why}"
        cure = f"correct {setting}, or give this host the name (/etc/hosts, DNS)"
        return [Finding("error", "name", text, cure)]
    addresses = sorted({str(where[0]) for *_, where in resolved})
    text = f"{host} ({setting}) is {', '.join(addresses)}"
    if host in addresses:
        text = f"{host} ({setting}) is an address"
    local = [address for address in addresses if is_loopback(address)]
    if not local:
        return [Finding("ok", "name", text)]
    if host == "localhost" or host in addresses:
        cure = (
            f"for a cluster of several machines set {setting} to its name or address in the network"
        )
        return [Finding("note", "name", f"{text}, which only this machine can reach", cure)]
    text = f"{host} ({setting}) is {', '.join(local)} here: no other host can reach that"
    cure = f"give {host} its address in the network, in /etc/hosts of this host"
    return [Finding("error", "name", text, cure)]


def check_interface(settings: ClusterSettings) -> list[Finding]:
    """Find the address at which others reach this process, and say how it was chosen."""
    master = parse_addr(settings.master_addr, "master_addr")
    listens = settings if isinstance(settings, ListenerSettings) else ListenerSettings()
    host = ""
    if listens.listen_addr:
        host = parse_addr(listens.listen_addr, "listen_addr", port_optional=True)[0]
    if host and host not in ("0.0.0.0", "::"):
        why = f"listen_addr says {host}"
    else:
        try:
            host = route_host(master)
        except SnailError as error:
            cure = "see the name above, and the routes of this host (ip route)"
            return [Finding("error", "interface", str(error), cure)]
        why = f"packets to the master at {show(master)} leave by it"
    if not is_own(host):
        cure = "correct listen_addr, or leave it out"
        text = f"{host} is not an address of this machine: {why}"
        return [Finding("error", "interface", text, cure)]
    device = device_of(host)
    text = f"{host}{f' ({device})' if device else ''}, because {why}"
    findings = [Finding("ok", "interface", text)]
    if listens.advertise_addr:
        findings += check_name_only(listens.advertise_addr)
    return findings


def check_name_only(advertised: str) -> list[Finding]:
    """Whether the host of `advertise_addr` resolves here."""
    host, _ = parse_addr(advertised, "advertise_addr", port_optional=True)
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        cure = "others connect to this name: correct advertise_addr, or leave it out"
        text = f"{host} (advertise_addr) has no address here: {error.strerror}"
        return [Finding("error", "name", text, cure)]
    return [Finding("note", "name", f"others connect to {advertised} (advertise_addr)")]


def is_own(host: str) -> bool:
    """Whether an address, or the first address of a name, belongs to this machine."""
    return _can_bind(host, 0)


def _can_bind(host: str, port: int) -> bool:
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
    except OSError:
        return False
    return True


def device_of(host: str) -> str:
    """Name of the network device that has an IPv4 address; empty if none is found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                sizes = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, asked)
                if socket.inet_ntoa(sizes[20:24]) == host:
                    return name
    return ""


# --- ports ------------------------------------------------------------------------------------


def check_port_range(settings: ListenerSettings, wanted: int) -> list[Finding]:
    """Whether enough ports of `port_range` are free for the shards of a server."""
    ports = parse_port_range(settings.port_range, "port_range") if settings.port_range else None
    if ports is None:
        return []
    free = sum(_can_bind("0.0.0.0", port) for port in range(ports[0], ports[1] + 1))
    text = f"{free} of ports {ports[0]} to {ports[1]} (port_range) are free"
    if free >= wanted:
        return [Finding("ok", "port", text)]
    cure = "widen port_range, or set a smaller shard_num: a server needs a port a shard"
    return [Finding("error", "port", f"{text}, a server here needs {wanted}", cure)]


def port_in_use(address: Address) -> Finding:
    """The finding that another process, which is named, listens at an address of this machine."""
    holder = holder_of(address[1])
    text = f"port {address[1]} is in use{f' by {holder}' if holder else ''}, which is not snailps"
    return Finding("error", "port", text, "end that process, or choose another port in master_addr")


def holder_of(port: int) -> str:
    """The process that listens at a TCP port of this machine, in words; empty if unknown."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # others' processes, and those that end meanwhile
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(link.readlink()) in inodes:
                        command = shown_command((process / "cmdline").read_bytes())
                        return f"process {process.name} ({command})"
    return ""


def shown_command(cmdline: bytes) -> str:
    """The beginning of a command line of /proc, on one line."""
    return re.sub(r"[\0\s]+", " ", cmdline.decode("utf-8", "replace")).strip()[:60]


def check_reach(address: Address, name: str) -> Finding:
    """Whether a TCP connection to an address can be made from here, and how long that took."""
    where, begin = show(address), time.monotonic()
    try:
        socket.create_connection(address, timeout=REACH_S).close()
    except OSError as error:
        return unreachable(address, name, error)
    took_ms = (time.monotonic() - begin) * 1e3
    return Finding("ok", "reach", f"{name} at {where} is reachable, {took_ms:.1f} ms")


def unreachable(address: Address, name: str, error: OSError) -> Finding:
    where, (host, port) = show(address), address[:2]
    if isinstance(error, socket.gaierror):
        text = f"{name}: {host} has no address here: {error.strerror}"
        return Finding("error", "reach", text, "give this host the name, or use the address")
    if isinstance(error, ConnectionRefusedError):
        text = f"{name}: {host} answers, but no process listens at port {port}"
        cure = (
            "start it there, or correct the port; if it runs, it listens on another address, "
            "or a firewall rejects"
        )
        return Finding("error", "reach", text, cure)
    if isinstance(error, TimeoutError):
        text = f"{name}: {where} does not answer at all within {REACH_S:.0f} s: packets are dropped"
        cure = f"let TCP port {port} of {host} through the firewall; is that host up?"
        return Finding("error", "reach", text, cure)
    unrouted = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
    cure = "is that host up, and in the same network (ip route)?" if unrouted else ""
    return Finding("error", "reach", f"{name}: {where}: {error.strerror or error}", cure)


# --- waits that last --------------------------------------------------------------------------


def look_half_way(
    limit_s: float, what: str, look: Callable[[], Sequence[Finding]]
) -> threading.Timer:
    """After half of a time limit, look for the reason of the wait and log the findings. Return a
    timer to `cancel` when the wait ends."""

    def look_now() -> None:
        log.warning("half of %.0f s is over, still waiting for %s:", limit_s, what)
        try:
            findings = look()
        except SnailError as error:
            findings = [Finding("error", "settings", str(error))]
        for finding in findings:
            is_fine = finding.level in ("ok", "note")
            log.log(logging.INFO if is_fine else logging.WARNING, "  %s", finding)

    timer = threading.Timer(limit_s / 2, look_now)
    timer.daemon = True
    timer.start()
    return timer


def why_no_master(settings: ClusterSettings) -> list[Finding]:
    """Why this process may not reach the master: name, interface, connection."""
    findings = [*check_name(settings.master_addr, "master_addr"), *check_interface(settings)]
    if not any(finding.level == "error" for finding in findings):
        findings.append(check_reach(parse_addr(settings.master_addr, "master_addr"), "the master"))
    return findings


def why_no_nodes(settings: ListenerSettings, nodes: int) -> list[Finding]:
    """Why nodes may not reach this process, the master."""
    listens = settings.listen_addr or settings.master_addr
    host, _ = parse_addr(listens, "listen_addr", port_optional=True)
    checked = [
        *check_name(settings.master_addr, "master_addr"),
        *check_files(2 * nodes, bool(settings.tls)),
    ]
    faults = [finding for finding in checked if finding.level == "error"]
    with contextlib.suppress(OSError):
        addresses = {str(where[0]) for *_, where in socket.getaddrinfo(host or "0.0.0.0", None)}
        if all(is_loopback(address) for address in addresses):
            text = f"the master listens on {host}: no other host can reach that"
            cure = "for nodes on other hosts set master_addr to its address in the network"
            faults.append(Finding("warning", "interface", text, cure))
    text = "no fault found on this host: see the logs of the missing nodes"
    cure = "run snailps doctor on their hosts: it checks the connection to this master"
    return faults or [Finding("ok", "nodes", text, cure)]


def why_not_connected(shards: Iterable[tuple[int, Address]]) -> list[Finding]:
    """Which of these shards, by their server's number, are out of reach from here."""
    findings = [check_reach(address, f"server {number}") for number, address in shards]
    return [finding for finding in findings if finding.level != "ok"] or findings[:1]


# --- the machine ------------------------------------------------------------------------------


def check_files(connections: int, tls: bool) -> list[Finding]:
    """Whether this process may open the sockets of `connections`."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # every process raises its limit to this
    needed = connections * (3 if tls else 1) + SPARE_FILES  # the relay's pair comes on top
    text = f"{hard:,} files may be open at once, {needed:,} are needed"
    if hard >= needed:
        return [Finding("ok", "files", text)]
    cure = f"raise the limit to {needed:,}: ulimit -n, LimitNOFILE= of systemd, --ulimit of docker"
    return [Finding("error", "files", text, cure)]


def free_memory() -> tuple[int, str]:
    """Bytes that processes here may still allocate, and the source of that number."""
    free, why = memory(Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return (soft, "ulimit -v") if 0 <= soft < free else (free, why)  # below 0: none


def row_bytes(tables: Iterable[Table]) -> dict[str, int]:
    """Memory of a row of each table, by name."""
    return {
        table.name: 4 * (table.words + table.state_floats) + ROW_OVERHEAD_BYTES for table in tables
    }


def check_memory(
    tables: Sequence[Table], rows: int, servers: int, *, replicated: bool
) -> list[Finding]:
    """Check that this machine's memory is enough for its share of `rows` rows of each table. With
    `rows` 0, unknown, the finding says how many fit. `replicated`: with two servers or more each
    row is kept twice."""
    free, why = free_memory()
    text = f"{free / 1e9:,.1f} GB are free ({why})"
    if not tables:
        return [Finding("note", "memory", f"{text}; the file names no job whose tables are known")]
    each = row_bytes(tables)
    copies = 2 if replicated and servers > 1 else 1
    a_row = sum(each.values()) * copies
    sizes = ", ".join(f"{size:,} ({name})" for name, size in each.items())
    twice = ", each kept twice (replication)" if copies > 1 else ""
    text += f"; a row takes {sizes} bytes{twice}"
    fit = int(free * servers / a_row)
    if not rows:
        room = f"{servers} such servers hold {fit:,} rows of each table"
        return [Finding("note", "memory", f"{text}: {room}")]
    needed = rows * a_row / servers
    text += f"; {rows:,} rows on {servers} servers need {needed / 1e9:,.1f} GB of each"
    if needed <= free:
        return [Finding("ok", "memory", text)]
    bare = -(-rows * sum(each.values()) // max(free, 1))
    cure = f"start {bare * (1 + replicated):,} such servers"
    if replicated:
        cure += f", or {bare:,} with replication: none"
    return [Finding("error", "memory", text, cure)]


def check_disk(path: Path, each: int = 0, kept: int = 1) -> list[Finding]:
    """Check that checkpoints can be written here, and that there is room for `kept` of them, of
    `each` bytes, and for the next one, which is written before the oldest is removed."""
    folder = next(parent for parent in (path, *path.parents) if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        cure = "make it writable for this user, or set checkpoint_dir"
        return [Finding("error", "disk", f"{path}: cannot write to {folder}", cure)]
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    text = f"{path}: {free / 1e9:,.1f} GB are free for checkpoints"
    used = 0
    with contextlib.suppress(OSError):  # a job may remove checkpoints meanwhile
        files = path.rglob("*") if each else ()
        used = sum(file.stat().st_size for file in files if file.is_file())
    needed = max(each, each * (kept + 1) - used)
    if each:
        text += f"; {kept + 1} of {each / 1e9:,.1f} GB are there at a time"
    if free < needed:
        cure = "make room, set another checkpoint_dir, or keep fewer (checkpoints_kept)"
        return [Finding("error", "disk", f"{text}, {needed / 1e9:,.1f} GB are needed more", cure)]
    return [Finding("ok", "disk", text)]


def check_numa(nodes: Sequence[NumaNode]) -> list[Finding]:
    """The memory nodes, if several, and which processes are bound to one."""
    if not are_alike(nodes):
        return []
    each = ", ".join(
        f"node {node.number}: {len(node.cpus)} CPUs"
        + (f", {node.memory_bytes / 1e9:,.0f} GB" if node.memory_bytes else "")
        for node in nodes
    )
    text = f"{len(nodes)} memory nodes ({each}); a shard keeps to one"
    cure = (
        f"have {len(nodes)} workers here, one a node: snailps train keeps them there if --workers "
        f"is a multiple of {len(nodes)}; a worker of its own, started by numactl or taskset"
    )
    return [Finding("note", "numa", text, cure)]


def check_input(paths: Sequence[str], *, master: bool) -> list[Finding]:
    """Whether the files of the input can be found and opened here: the master must, a worker
    should."""
    if not paths:
        return []
    try:
        files = openable(paths)
    except SnailError as error:
        if master:
            return [Finding("error", "input", str(error), "the master must read it")]
        cure = "workers here will be sent the bytes by the master, which is slow: mount it here"
        return [Finding("warning", "input", str(error), cure)]
    return [Finding("ok", "input", f"{len(files):,} files of the input can be read")]


def check_result(output: str) -> list[Finding]:
    """Whether result files can be written where the master will: leaves no folder that it makes."""
    if not output:
        return []
    folder = Path(output).absolute().parent
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        check_output(output)
    except ConfigError as error:
        return [Finding("error", "output", str(error))]
    finally:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
    return [Finding("ok", "output", f"{folder} can be written")]


def check_kernels() -> list[Finding]:
    """Which build of the kernels this machine runs, and whether it could run a faster one."""
    builds = loops.builds_available()
    text = f"kernels {loops.BUILD}, of {', '.join(builds)} that this processor can run"
    if loops.narrow_pays():
        text += "; products of bfloat16"
    if builds[0] == loops.BUILD:
        return [Finding("ok", "kernels", text)]
    return [Finding("note", "kernels", text, "unset SNAILPS_KERNELS to have the fastest")]
