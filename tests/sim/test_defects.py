"""Defects that were mended, put back: the simulation finds each by a documented seed or life.

    defects/*.patch -> a copy of the package -> python -m tests.sim --seed S or --life L -> fails

A seed changes with everything that draws from the numbers of a run: one that no longer finds its
defect is replaced by another, found by running many, or by a life that leads there.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = ROOT / "tests" / "sim" / "defects"
PAGE = ROOT / "docs" / "design" / "simulation.md"
ROW = re.compile(r"\| `(?P<name>[\w-]+)` \|.*\| (?P<finders>\d[\d, ]*|[a-z]+_[a-z_]+) \|")


def documented():
    """Seeds, or a life, by defect: the table of the page."""
    return {row["name"]: row["finders"].split(", ") for row in ROW.finditer(PAGE.read_text())}


def compile_extension(root, source):
    """Compiles one Cython file again, where it lies."""
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", "-X", "annotation_typing=False", source.name],
        cwd=source.parent,
        check=True,
    )
    target = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    target.unlink()
    include = [f"-I{sysconfig.get_path('include')}", "-Isnailps"]
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-g0", *include, "-o", target,
         source.with_suffix(".c")], cwd=root, check=True,
    )  # fmt: skip


def test_each_defect_has_a_patch_and_seeds():
    assert sorted(documented()) == sorted(path.stem for path in DEFECTS.glob("*.patch"))


@pytest.mark.parametrize("name", sorted(path.stem for path in DEFECTS.glob("*.patch")))
def test_patch_puts_a_defect_back_into_the_present_code(name):
    patch = DEFECTS / f"{name}.patch"
    subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=True)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(path.stem for path in DEFECTS.glob("*.patch")))
def test_defect_put_back_is_found(name, tmp_path):
    for part in ("snailps", "tests", "tools"):
        shutil.copytree(ROOT / part, tmp_path / part)
    patch = DEFECTS / f"{name}.patch"
    subprocess.run(["git", "apply", patch], cwd=tmp_path, check=True)
    for line in patch.read_text().splitlines():
        if line.startswith("+++ ") and line.endswith(".pyx"):
            compile_extension(tmp_path, tmp_path / line.removeprefix("+++ b/"))
    for finder in documented()[name]:
        if fails(tmp_path, finder):
            assert not fails(ROOT, finder)
            return
    pytest.fail(f"none of {documented()[name]} finds it: look for another one")


def fails(folder, finder):
    """Whether a seed, or a life, has problems with the package in a folder."""
    kind = "seed" if finder.isdigit() else "life"
    run = subprocess.run(
        [sys.executable, "-m", "tests.sim", f"--{kind}", finder],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{kind} {finder}: " in run.stdout, run.stderr
    return run.returncode != 0
