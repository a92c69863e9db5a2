"""Embeddings of names as estimators: `KnowledgeGraph`, `MatrixFactorization`.

    rows of names -> fit -> a scratch file -> a job -> .npz -> .graph_ or .factors_, for questions
    rows of names -> predict, rank, evaluate -> scores, ranks, figures, in this process

What training means is `models.embeddings`'; what rows of names may be, `data.name_rows`'.
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
from snailps.estimators.base import Data, Estimator, Source, Start
from snailps.estimators.corpus import is_path, paths_of, refuse_names_of_files
from snailps.estimators.display import SpoolDisplay
from snailps.estimators.jobs import Finished
from snailps.models.embeddings import files, kge, mf, ranking, warm_start
from snailps.models.embeddings.queries import Best, FactorModel, GraphModel, Name, NamedRows
from snailps.models.embeddings.settings import KgeSettings, MfSettings
from snailps.node.phrases import untested
from snailps.vectors.words import to_text

N = TypeVar("N", bound="NameEstimator")
KEEPS_STATE: Mapping[str, Any] = {"keep_state": "always"}
"""For `partial_fit`."""
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int32]


class NameEstimator(Estimator):
    """A model of rows of names."""

    _reader: ClassVar[type[GraphModel] | type[FactorModel]]
    _lines: ClassVar[NameColumns]
    _kind_of_column: ClassVar[tuple[int, ...]]
    loss: Any

    @contextlib.contextmanager
    def _input_of(self, data: Data) -> Iterator[Source]:
        X, y, columns = data.X, data.y, data.columns
        if isinstance(columns, str):
            raise DataError(f"columns: expected a list of names, got {columns!r:.60}")
        before = self._model.columns if data.continues else ()
        if is_path(X):
            for name, value in (("y", y), ("columns", columns or None)):
                if value is not None:
                    raise DataError(
                        f"{name}: expected none with a file, got {value!r:.60}: its lines are "
                        f"{self._shape}, in this order. Read it as a table for another one"
                    )
            paths = paths_of(X, f"rows are a list or a table of {self._shape}")
            every = [data.continues] * len(self._kind_of_column)
            yield Source(paths, attributes=self._of_columns(every, before, data.continues))
            return
        finds_values = data.continues and y is None
        rows = self._rows_of(X, y, columns=columns, usual=before, finds_values=finds_values)
        with contextlib.closing(SpoolDisplay(self.verbose, type(self).__name__)) as display:
            choices = self._lines.valued and self.loss != "squared"
            spooled, whole, values = spool_names(rows, choices=choices, on_bytes=display.show)
        with spooled:
            if self.loss == "squared" and not values.number:
                raise DataError(
                    f"y: {type(self).__name__} with loss='squared' predicts values, and X has none:"
                    " give them as y, or choose loss='softmax', which ranks items"
                )
            yield Source(
                spooled,
                attributes=self._of_columns(whole, tuple(rows.chosen()) or before, data.continues),
                remarks=[f"{type(self).__name__}: {values.unused}"]
                if choices and values.unused
                else [],
            )

    @property
    def _shape(self) -> str:
        return " ".join(self._lines.expected) + (" [value]" if self._lines.valued else "")

    def _rows_of(self, X: Any, y: Any = None, **columns: Any) -> NameRows:
        refuse_names_of_files(X)
        return NameRows(X, self._lines.expected, y, valued=self._lines.valued, **columns)

    def _of_columns(
        self, whole: Sequence[bool], columns: Sequence[str], continues: bool
    ) -> dict[str, Any]:
        """Attributes of the columns of rows: names, and which have whole numbers.

        In a training that continues these are columns that had them before.
        """
        kinds = [self._reader.kinds[kind] for kind in self._kind_of_column]
        before = self._model.whole_kinds if continues else frozenset(kinds)
        still = tuple(yes and kind in before for yes, kind in zip(whole, kinds, strict=True))
        return {"_whole": still, "_columns": columns}

    def _learned(self, done: Finished, source: Source) -> dict[str, Any]:
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
        epochs: int | Literal["auto"] | None = None,
    ) -> N:
        """Goes on with other rows: names keep their rows, new ones are added.

        Parameters
        ----------
        X, y, columns
            As in `fit`.  Ratings are encoded by mean and deviation of the first call.
        epochs : int or "auto", optional
            Passes over X, instead of the parameter: 1 for small batches of a stream.

        Raises
        ------
        ParameterError, DataError, ClusterError
            As in `fit`; or a parameter makes another model.

        Notes
        -----
        Each call has a step size that falls from `lr`, and writes and reads the whole model.  Not
        fitted yet, it does what `fit` does.
        """
        return self._learn(Data(X, y, columns=columns, continues=True), epochs)

    def _start(self) -> Start:
        settings = self._model.settings
        names = (*settings.shape, "optimizer")
        lacks = "the model was loaded from a file of rows alone, without the optimizer's state: "
        lacks += "call fit, or train with keep_state: always"
        return Start(
            {name: getattr(settings, name) for name in names if name in self.parameters.by_name},
            in_file=True,
            habits=frozenset(warm_start.habits_of(type(settings), settings.shape)),
            lacks="" if self._model.goes_on else lacks,
        )

    def _write_start(self, folder: str, source: Source) -> str:
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
    ) -> tuple[Ids, Doubles]:
        """Numbers of the names of rows, int32 (columns, n), and values; -1: unknown, or refused.

        `choices`: only of rows that a ranking learns from.
        """
        model: NamedRows = self._model
        ids: list[Ids] = [np.zeros((len(self._kind_of_column), 0), np.int32)]
        values = [np.zeros(0)]
        for names, found, where in self._pieces(X, y, finds_values, choices):
            ids.append(
                np.array(
                    [
                        model.numbers(model.kinds[kind], column)
                        for kind, column in zip(self._kind_of_column, names, strict=True)
                    ]
                )
            )
            values.append(found)
            if needs_all and (ids[-1] < 0).any():
                row, column = np.argwhere(ids[-1].T < 0)[0].tolist()
                before = sum(one.shape[1] for one in ids[:-1])
                place = f"row {before + row:,} of {a_kind(X)}" if where is None else where(row)
                kind = model.kinds[self._kind_of_column[column]]
                raise DataError(f"X: {place}: {model.unknown(names[column][row], kind)}")
        return np.concatenate(ids, axis=1), np.concatenate(values)

    def _pieces(
        self, X: Any, y: Any = None, finds_values: bool = False, choices: bool = False
    ) -> Iterator[tuple[list[list[str]], Doubles, Callable[[int], str] | None]]:
        """Names of each column and values, some rows at a time; of files where a row is."""
        if not is_path(X):
            known = self._model.columns
            rows = self._rows_of(X, y, usual=known, finds_values=finds_values)
            for given in rows.pieces():
                piece = choices_of(given) if choices else given
                yield piece.names, piece.values, None
            return
        for lines, where in files.columns_of(self._lines, paths_of(X, f"rows are {self._shape}")):
            found = lines.choices() if choices else lines
            names = [list(map(to_text, one)) for one in found.names]
            yield names, found.values, where

    def _rows_of_names(self, X: Any) -> Iterator[tuple[str, ...]]:
        """Rows that answers leave out, as in `fit`; None: there are none."""
        if X is not None:
            choices = self._lines.valued and self._model.settings.loss != "squared"
            for names, _, _ in self._pieces(X, finds_values=choices, choices=choices):
                yield from zip(*names, strict=True)

    @abstractmethod
    def judged_by(self, X: Any, known: Any) -> dict[str, float]:
        """Figures of `evaluate`; `known` are rows that lists and ranks leave out, or None."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model as an ``.npz``, which `load` and `snailps.load` read.

        Raises
        ------
        ModelFileError
            A folder that is missing or full.
        """
        self._refuse_unfitted("save")
        self._model.save(path)

    @classmethod
    def load(cls: type[N], path: str | os.PathLike[str], **parameters: Any) -> N:
        """An estimator of an ``.npz`` that `save` or ``snailps train`` wrote.

        Parameters
        ----------
        path : path
        **parameters
            Others than the file's, for the next `fit`.

        Raises
        ------
        ModelFileError
            It is no such file, or one of another model.
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
        Of the training; docs/settings.md says what they do, and what the others are for.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> places = [("berlin", "in", "germany"), ("paris", "in", "france")] * 50
    >>> graph = KnowledgeGraph(dim=16, epochs=20).fit(places)  # doctest: +SKIP
    >>> graph.tails("berlin", "in", topn=1)[0][0]  # doctest: +SKIP
    'germany'
    """

    worker_class = "snailps.models.embeddings.kge:KnowledgeGraph"
    _reader = GraphModel
    _lines = kge.KnowledgeGraph.columns
    _kind_of_column = kge.KnowledgeGraph.kind_of_column

    def fit(
        self: KnowledgeGraph, X: Any, y: object = None, *, columns: Sequence[str] = ()
    ) -> KnowledgeGraph:
        """Learns the vectors of the names of triples; forgets what was learnt before.

        Parameters
        ----------
        X : array, list or generator of rows, table, path
            n triples (head, relation, tail) of texts or whole numbers; of a table the first three
            columns.  A str or `pathlib.Path` is a file, folder or glob of lines.
        y : None
            Has no effect; pipelines give it.
        columns : sequence of str
            The three columns of a table.  A table that is asked about later has them by these
            names, wherever they are.

        Raises
        ------
        ParameterError
            A parameter is wrong.
        DataError
            X is none of these, or a name is missing.
        ClusterError
            The job failed; the estimator is what it was before.
        """
        return self._learn(Data(X, columns=columns))

    @property
    def graph_(self) -> GraphModel:
        """The names and their rows."""
        self._refuse_unfitted("graph_")
        model: GraphModel = self._model
        return model

    def predict(self, X: Any) -> Floats:
        """Scores of triples, float32 (n,): the larger, the likelier.

        Parameters
        ----------
        X : object
            As in `fit`.

        Raises
        ------
        DataError
            The model does not know a name.
        """
        graph = self.graph_
        ids, _ = self._numbered(X, needs_all=True)
        return graph.scores(ids)

    def tails(
        self,
        head: Name,
        relation: Name,
        topn: int = 10,
        without: Iterable[Name] = (),
        known: Any = None,
    ) -> Best:
        """The best tails, as (name, score).

        Parameters
        ----------
        head, relation : str or int
        topn : int
        without : list of names
            Names that are left out; an unknown one gives a warning.
        known : object, optional
            Triples as in `fit`: the tails of those with this head and relation are left out.

        Raises
        ------
        UnknownWord
            The model does not know a name.
        """
        return self.graph_.tails(head, relation, topn, without, self._rows_of_names(known))

    def heads(
        self,
        relation: Name,
        tail: Name,
        topn: int = 10,
        without: Iterable[Name] = (),
        known: Any = None,
    ) -> Best:
        """The best heads, as (name, score); the parameters are as in `tails`."""
        return self.graph_.heads(relation, tail, topn, without, self._rows_of_names(known))

    def most_similar(self, name: Name, topn: int = 10, *, of: str = "") -> Best:
        """Entities, or relations, with the most similar rows, as (name, cosine).

        Parameters
        ----------
        name : str or int
        topn : int
        of : {"", "entities", "relations"}
            What the name is one of; may be left out where only one has it.
        """
        return self.graph_.neighbours(name, topn, of)

    def rank(self, X: Any, known: Any = None) -> NDArray[np.float64]:
        """Filtered ranks of triples among all entities, float64 (n, 2): as tails, as heads.

        Parameters
        ----------
        X : object
            As in `fit`.
        known : object, optional
            Other true triples, as in `fit`: that one of them scores higher is no fault.  Those with
            unknown names have no effect.

        Raises
        ------
        DataError
            The model does not know a name of X.

        Notes
        -----
        Ranks begin at 1; among equal scores it is the middle one.
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
        """Figures of filtered ranks: mrr, hits_at_1, hits_at_3, hits_at_10, mean_rank, unknown.

        Those of raw ranks, among all entities, are raw_mrr, raw_hits_at_1 and so on.

        Parameters
        ----------
        X, known
            As in `rank`; rows with unknown names are counted, as ``unknown``, and left out.
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
        """Figures of `evaluate`."""
        return self.evaluate(X, known)


class MatrixFactorization(NameEstimator, settings=MfSettings, fixed=KEEPS_STATE):
    """Vectors of users and items, from ratings or from what users chose.

    Parameters
    ----------
    loss : "squared", "softmax" or "pairwise"
        "squared" predicts values; the others rank items.
    dim, negatives, shared, lr, l2, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> rows = [("ann", "jaws", 5), ("ann", "heat", 1), ("bob", "jaws", 4)] * 50
    >>> model = MatrixFactorization(dim=4).fit(rows)  # doctest: +SKIP
    >>> model.recommend("bob", topn=1, without=["jaws"])[0][0]  # doctest: +SKIP
    'heat'
    """

    worker_class = "snailps.models.embeddings.mf:MatrixFactorization"
    _reader = FactorModel
    _lines = mf.MatrixFactorization.columns
    _kind_of_column = (mf.USER, mf.ITEM)
    top: Any

    def fit(
        self: MatrixFactorization, X: Any, y: Any = None, *, columns: Sequence[str] = ()
    ) -> MatrixFactorization:
        """Learns the vectors of users and items; forgets what was learnt before.

        Parameters
        ----------
        X : array, list or generator of rows, table, sparse matrix, path
            n pairs (user, item) of texts or whole numbers, with values as third column or as `y`.
            Of a sparse matrix of SciPy users are rows, items columns, and entries values; those of
            one place are added.  A str or `pathlib.Path` is a file, folder or glob of lines.
        y : array, list or str, optional
            Values; a str names a column of a table.  Rankings need none: a row whose value is not
            above 0 is left out, and each other one is one choice.
        columns : sequence of str
            The columns of a table; else its first two or three.  A table that is asked about later
            has them by these names, wherever they are.

        Raises
        ------
        ParameterError
            A parameter is wrong.
        DataError
            X is none of these, a name is missing, or there are no values for loss "squared".
        ClusterError
            The job failed; the estimator is what it was before.
        """
        return self._learn(Data(X, y, columns=columns))

    @property
    def factors_(self) -> FactorModel:
        """The names and their rows."""
        self._refuse_unfitted("factors_")
        model: FactorModel = self._model
        return model

    def predict(self, X: Any) -> NDArray[Any]:
        """Values of pairs, float64 (n,), or scores of a ranking, float32.

        Parameters
        ----------
        X : object
            As in `fit`; a third column has no effect.  A sparse matrix has a value for each entry,
            in the order of its `tocoo()`.

        Raises
        ------
        DataError
            A ranking does not know a name; for ratings an unknown name counts as average.
        """
        model = self.factors_
        if hasattr(X, "tocoo"):  # answers stand beside the entries: none is moved or added
            entries = X.tocoo()
            X = np.column_stack((entries.row, entries.col))
        ids, _ = self._numbered(X, needs_all=model.settings.loss != "squared")
        return model.scores(ids)

    def recommend(
        self, user: Name, topn: int = 10, without: Iterable[Name] = (), seen: Any = None
    ) -> Best:
        """The best items of a user, as (name, value).

        Parameters
        ----------
        user : str or int
        topn : int
        without : list of names
            Items that are left out; an unknown one gives a warning.
        seen : object, optional
            Pairs as in `fit`: the items that this user has in them are left out.

        Raises
        ------
        UnknownWord
            The model does not know the user.
        """
        return self.factors_.recommend(user, topn, without, self._rows_of_names(seen))

    def most_similar(self, name: Name, topn: int = 10, *, of: str = "items") -> Best:
        """Names with the most similar factors, as (name, cosine).

        Parameters
        ----------
        name : str or int
        topn : int
        of : {"items", "users"}
            What the name is one of.
        """
        return self.factors_.neighbours(name, topn, of)

    def evaluate(self, X: Any, y: Any = None, *, seen: Any = None) -> dict[str, float]:
        """Figures of hold-out lines: of ratings rmse and mean_absolute_error, else of each list.

        Parameters
        ----------
        X, y : object
            As in `fit`.
        seen : object, optional
            Pairs that lists leave out, as in `fit`: those of the training.

        Returns
        -------
        dict
            Of rankings ``recall_at_K``, a user's hits by min(K, items of the user in X), and
            ``ndcg_at_K``, with K the parameter `top`, and ``seen``: rows that are in `seen`, which
            are left out; ``unknown``: rows with unknown names, which count as average for ratings
            and are else left out.

        Raises
        ------
        DataError
            Ratings have no values; or no row of a ranking is left.
        """
        model = self.factors_
        rated = model.settings.loss == "squared"
        ids, values = self._numbered(X, y, finds_values=True, choices=not rated)
        good = (ids >= 0).all(0)
        unknown = {"unknown": int((~good).sum())}
        if rated:
            if len(values) != ids.shape[1]:
                raise DataError("y: expected the values of X, to compare with; X has none")
            return {**mf.rating_figures(model.scores(ids), values), **unknown}
        others = np.zeros((2, 0), np.int32)
        if seen is not None:
            others, _ = self._numbered(seen, finds_values=True, choices=True)
        others = others[:, (others >= 0).all(0)]
        rows = model.user_rows, model.item_rows
        figures = {**mf.list_figures(*rows, ids[:, good], others, self.top), **unknown}
        if why := untested(figures):
            raise DataError(f"X: {why}")
        return figures

    def judged_by(self, X: Any, known: Any) -> dict[str, float]:
        """Figures of `evaluate`."""
        return self.evaluate(X, seen=known)
