"""The bare loop from Python: compiled for this machine, one process pair, asked line by line.

    bare.c -> cc -> Bare(keys, dim) -> pull(keys) / push(keys) -> seconds

It knows nothing of snailps.
"""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-O3", "-march=native", "-std=gnu11"]


def build(folder: Path) -> Path:
    """Compiles the loop into `folder`; the program's path."""
    if shutil.which(COMPILER.split()[0]) is None:
        raise SystemExit(f"bench: the bare loop needs a C compiler, there is no {COMPILER!r}")
    program = folder / "bare"
    source = Path(__file__).with_name("bare.c")
    subprocess.run([*COMPILER.split(), *FLAGS, "-o", str(program), str(source)], check=True)
    return program


class Bare:
    """A bare server and its client.

    Parameters
    ----------
    program : Path
        What `build` made.
    folder : Path
        For the files that carry keys.
    keys : numpy.ndarray
        uint64 (n,), distinct: its table.  Row i holds ``i % 1000`` everywhere.
    dim : int
        float32 values in a row.
    over : str
        ``tcp`` or ``unix``.
    core : int, optional
        Both processes stay on this core; by default the scheduler decides.

    Attributes
    ----------
    sum : float
        Of the rows that the last request moved.
    """

    def __init__(
        self,
        program: Path,
        folder: Path,
        keys: np.ndarray,
        dim: int,
        over: str = "tcp",
        core: int | None = None,
    ) -> None:
        self.sum = 0.0
        self._file = folder / f"keys-{over}-{dim}-{core}"
        table = folder / f"table-{over}-{dim}-{core}"
        keys.tofile(table)
        allowed = os.sched_getaffinity(0)
        if core is not None:  # of this thread, for its child to inherit
            os.sched_setaffinity(0, {core})
        self._process = subprocess.Popen(
            [str(program), over, str(table), str(dim)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.sched_setaffinity(0, allowed)

    def pull(self, keys: np.ndarray) -> float:
        """One pull for each row of `keys`, uint64 (requests, n); seconds of all."""
        return self._ask("pull", keys)

    def push(self, keys: np.ndarray) -> float:
        """The same with pushes of ones."""
        return self._ask("push", keys)

    def _ask(self, what: str, keys: np.ndarray) -> float:
        keys.tofile(self._file)
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        pipe_in.write(f"{what} {self._file} {keys.shape[1]} {len(keys)}\n")
        pipe_in.flush()
        answer = pipe_out.readline().split()
        if len(answer) != 2:
            raise SystemExit("bench: the bare loop has ended: see what it printed above")
        self.sum = float(answer[1])
        return float(answer[0])

    def close(self) -> None:
        """Ends both processes."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)

    def __enter__(self) -> "Bare":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
