"""Linear models by several systems: train on a file, predict another, read the weights.

    Job (files, sizes, options) -> System.train: one process from text to a model on disk, watched
                                -> System.predict, judge -> quality; System.weights -> array

It owns the command lines of snailps and of the peers, and how their output is read.  The clock of
a training is that of the whole process, with its start, its reading of the text and its model on
disk; predicting is outside of it.
"""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import watch
from judge import labels_of, numbers_of, quality
from words import HERE, ROOT, TAIL_LINES, fail, pythonpath, say


@dataclass(frozen=True)
class Job:
    """One problem.  `train`, `test`: format -> file; the formats hold the same examples."""

    name: str
    train: dict[str, Path]
    test: dict[str, Path]
    examples: int
    features: int
    limit_s: float
    servers: int = 1
    workers: int = 1
    threads: int = 2
    seed: int = 1


@dataclass(frozen=True)
class System:
    """A program with the options it gets in one job.  `format` is what it reads."""

    name: str
    options: tuple[str, ...] = ()
    format: str = "libsvm"
    env: dict[str, str] | None = field(default=None, repr=False)

    def train_command(self, job: Job, prefix: Path) -> list[str]:
        """From text to a model on disk."""
        raise NotImplementedError

    def predict(self, job: Job, prefix: Path) -> np.ndarray:
        """Probability of each line of the test file, float64 (n,)."""
        raise NotImplementedError

    def weights(self, job: Job, prefix: Path) -> np.ndarray:
        """Weight of feature number i + 1, float64 (features,)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Snailps(System):
    """A cluster on this machine: ``snailps train MODEL``."""

    def train_command(self, job: Job, prefix: Path) -> list[str]:
        command = [sys.executable, "-m", "snailps", "train", "logistic", "--json", "--overwrite"]
        command += ["--train", str(job.train[self.format]), "--output", str(prefix)]
        for name in ("servers", "workers", "threads", "seed"):
            command += [f"--{name}", str(getattr(job, name))]
        return command + list(self.options)

    def predict(self, job: Job, prefix: Path) -> np.ndarray:
        command = [sys.executable, "-m", "snailps", "predict", f"{prefix}.npz"]
        command.append(str(job.test[self.format]))
        found = Path(f"{prefix}.pred")
        with open(found, "wb") as out:
            call(command, self.env, out)
        return numbers_of(found)

    def weights(self, job: Job, prefix: Path) -> np.ndarray:
        found = np.zeros(job.features)
        with np.load(f"{prefix}.npz") as model:
            keys, rows = model["keys"], model["rows"]
        own = (keys > 0) & (keys <= job.features)  # the bias has a key of its own
        found[keys[own].astype(np.int64) - 1] = rows[own, 0]
        return found


@dataclass(frozen=True)
class VowpalWabbit(System):
    """The command line of PyPI's package, ``python -m vowpalwabbit``: the C++ program itself.

    Notes
    -----
    It reads in one thread and learns in another.  ``--predict_only_model`` spares it the writing
    of the optimiser's state, ``--quiet`` its progress lines.  Feature numbers are their own hash,
    and are kept apart by ``-b``.
    """

    python: str = sys.executable
    format: str = "vw"
    bits: int = 22

    def _base(self) -> list[str]:
        return [self.python, "-m", "vowpalwabbit", "--quiet"]

    def train_command(self, job: Job, prefix: Path) -> list[str]:
        command = [*self._base(), "-d", str(job.train[self.format]), "-f", f"{prefix}.model"]
        command += ["-b", str(self.bits), "--loss_function", "logistic", "--predict_only_model"]
        return command + list(self.options)

    def predict(self, job: Job, prefix: Path) -> np.ndarray:
        found = Path(f"{prefix}.pred")
        command = [*self._base(), "-t", "-i", f"{prefix}.model", "-d", str(job.test[self.format])]
        call([*command, "--link", "logistic", "-p", str(found)], self.env)
        return numbers_of(found)

    def weights(self, job: Job, prefix: Path) -> np.ndarray:
        text = Path(f"{prefix}.txt")
        call([*self._base(), "-t", "-i", f"{prefix}.model", "--readable_model", str(text)])
        found = np.zeros(job.features)
        for line in text.read_bytes().splitlines():
            number, _, rest = line.partition(b":")
            if number.isdigit():
                # The state of the optimiser may follow; number 0 is the last feature, wrapped.
                found[int(number) % (1 << self.bits) - 1] = float(rest.split()[0])
        return found


@dataclass(frozen=True)
class ScikitLearn(System):
    """``LogisticRegression``, converged: the best possible quality of a convex problem."""

    python: str = sys.executable
    c: float = 1.0

    def train_command(self, job: Job, prefix: Path) -> list[str]:
        files = {"train": str(job.train["libsvm"]), "test": str(job.test["libsvm"])}
        told = json.dumps({**files, "prefix": str(prefix), "c": self.c})
        return [self.python, str(HERE / "peers" / "fit_sklearn.py"), told]

    def predict(self, job: Job, prefix: Path) -> np.ndarray:
        return numbers_of(Path(f"{prefix}.pred"))


def own_environment(scratch: Path) -> dict[str, str]:
    """Environment with this snailps first on the path, and bytecode cached as pip does."""
    path = os.pathsep.join(filter(None, [str(ROOT), pythonpath()]))
    kept = {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(scratch / "bytecode")}
    env = {**os.environ, **kept}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    call([sys.executable, "-m", "snailps", "--version"], env)
    return env


def call(command: list[str], env: dict[str, str] | None = None, out=subprocess.DEVNULL) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, env=env, check=False
    )
    if done.returncode:
        tail = done.stderr.decode(errors="replace").strip()[-2000:]
        fail(f"code {done.returncode} of {shlex.join(command)}\n{tail}")


def run_once(system: System, job: Job, folder: Path) -> dict:
    """One training and its quality.

    Returns
    -------
    dict
        ``wall_s``, ``examples_per_s`` of the whole process, ``peak_rss_mb``, ``quality``, and
        ``told``: the JSON that the program printed, if any.
    """
    prefix = folder / f"{system.name}-{job.seed}"
    command = system.train_command(job, prefix)
    log = folder / f"{prefix.name}.log"
    seen = watch.run(command, log=log, limit_s=job.limit_s, ends_at_result=False, env=system.env)
    if seen.code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        fail(f"{system.name} ended with code {seen.code}: {shlex.join(command)}\n{tail}")
    told = [json.loads(text) for _, text in seen.rows if text.startswith("{")]
    figures = {
        "wall_s": seen.wall_s,
        "examples_per_s": job.examples / seen.wall_s,
        "peak_rss_mb": seen.peak_mb,
        "quality": quality(labels_of(job.test[system.format]), system.predict(job, prefix)),
        "told": told[-1] if told else {},
        "prefix": prefix,
    }
    say(
        f"{job.name}, {system.name}: {figures['examples_per_s']:,.0f} examples/s, "
        f"log loss {figures['quality']['log_loss']:.4f}, AUC {figures['quality']['auc']:.4f}"
    )
    return figures


def forget(prefix: Path) -> None:
    """Remove the files of one training."""
    for left in prefix.parent.glob(f"{prefix.name}*"):
        left.unlink()


def as_vw(source: Path, target: Path) -> Path:
    """The same examples for Vowpal Wabbit, from LIBSVM: labels -1 and 1, numbers and values."""
    with open(source, "rb") as lines, open(target, "wb") as out:
        for line in lines:
            label, _, rest = line.strip().partition(b" ")
            if label:
                out.write(b"%s | %s\n" % (b"1" if label[:1] in b"1+" else b"-1", rest))
    return target
