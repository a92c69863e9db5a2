"""Network namespaces, joined by one link or by a switch, with a set bandwidth.

    unshare, veth -> Link: near <-> far -> start(side, command), inside(side), cap(Mbit/s)
    unshare, veth, bridge -> Switched: any number of sides, each with a wire to the switch
        with a round-trip time: to one of two switches, between which `relay.py` carries frames late
    unshare -> Alone: one side, with a loopback device of its own

It owns the namespaces, the wires and what was started through `start`.  The namespaces have no
names: they live by file descriptors of this process, so the kernel takes them down, wire and all,
when it ends, however it ends.  It knows nothing of snailps.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("ip", "tc")
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
BURST_S = 0.002
"""What the cap lets pass at once after a pause.  Less than a tick of a slow kernel clock (4 ms)
will do, since tbf has a finer one; 250 kB at 1 Gbit/s hold several of TCP's 64 KiB units."""
BURST_BYTES_MIN = 128 << 10
LATENCY_MS = 20
"""How long the queue in front of the cap may get before packets are lost: a switch with 2.5 MB."""
RELAY = Path(__file__).with_name("relay.py")
MTU_RELAYED = 32_000
"""A relay takes about as long for a large frame as for a small one."""
END_S = 5.0
HERE = -1
"""In the place of a descriptor: the namespace of this process."""

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_TUNSETIFF, _TAP, _NO_PACKET_INFO = 0x400454CA, 0x0002, 0x1000  # of linux/if_tun.h
_libc = ctypes.CDLL(None, use_errno=True)


class NotPermitted(Exception):
    """This machine or user may not make such a link; the text has the reason and the remedy."""


@dataclass(frozen=True)
class Side:
    """One end: its device and its address there, and the descriptor that keeps its namespace, or
    `HERE`."""

    device: str
    address: str
    fd: int


class Network:
    """The sides, and the processes started on them.

    Notes
    -----
    A namespace belongs to a thread: threads and processes that a thread starts are where it is.
    Sockets stay where they were made.
    """

    def __init__(self) -> None:
        self._children: list[subprocess.Popen] = []

    @contextlib.contextmanager
    def inside(self, side: Side) -> Iterator[None]:
        """The calling thread is on that side for as long as the ``with`` block lasts."""
        if side.fd == HERE:
            yield
            return
        own = _own_namespace()
        try:
            _check(_libc.setns(side.fd, _CLONE_NEWNET), "enter a network namespace")
            yield
        finally:
            # Back to where it was a moment ago: this can only fail if the process is broken.
            _libc.setns(own, _CLONE_NEWNET)
            os.close(own)

    def start(
        self,
        side: Side,
        command: list[str],
        *,
        enter: Callable[[], None] | None = None,
        **options,
    ) -> subprocess.Popen:
        """Starts a command on that side; `options` as in `subprocess.Popen`.  It does not outlive
        this process, nor the network.  `enter` is called in the child, before the command."""

        def prepare() -> None:
            _die_with_parent()
            if enter is not None:
                enter()

        with self.inside(side):
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, preexec_fn=prepare, **options
            )
        self._children.append(child)
        return child

    def end_all(self) -> None:
        """Ends processes started here that still run, each by its id."""
        running = [child for child in self._children if child.poll() is None]
        for child in running:
            child.terminate()
        until = time.monotonic() + END_S
        for child in running:
            try:
                child.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def sent(self, side: Side) -> int:
        """Bytes that a side's device has sent, with the headers that the device sees."""
        with self.inside(side):
            return sent_bytes(Path("/proc/thread-self/net/dev").read_text(), side.device)


class Link(Network):
    """The two ends of a wire; made by `linked`.

    Attributes
    ----------
    near, far : Side
        Equal; by convention clients are on the near side, servers on the far one.
    """

    def __init__(self, near: Side, far: Side) -> None:
        super().__init__()
        self.near, self.far = near, far

    def cap(self, mbit_per_s: float | None) -> None:
        """Limits what each side sends to this many Mbit/s, Ethernet's headers counted; None: no
        limit.  At any time, as often as wanted."""
        for side in (self.near, self.far):
            with self.inside(side):
                _shape(side.device, mbit_per_s)


class Switched(Network):
    """Sides with a wire each to a switch, in turn to the first and the last one; by `switched`.

    Attributes
    ----------
    sides : list of Side
    """

    def __init__(self, switches: Sequence[Side]) -> None:
        super().__init__()
        self._switches = switches
        self.sides: list[Side] = []

    def switch_of(self, number: int) -> Side:
        """The switch of a side."""
        return self._switches[number % len(self._switches)]

    def cap(self, mbit_per_s: float | None, sides: Sequence[Side]) -> None:
        """Limits what each of these sides sends, and what it receives, as `Link.cap` does."""
        for side in sides:
            with self.inside(side):
                _shape(side.device, mbit_per_s)
            number = self.sides.index(side)
            with self.inside(self.switch_of(number)):
                _shape(_port(number), mbit_per_s)


class Alone(Network):
    """Sides that share a loopback device, with an address each; made by `alone`.

    Attributes
    ----------
    sides : list of Side
    """

    def __init__(self, sides: list[Side]) -> None:
        super().__init__()
        self.sides = sides


@contextlib.contextmanager
def linked(mbit_per_s: float | None = None) -> Iterator[Link]:
    """Two namespaces joined by a wire (veth), for as long as the ``with`` block lasts.

    Parameters
    ----------
    mbit_per_s : float, optional
        Limit of each direction; none by default.

    Raises
    ------
    NotPermitted
        Not root, a tool is missing, or the kernel cannot.
    """
    _need_tools()
    with contextlib.ExitStack() as stack:
        near = _side(stack, "near", "10.0.0.1")
        link = Link(near, _side(stack, "far", "10.0.0.2"))
        stack.callback(link.end_all)
        with link.inside(link.near):
            other = f"/proc/{os.getpid()}/fd/{link.far.fd}"
            run_tool(
                "ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", other
            )
        for end in (link.near, link.far):
            with link.inside(end):
                _bring_up(end)
        link.cap(mbit_per_s)
        yield link


@contextlib.contextmanager
def switched(number: int, rtt_ms: float = 0.0) -> Iterator[Switched]:
    """So many namespaces, 10.0.0.1 and on, each with a wire to a bridge in one of its own, for as
    long as the ``with`` block lasts.

    Parameters
    ----------
    number : int
    rtt_ms : float
        Round-trip time between sides of even and of odd numbers, if any: they have bridges of
        their own then, with a relay between them.

    Raises
    ------
    NotPermitted
        Not root, a tool is missing, or the kernel cannot.
    """
    _need_tools()
    with contextlib.ExitStack() as stack:
        switches = [_side(stack, "bridge", "") for _ in range(2 if rtt_ms else 1)]
        network = Switched(switches)
        stack.callback(network.end_all)
        mtu = ("mtu", str(MTU_RELAYED)) if rtt_ms else ()
        for switch in switches:
            with network.inside(switch):
                run_tool("ip", "link", "add", switch.device, "type", "bridge")
                run_tool("ip", "link", "set", switch.device, *mtu, "up")
        if rtt_ms:
            taps = [_tap(stack, network, switch) for switch in switches]
            words = [sys.executable, str(RELAY), *map(str, taps), str(rtt_ms / 2)]
            network.start(switches[0], words, pass_fds=taps)
        for i in range(number):
            side = _side(stack, "eth0", f"10.0.0.{i + 1}")
            network.sides.append(side)
            there = f"/proc/{os.getpid()}/fd/{side.fd}"
            switch = network.switch_of(i)
            with network.inside(switch):
                wire = ("ip", "link", "add", _port(i), "type", "veth")
                run_tool(*wire, "peer", "name", "eth0", "netns", there)
                run_tool("ip", "link", "set", _port(i), *mtu, "master", switch.device, "up")
            with network.inside(side):
                if mtu:
                    run_tool("ip", "link", "set", side.device, *mtu)
                _bring_up(side)
        yield network


@contextlib.contextmanager
def alone(number: int) -> Iterator[Alone]:
    """One namespace whose loopback device has this many addresses, for as long as the ``with``
    block lasts; without the right to make one, the loopback device of this machine."""
    with contextlib.ExitStack() as stack:
        fd = HERE
        with contextlib.suppress(NotPermitted):
            fd = _side(stack, "lo", "").fd
        sides = [Side("lo", f"127.0.0.{i + 1}", fd) for i in range(number)]
        network = Alone(sides)
        stack.callback(network.end_all)
        if fd != HERE:
            with network.inside(sides[0]):
                run_tool("ip", "link", "set", "lo", "up")
        yield network


def sent_bytes(text: str, device: str) -> int:
    """Bytes sent by a device, of the text of /proc/net/dev; 0 if there is no such device."""
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == device:
            return int(counters.split()[8])
    return 0


def _need_tools() -> None:
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=SEARCH)]
    if missing:
        raise NotPermitted(
            f"a network of hosts needs {' and '.join(missing)}, which cannot be found: "
            "apt-get install iproute2"
        )


def _side(stack: contextlib.ExitStack, device: str, address: str) -> Side:
    """A side in a fresh namespace, which lasts until the stack is left."""
    fd = _new_namespace()
    stack.callback(os.close, fd)
    return Side(device, address, fd)


def _tap(stack: contextlib.ExitStack, network: Network, switch: Side) -> int:
    """Descriptor of a device of a switch, which gives and takes its frames."""
    with network.inside(switch):
        try:
            fd = os.open("/dev/net/tun", os.O_RDWR)
        except OSError as error:
            raise NotPermitted(f"a relay needs /dev/net/tun: {error.strerror}") from None
        stack.callback(os.close, fd)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"relay", _TAP | _NO_PACKET_INFO))
        whole = ("mtu", str(MTU_RELAYED), "master", switch.device)
        run_tool("ip", "link", "set", "relay", *whole, "up")
    return fd


def _bring_up(side: Side) -> None:
    """Address and state of the devices of the side that the calling thread is on."""
    run_tool("ip", "address", "add", f"{side.address}/24", "dev", side.device)
    run_tool("ip", "link", "set", "lo", "up")
    run_tool("ip", "link", "set", side.device, "up")


def _shape(device: str, mbit_per_s: float | None) -> None:
    """Limits what a device sends, where the calling thread is; None: no limit."""
    if run_tool("tc", "qdisc", "show", "dev", device).startswith("qdisc tbf"):
        run_tool("tc", "qdisc", "del", "dev", device, "root")
    if mbit_per_s is None:
        return
    burst = max(BURST_BYTES_MIN, int(mbit_per_s * 125_000 * BURST_S))
    shape = ["rate", f"{mbit_per_s:g}mbit", "burst", f"{burst}b"]
    shape += ["latency", f"{LATENCY_MS}ms"]
    run_tool("tc", "qdisc", "add", "dev", device, "root", "tbf", *shape)


def _port(number: int) -> str:
    """The switch's end of a side's wire."""
    return f"port{number}"


def why_not() -> str:
    """Why this process cannot make a capped link; empty if it can (it tries)."""
    try:
        with linked(1000.0):
            return ""
    except NotPermitted as error:
        return str(error)


def _own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _new_namespace() -> int:
    """Descriptor of a fresh namespace; the calling thread stays where it is."""
    own = _own_namespace()
    try:
        _check(_libc.unshare(_CLONE_NEWNET), "make a network namespace")
        try:
            return _own_namespace()
        finally:
            _libc.setns(own, _CLONE_NEWNET)
    finally:
        os.close(own)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise NotPermitted(
            f"cannot {what}: {os.strerror(ctypes.get_errno())}. It takes root, or the root of a "
            "user namespace: unshare --user --map-root-user COMMAND"
        )


def run_tool(*command: str) -> str:
    """Output of a tool; a failure raises its error message."""
    path = shutil.which(command[0], path=SEARCH) or command[0]
    done = subprocess.run(
        [path, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _die_with_parent() -> None:
    """In a child, before exec: SIGKILL when the parent dies, and no part in its Ctrl-C."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
