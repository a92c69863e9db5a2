"""Answers questions to finished models of knowledge graphs and of matrix factorisation.

    OUTPUT.npz -> load -> GraphModel, FactorModel -> scores, best answers, neighbours

Owns names, their spellings and the lines of questions.  The whole model is in memory, read only;
`kge` and `mf` define the scores.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.arguments import whole_number
from snailps.data.name_columns import NameColumns, lines_of_rows
from snailps.errors import DataError, ModelFileError, UnknownWord
from snailps.models.embeddings import files, kge, mf, ranking
from snailps.models.embeddings.factor_losses import loss_of
from snailps.models.embeddings.least_squares import KnownLines, NewRows
from snailps.models.embeddings.settings import EmbeddingSettings, KgeSettings, MfSettings
from snailps.vectors.words import (
    SPELLING_WORDS,
    close_spellings,
    did_you_mean,
    to_bytes,
    to_text,
)

SCORED = 1 << 16
"""Lines scored together."""
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
ASKED = "?"
"""The cell of a line that asks for the best names."""
_OTHER = {"users": "items", "items": "users"}
Floats = NDArray[np.float32]
Name = str | int
Best = list[tuple[Any, float]]
"""Names (text, or whole numbers) with their scores."""
Answers = Any
"""`Best` for a name; for a list or array of names a list of these, in their order."""
OneOrMore = Any
"""A name, or a list or array of names."""
Triples = Iterable[Sequence[Name]]
"""Rows of names, also of two names."""


class UnknownName(UnknownWord):
    """A question has a name that the model does not know; the message suggests similar names.

    These are searched for only when the message is made: a file may have many unknown names.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        text: str = self.args[0]()
        return text


class NamedRows(ABC):
    """The rows of some kinds of names, from the `arrays` of a file; `path` is for messages.

    Names are text, or whole numbers if `whole_kinds` has their kind; questions may use either.  In
    names that are not UTF-8, other bytes are lone surrogates, as in `os.fsdecode`.  `columns` are
    the columns of the table that the model was trained on, with the column of values last.
    """

    kinds: tuple[str, ...] = ()
    columns: tuple[Any, ...] = ()
    lines: NameColumns
    """The columns of a line of questions."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: EmbeddingSettings,
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        self.path, self._settings = str(path), settings
        self._rows: dict[str, Floats] = {kind: arrays[files.rows_of(kind)] for kind in self.kinds}
        states = {kind: arrays.get(files.state_of(kind)) for kind in self.kinds}
        self._states = {kind: state for kind, state in states.items() if state is not None}
        self._texts = {
            kind: files.unpacked_names(arrays[kind], rows) for kind, rows in self._rows.items()
        }
        self._places = {
            kind: {name: place for place, name in enumerate(names)}
            for kind, names in self._texts.items()
        }
        self._names: dict[str, list[Any]] = {**self._texts}
        if "columns" in arrays:
            none = np.zeros((0, 0), np.float32)
            self.columns = tuple(files.unpacked_names(arrays["columns"], none))
        whole = arrays.get("whole", np.zeros(len(self.kinds), np.uint8)).tolist()
        try:
            self.say_whole(kind for kind, yes in zip(self.kinds, whole, strict=True) if yes)
        except (TypeError, ValueError) as error:
            raise ModelFileError(
                f"{path}: damaged: names that should be whole numbers are not ({error}); fetch or "
                "export it again"
            ) from None

    def say_whole(self, kinds: Iterable[str]) -> None:
        """Declare that names of these kinds are whole numbers: answers then have `int`."""
        self.whole_kinds = frozenset(kinds)
        for kind in self.whole_kinds:
            self._names[kind] = list(map(int, self._texts[kind]))

    def names_of(self, kind: str) -> list[Any]:
        """All names of a kind, the most frequent first."""
        return self._names[kind]

    def may_be_whole(self, kind: str) -> bool:
        """Whether all names of a kind are whole numbers, as `str` writes them."""
        return all(map(_WHOLE.fullmatch, self._texts[kind]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ``.npz``.

        Raises `ModelFileError` if the folder is missing or not writable, or the disk is full.
        """
        arrays: dict[str, NDArray[Any]] = {}
        for kind in self.kinds:
            arrays[kind] = files.packed_names(list(map(to_bytes, self._texts[kind])))
            arrays[files.rows_of(kind)] = self._rows[kind]
            if kind in self._states:
                arrays[files.state_of(kind)] = self._states[kind]
        if self.whole_kinds:
            arrays["whole"] = np.array([kind in self.whole_kinds for kind in self.kinds], np.uint8)
        texts = [one for one in self.columns if isinstance(one, str) and one and "\n" not in one]
        if texts and len(texts) == len(self.columns):
            arrays["columns"] = files.packed_names(list(map(to_bytes, texts)))
        files.write(os.fspath(path), self._settings, arrays | self._others())

    def _others(self) -> dict[str, NDArray[Any]]:
        return {}

    @property
    def goes_on(self) -> bool:
        """Whether training can continue: the file has the optimizer's state, or there is none."""
        return bool(self._states) or self._settings.method in ("sgd", "add")

    def vector(self, kind: str, name: Name) -> Floats:
        """Return the row of a name, float32 (dim,); `UnknownName` if the model lacks it."""
        row: Floats = self._rows[kind][self.place(kind, name)]
        return row

    def place(self, kind: str, name: Name) -> int:
        """Return the number of a name; `UnknownName` if the model lacks it."""
        place = self._places[kind].get(text_of_one(kind, name))
        if place is None:
            raise UnknownName(partial(self.unknown, name, kind))
        return place

    def unknown(self, name: Name, *kinds: str) -> str:
        """Make the message that no name of these kinds is `name`, with names of similar spelling.

        Whole numbers get no suggestions: any number is similar to another.
        """
        counts, close = [], list[str]()
        for kind in kinds:
            counts.append(f"{len(self._texts[kind]):,} {kind}")
            if kind not in self.whole_kinds:
                often = self._texts[kind][:SPELLING_WORDS]
                close += close_spellings(str(name), often, self._places[kind])
        hint = did_you_mean(close)
        return f"{self.path}: {name!r:.80} is none of its {' and '.join(counts)}{hint}"

    def numbers(self, kind: str, names: Sequence[str]) -> NDArray[np.int32]:
        """Return the number of each name, int32; -1 for unknown names."""
        find = self._places[kind].get
        return np.fromiter((find(name, -1) for name in names), np.int32, len(names))

    def _best(
        self,
        kind: str,
        scores: NDArray[Any],
        k: int,
        without: Iterable[Name] = (),
        known: Iterable[Name] = (),
    ) -> Best:
        """Find the best names, of equal ones the more frequent, leaving out `without` and `known`;
        an unknown name in `without` gives a warning, in `known` it is ignored.
        """
        k = whole_number(k, 0, "k: expected at least 0 answers")
        scores = scores.copy()
        scores[
            [*self._left_out(kind, without), *self._left_out(kind, known, warns=False)]
        ] = -np.inf
        scores[np.isnan(scores)] = -np.inf
        k = min(k, len(scores))
        worst = np.partition(scores, len(scores) - k)[len(scores) - k] if k else np.inf
        # More than k where several are as good as the last one: the more frequent name counts.
        best = np.flatnonzero(scores >= worst)
        ordered = best[np.argsort(-scores[best], kind="stable")][:k]
        names = self._names[kind]
        return [(names[at], float(scores[at])) for at in ordered.tolist() if scores[at] > -np.inf]

    def _left_out(self, kind: str, names: Iterable[Name], *, warns: bool = True) -> list[int]:
        """Return the places of names that answers leave out; warn of unknown names."""
        if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
            raise DataError(
                f"without: expected a list of names, got {names!r:.60}: [{names!r:.60}]"
            )
        texts = list(map(str, names))
        unknown = [text for text in texts if text not in self._places[kind]]
        if unknown and warns:
            more = f" (and {len(unknown) - 1:,} more)" if len(unknown) > 1 else ""
            warnings.warn(f"without: {self.unknown(unknown[0], kind)}{more}", stacklevel=5)
        return [self._places[kind][text] for text in texts if text in self._places[kind]]

    def kind_of(self, name: Name) -> str:
        """Find the kind that has a name; `DataError` if none has it, or several have."""
        found = [kind for kind in self.kinds if str(name) in self._places[kind]]
        if len(found) == 1:
            return found[0]
        if found:
            both = " and one of its ".join(found)
            raise DataError(
                f"{self.path}: {name!r} is one of its {both}: say of which (--of, in Python kind)"
            )
        raise UnknownName(partial(self.unknown, name, *self.kinds))

    def neighbours(self, name: OneOrMore, k: int = 10, kind: str = "") -> Answers:
        """Find the `k` names of a kind with the most similar rows, by their cosine; for a list of
        names a list of such lists.

        `kind` is one of `kinds`; empty: the kind that has the name.  Raises `DataError` if the
        model lacks the name or the kind, or if two kinds have the name.
        """
        if not is_one(name):
            return [self.neighbours(each, k, kind) for each in name]
        kind = self.checked(kind) or self.kind_of(name)
        return self._best(kind, self._cosines(kind, self._direction(kind, name)), k, [name])

    def checked(self, kind: str) -> str:
        """Return `kind` if it is empty or one of `kinds`; else raise `DataError`."""
        if kind and kind not in self.kinds:
            raise DataError(f"{self.path}: has {' and '.join(self.kinds)}, no {kind!r:.40}")
        return kind

    def similarity(self, one: Name, other: Name, kind: str = "") -> float:
        """Return the cosine of the rows of two names of a kind; `DataError` if no kind has both."""
        for one_kind in [self.checked(kind)] if kind else self.kinds:
            if {str(one), str(other)} <= self._places[one_kind].keys():
                a, b = self._direction(one_kind, one), self._direction(one_kind, other)
                return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-30))
        if kind:
            self.place(kind, one), self.place(kind, other)
        kinds = [self.kind_of(name) for name in (one, other)]
        raise DataError(
            f"{self.path}: {one!r} is one of its {kinds[0]} and {other!r} of its {kinds[1]}: "
            "only names of one kind are compared"
        )

    def _direction(self, kind: str, name: Name) -> Floats:
        direction: Floats = self._factors(kind)[self.place(kind, name)]
        return direction

    def _factors(self, kind: str) -> Floats:
        """Return what is compared of the rows of a kind: all columns."""
        return self._rows[kind]

    def _cosines(self, kind: str, own: Floats) -> Floats:
        rows = self._factors(kind)
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(own)
        products = ranking.scores(own[None], rows, ranking.PRODUCT)[0]
        found: Floats = products / np.maximum(lengths, 1e-30)
        return found

    def answers(
        self, pieces: Iterable[bytes], k: int, path: str = "the questions"
    ) -> Iterator[Best | UnknownName | None]:
        """Yield for each line its score, or the best names for its `ASKED` cell.

        `pieces` are whole lines of `path`.  A line with an unknown name yields the error; a blank
        line, and a first line that names the columns, yield None.
        """
        head, start = b"", 0
        for piece in pieces:
            head = head if head.strip() else head + piece
            columns = self.lines.read(piece, path, start, head, may_lack=True)
            places = lines_of_rows(piece, len(columns))
            rows = dict(zip(places, zip(*columns.names, strict=True), strict=True))
            for line in range(piece.count(b"\n") + (not piece.endswith(b"\n"))):
                yield self._answered(k, rows[line]) if line in rows else None
            start += len(piece)

    def _answered(self, k: int, cells: Sequence[bytes]) -> Best | UnknownName:
        try:
            return self._answer(k, *map(to_text, cells))
        except UnknownName as error:
            return error

    @abstractmethod
    def _answer(self, k: int, *cells: str) -> Best:
        """The answer of a line."""


class GraphModel(NamedRows):
    """A knowledge graph's rows: `score` of triples, best `tails` and `heads`, `neighbours`.

    `path`: the ``.npz`` of ``snailps train kge``.  `entity_rows` and `relation_rows` are float32
    (n, dim); complex numbers are dim / 2 real parts, then as many imaginary ones.  ModelFileError:
    the file cannot be read, or is of another model.
    """

    kinds = ("entities", "relations")
    lines = kge.KnowledgeGraph.columns

    def __init__(self, path: str | os.PathLike[str]) -> None:
        settings, arrays = files.read(path, "a knowledge graph", KgeSettings, self.kinds)  # type: ignore[arg-type]
        assert isinstance(settings, KgeSettings)
        self.settings = settings
        super().__init__(path, settings, arrays)
        self.entity_rows, self.relation_rows = self._rows["entities"], self._rows["relations"]

    @property
    def entities(self) -> list[Any]:
        """All entities, the most frequent first."""
        return self._names["entities"]

    @property
    def relations(self) -> list[Any]:
        """All relations, the most frequent first."""
        return self._names["relations"]

    def _factors(self, kind: str) -> Floats:
        """Return rows; of relations of rotate the turns, of which two are alike if they turn an
        entity alike: phases are equal modulo a full turn, and no score uses the other columns."""
        if kind == "relations" and self.settings.model == "rotate":
            return kge.turns(self.settings, self.relation_rows)
        return super()._factors(kind)

    def __repr__(self) -> str:
        return (
            f"GraphModel({self.settings.model}, {len(self.entities):,} entities, "
            f"{len(self.relations):,} relations, dim {self.settings.dim})"
        )

    def score(self, head: Name, relation: Name, tail: Name) -> float:
        """Score a triple: the larger, the likelier."""
        rows = self.vector("entities", tail)[None]
        query = self._query(head, relation, tails=True)
        return float(ranking.scores(query, rows, kge.metric_of(self.settings))[0, 0])

    def scores(self, triples: NDArray[np.int32]) -> Floats:
        """Score numbered triples, int32 (3, n), of heads, relations and tails: float32 (n,)."""
        found = np.empty(triples.shape[1], np.float32)
        metric = kge.metric_of(self.settings)
        for at in range(0, len(found), SCORED):
            heads, relations, tails = triples[:, at : at + SCORED]
            of = self.entity_rows[heads], self.relation_rows[relations]
            asked = kge.queries(self.settings, *of, tails=True)
            found[at : at + SCORED] = ranking.own_scores(asked, self.entity_rows[tails], metric)
        return found

    def tails(
        self,
        head: Name,
        relation: Name,
        k: int = 10,
        without: Iterable[Name] = (),
        known: Triples = (),
    ) -> Best:
        """Find the `k` best tails with their scores, but not those in `without`, nor those that are
        known by `known` triples.
        """
        others = (row[2] for row in known if _same(row[:2], (head, relation)))
        return self._candidates(self._query(head, relation, tails=True), k, without, others)

    def heads(
        self,
        relation: Name,
        tail: Name,
        k: int = 10,
        without: Iterable[Name] = (),
        known: Triples = (),
    ) -> Best:
        """Find the `k` best heads with their scores, but not those in `without`, nor those that are
        known by `known` triples.
        """
        others = (row[0] for row in known if _same(row[1:3], (relation, tail)))
        return self._candidates(self._query(tail, relation, tails=False), k, without, others)

    def _answer(self, k: int, *cells: str) -> Best:
        """Answer ``head relation tail`` by its score; the head or the tail may be ``?``."""
        head, relation, tail = cells
        if tail == ASKED:
            return self.tails(head, relation, k)
        if head == ASKED:
            return self.heads(relation, tail, k)
        return [(tail, self.score(head, relation, tail))]

    def _candidates(
        self, query: Floats, k: int, without: Iterable[Name], known: Iterable[Name]
    ) -> Best:
        scores = ranking.scores(query, self.entity_rows, kge.metric_of(self.settings))[0]
        return self._best("entities", scores, k, without, known)

    def _query(self, anchor: Name, relation: Name, *, tails: bool) -> Floats:
        ends, of = self.vector("entities", anchor)[None], self.vector("relations", relation)[None]
        return kge.queries(self.settings, ends, of, tails=tails)


class FactorModel(NamedRows):
    """Matrix factorisation: `predict` of a user and an item, best items by `recommend`.

    `path`: the ``.npz`` of ``snailps train mf``.  `user_rows` and `item_rows` are float32 (n, dim);
    with ``loss: squared`` column 0 is the bias, and `mean` that of all values.  ModelFileError: the
    file cannot be read, or is of another model.
    """

    kinds = ("users", "items")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        settings, arrays = files.read(path, "a matrix factorisation", MfSettings, self.kinds)  # type: ignore[arg-type]
        assert isinstance(settings, MfSettings)
        self._take(path, settings, arrays)

    @classmethod
    def of(cls, path: str, settings: MfSettings, arrays: Mapping[str, NDArray[Any]]) -> FactorModel:
        """Make a model of the arrays that a file would have; `path` is for messages."""
        model = cls.__new__(cls)
        model._take(path, settings, arrays)
        return model

    def with_items(self, rows: Floats) -> FactorModel:
        """Return this model with other rows of its items; names and all else are shared."""
        model = copy.copy(self)
        model._rows = {**self._rows, "items": rows}
        model.item_rows, model._new_rows = rows, {}
        return model

    def _take(
        self,
        path: str | os.PathLike[str],
        settings: MfSettings,
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        self.settings, self.loss = settings, loss_of(settings)
        self.lines = mf.MatrixFactorization.columns_asked(settings)
        super().__init__(path, settings, arrays)
        self.mean = float(arrays["mean"].sum()) if "mean" in arrays else 0.0
        self.user_rows, self.item_rows = self._rows["users"], self._rows["items"]
        self._solver = arrays.get("solver")
        self._known = KnownLines.in_file(arrays, str(path))
        self._new_rows: dict[str, NewRows] = {}

    @property
    def users(self) -> list[Any]:
        """All users, the most frequent first."""
        return self.names_of("users")

    @property
    def items(self) -> list[Any]:
        """All items, the most frequent first."""
        return self.names_of("items")

    def _others(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {"mean": np.array([self.mean])}
        if self._solver is not None:
            arrays["solver"] = self._solver
        return arrays | ({} if self._known is None else self._known.arrays())

    def _factors(self, kind: str) -> Floats:
        """Return the factors, without the bias of ratings."""
        return self._rows[kind][:, self.settings.row_dim - self.settings.dim :]

    def __repr__(self) -> str:
        return (
            f"FactorModel({self.settings.loss}, {len(self.users):,} users, "
            f"{len(self.items):,} items, dim {self.settings.dim})"
        )

    def predict(self, user: Name, item: Name) -> float:
        """Predict the value of a pair; of a ranking, its score.

        Unknown names of ratings count as average; DataError: a name of a ranking is not known.
        """
        if self.loss.ranks:
            return float(self.vector("users", user) @ self.vector("items", item))
        names = {"users": user, "items": item}
        pair = [self.numbers(kind, [text_of_one(kind, name)]) for kind, name in names.items()]
        return float(self.scores(np.array(pair))[0])

    def scores(self, pairs: NDArray[np.int32]) -> NDArray[Any]:
        """Predict values of numbered pairs, float64 (n,), or scores of a ranking, float32.

        `pairs` are users and items, int32 (2, n).  For ratings -1 stands for an unknown name.
        """
        return self.loss.scores(self.mean, self.user_rows, self.item_rows, pairs)

    def solved(self, kind: str, others: Iterable[Name]) -> Floats:
        """Solve the row of a new name, float32 (dim,), as the training would: of a user from the
        items that it has (`kind` is "users"), of an item from its users ("items").

        DataError: the model's loss is not `als`.  UnknownName: one of `others` is unknown.
        """
        if self._solver is None:
            new = "a user" if kind == "users" else "an item"
            raise DataError(
                f"{self.path}: {new} that the training did not have needs a model of "
                f"loss als, not {self.settings.loss}: train one with --loss als"
            )
        of = _OTHER[kind]
        places = [self.place(of, name) for name in others]
        if of not in self._new_rows:
            self._new_rows[of] = NewRows(self._rows[of], self._solver)
        return self._new_rows[of].solve(np.array(places, np.int64))

    def known_pairs(self) -> list[NDArray[np.int32]]:
        """Give the pairs of the training, as numbers of users and items (2, n); empty if the file
        has none."""
        return [] if self._known is None else [np.stack(self._known.pairs())]

    def left_out(self, known: Sequence[NDArray[np.int32]] = ()) -> ranking.LeftOut:
        """Give the items that the lists of all users leave out: a user's items in the training, if
        the file has its lines, and in `known` pairs, numbers of users and items (2, n)."""
        if self._known is not None and not known:
            return ranking.LeftOut(self._known.ptr, self._known.items)
        none = np.zeros((2, 0), np.int32)
        users, items = np.concatenate([none, *self.known_pairs(), *known], axis=1)
        return ranking.LeftOut.of(users, items, len(self.users))

    def pairs_in(self, path: str) -> NDArray[np.int32]:
        """Read pairs from a file, as numbers of users and items (2, n); skips unknown names.

        Lines with values count if a ranking learns from them: above 0, or not 0 where values are
        weights.
        """
        pairs = [np.zeros((2, 0), np.int32)]
        for lines, _ in files.columns_of(self.lines, [path]):
            names = [list(map(to_text, column)) for column in self.loss.chosen(lines).names]
            ids = np.stack([self.numbers(k, n) for k, n in zip(self.kinds, names, strict=True)])
            pairs.append(ids[:, (ids >= 0).all(0)])
        return np.concatenate(pairs, axis=1)

    def factors_to_rank(self) -> tuple[Floats, Floats, Floats]:
        """Give rows of users and of items whose products rank a user's items, and for each user the
        number that added to a product makes it a predicted value."""
        return self.loss.to_rank(self.mean, self.user_rows, self.item_rows)

    def recommend(
        self,
        user: OneOrMore = None,
        k: int = 10,
        without: Iterable[Name] = (),
        seen: Triples = (),
        *,
        items: Iterable[Name] | None = None,
        known: bool = False,
    ) -> Answers:
        """Find the `k` best items of a user with their values; of a list of users a list of lists.

        Leaves out the items in `without`, the user's items in `seen` pairs and, unless `known`, the
        user's items in the training, which files of loss `als` keep up to 16 million lines.
        For a user that the training did not have, pass the user's `items` instead of `user`; they
        are left out, too, unless `known`.
        """
        return self._partners("users", user, items, k, without, seen, known)

    def audience(
        self,
        item: OneOrMore = None,
        k: int = 10,
        without: Iterable[Name] = (),
        seen: Triples = (),
        *,
        users: Iterable[Name] | None = None,
        known: bool = False,
    ) -> Answers:
        """Find the `k` users whom an item suits best, with their values; of a list of items a list
        of lists.

        The counterpart of `recommend`: leaves out the users in `without`, and who has the item in
        `seen` pairs or, unless `known`, in the training.  For an item that the training did not
        have, pass the `users` who have it instead of `item`.
        """
        return self._partners("items", item, users, k, without, seen, known)

    def neighbours(
        self,
        name: OneOrMore = None,
        k: int = 10,
        kind: str = "",
        *,
        users: Iterable[Name] | None = None,
        items: Iterable[Name] | None = None,
    ) -> Answers:
        """Find the `k` names of a kind with the most similar rows, by their cosine; for a list of
        names a list of such lists.

        `kind` is "users" or "items"; empty: the kind that has the name.  In the place of a name:
        the `users` of an item that the training did not have, for items like it; or the `items` of
        a new user, for users like it.  Raises `DataError` if the model lacks the name or the kind,
        if both kinds have the name, or if a new name meets a loss other than `als`.
        """
        if users is None and items is None and name is not None:
            return super().neighbours(name, k, kind)
        if name is not None or kind or (users is None) == (items is None):
            raise DataError(
                "neighbours: expected a name, or the users of an item, or the items of a user, and "
                "only one of these; kind goes with a name"
            )
        of, others = ("items", users) if users is not None else ("users", items)
        assert others is not None
        row = self.solved(of, _listed(_OTHER[of], others))
        return self._best(of, self._cosines(of, row), k)

    def _partners(
        self,
        of: str,
        name: OneOrMore,
        partners: Iterable[Name] | None,
        k: int,
        without: Iterable[Name],
        seen: Triples,
        known: bool,
    ) -> Answers:
        """Find the best names of the other kind for a name of kind `of`, or each of several, or for
        a new name with these `partners` of the other kind."""
        to, side = _OTHER[of], self.kinds.index(of)
        if (name is None) == (partners is None):
            wanted = "a user, or the items of one" if to == "items" else "an item, or its users"
            raise DataError(f"expected {wanted}, and not both")
        if partners is not None:
            listed = _listed(to, partners)
            row, others = self.solved(of, listed), [] if known else listed
            return self.best_for(of, row, k, without, others)
        assert name is not None
        if not is_one(name):
            without, pairs = repeatable(without), dict[str, list[Sequence[Name]]]()
            for pair in seen:
                pairs.setdefault(str(pair[side]), []).append(pair)
            return [
                self._partners(of, each, None, k, without, pairs.get(str(each), ()), known)
                for each in name
            ]
        place = self.place(of, name)
        others = [pair[1 - side] for pair in seen if _same(pair[side : side + 1], [name])]
        if self._known is not None and not known:
            numbers = self._known.partners(side, place).tolist()
            others += [self._texts[to][number] for number in numbers]
        return self.best_for(of, self._rows[of][place], k, without, others)

    def best_for(
        self, of: str, row: Floats, k: int, without: Iterable[Name], others: Iterable[Name]
    ) -> Best:
        """Find the best names of the other kind for a row of kind `of`; leaves out `without`, with
        a warning for unknown names, and `others`."""
        to = _OTHER[of]
        scores = self.loss.scores_for(self.mean, row, self._rows[to])
        return self._best(to, scores, k, without, others)

    def _answer(self, k: int, *cells: str) -> Answers:
        """Answer ``user item`` by its value, ``user ?`` by the best items, ``? item`` by the users
        whom it suits best."""
        user, item = cells
        if item == ASKED:
            return self.recommend(user, k)
        return self.audience(item, k) if user == ASKED else [(item, self.predict(user, item))]


def is_one(names: OneOrMore) -> bool:
    """Whether a question is about one name, and not about several."""
    if isinstance(names, np.ndarray):
        return names.ndim == 0
    return isinstance(names, (str, bytes)) or not isinstance(names, Iterable)


def text_of_one(kind: str, name: Name) -> str:
    """Return a name's text.  The text of a list would be an unknown name, which has a rating."""
    if not is_one(name):
        raise DataError(
            f"expected one name of its {kind}, got {name!r:.80}: ask for each by itself"
        )
    return str(name)


def repeatable(names: Iterable[Name]) -> Iterable[Name]:
    """Names that can be read for each of several questions."""
    return names if isinstance(names, (str, bytes)) else list(names)


def _listed(kind: str, names: Iterable[Name]) -> list[Name]:
    """The names of a kind that stand for a new name of the other; `DataError` if there are none."""
    if isinstance(names, (str, bytes)):
        raise DataError(f"{kind}: expected a list of names, got {names!r:.60}")
    listed = list(names)
    if not listed:
        of = "a user" if kind == "items" else "an item"
        raise DataError(
            f"{kind}: expected the {kind} of {of}, got none: all answers would be equally good. "
            f"Leave out names without {kind}, or recommend what is frequent"
        )
    return listed


def _same(names: Sequence[Name], others: Sequence[Name]) -> bool:
    """Whether names are the same, as text or as whole numbers."""
    return list(map(str, names)) == list(map(str, others))
