#!/usr/bin/env python3
"""Tests with the lowest versions that pyproject.toml allows, on the oldest and newest Python here.

    wheel + lowest dependencies -> tests/wheels/smoke.py
    the same + lowest of all extras (not torch) -> tests/unit

    python tests/dependencies/lowest.py                     says which Pythons are missing
    python tests/dependencies/lowest.py --python PATH ...   these instead
    python tests/dependencies/lowest.py --wheels DIR        takes wheels that are there

A lower bound that is wrong shows here: as a version without a wheel for that Python the next one
is taken, else the lowest.  What runs the tests, and the official fastText, is as new as there is.
Run by `make test-night`; it takes a compiler, PyPI or a mirror of it, and ten minutes a Python.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import wheels  # noqa: E402

TOOLS = ("pytest", "pytest-xdist", "hypothesis", "fasttext-wheel")
"""Of the extra `test`: they test, and are not tested."""
UNTRIED = ("torch", "lint")
"""Old wheels of PyTorch take two gigabytes.  Tried by hand on 2026-11-26: tests/cluster
with 2.3.0; below that `torch.amp.GradScaler` is missing, and PyTorch's own `embedding_bag`, which
ours is compared with, fails up to 2.5 where frozen weights meet weights of samples that learn."""


def requirements(name: str) -> list[str]:
    """Those of a list in pyproject.toml, such as `dependencies` (tomllib begins with 3.11)."""
    text = (ROOT / "pyproject.toml").read_text()
    # Names may have brackets of their own: a list ends at one that ends a line.
    found = re.search(rf"^{name} = \[(.*?)\]\n", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise wheels.WheelError(f"pyproject.toml: found no list {name}")
    return re.findall(r'"([^"]+)"', found[1])


def extras() -> list[str]:
    """Names of the extras."""
    text = (ROOT / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return re.findall(r"^(\w+) = \[", section, re.MULTILINE)


def name_of(requirement: str) -> str:
    """``fsspec[http]>=2023.6`` -> fsspec."""
    return re.match(r"[\w-]+", requirement)[0].lower()


def lowest(wanted: list[str], python: str, uv: Path) -> list[str]:
    """The lowest versions of what is wanted that have wheels for a Python, as ``name==version``."""
    with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
        file.write("\n".join(wanted))
        file.flush()
        done = subprocess.run(
            [uv, "pip", "compile", "--quiet", "--resolution", "lowest-direct", "--no-annotate",
             "--no-header", "--only-binary", ":all:", "--python", python, file.name],
            capture_output=True, text=True, check=False, timeout=wheels.LIMIT_S,
        )  # fmt: skip
    if done.returncode:
        raise wheels.WheelError(done.stderr)
    return done.stdout.split("\n")[:-1]


def shown(pins: list[str], wanted: list[str]) -> str:
    """The versions of what was asked for itself."""
    direct = {name_of(one) for one in wanted}
    return " ".join(pin for pin in pins if name_of(pin) in direct)


def try_python(one: wheels.Interpreter, wheel: Path, work: Path, uv: Path, words: list[str]) -> int:
    """Exit code of the tests of one Python."""
    programs = wheels.environment_of(one.path, work / f"lowest-{one.version}", ())
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    base = requirements("dependencies")
    pins = lowest(base, one.path, uv)
    print(f"Python {one.version}: {shown(pins, base)}", flush=True)
    wheels.run([*pip, "--quiet", *pins])
    wheels.run([*pip, "--quiet", "--no-deps", wheel])
    smoke = [programs / "python", ROOT / "tests" / "wheels" / "smoke.py"]
    if code := subprocess.run(smoke, cwd=work, check=False).returncode:
        return code
    names = [extra for extra in extras() if extra not in UNTRIED]
    more = [line for extra in names for line in requirements(extra)]
    more = [line for line in more if name_of(line) not in TOOLS]
    pins = lowest([*base, *more], one.path, uv)
    print(f"Python {one.version}: {shown(pins, more)}", flush=True)
    wheels.run([*pip, "--quiet", *pins, *TOOLS])
    # Behind the installed package comes what tests import of this folder.  `python -m pytest` would
    # have it the other way round.  Versions of then warn of what was new in Python since.
    (site,) = programs.parent.glob("lib/python*/site-packages")
    (site / "tests.pth").write_text(f"{ROOT}\n")
    command = [programs / "pytest", "tests/unit", "-q", "-n", "2", "-p", "no:cacheprovider"]
    command += ["-W", "ignore::DeprecationWarning", "-W", "ignore::PendingDeprecationWarning"]
    return subprocess.run([*command, *words], cwd=ROOT, check=False).returncode


def main() -> None:
    """The command; ends with 1 where a test of some Python has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    parser.add_argument("--wheels", type=Path, help="folder of wheels; default: they are built")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "dependencies")
    chosen, words = parser.parse_known_args()
    try:
        found, missing = (wheels.named(chosen.python), {}) if chosen.python else wheels.find()
        for version, why in missing.items():
            print(f"Python {version}: not tried: {why}", flush=True)
        if not found:
            raise wheels.WheelError("no Python: apt-get install python3-venv python3-dev")
        if not chosen.python:
            found = [found[0], *found[1:][-1:]]
        chosen.work.mkdir(parents=True, exist_ok=True)
        out = chosen.wheels or chosen.work / "dist"
        if not chosen.wheels:
            wheels.build(found, out, chosen.work)
        uv = wheels.environment_of(sys.executable, chosen.work / "uv", ["uv"]) / "uv"
        failed = []
        for one in found:
            (wheel,) = out.glob(f"snailps-*-{one.tag}-*.whl")
            if try_python(one, wheel, chosen.work, uv, words):
                failed.append(one.version)
    except wheels.WheelError as error:
        sys.exit(f"dependencies: {error}")
    if failed:
        sys.exit(f"dependencies: failed with Python {', '.join(failed)}")


if __name__ == "__main__":
    main()
