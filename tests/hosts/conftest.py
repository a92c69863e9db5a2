"""What tests on separate hosts share: the wheels of this tree, and hosts that are namespaces.

They need root and take minutes, so they are not among the ordinary ones: `make test-hosts`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Namespaces

ROOT = Path(__file__).resolve().parents[2]
NO_HOSTS = "no hosts here"
SETUP = """
from setuptools import Distribution, setup
setup(
    distclass=type("Compiled", (Distribution,), {"has_ext_modules": lambda self: True}),
)
"""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was skipped: such a run proves nothing of separate hosts."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section(
            f"{len(skipped)} tests of a cluster SKIPPED", yellow=True, bold=True
        )
        for reason in sorted({str(report.longrepr[2]) for report in skipped}):
            terminalreporter.line(reason)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of this tree as it is compiled, and those that it needs."""
    tree = tmp_path_factory.mktemp("tree")
    out = tmp_path_factory.mktemp("wheels")
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    project = (ROOT / "pyproject.toml").read_text()
    assert '"py.typed", ' in project
    compiled = project.replace('"py.typed", ', '"py.typed", "*.so", "**/*.so", ')
    compiled = re.sub(r', "cython[^"]*"', "", compiled)
    (tree / "pyproject.toml").write_text(compiled)
    # Compiled already, here: a wheel of what is there takes no second build.
    unwanted = shutil.ignore_patterns("__pycache__", "*.c", "*.cpp", "*.pyx")
    shutil.copytree(ROOT / "snailps", tree / "snailps", ignore=unwanted)
    (tree / "setup.py").write_text(SETUP)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "-w", str(out), str(tree)], check=True, timeout=600)
    return out


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    """Five hosts with an address each."""
    if os.geteuid() != 0:
        pytest.skip(f"{NO_HOSTS}: they are network namespaces, which only root can make")
    if shutil.which("ip") is None:
        pytest.skip(f"{NO_HOSTS}: they take the program `ip` (apt-get install iproute2)")
    with Namespaces(tmp_path_factory.mktemp("hosts"), 5) as made:
        yield made
