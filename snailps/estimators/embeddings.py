"""Embeddings of names as estimators: `KnowledgeGraph`, `MatrixFactorization`.

    rows of names -> fit -> a scratch file -> a job -> .npz -> .graph_ or .factors_, for questions
    rows of names -> predict, rank, evaluate -> scores, ranks, figures, in this process

Owns parameters and conventions.  `models.embeddings` trains and scores, `data.name_rows` reads.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import a_kind
from snailps.data.name_columns import NameColumns
from snailps.data.name_rows import NameRows, choices_of, spool_names
from snailps.errors import DataError
from snailps.estimators.base import Data, Estimator, FitInput, WarmStart
from snailps.estimators.corpus import is_path, paths_of, refuse_names_of_files
from snailps.estimators.display import SpoolDisplay
from snailps.estimators.jobs import FinishedJob
from snailps.models.embeddings import files, kge, mf, ranking, warm_start
from snailps.models.embeddings.factor_losses import rating_figures
from snailps.models.embeddings.held_out import TIMED
from snailps.models.embeddings.queries import (
    Answers,
    Best,
    FactorModel,
    GraphModel,
    Name,
    NamedRows,
    OneOrMore,
)
from snailps.models.embeddings.settings import KgeSettings, MfSettings
from snailps.node.phrases import untested
from snailps.vectors.words import to_text

N = TypeVar("N", bound="NameEstimator")
KEEPS_STATE: Mapping[str, Any] = {"keep_state": "always"}
"""Fixed, because `partial_fit` continues with the optimizer's state."""
_TIMES_UNREAD = (
    "times have no effect: rows are held out by them with held_out and held_out_by 'time' or "
    "'user_time', or with held_out_from"
)
K = 10
"""Names in an answer, unless another number is given."""
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int32]


def chosen_k(k: int, topn: int | None) -> int:
    """The number of names in an answer, which may be given as `topn`, as most_similar of gensim."""
    if topn is None:
        return k
    if k != K:
        raise DataError(f"topn: expected none beside k, which it is another name of; got {topn}")
    return topn


class NameEstimator(Estimator):
    """Base of estimators whose examples are rows of names."""

    _reader: ClassVar[type[GraphModel] | type[FactorModel]]
    _lines: ClassVar[NameColumns]
    _kind_of_column: ClassVar[tuple[int, ...]]
    loss: Any

    @contextlib.contextmanager
    def _input_of(self, data: Data) -> Iterator[FitInput]:
        X, y, columns = data.X, data.y, data.columns
        if isinstance(columns, str):
            raise DataError(f"columns: expected a list of names, got {columns!r:.60}")
        before = self._model.columns if data.continues else ()
        if is_path(X):
            for name, value in (("y", y), ("columns", columns or None), ("times", data.times)):
                if value is not None:
                    raise DataError(
                        f"{name}: expected none with a file, got {value!r:.60}: its lines are "
                        f"{self._shape}, in this order. For another order read it as a table"
                    )
            paths = paths_of(X, f"rows are a list or a table of {self._shape}")
            every = [data.continues] * len(self._kind_of_column)
            yield FitInput(paths, attributes=self._of_columns(every, before, data.continues))
            return
        finds_values = data.continues and y is None
        times = data.times if self._reads_times(X, data.times) else None
        if getattr(self, "time_column", 0) == 3 and data.times is None and y is None:
            raise DataError(
                "times: expected them beside rows in memory, as time_column: 3 says that these have"
                " times and no values: give pairs and times=, or leave time_column out"
            )
        rows = self._rows_of(
            X, y, columns=columns, usual=before, finds_values=finds_values, times=times
        )
        with contextlib.closing(SpoolDisplay(self.verbose, type(self).__name__)) as display:
            valued, has_times = self._lines.valued, times is not None
            choices = valued and self.loss not in ("auto", "squared")
            weighs = getattr(self, "weights", "one") == "values"
            choices = choices and not weighs
            spooled, whole, values = spool_names(rows, choices=choices, on_bytes=display.show)
        with spooled:
            if self.loss == "squared" and not values.number:
                raise DataError(
                    f"y: {type(self).__name__} with loss='squared' predicts values, and X has none:"
                    " give them as y, or choose loss='als', which ranks items"
                )
            if weighs and not values.number:
                raise DataError(
                    f"y: {type(self).__name__} with weights='values' takes the weights of rows from"
                    " values, and X has none: give them as y, or choose weights='one'"
                )
            has_values = bool(values.number) and not choices
            yield FitInput(
                spooled,
                {"time_column": 3 if has_times and not has_values else 4} if valued else {},
                attributes=self._of_columns(whole, tuple(rows.chosen()) or before, data.continues),
                remarks=[
                    f"{type(self).__name__}: {text}"
                    for text in (
                        values.unused if choices else "",
                        _TIMES_UNREAD if data.times is not None and times is None else "",
                    )
                    if text
                ],
            )

    def _reads_times(self, X: Any, times: Any) -> bool:
        """Whether rows in memory are held out by their times; refuse a split that X cannot have."""
        by = getattr(self, "held_out_by", "") if getattr(self, "held_out", 0) else ""
        reads = by in TIMED or bool(getattr(self, "held_out_from", ""))
        if reads and times is None:
            raise DataError(
                f"times: rows of {a_kind(X)} have none, by which they are held out: give times=, "
                "or sort the rows by time and choose held_out_by='user_order'"
            )
        if by == "user_order" and hasattr(X, "tocoo"):
            raise DataError(
                "held_out_by: the entries of a sparse matrix have no order: choose 'user', or give "
                "rows"
            )
        return reads

    @property
    def _shape(self) -> str:
        return " ".join(self._lines.expected) + (" [value]" if self._lines.valued else "")

    def _rows_of(self, X: Any, y: Any = None, **columns: Any) -> NameRows:
        refuse_names_of_files(X)
        return NameRows(X, self._lines.expected, y, valued=self._lines.valued, **columns)

    def _of_columns(
        self, whole: Sequence[bool], columns: Sequence[str], continues: bool
    ) -> dict[str, Any]:
        """Return attributes of the columns: their names, and which hold whole numbers.

        A column counts as whole only if it was whole in every earlier call too: its names are
        returned as int, which must be possible for all of them.
        """
        kinds = [self._reader.kinds[kind] for kind in self._kind_of_column]
        before = self._model.whole_kinds if continues else frozenset(kinds)
        still = tuple(yes and kind in before for yes, kind in zip(whole, kinds, strict=True))
        return {"_whole": still, "_columns": columns}

    def _learned(self, done: FinishedJob, source: FitInput) -> dict[str, Any]:
        model = self._reader(done.files[0])
        model.path = type(self).__name__  # for messages: that file is gone
        model.columns = source.attributes["_columns"]
        if whole := source.attributes["_whole"]:
            columns = zip(self._kind_of_column, whole, strict=True)
            others = {kind for kind, is_whole in columns if not is_whole}
            every = (kind for number, kind in enumerate(model.kinds) if number not in others)
            model.say_whole(kind for kind in every if model.may_be_whole(kind))
        return {"_model": model}

    # --- going on --------------------------------------------------------------------------------

    def partial_fit(
        self: N,
        X: Any,
        y: Any = None,
        *,
        columns: Sequence[str] = (),
        times: Any = None,
        epochs: int | Literal["auto"] | None = None,
    ) -> N:
        """Continue training on other rows: names keep their vectors, new names are added.

        The first call does what `fit` does.

        Parameters
        ----------
        X, y, columns, times
            As in `fit`; graphs have no times.  Ratings are standardised by mean and deviation of
            the first call.
        epochs : int or "auto", optional
            Passes over X; by default the parameter `epochs`.  Use 1 for small batches of a stream.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            As in `fit`; or a parameter that defines the model's shape has changed.
        NotFitted
            The model was loaded from a file without the optimizer's state.
        DataError, ClusterError
            As in `fit`.

        Notes
        -----
        The step size falls from `lr` in each call, and each call writes and reads the whole model.
        A `MatrixFactorization` of loss "als" learns the rows of earlier calls again, with X: a row
        that is given twice weighs twice.
        """
        return self._learn(Data(X, y, columns=columns, times=times, continues=True), epochs)

    def _start(self) -> WarmStart:
        settings = self._model.settings
        names = (*settings.shape, "optimizer")
        lacks = "the model was loaded from a file of rows alone, without the optimizer's state: "
        lacks += "call fit, or train with keep_state: always"
        return WarmStart(
            {name: getattr(settings, name) for name in names if name in self.parameters.by_name},
            in_file=True,
            habits=frozenset(warm_start.habits_of(type(settings), settings.shape)),
            lacks="" if self._model.goes_on else lacks,
        )

    def _write_start(self, folder: str, source: FitInput) -> str:
        path = os.path.join(folder, "before.npz")  # noqa: PTH118
        self._model.save(path)
        return path

    def _numbered(
        self,
        X: Any,
        y: Any = None,
        *,
        needs_all: bool = False,
        finds_values: bool = False,
        choices: bool = False,
        weighted: bool = False,
    ) -> tuple[Ids, Doubles]:
        """Number the names of X: int32 (columns, n), and the values, float64 (n,) or empty.

        An unknown name is -1, or with `needs_all` a DataError.  `choices` keeps only rows that a
        ranking learns from: those with a value above 0, or with `weighted` with any other than 0.
        """
        model: NamedRows = self._model
        ids: list[Ids] = [np.zeros((len(self._kind_of_column), 0), np.int32)]
        values = [np.zeros(0)]
        for names, numbers, where in self._pieces(X, y, finds_values, choices, weighted):
            ids.append(
                np.array(
                    [
                        model.numbers(model.kinds[kind], column)
                        for kind, column in zip(self._kind_of_column, names, strict=True)
                    ]
                )
            )
            values.append(numbers)
            if needs_all and (ids[-1] < 0).any():
                row, column = np.argwhere(ids[-1].T < 0)[0].tolist()
                before = sum(piece.shape[1] for piece in ids[:-1])
                place = f"row {before + row:,} of {a_kind(X)}" if where is None else where(row)
                kind = model.kinds[self._kind_of_column[column]]
                raise DataError(f"X: {place}: {model.unknown(names[column][row], kind)}")
        return np.concatenate(ids, axis=1), np.concatenate(values)

    def _pieces(
        self,
        X: Any,
        y: Any = None,
        finds_values: bool = False,
        choices: bool = False,
        weighted: bool = False,
    ) -> Iterator[tuple[list[list[str]], Doubles, Callable[[int], str] | None]]:
        """Yield names of each column and values, some rows at a time.

        The third value maps a row of the piece to its place in a file; None for data in memory.
        """
        if not is_path(X):
            columns = self._model.columns
            rows = self._rows_of(X, y, usual=columns, finds_values=finds_values)
            for piece in rows.pieces():
                chosen = choices_of(piece, weighted=weighted) if choices else piece
                yield chosen.names, chosen.values, None
            return
        paths = paths_of(X, f"rows are {self._shape}")
        for lines, where in files.columns_of(self._model.lines, paths):
            if choices:
                lines = lines.weighted() if weighted else lines.choices()
            names = [list(map(to_text, column)) for column in lines.names]
            yield names, lines.values, where

    def _rows_of_names(self, X: Any) -> Iterator[tuple[str, ...]]:
        """Yield the rows of X, which answers leave out; nothing if X is None."""
        if X is not None:
            settings = self._model.settings
            choices = self._lines.valued and not settings.predicts
            weighted = choices and settings.weighs
            for names, _, _ in self._pieces(X, None, choices, choices, weighted):
                yield from zip(*names, strict=True)

    @property
    def has_lists(self) -> bool:
        """Whether `evaluate` judges lists of the best items."""
        return False

    @abstractmethod
    def judged_by(self, X: Any, known: Any) -> dict[str, float]:
        """Return the figures of `evaluate`; lists and ranks leave out the rows of `known`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ``.npz``, which `load` and `snailps.load` read.

        Raises
        ------
        NotFitted
            `fit` was not called.
        ModelFileError
            The file cannot be written.
        """
        self._refuse_unfitted("save")
        self._model.save(path)

    @classmethod
    def load(cls: type[N], path: str | os.PathLike[str], **parameters: Any) -> N:
        """Open an ``.npz`` that `save` or ``snailps train`` wrote as a fitted estimator.

        Parameters
        ----------
        path : path
        **parameters
            Replace the file's parameters, for the next `fit`.

        Raises
        ------
        ModelFileError
            The file cannot be read, or holds another kind of model.
        ParameterError
            Unknown parameter.
        """
        return cls._loaded(path, parameters)

    @classmethod
    def _saved(
        cls, path: str | os.PathLike[str], parameters: Mapping[str, Any], classes: Any = None
    ) -> dict[str, Any]:
        model = cls._reader(path)
        return {"_model": model, **cls.parameters.of_settings(model.settings)}


class KnowledgeGraph(NameEstimator, settings=KgeSettings, fixed=KEEPS_STATE):
    """Embeddings of entities and relations, by TransE, DistMult, ComplEx or RotatE.

    Parameters
    ----------
    model, dim, negatives, shared, loss, margin, temperature, norm, lr, l2, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> places = [("berlin", "in", "germany"), ("paris", "in", "france")] * 50
    >>> graph = KnowledgeGraph(dim=16, epochs=20).fit(places)  # doctest: +SKIP
    >>> graph.tails("berlin", "in", k=1)[0][0]  # doctest: +SKIP
    'germany'
    """

    worker_class = "snailps.models.embeddings.kge:KnowledgeGraph"
    _reader = GraphModel
    _lines = kge.KnowledgeGraph.columns
    _kind_of_column = kge.KnowledgeGraph.kind_of_column

    def fit(
        self: KnowledgeGraph, X: Any, y: object = None, *, columns: Sequence[str] = ()
    ) -> KnowledgeGraph:
        """Learn vectors of entities and relations; an earlier fit is discarded.

        Parameters
        ----------
        X : array, list or generator of rows, table, path
            n triples (head, relation, tail); names are str or whole numbers.  Of a table the first
            three columns are read.  A str or `pathlib.Path` is a file, folder, glob or URL with a
            triple a line.
        y : None
            Ignored; scikit-learn's pipelines pass it.
        columns : sequence of str
            The three columns of a table.  Tables in later calls are read by these names too.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is unknown, of the wrong type or out of range.
        DataError
            X has another form, or a name is missing.
        ClusterError
            The job failed; the estimator keeps its earlier model.
        """
        return self._learn(Data(X, columns=columns))

    @property
    def graph_(self) -> GraphModel:
        """The entities and relations with their vectors; raises `NotFitted` before `fit`."""
        self._refuse_unfitted("graph_")
        model: GraphModel = self._model
        return model

    def predict(self, X: Any) -> Floats:
        """Score triples; a higher score means a likelier triple.

        Parameters
        ----------
        X : object
            n triples, as in `fit`.

        Returns
        -------
        float32 (n,)
            On the scale of `model` and `loss`: no probabilities.

        Raises
        ------
        NotFitted
            `fit` was not called.
        DataError
            A name is unknown; the text says in which row.
        """
        graph = self.graph_
        ids, _ = self._numbered(X, needs_all=True)
        return graph.scores(ids)

    def tails(
        self,
        head: Name,
        relation: Name,
        k: int = K,
        without: Iterable[Name] = (),
        known: Any = None,
        *,
        topn: int | None = None,
    ) -> Best:
        """Return the `k` likeliest tails of (head, relation, ?).

        Parameters
        ----------
        head, relation : str or int
        k : int
            `topn` is another name of it.
        without : iterable of names
            Entities to leave out; an unknown one gives a warning.
        known : object, optional
            Triples as in `fit`: a tail is left out if they have it with this head and relation.

        Returns
        -------
        list of (name, score)
            Best first.

        Raises
        ------
        UnknownWord
            `head` or `relation` is unknown.
        """
        rows = self._rows_of_names(known)
        return self.graph_.tails(head, relation, chosen_k(k, topn), without, rows)

    def heads(
        self,
        relation: Name,
        tail: Name,
        k: int = K,
        without: Iterable[Name] = (),
        known: Any = None,
        *,
        topn: int | None = None,
    ) -> Best:
        """Return the `k` likeliest heads of (?, relation, tail); parameters as in `tails`."""
        rows = self._rows_of_names(known)
        return self.graph_.heads(relation, tail, chosen_k(k, topn), without, rows)

    def most_similar(
        self, name: OneOrMore, k: int = K, *, of: str = "", topn: int | None = None
    ) -> Answers:
        """Return the entities, or relations, whose vectors are most similar to a name's.

        Parameters
        ----------
        name : str or int, or a list or array of them
        k : int
            `topn` is another name of it.
        of : {"", "entities", "relations"}
            Where to look the name up; needed only if both have it.

        Returns
        -------
        list of (name, cosine)
            Best first, without `name`.

        Raises
        ------
        UnknownWord
            The name is unknown.
        """
        return self.graph_.neighbours(name, chosen_k(k, topn), of)

    def rank(self, X: Any, known: Any = None) -> NDArray[np.float64]:
        """Rank the tail and the head of each triple among all entities, filtered.

        Parameters
        ----------
        X : object
            n triples, as in `fit`.
        known : object, optional
            Other true triples, as in `fit`.  An entity that makes one of them true is not counted
            as a competitor.  Triples with unknown names are ignored.

        Returns
        -------
        float64 (n, 2)
            Rank of the tail, rank of the head; 1 is best.  Equal scores share their mean rank.

        Raises
        ------
        DataError
            A name of X is unknown.
        """
        graph = self.graph_
        ids, _ = self._numbered(X, needs_all=True)
        filtered: NDArray[np.float64] = self._ranks(graph, ids, known)[1].reshape(2, -1).T
        return filtered

    def _ranks(self, graph: GraphModel, ids: Ids, known: Any) -> NDArray[np.float64]:
        true = ids
        if known is not None:
            others, _ = self._numbered(known)
            true = np.concatenate([ids, others[:, (others >= 0).all(0)]], axis=1)
        return kge.rank(graph.settings, graph.entity_rows, graph.relation_rows, ids, true)

    def evaluate(self, X: Any, known: Any = None) -> dict[str, float]:
        """Evaluate link prediction on held-out triples.

        Parameters
        ----------
        X, known
            As in `rank`, but rows with unknown names are left out and counted.

        Returns
        -------
        dict
            Of filtered ranks ``mrr``, ``hits_at_1``, ``hits_at_3``, ``hits_at_10`` and
            ``mean_rank``; the same of raw ranks, as ``raw_mrr`` and so on; ``unknown``: rows that
            were left out.

        Raises
        ------
        DataError
            No row of X has known names only.
        """
        graph = self.graph_
        ids, _ = self._numbered(X)
        good = (ids >= 0).all(0)
        figures = ranking.figures_of(*self._ranks(graph, ids[:, good], known))
        figures = {**figures, "unknown": int((~good).sum())}
        if why := untested(figures):
            raise DataError(f"X: {why}")
        return figures

    def judged_by(self, X: Any, known: Any) -> dict[str, float]:
        """Return the figures of `evaluate`, whose second argument differs by class."""
        return self.evaluate(X, known)


class MatrixFactorization(NameEstimator, settings=MfSettings, fixed=KEEPS_STATE):
    """Matrix factorisation: vectors of users and items, from ratings or from choices.

    Parameters
    ----------
    loss : "auto", "squared", "als", "softmax" or "pairwise"
        "squared" predicts ratings; the others rank items by implicit feedback.  "auto": "squared"
        where rows have values, else "als".
    top : int
        Length of the lists that `evaluate` judges, K in its figures.
    held_out : float
        Rows that `fit` does not train on, but tests the model on: a share below 1, or a number of
        rows of each user; `held_out_by` says which.  The figures are in ``figures_["test"]``.
    dim, negatives, shared, lr, l2, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> rows = [("ann", "jaws", 5), ("ann", "heat", 1), ("bob", "jaws", 4)] * 50
    >>> model = MatrixFactorization(dim=4).fit(rows)  # doctest: +SKIP
    >>> model.recommend("bob", k=1, without=["jaws"])[0][0]  # doctest: +SKIP
    'heat'
    """

    worker_class = "snailps.models.embeddings.mf:MatrixFactorization"
    _reader = FactorModel
    _lines = mf.MatrixFactorization.columns
    _kind_of_column = (mf.USER, mf.ITEM)
    top: Any

    def fit(
        self: MatrixFactorization,
        X: Any,
        y: Any = None,
        *,
        columns: Sequence[str] = (),
        times: Any = None,
    ) -> MatrixFactorization:
        """Learn vectors of users and items; an earlier fit is discarded.

        Parameters
        ----------
        X : array, list or generator of rows, table, sparse matrix, path
            n pairs (user, item); names are str or whole numbers.  Values are a third column or `y`.
            In a sparse matrix of SciPy rows are users, columns items and entries values; duplicate
            entries are added.  A str or `pathlib.Path` is a file, folder, glob or URL with a pair a
            line.
        y : array, list or str, optional
            n values; a str names a column of the table.  Required for loss "squared".  A ranking
            needs none: each row is a choice.  If it gets values, it leaves out rows whose value is
            not above 0; with ``weights="values"`` they weigh the rows, and those below 0 are pairs
            that are to be 0.
        columns : sequence of str
            The columns of a table; by default its first two or three.  Tables in later calls are
            read by these names too.
        times : array, list or str, optional
            n times, by which rows in memory are held out with `held_out_by` "time" or "user_time"
            or with `held_out_from`; a str names a column of the table.  Numbers, dates, or texts of
            either in ISO 8601; a date counts as seconds since 1970, in UTC if it names no zone.
            A file has them in its `time_column`.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is unknown, of the wrong type or out of range.
        DataError
            X has another form, a name is missing, loss "squared" lacks values, or times are lacking
            or malformed.
        ClusterError
            The job failed; the estimator keeps its earlier model.
        """
        return self._learn(Data(X, y, columns=columns, times=times))

    @property
    def factors_(self) -> FactorModel:
        """The users and items with their vectors; raises `NotFitted` before `fit`."""
        self._refuse_unfitted("factors_")
        model: FactorModel = self._model
        return model

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the ratings of pairs, or with a ranking loss their scores.

        Parameters
        ----------
        X : object
            n pairs, as in `fit`; a third column is ignored.  A sparse matrix gives one prediction
            an entry, in the order of its `tocoo()`.

        Returns
        -------
        float64 (n,)
            Ratings, with loss "squared".  An unknown user or item counts as average.
        float32 (n,)
            Scores, with a ranking loss: comparable among items of one user only.

        Raises
        ------
        NotFitted
            `fit` was not called.
        DataError
            With a ranking loss, a name is unknown.
        """
        model = self.factors_
        if hasattr(X, "tocoo"):  # an answer for each entry, so duplicates are not added up here
            entries = X.tocoo()
            X = np.column_stack((entries.row, entries.col))
        ids, _ = self._numbered(X, needs_all=model.loss.ranks)
        return model.scores(ids)

    def recommend(
        self,
        user: OneOrMore = None,
        k: int = K,
        without: Iterable[Name] = (),
        seen: Any = None,
        *,
        items: Iterable[Name] | None = None,
        known: bool = False,
        topn: int | None = None,
    ) -> Answers:
        """Return the `k` best items for a user.

        Parameters
        ----------
        user : str or int, or a list or array of them, optional
        k : int
            `topn` is another name of it.
        without : iterable of names
            Items to leave out; an unknown one gives a warning.
        seen : object, optional
            Pairs as in `fit`: the user's items in them are left out.
        items : iterable of names, optional
            In the place of `user`: the items of someone whom the training did not have; loss "als".
        known : bool
            Do not leave out what the user has in the training.  Loss "als" leaves it out by
            default, `items` too; models of the other losses do not know it.

        Returns
        -------
        list of (name, value)
            Best first; of several names a list of such lists, in their order.

        Raises
        ------
        UnknownWord
            The user, or one of `items`, is unknown.
        DataError
            Neither `user` nor `items` is given, or both; or the loss has no `items`.
        """
        rows = self._rows_of_names(seen)
        k = chosen_k(k, topn)
        return self.factors_.recommend(user, k, without, rows, items=items, known=known)

    def audience(
        self,
        item: OneOrMore = None,
        k: int = K,
        without: Iterable[Name] = (),
        seen: Any = None,
        *,
        users: Iterable[Name] | None = None,
        known: bool = False,
        topn: int | None = None,
    ) -> Answers:
        """Return the `k` users whom an item suits best: the counterpart of `recommend`.

        Parameters
        ----------
        item : str or int, or a list or array of them, optional
        k : int
            `topn` is another name of it.
        without : iterable of names
            Users to leave out; an unknown one gives a warning.
        seen : object, optional
            Pairs as in `fit`: the item's users in them are left out.
        users : iterable of names, optional
            In the place of `item`: the users of an item that the training did not have; loss
            "als".
        known : bool
            Do not leave out who has the item in the training, which loss "als" does by default,
            `users` too; models of the other losses do not know it.

        Returns
        -------
        list of (name, value)
            Best first; of several names a list of such lists, in their order.

        Raises
        ------
        UnknownWord
            The item, or one of `users`, is unknown.
        DataError
            Neither `item` nor `users` is given, or both; or the loss has no `users`.
        """
        rows = self._rows_of_names(seen)
        k = chosen_k(k, topn)
        return self.factors_.audience(item, k, without, rows, users=users, known=known)

    def most_similar(
        self,
        name: OneOrMore = None,
        k: int = K,
        *,
        of: str = "items",
        users: Iterable[Name] | None = None,
        items: Iterable[Name] | None = None,
        topn: int | None = None,
    ) -> Answers:
        """Return the items, or users, whose vectors are most similar to a name's.

        Parameters
        ----------
        name : str or int, or a list or array of them, optional
        k : int
            `topn` is another name of it.
        of : {"items", "users"}
            Where to look the name up.
        users, items : iterable of names, optional
            In the place of `name`, with loss "als": the users of an item that the training did not
            have, for items like it; or the items of a new user, for users like it.

        Returns
        -------
        list of (name, cosine)
            Best first, without `name`; of several names a list of such lists.

        Raises
        ------
        UnknownWord
            The name, or one of `users` or `items`, is unknown.
        DataError
            Not exactly one of `name`, `users` and `items` is given; or the loss has no new names.
        """
        kind = of if name is not None else ""
        return self.factors_.neighbours(name, chosen_k(k, topn), kind, users=users, items=items)

    def evaluate(self, X: Any, y: Any = None, *, seen: Any = None) -> dict[str, float]:
        """Evaluate the model on held-out pairs.

        Parameters
        ----------
        X, y : object
            As in `fit`.
        seen : object, optional
            With a ranking loss: pairs that the lists leave out, usually the training's.  Loss "als"
            knows these, and leaves them out in any case.

        Returns
        -------
        dict
            With loss "squared" ``rmse`` and ``mean_absolute_error``.  With a ranking loss the means
            over users of ``recall_at_K`` (hits / min(K, items of the user in X)), ``ndcg_at_K``,
            ``precision_at_K`` (hits / K) and ``map_at_K``, where K is the parameter `top`;
            ``coverage_at_K``, the share of all items that their lists have; ``users``, who were
            judged, and ``users_without`` an item to find, who were not; ``seen`` counts the rows of
            X that are left out because `seen` has them.  ``unknown`` counts rows with unknown
            names: they count as average for ratings and are left out of rankings.

        Raises
        ------
        DataError
            Loss "squared" lacks values; or no row remains for a ranking.
        """
        model = self.factors_
        ids, values = self._numbered(X, y, finds_values=True, choices=model.loss.ranks)
        good = (ids >= 0).all(0)
        unknown = {"unknown": int((~good).sum())}
        if not model.loss.ranks:
            if len(values) != ids.shape[1]:
                whose = f"{X!s:.200}" if is_path(X) else "y"
                raise DataError(
                    f"{whose}: expected the values of pairs, to compare predictions with; got "
                    "users and items alone"
                )
            return {**rating_figures(model.scores(ids), values), **unknown}
        others = np.concatenate([np.zeros((2, 0), np.int32), *model.known_pairs()], axis=1)
        if seen is not None:
            weighted = model.settings.weighs
            more, _ = self._numbered(seen, finds_values=True, choices=True, weighted=weighted)
            others = np.concatenate([others, more], axis=1)
        others = others[:, (others >= 0).all(0)]
        rows = model.user_rows, model.item_rows
        figures = {**ranking.list_figures(*rows, ids, others, self.top), **unknown}
        if why := untested(figures):
            raise DataError(f"X: {why}")
        return figures

    @property
    def has_lists(self) -> bool:
        """Whether `evaluate` judges lists of the best items."""
        return self.factors_.loss.ranks

    def judged_by(self, X: Any, known: Any) -> dict[str, float]:
        """Return the figures of `evaluate`, whose second argument differs by class."""
        return self.evaluate(X, seen=known)
