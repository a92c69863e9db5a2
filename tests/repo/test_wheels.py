"""tools/wheels.py: which Pythons it finds, what it refuses in a wheel; and the versions everywhere.

Building takes minutes: `make wheels` and `make test-wheels`, as .ci/run does.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
EXTENSIONS = {"snailps/_kernels_base", "snailps/data/_text"}


@pytest.fixture
def wheels(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import wheels

    return wheels


def fake_python(path, version, lacks=(), code=0):
    """A program that answers as a Python of this version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{json.dumps([version, list(lacks)])}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """No Pythons but those that a test puts here."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    return tmp_path


# --- interpreters -------------------------------------------------------------------------------


def test_probe_of_this_python_knows_its_version(wheels):
    version, lacks = wheels.probe(sys.executable)
    assert version == VERSION
    assert not {"is free-threaded", "does not run"} & set(lacks)


@pytest.mark.parametrize("text", ["#!/bin/sh\necho no\n", "#!/bin/sh\nexit 127\n", "no program"])
def test_probe_of_what_is_no_python_says_so(wheels, tmp_path, text):
    path = tmp_path / "python3.12"
    path.write_text(text)
    path.chmod(0o755)
    assert wheels.probe(str(path)) == ("", ["does not run"])
    assert wheels.probe(str(tmp_path / "nowhere")) == ("", ["does not run"])


def test_find_prefers_the_path_then_the_newest_release(wheels, home):
    versions = home / ".pyenv" / "versions"
    on_path = fake_python(home / "bin" / "python3.11", "3.11")
    fake_python(versions / "3.11.9" / "bin" / "python3.11", "3.11")
    fake_python(versions / "3.12.9" / "bin" / "python3.12", "3.12")
    newest = fake_python(versions / "3.12.10" / "bin" / "python3.12", "3.12")
    found, missing = wheels.find(("3.11", "3.12", "3.13"))
    assert [(one.version, one.path) for one in found] == [("3.11", on_path), ("3.12", newest)]
    assert [one.tag for one in found] == ["cp311", "cp312"]
    assert missing == {"3.13": "is not on this machine"}


def test_find_says_why_a_python_will_not_do_and_takes_the_next(wheels, home):
    shim = home / "bin" / "python3.12"
    fake_python(shim, "3.12", code=0)
    shim.write_text("#!/bin/sh\nexit 127\n")  # as pyenv's are for versions that are not chosen
    good = fake_python(home / ".local/share/uv/python/cpython-3.12.4-x/bin/python3.12", "3.12")
    threaded = home / ".pyenv" / "versions" / "3.14.0t" / "bin" / "python3.14"
    fake_python(threaded, "3.14", ["is free-threaded"])
    other = fake_python(home / "bin" / "python3.13", "3.11")
    found, missing = wheels.find(("3.12", "3.13", "3.14"))
    assert [one.path for one in found] == [good]
    assert missing == {
        "3.13": f"{other} is Python 3.11",
        "3.14": f"{threaded} is free-threaded",
    }


def test_named_python_that_will_not_do_is_an_error(wheels, home):
    fake_python(home / "bin" / "python3.12", "3.12", ["has no C headers"])
    old = fake_python(home / "old", "3.9")
    with pytest.raises(wheels.WheelError, match=r"python3\.12 has no C headers"):
        wheels.named(["python3.12"])
    with pytest.raises(wheels.WheelError, match=r"is Python 3\.9; expected 3\.10 to 3\.14"):
        wheels.named([old])
    with pytest.raises(wheels.WheelError, match="nowhere does not run"):
        wheels.named(["nowhere"])


def test_command_says_which_are_missing_and_that_there_are_none(wheels, home, capsys):
    with pytest.raises(SystemExit, match="no Python to build with"):
        wheels.main([])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "no wheel for Python 3.10: is not on this machine"
    assert len(said) == len(wheels.VERSIONS)


@pytest.mark.parametrize(
    ("words", "versions"),
    [
        ([], ["3.10", "3.11", "3.13"]),
        (["--python", "python3.11"], ["3.11"]),
    ],
)
def test_command_builds_for_those_that_are_asked_for(wheels, home, monkeypatch, words, versions):
    for version in ("3.10", "3.11", "3.13"):
        fake_python(home / "bin" / f"python{version}", version)
    built = []
    monkeypatch.setattr(wheels, "build", lambda found, out, work, reuse: built.extend(found))
    wheels.main(words)
    assert [one.version for one in built] == versions


# --- sources ------------------------------------------------------------------------------------


def test_sources_are_copied_without_what_builds_leave(wheels, tmp_path):
    tree, target = tmp_path / "tree", tmp_path / "target"
    (tree / "snailps" / "data").mkdir(parents=True)
    (tree / "tools").mkdir(parents=True)
    for name in wheels.SOURCES:
        (tree / name).write_text(name)
    kept = ["__init__.py", "_kernels.pyx", "data/_text.pyx", "data/_text.pxd", "data/_cells.h"]
    kept.append("monitor/static/page.html")
    made = [
        "_kernels_base.pyx",
        "_kernels.pyi",
        "data/_text.c",
        "data/_text.cpython-311-x.so",
        "data/_x.cpp",
    ]
    for name in kept + made:
        (tree / "snailps" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "snailps" / name).write_text("")
    (target / "snailps").mkdir(parents=True)
    (target / "snailps" / "deleted.py").write_text("")
    wheels.copy_sources(tree, target)
    found = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    assert found == {*wheels.SOURCES, *(f"snailps/{name}" for name in kept)}


def test_page_is_among_the_files_of_the_repository():
    """`.gitignore` leaves out pages that Cython writes, and must not leave out ours."""
    page = "snailps/monitor/static/page.html"
    ignored = subprocess.run(["git", "check-ignore", "--quiet", page], cwd=ROOT, check=False)
    assert (ROOT / page).is_file()
    assert ignored.returncode != 0


def test_compiled_modules_of_one_python_are_copied_with_their_times(wheels, tmp_path):
    """Not those that inject faults for tests: a wheel has them compiled otherwise."""
    tree, target = tmp_path / "tree", tmp_path / "target"
    sources = ["data/_text.pyx", "data/_text.c", "_kernels.pyx"]
    compiled = ["data/_text", "data/_deleted", "_kernels"]
    for name in sources + [f"{name}.cpython-311-x.so" for name in compiled]:
        path = tree / "snailps" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (1e9, 1e9))
    (tree / "snailps" / "data" / "_text.cpython-312-x.so").write_text("")
    (tree / "snailps" / "shard").mkdir()
    for ending in (".pyx", ".cpython-311-x.so"):
        (tree / "snailps" / "shard" / f"_shard{ending}").write_text("")
    (tree / "snailps" / "shard" / "_shard.c").write_text("#define SNAIL_FAULTS 0")
    (tree / "tools").mkdir(parents=True)
    for name in wheels.SOURCES:
        (tree / name).write_text(name)
    wheels.copy_sources(tree, target)
    assert wheels.copy_compiled(tree, target, "3.11") == 2
    found = {path.name: path for path in target.rglob("*.so")}
    assert set(found) == {"_text.cpython-311-x.so", "_kernels.cpython-311-x.so"}
    assert found["_text.cpython-311-x.so"].match("build/lib.*-cpython-311/snailps/data/_text.*")
    assert (target / "snailps" / "data" / "_text.c").stat().st_mtime == 1e9
    assert all(path.stat().st_mtime == 1e9 for path in found.values())


def test_extensions_are_those_of_the_sources_and_of_this_machine(wheels, monkeypatch):
    found = wheels.extensions_of(ROOT)
    assert {"snailps/_kernels", "snailps/_cython_shared", "snailps/data/_text"} <= found
    assert not {"snailps/kernels/_build", "snailps/_kernel_probes"} & found
    of_kernels = {name for name in found if name.startswith("snailps/_kernels_")}
    monkeypatch.setattr(wheels.platform, "machine", lambda: "aarch64")
    others = wheels.extensions_of(ROOT)
    assert "snailps/_kernels_base" in others
    assert "snailps/_kernels_avx2" not in others
    assert of_kernels >= {"snailps/_kernels_base"}


def test_build_requirements_are_those_of_pyproject(wheels):
    assert [re.match(r"\w+", word)[0] for word in wheels.build_requirements(ROOT)] == [
        "setuptools",
        "cython",
        "numpy",
        "lz4",
    ]


# --- what a wheel has ---------------------------------------------------------------------------


def write_wheel(folder, *more, tags="cp312-cp312-manylinux_2_34_x86_64", without=()):
    """A wheel with these further files."""
    names = [f"{name}.cpython-312-x86_64-linux-gnu.so" for name in sorted(EXTENSIONS)]
    names += ["snailps/__init__.py", "snailps/_kernels.pyi", "snailps/py.typed"]
    names += ["snailps/estimators/__init__.pyi"]
    names += ["snailps-0.1.0.dist-info/RECORD", "snailps-0.1.0.dist-info/licenses/LICENSE"]
    path = folder / f"snailps-0.1.0-{tags}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in [*names, *more]:
            if name not in without:
                archive.writestr(name, "x")
    return path


def test_wheel_as_it_should_be_has_no_faults(wheels, tmp_path):
    assert wheels.faults_of(write_wheel(tmp_path), EXTENSIONS) == []
    two = "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64"
    assert wheels.faults_of(write_wheel(tmp_path, tags=two), EXTENSIONS) == []
    page = write_wheel(tmp_path, "snailps/monitor/static/page.js")
    assert wheels.faults_of(page, EXTENSIONS) == []


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        ({"more": ["snailps/data/_text.c"]}, "no user needs snailps/data/_text.c"),
        ({"more": ["snailps/abi/_row_ops.pxd"]}, "no user needs snailps/abi/_row_ops.pxd"),
        ({"more": ["snailps/_kernels_avx2.pyx"]}, "no user needs snailps/_kernels_avx2.pyx"),
        ({"more": ["snailps/data/_cells.h"]}, "no user needs snailps/data/_cells.h"),
        ({"more": ["snailps/_kernel_probes.pyi"]}, "no user needs snailps/_kernel_probes.pyi"),
        ({"more": ["snailps.libs/libgomp.so.1"]}, "no user needs snailps.libs/libgomp.so.1"),
        ({"without": ["snailps/py.typed"]}, "snailps/py.typed is missing"),
        ({"without": ["snailps/_kernels.pyi"]}, "snailps/_kernels.pyi is missing"),
        ({"tags": "cp312-cp312-linux_x86_64"}, "expected a tag manylinux..., got linux_x86_64"),
        ({"tags": "cp312-abi3-manylinux_2_34_x86_64"}, "expected the ABI cp312, got abi3"),
        (
            {"without": ["snailps/data/_text.cpython-312-x86_64-linux-gnu.so"]},
            "the compiled snailps/data/_text is missing",
        ),
        (
            {"more": ["snailps/_old.cpython-312-x86_64-linux-gnu.so"]},
            "the compiled snailps/_old has no source",
        ),
    ],
)
def test_wheel_with_a_fault_is_named(wheels, tmp_path, made, fault):
    more = made.pop("more", ())
    assert wheels.faults_of(write_wheel(tmp_path, *more, **made), EXTENSIONS) == [fault]


def test_wheel_with_modules_of_another_python_or_too_many_bytes_is_refused(
    wheels, tmp_path, monkeypatch
):
    name = "snailps/data/_text.cpython-311-x86_64-linux-gnu.so"
    monkeypatch.setattr(wheels, "BYTES_MAX", 100)
    size, other = wheels.faults_of(write_wheel(tmp_path, name), EXTENSIONS)
    assert re.fullmatch(r"it has [\d,]+ bytes, limit 100", size)
    assert other == f"{name} is for another Python"


def test_user_has_no_compiler_and_no_sources_but_the_same_packages(wheels, tmp_path):
    around = {
        "PATH": "/usr/bin", "PYTHONPATH": "/src", "SNAILPS_KERNELS": "base", "CC": "gcc",
        "CFLAGS": "-O0", "VIRTUAL_ENV": "/env", "HOME": "/home", "PIP_INDEX_URL": "x", "LANG": "C",
    }  # fmt: skip
    assert wheels.user_environment(tmp_path, around) == {
        "PATH": str(tmp_path), "HOME": "/home", "PIP_INDEX_URL": "x", "LANG": "C",
    }  # fmt: skip


def test_command_that_fails_is_shown_with_its_words(wheels):
    code = "print('out'); import sys; sys.exit(3)"
    with pytest.raises(wheels.WheelError, match=r"(?s)^out\n.*: failed with 3$"):
        wheels.run([sys.executable, "-c", code])
    wheels.run([sys.executable, "-c", "pass"])


# --- the name fasttext --------------------------------------------------------------------------


def imported(folder, code):
    """What a Python prints or raises that finds the packages of a folder first."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_wheel_of_the_name_fasttext_needs_the_snailps_of_its_version(wheels, tmp_path, monkeypatch):
    def run(words, **options):
        source = Path(words[-1])
        version = re.search('__version__ = "(.*)"', (ROOT / "snailps/_version.py").read_text())[1]
        assert (source / "VERSION").read_text() == version
        assert (source / "DEPENDENCIES").read_text() == f"snailps=={version}\n"
        raw = Path(words[words.index("--wheel-dir") + 1])
        raw.mkdir(parents=True)
        (raw / "fasttext_snailps-2-py3-none-any.whl").touch()

    monkeypatch.setattr(wheels, "run", run)
    out = tmp_path / "out"
    out.mkdir()
    (out / "fasttext_snailps-1-py3-none-any.whl").touch()
    wheel = wheels.build_name(sys.executable, out, tmp_path / "work")
    assert list(out.iterdir()) == [wheel]


def test_name_fasttext_is_ours_and_is_not_shared(tmp_path):
    site = tmp_path / "site"
    shutil.copytree(ROOT / "tools" / "dist" / "fasttext-snailps" / "fasttext", site / "fasttext")
    code = (
        "import fasttext, fasttext.util, snailps.fasttext as ours; "
        "from fasttext.FastText import _FastText; "
        "print(fasttext is ours, fasttext.util is ours.util, _FastText.__module__)"
    )
    assert imported(site, code) == "True True snailps.fasttext.model\n"
    (site / "fasttext" / "FastText.py").write_text("")  # of another package
    (site / "other-1.dist-info").mkdir()
    (site / "other-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\n")
    (site / "other-1.dist-info" / "top_level.txt").write_text("fasttext\n")
    told = imported(site, "import fasttext")
    assert "ImportError: fasttext-snailps: another package named fasttext is installed" in told
    assert re.search(r"pip uninstall -y .*fasttext-snailps .*other; pip install", told)


# --- the same versions everywhere ----------------------------------------------------------------


def test_versions_of_python_are_the_same_everywhere(wheels):
    first, last = wheels.VERSIONS[0], wheels.VERSIONS[-1]
    numbers = [version.split(".") for version in (first, last)]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    classified = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert tuple(classified) == wheels.VERSIONS
    assert f'requires-python = ">={first}"' in project
    built = re.search(r"^build = (\[.*\])$", project, re.MULTILINE)
    assert json.loads(built[1]) == [f"cp{v.replace('.', '')}-*" for v in wheels.VERSIONS]
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"^ +python: (\[.*\])$", workflow, re.MULTILINE)
    assert tuple(json.loads(matrix)) == wheels.VERSIONS
    newest_first = " ".join(f"python{version}" for version in reversed(wheels.VERSIONS))
    limits = "({}, {}) <= ".format(*numbers[0]), " <= ({}, {})".format(*numbers[1])
    for name in ("Makefile", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert f"python3 {newest_first}" in text, name
        assert f"Python {first} to {last}" in text, name
        assert all(limit in text for limit in limits), name
        assert "Py_GIL_DISABLED" in text, name
    for name in ("README.md", "docs/deploy.md", "docs/python.md"):
        assert f"{first} to {last}" in (ROOT / name).read_text(encoding="utf-8"), name


def test_scripts_can_be_called(wheels):
    assert os.access(ROOT / "tools" / "wheels.py", os.X_OK)
    smoke = (ROOT / "tests" / "wheels" / "smoke.py").read_text(encoding="utf-8")
    assert "import pytest" not in smoke  # it runs where the wheel alone is installed


def test_free_threaded_python_is_refused_before_anything_is_built():
    code = (
        "import runpy, sysconfig; was = sysconfig.get_config_var\n"
        "sysconfig.get_config_var = lambda name: name == 'Py_GIL_DISABLED' or was(name)\n"
        "runpy.run_path('setup.py')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    expected = f"use the ordinary build, python{VERSION}, not python{VERSION}t"
    assert done.stderr.splitlines()[-1].endswith(expected), done.stderr
