"""Which build of the kernels this CPU runs: chosen by its flags, before anything of it is imported.

    /proc/cpuinfo, SNAILPS_KERNELS, compiled modules -> chosen() -> a name

Must not import NumPy: ``snailps --version`` prints the name.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from functools import lru_cache
from pathlib import Path

from snailps.errors import ConfigError

# Best first; the CPU flags (Linux' names) that a build's instructions need.
NEEDS = {
    "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "fma", "f16c"}),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "base": frozenset[str](),
}
VARIABLE = "SNAILPS_KERNELS"


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """Return the CPU's instruction set flags as Linux names them; empty: unknown."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def check(build: str) -> None:
    """Raise a ConfigError for an unknown build, one that this CPU lacks instructions for, or one
    that was not compiled."""
    if build not in NEEDS:
        raise ConfigError(f"kernels: expected one of {', '.join(sorted(NEEDS))}, got {build!r}")
    missing = NEEDS[build] - cpu_flags()
    if missing:
        raise ConfigError(
            f"kernels: build {build!r} needs {', '.join(sorted(missing))}, which this CPU does not "
            f"have; unset {VARIABLE} or set it to 'base'"
        )
    if importlib.util.find_spec(f"snailps._kernels_{build}") is None:
        raise ConfigError(
            f"kernels: build {build!r} is not installed; reinstall snailps, or run "
            "'python setup.py build_ext --inplace' in a source tree"
        )


@lru_cache(maxsize=1)
def available() -> tuple[str, ...]:
    """Return the compiled builds that this CPU can run, best first."""
    builds = []
    for build in NEEDS:
        try:
            check(build)
        except ConfigError:
            continue
        builds.append(build)
    return tuple(builds)


def chosen() -> str:
    """Return the build that the environment names, else the best one; a ConfigError without any."""
    build = os.environ.get(VARIABLE) or next(iter(available()), "base")
    check(build)
    return build
