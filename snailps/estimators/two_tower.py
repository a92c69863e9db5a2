"""Two-tower retrieval as an estimator: `TwoTower`.

queries, items (texts) -> fit -> a job -> rows of words
texts -> embed -> means of rows; query -> recommend -> items
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snailps.config import RawConfig
from snailps.errors import DataError
from snailps.estimators.base import Data, Estimator, Source
from snailps.estimators.corpus import corpus
from snailps.estimators.jobs import Finished
from snailps.models.local_sgd import Floats
from snailps.models.two_tower import SIDES, TwoTowerSettings, keys_of
from snailps.vectors.model_file import read_model


class TwoTower(Estimator, settings=TwoTowerSettings):
    """Items for queries, by their words.

    Examples
    --------
    >>> queries, items = ["red shoes", "blue hat"], ["sneaker scarlet", "cap navy"]
    >>> model = TwoTower(epochs=20).fit(queries, items)  # doctest: +SKIP
    >>> model.recommend(["red shoes"], items)[0][0]  # doctest: +SKIP
    ('sneaker scarlet', 4.1)
    """

    worker_class = "snailps.models.two_tower:TwoTower"
    _model: Mapping[str, Any]

    def fit(self, X: Sequence[str], y: Sequence[str]) -> TwoTower:
        """Learns from queries and the item that belongs to each."""
        if len(X) != len(y):
            raise DataError(f"expected an item for each of {len(X):,} queries, got {len(y):,}")
        return self._learn(Data(X, y))

    @contextlib.contextmanager
    def _input_of(self, data: Data) -> Iterator[Source]:
        pairs = zip(data.X, data.y, strict=True)
        with corpus([f"{query}\t{item}" for query, item in pairs]) as source:
            yield source

    def _learned(self, done: Finished, source: Source) -> dict[str, Any]:
        return self._saved(done.files[0], {})

    @classmethod
    def load(cls, path: str | os.PathLike[str], **parameters: Any) -> TwoTower:
        """A fitted estimator of a file of ``snailps train two_tower``."""
        return cls._loaded(path, parameters)

    @classmethod
    def _saved(
        cls, path: str | os.PathLike[str], parameters: Mapping[str, Any], classes: Any = None
    ) -> dict[str, Any]:
        wanted = [f"{side}.{part}" for side in SIDES for part in ("keys", "rows")]
        with read_model(Path(path), "a model of two_tower", ("about", *wanted)) as (kept, arrays):
            settings: Any = RawConfig.from_mapping(kept, str(path)).build(TwoTowerSettings)
            model = {name: np.array(arrays[name]) for name in wanted}
        names = ("dim", "lr", "temperature", "batch")
        return {"_model": model, **{name: getattr(settings, name) for name in names}}

    def embed(self, texts: Sequence[str], side: str = "query") -> Floats:
        """Vectors of texts, float32 (n, dim); zeros without a known word."""
        self._refuse_unfitted("embed")
        keys, rows = self._model[f"{side}.keys"], self._model[f"{side}.rows"]
        order = np.argsort(keys)
        found = np.zeros((len(texts), rows.shape[1]), np.float32)
        for number, text in enumerate(texts):
            asked = keys_of(text.split())
            places = order[np.minimum(np.searchsorted(keys, asked, sorter=order), len(keys) - 1)]
            known = places[keys[places] == asked]
            if len(known):
                found[number] = rows[known].mean(0)
        return found

    def recommend(
        self, queries: Sequence[str], items: Sequence[str], k: int = 10
    ) -> list[list[tuple[str, float]]]:
        """The best `k` items for each query, with their scores."""
        scores = self.embed(queries) @ self.embed(items, "item").T
        best = np.argsort(-scores, axis=1)[:, :k]
        return [
            [(items[i], float(own[i])) for i in row] for own, row in zip(scores, best, strict=True)
        ]
