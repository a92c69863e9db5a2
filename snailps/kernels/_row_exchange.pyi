from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int32]
Keys = NDArray[np.uint64]

CORRELATION: Final[float]
"""Part of a step's curvature that all workers have in common.  `share_of_delta` takes the steps of
an example's features as one step; those of other features differ from worker to worker."""
FAR_OF_ALL: Final[float]
"""Steps of all workers x rate x curvature from which half of a delta's rest is given up, of a row
that every example uses (a bias would swing to and fro otherwise: with AdaGrad on a9a, 8 workers,
100 examples between exchanges, log loss .371 without this, .325 with it)."""
ONE_STEP: Final[float]
"""Up to so many steps (estimated) a delta is pushed whole."""
OTHERS_LEAST: Final[float]
"""Steps of each other worker for one of this one on a row, at least, by which AdaGrad's steps are
shortened: of rows with one step others are seldom seen, but have often made one, too."""
QUIET_MAX: Final[int]
"""A row that no other worker has changed is pulled in every 2nd, 4th, then 8th round that uses
it."""

class Motion:
    """What a model knows about its steps: rate x curvature x steps, how far they move a row.

    Parameters
    ----------
    method : int
        1 (rows without state), 2 (AdaGrad) or 4 (FTRL), as in abi/_row_ops.h: 1, 2 or 3 parts of
        `dim` columns.
    dim : int
    outputs : int
        Columns that are weights of outputs, the first ones; the others are factors, which move
        together.
    far : float
        Steps of all workers from which half of a delta's rest is given up, of any row; infinite if
        steps on rare rows add up however many workers make them.
    least : float
        What is added to the root of a column's sum of squared gradients: epsilon, or FTRL's beta.
    others_least : float
        `OTHERS_LEAST`, or what a model has in its place.
    lr, l1, beta : float
        FTRL's: shards derive weights from z and n, so z must agree with a reduced weight.

    Attributes
    ----------
    a_step : float
        Rate x curvature of one step, before it is divided by a column's root.
    a_factor_step : float
        The same of a factor's relative sum of squared gradients.
    """

    a_step: float
    a_factor_step: float

    def __init__(
        self, method: int, dim: int, *, outputs: int = 0, far: float, least: float = 0,
        others_least: float = OTHERS_LEAST,
        lr: float = 1, l1: float = 0, beta: float = 0,
    ) -> None: ...  # fmt: skip

class RowExchange:
    """Bases, keys and measurements of rows by place, and what an exchange makes of them.

    Parameters
    ----------
    rows : numpy.ndarray
        float32 (room, parts x stride): as trained, `parts` parts of `dim` columns and padding.
        Memory beside them: 16 bytes, the base and 5 bytes a place, taken when it is first written.
    dim, parts : int
    bases : bool
        Whether rows have bases: otherwise they take no memory, and `send` and `merge` are refused.

    Attributes
    ----------
    examples : float
        Of the counts so far.
    has_bases : bool

    Notes
    -----
    Releases the GIL.  Threads may call `load` and `send` for different places at once; nothing may
    change rows meanwhile.  Places out of range, or arrays that do not fit each other, raise
    ValueError.
    """

    examples: float
    has_bases: bool

    def __init__(self, rows: Floats, dim: int, parts: int, *, bases: bool = True) -> None: ...
    def load(self, places: Ids, keys: Keys, packed: Floats, now: float) -> None:
        """Takes rows as pulled, which are also their bases; `now` in examples."""

    def keep_bases(self, used: int) -> None:
        """Rows have bases from now on: places below `used` as they are, as if just sent."""

    def keys(self, places: Ids) -> Keys:
        """Keys of rows that were loaded."""

    def subtract(self, places: Ids, packed: Floats) -> None:
        """``packed = rows - packed``: deltas of rows whose bases were pulled."""

    def count(
        self, places: Ids, examples: int, memory: float, weights: Floats | None = None
    ) -> None:
        """Counts steps (`weights`; None: one) at places in a sample; others weigh `memory`."""

    def frequent(self, used: int, least: float) -> Ids:
        """Places below `used` with a count above `least`, ascending."""

    def counted(self, places: Ids) -> Floats:
        """Their counts."""

    def intervals(
        self, motion: Motion, places: Ids, *,
        workers: int, drift: float, steps_min: float, now: float,
    ) -> tuple[Doubles, Doubles]:  # fmt: skip
        """Examples between two exchanges of rows that were counted, and when the last one was.

        An interval is as long as the steps of all workers take to reach `drift`, and as
        `steps_min` own steps at least.
        """

    def send(
        self, motion: Motion, places: Ids, keys: Keys, deltas: Floats, *,
        workers: int, now: float, giving: bool,
    ) -> tuple[Floats, Ids]:  # fmt: skip
        """Shares of the deltas of rows, (n, width), and their keys; bases include the shares.

        With AdaGrad and several workers the steps are first made as short as they would be behind
        those of the others, in the rows, too.

        Returns
        -------
        given_up, given_at
            If `giving`: what local copies lose when the answer comes, and of which of the places.
        """

    def asked(self, places: Ids) -> None:
        """Says that rows are pulled behind what was sent last: they are not stale."""

    def stale(self, places: Ids, *, quiet_too: bool = False) -> tuple[Ids, Keys]:
        """Those of the places that were sent without an answer since, and their keys.

        They count as asked for now.  Rows that no other worker has changed lately are left out of
        most calls (see `QUIET_MAX`), unless `quiet_too`.
        """

    def merge(
        self, motion: Motion, places: Ids, answers: Floats, given_up: Floats, given_at: Ids
    ) -> None:
        """Adds what others have changed since `send`, takes away what was given up; new bases."""
