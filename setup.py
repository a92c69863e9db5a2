"""Builds the Cython extensions; everything else is in pyproject.toml.

The loops of the kernels (snailps/kernels/_build.pyx and its C headers) are compiled once for every
instruction set the compiler knows (``_kernels_base``, ``_kernels_avx2``, ``_kernels_avx512``);
``snailps.kernels`` picks the best one that the machine can run when it is imported.  Everything
else is compiled once, for the baseline, so that a wheel built here runs anywhere.

``SNAILPS_BUILD=here`` leaves out what this machine does not run: other builds of the kernels, and
probes of tests.  `make demo` waits less for its first result so.
"""

import gc
import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    ordinary = "python{}.{}".format(*sys.version_info)
    sys.exit(
        "snailps: free-threaded Python is not supported, because the package relies on the GIL: "
        f"use the ordinary build, {ordinary}, not {ordinary}t"
    )

HERE = Path(__file__).parent
PACKAGE = HERE / "snailps"
STUBS = HERE / "tools" / "stubs.py"
JOBS_PXD = HERE / "tools" / "jobs_pxd.py"
# -g0: Python's own -g would cost a third of the time, and nobody debugs what users get.
FLAGS = ["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-Wno-unused-function"]
FLAGS += ["-Wformat", "-Werror=format-security"]  # Debian's Python has them, others do not
# For tests/sanitize: the builds of the kernels that it wants.
SANITIZE = os.environ.get("SNAILPS_SANITIZE", "")
if SANITIZE:
    # A finding ends the process.  -O0: half the time of -O1, of which tests would save none, and
    # no access is optimized away.
    FLAGS += ["-O0", "-g1", "-fno-omit-frame-pointer"]
    FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
KERNEL_FLAGS = [*FLAGS, "-ffast-math", "-fno-finite-math-only"]
# Where no loop is hot, three times as fast to compile: checks of arguments, what only tests and
# commands call, what a node does once a connection or once a second, and calls of Python methods.
PLAIN_FLAGS = FLAGS if SANITIZE else [*FLAGS, "-Og"]
PLAIN = {
    "snailps._kernels", "snailps._kernel_probes", "snailps.kernels._labelling",
    "snailps.shard._python_methods", "snailps.shard._shard", "snailps.store._store",
    "snailps.transport._heartbeat", "snailps.transport.client._client",
    "snailps.transport.loop._authentication", "snailps.transport.loop._loop",
}  # fmt: skip
# In C of Cython what follows the functions of a module, its types and Cython's helpers, is on no
# hot path: optimised like `PLAIN`, a third less work for the compiler.
COLD_BEGINS = "/* #### Code section: module_exttypes ### */"
COLD = f"""#ifdef __OPTIMIZE__
#pragma GCC optimize ("Og")
#endif
{COLD_BEGINS}"""
DEPENDS = ["setup.py"]  # for the flags
INCLUDES = ["snailps"]
# Cython's own code for typed memory views, 1 MB of C and some seconds of gcc in each module that
# has some: compiled once, and imported by the others.
SHARED = "snailps._cython_shared"
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
    "annotation_typing": False,  # annotations are for stubs: C declares what C needs
}
KERNEL_SOURCE = PACKAGE / "kernels" / "_build.pyx"
KERNEL_BUILDS = {"base": []}
if platform.machine() in ("x86_64", "AMD64"):
    KERNEL_BUILDS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    KERNEL_BUILDS["avx512"] = [
        "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mfma", "-mf16c",
        "-mprefer-vector-width=512",
    ]  # fmt: skip


CPU = Path("/proc/cpuinfo")


def runs_here(flags: list[str]) -> bool:
    """Whether this processor has the instruction sets of a build; False where it is not known."""
    needed = {flag[2:] for flag in flags if flag.startswith("-m") and "=" not in flag}
    lines = CPU.read_text(errors="replace").splitlines() if CPU.exists() else []
    return needed <= {*next((line.split() for line in lines if line.startswith("flags")), [])}


FOR_HERE = os.environ.get("SNAILPS_BUILD", "") == "here"
if FOR_HERE:
    best = [build for build, flags in KERNEL_BUILDS.items() if runs_here(flags)][-1]
    KERNEL_BUILDS = {best: KERNEL_BUILDS[best]}
if SANITIZE:
    KERNEL_BUILDS = {k: v for k, v in KERNEL_BUILDS.items() if k in SANITIZE.split(",")}


def headers(*folders: Path) -> list[str]:
    """C headers of folders: extensions are built again when they change."""
    return sorted(str(p.relative_to(HERE)) for folder in folders for p in folder.glob("*.h"))


def kernel_extensions() -> list[Extension]:
    """One extension a build, each from a copy of the one source under its own name."""
    source = KERNEL_SOURCE.read_text()
    extensions = []
    for build, flags in KERNEL_BUILDS.items():
        copy = PACKAGE / f"_kernels_{build}.pyx"
        if not copy.exists() or copy.read_text() != source:
            copy.write_text(source)
        extensions.append(
            Extension(
                f"snailps._kernels_{build}",
                [str(copy.relative_to(HERE))],
                depends=[*DEPENDS, *headers(PACKAGE / "abi", PACKAGE / "kernels")],
                include_dirs=INCLUDES,
                extra_compile_args=KERNEL_FLAGS + flags,  # not at link: no process-wide FTZ
            )
        )
    return extensions


def plain_extensions() -> list[Extension]:
    """Every other .pyx of the package, under its own name."""
    sources = [p.relative_to(HERE) for p in PACKAGE.rglob("*.pyx") if p != KERNEL_SOURCE]
    named = {".".join(p.with_suffix("").parts): p for p in sources}
    return [
        Extension(
            name,
            [str(p)],
            depends=[*DEPENDS, *headers(PACKAGE / "abi", HERE / p.parent)],
            include_dirs=INCLUDES,
            extra_compile_args=PLAIN_FLAGS if name in PLAIN else FLAGS,
        )
        for name, p in sorted(named.items())
        if not p.name.startswith("_kernels_")
    ]


def shared_extension() -> Extension:
    """Cython's own code; it is slow to compile, and not on a hot path: loops use plain pointers."""
    source = SHARED.replace(".", "/") + ".c"
    return Extension(SHARED, [source], depends=DEPENDS, extra_compile_args=PLAIN_FLAGS)


def optimise_less(source: Path) -> None:
    """Have the compiler optimise the cold part of a file of Cython's less; once a file."""
    text = source.read_text()
    # Not by another Cython that has no such line: a file that is written is compiled again.
    if COLD_BEGINS in text and COLD not in text:
        source.write_text(text.replace(COLD_BEGINS, COLD))


def compile_time(ext: Extension) -> tuple[bool, int]:
    """Key of compile times: kernels take longest, wide vectors most; others by bytes of C."""
    if ext.name.startswith("snailps._kernels_"):
        return True, len(ext.extra_compile_args)
    return False, Path(ext.sources[0]).stat().st_size


class BuildChanged(build_ext):
    """Compiles for ``pip install -e`` only what has changed, as many at a time as it may use cores.

    Setuptools does that in a new folder each time, where nothing is up to date.
    """

    # Options are looked up by this name when a command starts over, as ``pip install -e`` makes
    # it do.  By the name of the class, which is the default, ``parallel`` would be lost.
    command_name = "build_ext"
    failed = False

    def run(self) -> None:
        if FOR_HERE:
            self.extensions = [ext for ext in self.extensions if not ext.name.endswith("_probes")]
        self.translate()
        if self.inplace or self.editable_mode or SANITIZE:
            for ext in self.extensions:
                ext.define_macros.append(("SNAIL_FAULTS", "1"))  # transport/loop/_fault_injection
        else:  # what users get
            self.extensions = [ext for ext in self.extensions if not ext.name.endswith("_probes")]
        super().run()
        folder = HERE if self.inplace else HERE / self.build_lib
        # What is sanitized cannot be imported; `build_ext` alone builds no package to import.
        if not SANITIZE and (folder / "snailps" / "estimators").exists():
            subprocess.run([sys.executable, "-B", STUBS, folder], check=True)  # no .pyc in wheels

    def translate(self) -> None:
        """Have Cython write the C of what has changed, and put what compiles longest first.

        Here, and not as arguments of `setup`: pip runs this file more than once.
        """
        gc.disable()  # nearly all that Cython makes stays until it ends: a tenth of its time
        made = cythonize(
            [*self.extensions],
            nthreads=CORES,
            shared_utility_qualified_name=SHARED,
            compiler_directives=DIRECTIVES,
        )
        for ext, translated in zip(self.extensions, made, strict=True):
            assert ext.name == translated.name
            vars(ext).update(vars(translated))
            if not ext.name.startswith("snailps._kernels_"):
                optimise_less(Path(ext.sources[0]))
        # Else the last one may be compiled while other cores have nothing to do.
        self.extensions.sort(key=compile_time, reverse=True)

    def build_extension(self, ext: Extension) -> None:
        if self.failed:
            return  # the error of the other one is what the build ends with
        try:
            self.build_changed(ext)
        except BaseException:
            self.failed = True
            raise

    def build_changed(self, ext: Extension) -> None:
        built = Path(self.get_ext_fullpath(ext.name))
        if self.editable_mode:
            here = HERE / built.relative_to(self.build_lib)
            if here.exists():
                built.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(here, built)  # with its time, which is what is compared
        super().build_extension(ext)


if __name__ == "__main__":  # Cython's processes import this file, where Python does not fork them
    os.chdir(HERE)
    runpy.run_path(str(JOBS_PXD))["write"](PACKAGE / "kernels")
    runpy.run_path(str(STUBS))["write_compiled"](PACKAGE)
    CORES = runpy.run_path(str(PACKAGE / "abi" / "quota.py"))["cores"]()
    setup(
        cmdclass={"build_ext": BuildChanged},
        options={"build_ext": {"parallel": CORES}},
        ext_modules=[shared_extension(), *kernel_extensions(), *plain_extensions()],
    )
