"""Questions to finished models of knowledge graphs and of matrix factorisation.

    OUTPUT.npz -> load -> GraphModel, FactorModel -> scores, best answers, neighbours

The whole model is in memory, read only.  What scores mean is `kge`'s and `mf`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError
from snailps.models.embeddings import files, kge, mf, ranking
from snailps.models.embeddings.settings import KgeSettings, MfSettings

ASKED = "?"
"""Cell of a line that is asked for."""
READERS = {
    "snailps.models.embeddings.kge:KnowledgeGraph": "GraphModel",
    "snailps.models.embeddings.mf:MatrixFactorization": "FactorModel",
}
"""Class of each model's file, by `worker_class`."""

Floats = NDArray[np.float32]
Best = list[tuple[str, float]]


class _Named:
    """Rows of some kinds of names."""

    kinds: tuple[str, ...] = ()

    def __init__(self, path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]]) -> None:
        self.path = str(path)
        self._names = {kind: files.unpacked_names(arrays[kind]) for kind in self.kinds}
        self._rows: dict[str, Floats] = {kind: arrays[f"{kind}.rows"] for kind in self.kinds}
        self._places = {
            kind: {name: place for place, name in enumerate(names)}
            for kind, names in self._names.items()
        }

    def vector(self, kind: str, name: str) -> Floats:
        """Row of a name, float32 (dim,).

        Raises
        ------
        DataError
            The model does not know it.
        """
        row: Floats = self._rows[kind][self._place(kind, name)]
        return row

    def _place(self, kind: str, name: str) -> int:
        place = self._places[kind].get(name)
        if place is None:
            raise DataError(
                f"{self.path}: {name!r} is none of its {len(self._names[kind]):,} {kind}"
            )
        return place

    def _best(self, kind: str, scores: Floats, k: int, without: Sequence[str] = ()) -> Best:
        """The `k` best names of a kind."""
        scores = scores.copy()
        for name in without:
            if (place := self._places[kind].get(name)) is not None:
                scores[place] = -np.inf
        k = min(k, len(scores))
        best = np.argpartition(-scores, k - 1)[:k] if k else np.zeros(0, np.int64)
        ordered = best[np.argsort(-scores[best], kind="stable")]
        names = self._names[kind]
        return [(names[at], float(scores[at])) for at in ordered.tolist() if scores[at] > -np.inf]

    def neighbours(self, name: str, k: int = 10) -> Best:
        """The names of its kind with the most similar rows, by their cosine."""
        kind = next((kind for kind in self.kinds if name in self._places[kind]), self.kinds[0])
        rows = self._rows[kind]
        own = rows[self._place(kind, name)]
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(own)
        return self._best(kind, rows @ own / np.maximum(lengths, 1e-30), k, [name])

    def answers(self, data: bytes, k: int) -> Iterator[Best]:
        """For each line the score of it, or the best names in the place of its `ASKED` cell.

        Raises
        ------
        DataError
            Another line, or an unknown name.
        """
        raise NotImplementedError


class GraphModel(_Named):
    """A knowledge graph's rows: `score` of triples, best `tails` and `heads`, `neighbours`.

    Parameters
    ----------
    path : path
        The ``.npz`` of ``snailps train kge``.

    Attributes
    ----------
    settings : KgeSettings
    entities, relations : list of str
        The most frequent first.
    entity_rows, relation_rows : numpy.ndarray
        float32 (n, dim); complex numbers are dim / 2 real parts, then as many imaginary ones.

    Raises
    ------
    ModelFileError
        The file cannot be read, or is of another model.
    """

    kinds = ("entities", "relations")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        settings, arrays = files.read(path, "a knowledge graph", KgeSettings, self.kinds)  # type: ignore[arg-type]
        assert isinstance(settings, KgeSettings)
        self.settings = settings
        super().__init__(path, arrays)
        self.entities, self.relations = self._names["entities"], self._names["relations"]
        self.entity_rows, self.relation_rows = self._rows["entities"], self._rows["relations"]

    def __repr__(self) -> str:
        return (
            f"GraphModel({self.settings.model}, {len(self.entities):,} entities, "
            f"{len(self.relations):,} relations, dim {self.settings.dim})"
        )

    def score(self, head: str, relation: str, tail: str) -> float:
        """Score of a triple: the larger, the likelier."""
        rows = self.vector("entities", tail)[None]
        query = self._query(head, relation, tails=True)
        return float(ranking.scores(query, rows, kge.metric_of(self.settings))[0, 0])

    def tails(self, head: str, relation: str, k: int = 10) -> Best:
        """The `k` best tails with their scores."""
        return self._candidates(self._query(head, relation, tails=True), k)

    def heads(self, relation: str, tail: str, k: int = 10) -> Best:
        """The `k` best heads with their scores."""
        return self._candidates(self._query(tail, relation, tails=False), k)

    def answers(self, data: bytes, k: int) -> Iterator[Best]:
        """For each line ``head relation tail`` its score, or best heads or tails for a ``?``."""
        found = kge.KnowledgeGraph.read(data, self.path, 0)
        for cells in zip(*found.names, strict=True):
            head, relation, tail = (cell.decode("utf-8", "replace") for cell in cells)
            if tail == ASKED:
                yield self.tails(head, relation, k)
            elif head == ASKED:
                yield self.heads(relation, tail, k)
            else:
                yield [(tail, self.score(head, relation, tail))]

    def _candidates(self, query: Floats, k: int) -> Best:
        scores = ranking.scores(query, self.entity_rows, kge.metric_of(self.settings))[0]
        return self._best("entities", scores, k)

    def _query(self, anchor: str, relation: str, *, tails: bool) -> Floats:
        ends, of = self.vector("entities", anchor)[None], self.vector("relations", relation)[None]
        return kge.queries(self.settings, ends, of, tails=tails)


class FactorModel(_Named):
    """Matrix factorisation: `predict` of a user and an item, best items by `recommend`.

    Parameters
    ----------
    path : path
        The ``.npz`` of ``snailps train mf``.

    Attributes
    ----------
    settings : MfSettings
    users, items : list of str
        The most frequent first.
    user_rows, item_rows : numpy.ndarray
        float32 (n, dim); with ``loss: squared`` column 0 is the bias.
    mean : float
        Of all values.

    Raises
    ------
    ModelFileError
        The file cannot be read, or is of another model.
    """

    kinds = ("users", "items")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        settings, arrays = files.read(path, "a matrix factorisation", MfSettings, self.kinds)  # type: ignore[arg-type]
        assert isinstance(settings, MfSettings)
        self.settings = settings
        super().__init__(path, arrays)
        self.mean = float(arrays["mean"].sum()) if "mean" in arrays else 0.0
        self.users, self.items = self._names["users"], self._names["items"]
        self.user_rows, self.item_rows = self._rows["users"], self._rows["items"]

    def __repr__(self) -> str:
        return (
            f"FactorModel({self.settings.loss}, {len(self.users):,} users, "
            f"{len(self.items):,} items, dim {self.settings.dim})"
        )

    def predict(self, user: str, item: str) -> float:
        """The value of a pair; a score for a ranking.  Unknown names of ratings count as average.

        Raises
        ------
        DataError
            A name of a ranking is not known.
        """
        if self.settings.loss != "squared":
            return float(self.vector("users", user) @ self.vector("items", item))
        pair = [[self._places["users"].get(user, -1)], [self._places["items"].get(item, -1)]]
        return float(self._ratings(np.array(pair, np.int32))[0])

    def recommend(self, user: str, k: int = 10, without: Sequence[str] = ()) -> Best:
        """The `k` best items of a user with their values, but those in `without`."""
        place = self._place("users", user)
        if self.settings.loss == "squared":
            pairs = np.full((2, len(self.items)), place, np.int32)
            pairs[1] = np.arange(len(self.items))
            return self._best("items", self._ratings(pairs), k, without)
        return self._best("items", self.item_rows @ self.user_rows[place], k, without)

    def answers(self, data: bytes, k: int) -> Iterator[Best]:
        """For each line ``user item`` its value, or the best items for a ``?``."""
        for cells in zip(*mf.MatrixFactorization.read(data, self.path, 0).names, strict=True):
            user, item = (cell.decode("utf-8", "replace") for cell in cells)
            yield self.recommend(user, k) if item == ASKED else [(item, self.predict(user, item))]

    def _ratings(self, pairs: NDArray[np.int32]) -> Floats:
        return mf.ratings(self.mean, self.user_rows, self.item_rows, pairs)
