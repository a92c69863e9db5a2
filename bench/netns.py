"""Two network namespaces and one link between them, with a set bandwidth.

    unshare, veth -> Link: near <-> far -> start(side, command), inside(side), cap(Mbit/s)

It owns the namespaces, the wire and what was started through `Link.start`.  The namespaces have no
names: they live by file descriptors of this process, so the kernel takes them down, wire and all,
when it ends, however it ends.  It knows nothing of snailps.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

TOOLS = ("ip", "tc")
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
BURST_S = 0.002
"""What the cap lets pass at once after a pause.  Less than a tick of a slow kernel clock (4 ms)
will do, since tbf has a finer one; 250 kB at 1 Gbit/s hold several of TCP's 64 KiB units."""
BURST_BYTES_MIN = 128 << 10
LATENCY_MS = 20
"""How long the queue in front of the cap may get before packets are lost: a switch with 2.5 MB."""
END_S = 5.0

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class NotPermitted(Exception):
    """This machine or user may not make such a link; the text has the reason and the remedy."""


@dataclass(frozen=True)
class Side:
    """One end: its device and its address there, and the descriptor that keeps its namespace."""

    device: str
    address: str
    fd: int


class Link:
    """The two ends of a wire; made by `linked`.

    Attributes
    ----------
    near, far : Side
        Equal; by convention clients are on the near side, servers on the far one.

    Notes
    -----
    A namespace belongs to a thread: threads and processes that a thread starts are where it is.
    Sockets stay where they were made.
    """

    def __init__(self, near: Side, far: Side) -> None:
        self.near, self.far = near, far
        self._children: list[subprocess.Popen] = []

    @contextlib.contextmanager
    def inside(self, side: Side) -> Iterator[None]:
        """The calling thread is on that side for as long as the ``with`` block lasts."""
        own = _own_namespace()
        try:
            _check(_libc.setns(side.fd, _CLONE_NEWNET), "enter a network namespace")
            yield
        finally:
            # Back to where it was a moment ago: this can only fail if the process is broken.
            _libc.setns(own, _CLONE_NEWNET)
            os.close(own)

    def start(self, side: Side, command: list[str], **options) -> subprocess.Popen:
        """Starts a command on that side; `options` as of `subprocess.Popen`.  It does not outlive
        this process, nor the link."""
        with self.inside(side):
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent, **options
            )
        self._children.append(child)
        return child

    def cap(self, mbit_per_s: float | None) -> None:
        """Limits what each side sends to so many Mbit/s, Ethernet's headers counted; None: no
        limit.  At any time, as often as wanted."""
        for side in (self.near, self.far):
            with self.inside(side):
                if run_tool("tc", "qdisc", "show", "dev", side.device).startswith("qdisc tbf"):
                    run_tool("tc", "qdisc", "del", "dev", side.device, "root")
                if mbit_per_s is None:
                    continue
                burst = max(BURST_BYTES_MIN, int(mbit_per_s * 125_000 * BURST_S))
                shape = ["rate", f"{mbit_per_s:g}mbit", "burst", f"{burst}b"]
                shape += ["latency", f"{LATENCY_MS}ms"]
                run_tool("tc", "qdisc", "add", "dev", side.device, "root", "tbf", *shape)

    def end_all(self) -> None:
        """Ends processes started here that still run, each by its id."""
        running = [child for child in self._children if child.poll() is None]
        for child in running:
            child.terminate()
        for child in running:
            try:
                child.wait(END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


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
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=SEARCH)]
    if missing:
        raise NotPermitted(
            f"a capped link needs {' and '.join(missing)}, which cannot be found: "
            "apt-get install iproute2"
        )
    with contextlib.ExitStack() as stack:

        def side(device: str, address: str) -> Side:
            fd = _new_namespace()
            stack.callback(os.close, fd)
            return Side(device, address, fd)

        link = Link(side("near", "10.0.0.1"), side("far", "10.0.0.2"))
        stack.callback(link.end_all)
        with link.inside(link.near):
            other = f"/proc/{os.getpid()}/fd/{link.far.fd}"
            run_tool(
                "ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", other
            )
        for end in (link.near, link.far):
            with link.inside(end):
                run_tool("ip", "address", "add", f"{end.address}/24", "dev", end.device)
                run_tool("ip", "link", "set", "lo", "up")
                run_tool("ip", "link", "set", end.device, "up")
        link.cap(mbit_per_s)
        yield link


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
