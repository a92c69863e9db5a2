"""Whether an installed wheel works, in a process that is not where the sources are.

    python smoke.py [--no-compiler]

Run by `make test-wheels` in a new environment of each Python, and by cibuildwheel.  It takes the
standard library and what the wheel has installed, no test runner.  The last line says what was
tried, and how many seconds it took.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "cython")
ROOT = Path(__file__).resolve().parents[2]
TEXT_BYTES = 1_000_000
WORD, RELATIVE = "string", "strings"
"""A word of the text, and one that has most of its subwords."""
LIMIT_S = 600.0


def check_no_compiler() -> None:
    """No compiler is on the path, so nothing can have been built here."""
    found = [name for name in COMPILERS if shutil.which(name)]
    assert not found, f"on the path: {found}"


def check_files() -> Path:
    """The package is the installed one, complete, without sources of what is compiled.

    Only the live page has files of other kinds.
    """
    import snailps

    home = Path(snailps.__file__).resolve().parent
    site = Path(sysconfig.get_path("platlib")).resolve()
    assert home.is_relative_to(site), f"{home} is not in {site}"
    page = home / "monitor" / "static"
    files = [path for path in home.rglob("*") if path.is_file()]
    suffixes = {path.suffix for path in files if path.parent != page}
    assert suffixes <= {".py", ".pyi", ".pyc", ".so", ".typed"}, suffixes
    assert (home / "py.typed").is_file()
    assert (page / "page.html").is_file()
    assert metadata.version("snailps") == snailps.__version__
    return home


def check_modules(home: Path) -> int:
    """Every compiled module can be imported; the kernels are the best that this CPU can run."""
    from snailps import kernels
    from snailps.abi import builds

    count = 0
    for path in sorted(home.rglob("*.so")):
        name = ".".join(path.relative_to(home.parent).parts).partition(".cpython-")[0]
        if name.startswith("snailps._kernels_"):  # which others this CPU may not run
            continue
        if name.startswith("snailps.torch."):  # its package asks for PyTorch, which is not here
            spec = importlib.util.spec_from_file_location(name, path)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        else:
            importlib.import_module(name)
        count += 1
    can = [build for build, needs in builds.NEEDS.items() if needs <= builds.cpu_flags()]
    assert kernels.builds_available() == can, (kernels.builds_available(), can)
    assert can[0] == kernels.BUILD
    return count


def check_no_faults() -> None:
    """A server of this build does nothing wrong on demand, as tests make those in place do."""
    from snailps.errors import MisuseError
    from snailps.shard._shard import ShardCore

    assert importlib.util.find_spec("snailps._kernel_probes") is None
    with suppress(MisuseError):
        ShardCore.__new__(ShardCore).set_faults(["no-hold"], "", 1)
        raise AssertionError("faults can be set")


def check_command() -> None:
    """The command is there and says its version."""
    import snailps

    command = Path(sys.executable).parent / "snailps"
    for words in ([str(command)], [sys.executable, "-m", "snailps"]):
        done = subprocess.run(
            [*words, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        assert snailps.__version__ in done.stdout, done


def check_neighbours(folder: Path) -> str:
    """What README shows first: the commands train on a text and find the plural of a word."""
    sys.path.append(str(ROOT / "tests" / "support"))
    from texts import write_prose

    write_prose(folder / "corpus.txt", TEXT_BYTES)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.partition("```sh\n")[2].partition("```")[0]
    install, train, neighbours = (line.split() for line in block.splitlines())
    assert install[:2] == ["pip", "install"]
    assert neighbours[-1] == "snail"
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"}
    for words in (train, [*neighbours[:-1], WORD]):
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env=path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    found = [line.split("\t") for line in done.stdout.splitlines()]
    near = [word for asked, word, _ in found if asked == WORD]
    assert RELATIVE in near, done.stdout
    scores = [float(score) for *_, score in found]
    assert scores == sorted(scores, reverse=True)
    return " ".join(near[:3])


def main() -> None:
    """All checks; the first that fails ends the process with its assertion."""
    if "--no-compiler" in sys.argv[1:]:
        check_no_compiler()
    begun = time.monotonic()
    home = check_files()
    modules = check_modules(home)
    check_no_faults()
    check_command()
    with tempfile.TemporaryDirectory(prefix="snailps-smoke-") as folder:
        os.chdir(folder)
        near = check_neighbours(Path(folder))
        os.chdir("/")
    from snailps import kernels

    print(
        f"Python {sys.version.split()[0]}: {modules} compiled modules, kernels {kernels.BUILD},"
        f" near {WORD}: {near} ({time.monotonic() - begun:.1f} s)"
    )


if __name__ == "__main__":
    assert __debug__, "python -O leaves out what is checked here"
    main()
