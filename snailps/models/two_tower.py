"""Two-tower retrieval: queries and items as means of the rows of their words, near if they belong.

    lines "query <TAB> item" -> words of each side -> rows of two tables <- PULL
    batch -> means U, V -> cross entropy of U V' / temperature -> gradients -> PUSH (adagrad)
    tables, words -> OUTPUT.npz

Each query is learnt among the items of its batch.  After P. Covington et al., "Deep neural
networks for YouTube recommendations", RecSys 2016.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.parts import Cut
from snailps.api.tables import Table
from snailps.api.worker import Block, Pending, Results, Worker
from snailps.config import JobSettings, setting
from snailps.dataclass import dataclass
from snailps.models.embeddings import files
from snailps.models.local_sgd import Floats, Keys
from snailps.models.row_updates import STEPPED_BY_SHARDS, RowUpdate

SIDES = ("query", "item")
HASH_SEED, HASH_FACTOR = 14695981039346656037, 1099511628211


@dataclass(frozen=True, slots=True)
class TwoTowerSettings(JobSettings):
    """Settings of two-tower retrieval."""

    dim: int = setting(32, help="Numbers of a row.", when="More for many words.", low=1, high=4096)
    lr: float = setting(
        0.3, help="Step size of AdaGrad.", when="To be searched.", low=0.0, high=100.0
    )
    temperature: float = setting(
        0.2, help="Scale of scores.", when="Less for sharper lists.", low=1e-3, high=100.0
    )
    batch: int = setting(
        256, help="Lines of a step.", when="More negatives for a query.", unit="lines", low=2
    )


@dataclass(slots=True)
class Side:
    """One side of a block's lines: distinct keys, place of each word, where each line begins."""

    keys: Keys
    places: NDArray[np.int64]
    ptr: NDArray[np.int64]

    @classmethod
    def of(cls, lines: Sequence[Sequence[str]]) -> Side:
        words = [word for line in lines for word in line]
        keys, places = np.unique(keys_of(words), return_inverse=True)
        return cls(keys, places, np.cumsum([0, *map(len, lines)]))

    def means(self, rows: Floats, some: slice) -> Floats:
        """Mean of the rows of each of some lines."""
        starts = self.ptr[some.start : some.stop + 1]
        sums = np.add.reduceat(rows[self.places[starts[0] : starts[-1]]], starts[:-1] - starts[0])
        return np.asarray(sums / np.diff(starts)[:, None], np.float32)

    def add_gradients(self, gradients: Floats, of_means: Floats, some: slice) -> None:
        starts = self.ptr[some.start : some.stop + 1]
        sizes = np.diff(starts)
        of_words = np.repeat(of_means / sizes[:, None], sizes, axis=0)
        np.add.at(gradients, self.places[starts[0] : starts[-1]], of_words)


class TwoTower(Worker, Cut):
    """Two-tower retrieval; see the module's docstring."""

    Settings = TwoTowerSettings
    settings: TwoTowerSettings
    row_updates: ClassVar[Mapping[str, RowUpdate]] = STEPPED_BY_SHARDS

    def tables(self) -> Sequence[Table]:
        s = self.settings
        scale = float(s.dim**-0.5)
        own: dict[str, Any] = {"access": "adagrad", "lr": s.lr, "init": "uniform", "scale": scale}
        return [Table(side, s.dim, seed=s.seed + i, **own) for i, side in enumerate(SIDES)]

    @classmethod
    def block_bytes(cls, settings: TwoTowerSettings, total_bytes: int, workers: int) -> int:
        """Blocks of a few steps: rows of a block are pulled once."""
        return min(64 << 10, super().block_bytes(settings, total_bytes, workers))

    def prepare(self, block: Block) -> tuple[list[Side], list[Pending]]:
        pairs = [line.split("\t") for line in block.data.decode("utf-8", "replace").splitlines()]
        pairs = [pair for pair in pairs if len(pair) == 2 and all(map(str.strip, pair))]
        order = np.random.default_rng(block.seed).permutation(len(pairs))
        sides = [Side.of([pairs[i][of].split() for i in order]) for of in range(2)]
        named = zip(SIDES, sides, strict=True)
        return sides, [self.pull_async(name, side.keys) for name, side in named]

    def train(self, block: Block) -> Mapping[str, float]:
        sides, pulls = block.prepared
        lines, batch = len(sides[0].ptr) - 1, self.settings.batch
        rows = [pull.wait() for pull in pulls]
        gradients, loss = [np.zeros_like(some) for some in rows], 0.0
        for first in range(0, lines, batch):
            some = slice(first, min(lines, first + batch))
            towers = [side.means(own, some) for side, own in zip(sides, rows, strict=True)]
            of_batch, steps = cross_entropy(towers[0], towers[1], self.settings.temperature)
            loss += of_batch
            for side, total, step in zip(sides, gradients, steps, strict=True):
                side.add_gradients(total, step, some)
        for name, side, total in zip(SIDES, sides, gradients, strict=True):
            self.push(name, side.keys, total)
        return {"units": lines, "loss": loss, "examples": lines}

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "two_tower"

    @classmethod
    def result_files(cls, settings: JobSettings) -> Sequence[str]:
        return (f"{settings.output}.npz",)

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        arrays: dict[str, NDArray[Any]] = {}
        for side in SIDES:
            pieces = list(results.scan(side))
            arrays[f"{side}.keys"] = np.concatenate([keys for keys, _ in pieces])
            arrays[f"{side}.rows"] = np.concatenate([rows for _, rows in pieces])
        path = files.write(f"{results.settings.output}.npz", results.settings, arrays)
        results.exporting.wrote(path)
        return {"files": [path]}


def cross_entropy(queries: Floats, items: Floats, scale: float) -> tuple[float, list[Floats]]:
    """Loss of a batch, each query among all items, and its gradients."""
    scores = queries @ items.T / scale
    scores -= scores.max(1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(1, keepdims=True)
    own = shares[np.arange(len(shares)), np.arange(len(shares))]
    loss = float(-np.log(np.maximum(own, 1e-12)).sum())
    shares[np.arange(len(shares)), np.arange(len(shares))] -= 1
    shares /= np.float32(scale)
    return loss, [shares @ items, shares.T @ queries]


def keys_of(words: Iterable[str]) -> Keys:
    """Keys of words: FNV-1a of their bytes."""
    known: dict[str, int] = {}
    for word in words:
        if word not in known:
            value = HASH_SEED
            for byte in word.encode():
                value = (value ^ byte) * HASH_FACTOR % (1 << 64)
            known[word] = value
    return np.array([known[word] for word in words], np.uint64)
