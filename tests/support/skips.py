"""The allowed reasons to skip a test: an allowlist, checked against this machine.

    reason of a skip -> the matching entry -> is it true here? -> excess(reason)

tests/conftest.py asks for each skipped test and file: an unexpected skip fails.  With `--ci` a skip
for lack of something that a continuous-integration machine must have fails, too.
"""

import os
import platform
import re
import shutil
import signal
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MAY_MOUNT = 21  # CAP_SYS_ADMIN
MODULES = {
    "scikit-learn": "sklearn", "PyTorch": "torch", "extra `plot`": "matplotlib",
    "official fasttext package": "fasttext", "snailps[tensorboard]": "tensorboardX",
    "fsspec reads http://": "aiohttp", "gensim has no wheels": "gensim",
    "tensorboard itself": "tensorboard",
}  # fmt: skip
"""Modules that reasons tell by another name."""
EVERYWHERE = [
    "sklearn", "matplotlib", "fasttext", "tensorboardX", "aiohttp", "pandas", "polars", "pyarrow",
    "scipy", "usearch", "zstandard", "safetensors", "bash", "make", "cc",
    *(["gensim"] if sys.version_info < (3, 14) else []),
]  # fmt: skip
"""Of modules and programs, what continuous integration has: the extra `test`, and what builds."""


def data_folder() -> Path | None:
    """Folder of the test data, SNAILPS_DATA; None: that is not set."""
    named = os.environ.get("SNAILPS_DATA")
    return Path(named) if named else None


def has_data() -> bool:
    """Whether the test data are here."""
    folder = data_folder()
    return folder is not None and (folder / "words").is_dir()


def is_root() -> bool:
    """Whether this process is root's."""
    return os.geteuid() == 0


def may_mount() -> bool:
    """Whether this process has the right to mount: root of a container has not."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        rights = next(line for line in lines if line.startswith("CapEff:"))
        return bool(int(rights.split()[1], 16) >> MAY_MOUNT & 1)
    return False


def has_ipv6() -> bool:
    """Whether a server may listen on the loopback of IPv6."""
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


def is_absent(name: str) -> bool:
    """Whether neither a module nor a program has this name."""
    return find_spec(name) is None and shutil.which(name) is None


def is_no_clone() -> bool:
    """Whether no program can say which files of this tree are in git."""
    return is_absent("git") or not (ROOT / ".git").exists()


def tried() -> bool:
    """True: the test has tried, or has asked."""
    return True


LACKING = {
    "no test data": lambda: not has_data(),
    "root may read everything": is_root,
    "the right to mount": lambda: not (is_root() and may_mount()),
    "root only|only root|gives (files|folders) to others": lambda: not is_root(),
    "no git here": is_no_clone,
    "no Prometheus here": lambda: is_absent("prometheus") or is_absent("promtool"),
    "no IPv6 loopback": lambda: not has_ipv6(),
    "kernel has no huge pages": lambda: not HUGE_PAGES.exists(),
    "huge pages are switched off": lambda: "[never]" in HUGE_PAGES.read_text(),
    "/proc/self": lambda: not Path("/proc/self/statm").exists(),
    # Loops that are built for x86 alone: parametrized by the builds that this CPU runs.
    r"got empty parameter set for \(build": lambda: platform.machine() != "x86_64",
    "under nohup": lambda: signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
    "no hosts here|no Docker engine|no `docker compose`|no Chromium here": tried,
    "no Slurm: no program": tried,
    "no locale with a decimal comma|NumPy's BLAS|the system tells no nodes": tried,
    "another user may not read this program|this scikit-learn|is non deterministic$": tried,
}
"""Pattern of the reason: whether that is so here.  Modules and programs are told by their names."""


def excess(reason: str, *, ci: bool = False) -> str:
    """Why no test may be skipped for this reason; empty if it may.

    With `ci` the modules and programs of EVERYWHERE must be there.
    """
    for pattern, is_lacking in LACKING.items():
        if re.search(pattern, reason):
            return "" if is_lacking() else "that is not so here"
    names = [name for text, name in MODULES.items() if text in reason]
    matched = re.search(r"could not import '(\w+)|([\w.-]+) is (?:not installed|missing)", reason)
    if not names and not matched:
        return "tests/support/skips.py has no such reason"
    name = names[0] if names else matched[1] or matched[2]
    if not is_absent(name):
        return f"{name} is here"
    return f"{name} has to be there (--ci)" if ci and name in EVERYWHERE else ""
