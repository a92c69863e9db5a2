"""A minimal root file system for images, from the files of this machine: no registry is asked.

this Python, its standard library, a shell, a few programs, the libraries that they take -> .tar
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from pathlib import Path

PROGRAMS = ("sh", "cat", "chmod", "chown", "cp", "grep", "ls", "mkdir", "mv", "rm", "tar", "touch")
SYSTEM = ("dl", "m", "nss_dns", "nss_files", "pthread", "resolv", "rt", "util", "gcc_s", "stdc++")
"""Libraries that any wheel may take for granted."""
UNWANTED = {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3"}
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def write_root_fs(target: Path, folder: Path) -> None:
    """Writes it to `target`, as `docker import` takes it.

    Parameters
    ----------
    folder : Path
        New; the files are gathered there.
    """
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name))]
    for path in programs:
        _copy(path, folder / "usr/bin" / path.name)
    (folder / "bin").symlink_to("usr/bin")
    python = Path(sys.executable).resolve()
    # Wherever this Python lives (a home folder, say), there it lives where all may read.
    home = folder / "usr/local"
    _copy(python, home / "bin" / python.name)
    (home / "bin/python3").symlink_to(python.name)
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, home / "lib" / library.name, ignore=_unwanted)
    bundled = Path("/usr/share/python-wheels")  # where Debian keeps ensurepip's
    if bundled.is_dir():
        shutil.copytree(bundled, folder / str(bundled)[1:])
    modules = [
        path for path in (library / "lib-dynload").glob("*.so") if "tkinter" not in path.name
    ]
    _copy_libraries([python, *programs, *modules], folder)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name in ("root", "tmp", "dev", "proc", "sys", "run", "var"):
        (folder / name).mkdir()
    (folder / "tmp").chmod(0o1777)
    with tarfile.open(target, "w") as tar:
        tar.add(folder, arcname=".", filter=_of_root)


def _copy_libraries(binaries: Iterable[Path], folder: Path) -> None:
    """Their shared libraries, where the loader looks without being told: beside libc."""
    told = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, timeout=120
    ).stdout
    # Static programs are among them, of which it says so: no reason to give up.
    found = {Path(path) for path in re.findall(r"^\s.*?(/\S+) \(0x", told, re.MULTILINE)}
    libc = next(path for path in found if path.name.startswith("libc.so"))
    found |= {path for name in SYSTEM for path in libc.parent.glob(f"lib{name}.so.[0-9]")}
    for path in found:
        loader = path.name.startswith("ld-")
        place = path if loader else libc.parent / path.name
        _copy(path, folder / str(place)[1:])


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source, target)


def _unwanted(folder: str, names: list[str]) -> set[str]:
    # What is installed beside the standard library is not part of it.
    packages = (
        {"site-packages", "dist-packages"} if Path(folder).name.startswith("python") else set()
    )
    return {name for name in names if name in UNWANTED | packages or name.endswith(".a")}


def _of_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info
