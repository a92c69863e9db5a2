"""The condition of a filter, on the labels that models give a text, and on its columns.

    text of the condition, labels of the models -> parse -> Condition: clauses joined by `and`
    clause, values of some rows -> bool[rows]

Python's grammar is parsed, of which comparisons, `and`, `or`, `not` and `in` are understood;
nothing is evaluated but these.  Each mistake is shown where it stands.  Must not know files, nor
how a score is computed.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass
from snailps.errors import ConfigError

Mask = NDArray[np.bool_]


class Truth(NamedTuple):
    """Rows of which something is so, and rows of which it is not; of others it is not known."""

    yes: Mask
    no: Mask

    @classmethod
    def of(cls, yes: NDArray[Any], *present: Mask) -> Truth:
        """Make the truth of a comparison, known where all values are `present`."""
        known = reduce(operator.and_, present)
        found = np.asarray(yes, bool)
        return cls(found & known, ~found & known)

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.yes & other.yes, self.no | other.no)

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.yes | other.yes, self.no & other.no)

    def __invert__(self) -> Truth:
        return Truth(self.no, self.yes)


Test = Callable[["Values"], Truth]
COMPARED: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt), ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge), ast.Eq: ("==", operator.eq), ast.NotEq: ("!=", operator.ne),
}  # fmt: skip
_QUOTED = re.compile(r""" "(?:\\.|[^"\\])*"? | '(?:\\.|[^'\\])*'? """, re.VERBOSE | re.DOTALL)
TOP, CHANCE = "top", "p"
FORMS = 'MODEL["LABEL"] (its probability), MODEL.top (the best label), MODEL.p (its probability)'


class Score(NamedTuple):
    """Score of a text by a model: the probability of a `label`.

    `label` None: the best label's, `TOP` its name, `CHANCE` its probability.
    """

    model: str
    label: str | None
    of_best: str = ""

    def __str__(self) -> str:
        return (
            f"{self.model}.{self.of_best}"
            if self.label is None
            else f'{self.model}["{self.label}"]'
        )


class Values(Protocol):
    """Values of some rows."""

    def score(self, score: Score) -> NDArray[Any]:
        """Probabilities, float32, NaN where there is none; of `TOP` numbers of labels, or -1."""

    def column(self, name: str) -> NDArray[Any]:
        """Numbers (float64, NaN: missing) or texts (object, None: missing) of a column."""


@dataclass(frozen=True, slots=True)
class Clause:
    """Part of a condition that `and` joins with others: its text, and what it needs."""

    text: str
    scores: tuple[Score, ...]
    columns: tuple[str, ...]
    bounds: tuple[tuple[Score, float], ...]
    """Probabilities that are compared with a number: where a text is nearly kept, or nearly not."""
    test: Test


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition; rows that pass one clause after the other are kept."""

    text: str
    clauses: tuple[Clause, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return _unique(name for clause in self.clauses for name in clause.columns)

    @property
    def scores(self) -> tuple[Score, ...]:
        return _unique(score for clause in self.clauses for score in clause.scores)


def parse(text: str, labels: Mapping[str, Sequence[str]]) -> Condition:
    """Parse a condition; `labels` are those of each model, by its name.

    ConfigError shows where: not of the grammar, or a model or label that there is not.
    """
    return _Parser(text, labels).condition()


def parse_added(text: str, labels: Mapping[str, Sequence[str]]) -> dict[str, Score]:
    """Scores that become columns, by the names of these: ``lang``, ``lang.p``, ``good=hq["yes"]``.

    A model stands for its best label and the probability of that.
    """
    name, _, score = text.partition("=")
    if not name.strip().isidentifier() or not score:
        name, score = "", text
    parser = _Parser(score, labels)
    node = parser.tree()
    if isinstance(node, ast.Name) and node.id in labels:
        both = Score(node.id, None, TOP), Score(node.id, None, CHANCE)
        return {f"{name.strip() or one.model}.{one.of_best}": one for one in both}
    found = parser.score(node)
    if found is None:
        parser.fail(node, f"expected MODEL, or one of {FORMS}")
    return {name.strip() or str(found): found}


def _unquoted(text: str) -> Iterator[tuple[int, str]]:
    """Places and letters outside of quotes."""
    quoted = {at for found in _QUOTED.finditer(text) for at in range(*found.span())}
    return ((at, letter) for at, letter in enumerate(text) if at not in quoted)


def split_added(text: str) -> list[str]:
    """Split the value of ``--add`` at the commas that stand outside of quotes."""
    cuts = [-1, *(at for at, letter in _unquoted(text) if letter == ","), len(text)]
    tasks = [text[begin + 1 : end].strip() for begin, end in pairwise(cuts)]
    return [task for task in tasks if task]


class _Parser:
    """One text; collects what a clause needs while it is compiled."""

    def __init__(self, text: str, labels: Mapping[str, Sequence[str]]) -> None:
        # A label's bytes that are no text, as of the command line, are escapes.
        text = text.replace("\n", " ").strip().encode("utf-8", "backslashreplace").decode()
        self.text = text
        self._labels = labels
        self._scores: list[Score] = []
        self._columns: list[str] = []
        self._bounds: list[tuple[Score, float]] = []

    def tree(self) -> ast.expr:
        for comment in (at for at, letter in _unquoted(self.text) if letter == "#"):
            raise ConfigError(self._shown(comment, comment + 1, "a condition has no comments"))
        if not self.text:
            raise ConfigError(
                "the condition is empty: compare a score with a number, as in hq.p >= .5"
            )
        try:
            return ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = (getattr(error, "offset", None) or len(self.text) + 1) - 1
            words = getattr(error, "msg", error)
            if self.text[at : at + 1] == "=":
                other = self.text[at + 1 : at + 2]
                words = f"write {other}=" if other in ("<", ">") else "equal is =="
            elif self.text[at : at + 1] in ("&", "|", "!"):
                words = "write and, or, not"
            raise ConfigError(self._shown(at, at + 1, str(words))) from None

    def condition(self) -> Condition:
        tree = self.tree()
        tasks = [tree]
        if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
            tasks = tree.values
        return Condition(self.text, tuple(self._clause(task) for task in tasks))

    def _clause(self, node: ast.expr) -> Clause:
        self._scores, self._columns, self._bounds = [], [], []
        try:
            test = self._test(node)
        except RecursionError:
            self.fail(node, "this is nested too deeply")
        text = self.text.encode()[node.col_offset : node.end_col_offset].decode()
        return Clause(
            text, _unique(self._scores), _unique(self._columns), _unique(self._bounds), test
        )

    def _test(self, node: ast.expr) -> Test:
        if isinstance(node, ast.BoolOp):
            tests = [self._test(task) for task in node.values]
            join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
            return lambda values: reduce(join, [test(values) for test in tests])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            test = self._test(node.operand)
            return lambda values: ~test(values)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = [
                self._pair(node, op, left, right)
                for op, left, right in zip(node.ops, sides[:-1], sides[1:], strict=True)
            ]
            return lambda values: reduce(operator.and_, [pair(values) for pair in pairs])
        is_value = self.score(node) is not None or isinstance(node, ast.Name)
        wanted = "compare it, as in hq.p >= .5" if is_value else "expected comparisons"
        return self.fail(node, wanted)

    def _pair(self, whole: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Test:
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._member(left, right, isinstance(op, ast.NotIn))
        if type(op) not in COMPARED:
            self.fail(whole, "expected <, <=, >, >=, ==, != or in")
        sign, compare = COMPARED[type(op)]
        if self._constant(left) is not None:
            if self._constant(right) is not None:
                self.fail(whole, "compares two constants")
            # A constant on the left: compared the other way round.
            mirrored = {"<": ast.Gt, "<=": ast.GtE, ">": ast.Lt, ">=": ast.LtE}
            return self._pair(whole, mirrored.get(sign, type(op))(), right, left)
        score, other = self.score(left), self._constant(right)
        if other is None:
            return self._two(left, right, compare)
        if score is None:
            return self._column_with(left, right, other, sign, compare)
        self._scores.append(score)
        if score.of_best == TOP:
            if sign not in ("==", "!="):
                self.fail(whole, "labels have no order: use ==, != or in")
            return self._member(left, right, sign == "!=", [right])
        if not isinstance(other, float) or not 0 <= other <= 1:
            self.fail(right, f"{score} is a probability: compare it with a number from 0 to 1")
        self._bounds.append((score, other))
        return lambda values: _compared(compare, _numbers(values, score), other)

    def _two(self, left: ast.expr, right: ast.expr, compare: Callable[[Any, Any], Any]) -> Test:
        """Two probabilities, or a number of the table beside one."""
        sides: list[Score | str] = []
        for node in (left, right):
            score = self.score(node)
            if score is not None and score.of_best != TOP:
                self._scores.append(score)
                sides.append(score)
            elif score is None and isinstance(node, ast.Name):
                self._columns.append(node.id)
                sides.append(node.id)
            elif score is not None:
                self.fail(node, f"{score} is a label: compare it with a text in quotes")
            else:
                self.fail(node, f"expected a number, a text, a column, or one of {FORMS}")
        one, two = sides

        def value(values: Values, side: Score | str) -> NDArray[Any]:
            if isinstance(side, Score):
                return _numbers(values, side)
            found = values.column(side)
            if found.dtype == object and _present(found).any():
                raise ConfigError(f"column {side!r} has texts: compare it with a text")
            return found if found.dtype != object else np.full(len(found), np.nan)

        return lambda values: _compared(compare, value(values, one), value(values, two))

    def _column_with(
        self, node: ast.expr, right: ast.expr, other: float | str, sign: str,
        compare: Callable[[Any, Any], Any],
    ) -> Test:  # fmt: skip
        name = self._column(node)
        if isinstance(other, str) and sign not in ("==", "!="):
            self.fail(right, "texts have no order here: use ==, != or in")

        def test(values: Values) -> Truth:
            found = self._typed(values, name, right, is_text=isinstance(other, str))
            return _compared(compare, found, other)

        return test

    def _member(
        self, node: ast.expr, right: ast.expr, is_not: bool, items: Sequence[ast.expr] = ()
    ) -> Test:
        """Whether a label or a column is one of some texts or numbers."""
        if not items:
            if not isinstance(right, (ast.List, ast.Tuple, ast.Set)) or not right.elts:
                self.fail(right, 'expected a list behind in, as in ["__label__en", "__label__de"]')
            items = right.elts
        constants = [self._constant(item) for item in items]
        for item, constant in zip(items, constants, strict=True):
            if constant is None:
                self.fail(item, "expected a text or a number")
        score = self.score(node)
        if score is None:
            name = self._column(node)
            if len({type(constant) for constant in constants}) > 1:
                self.fail(right, "texts and numbers are mixed")

            def is_one(values: Values) -> Truth:
                found = self._typed(values, name, right, is_text=isinstance(constants[0], str))
                equal = reduce(operator.or_, [found == constant for constant in constants])
                return Truth.of(np.asarray(equal, bool) ^ is_not, _present(found))

            return is_one
        if score.of_best != TOP:
            self.fail(node, f"{score} is a probability: compare it by <, <=, > or >=")
        self._scores.append(score)
        numbers = np.array([
            self._label(score.model, constant, item)
            for item, constant in zip(items, constants, strict=True)
        ])  # fmt: skip

        def has_label(values: Values) -> Truth:
            best = values.score(score)
            return Truth.of(np.isin(best, numbers) ^ is_not, best >= 0)

        return has_label

    def _typed(self, values: Values, name: str, node: ast.expr, *, is_text: bool) -> NDArray[Any]:
        found = values.column(name)
        if (found.dtype == object) != is_text:
            if not _present(found).any():  # of what type these would be is not known
                return np.full(len(found), None if is_text else np.nan)
            kinds = ("texts", "a number") if is_text is False else ("numbers", "a text")
            self.fail(node, f"column {name!r} has {kinds[0]}, and is compared with {kinds[1]}")
        return found

    # --- operands ---------------------------------------------------------------------------

    def score(self, node: ast.expr) -> Score | None:
        """A score, or None: another operand."""
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            model = self._model(node.value)
            label = self._constant(node.slice)
            self._label(model, label, node.slice)
            return Score(model, str(label))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            model = self._model(node.value)
            if node.attr not in (TOP, CHANCE):
                self.fail(node, f"{model} has no {node.attr}: expected {FORMS}")
            return Score(model, None, node.attr)
        if isinstance(node, ast.Name) and node.id in self._labels:
            self.fail(node, f"what of model {node.id}? {FORMS}")
        return None

    def _model(self, node: ast.Name) -> str:
        if node.id not in self._labels:
            self.fail(node, f"no model {node.id}{_near(node.id, self._labels)}")
        return node.id

    def _label(self, model: str, label: object, node: ast.expr) -> int:
        labels = list(self._labels[model])
        if not isinstance(label, str):
            self.fail(node, f'expected a label, as in {model}["{labels[0]}"]')
        if label not in labels:
            self.fail(node, f"model {model} has no label {label!r}{_near(label, labels)}")
        return labels.index(label)

    def _column(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name):
            self.fail(node, f"expected the name of a column, or one of {FORMS}")
        self._columns.append(node.id)
        return node.id

    def _constant(self, node: ast.expr) -> float | str | None:
        """A number or a text; None: something else."""
        sign = 1.0
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node, sign = node.operand, -1.0
        if not isinstance(node, ast.Constant) or isinstance(node.value, (bytes, complex)):
            return None
        if isinstance(node.value, str) and sign > 0:
            return node.value
        if isinstance(node.value, (bool, int, float)):
            try:
                number = sign * float(node.value)
            except OverflowError:
                number = math.inf
            if not math.isfinite(number):
                self.fail(node, "expected a finite number")
            return number
        return None

    # --- mistakes ---------------------------------------------------------------------------

    def fail(self, node: ast.expr, words: str) -> NoReturn:
        raw = self.text.encode()
        begin = len(raw[: node.col_offset].decode())
        end = len(raw[: node.end_col_offset].decode())
        raise ConfigError(self._shown(begin, end, words))

    def _shown(self, begin: int, end: int, words: str) -> str:
        marks = " " * begin + "^" * max(end - begin, 1)
        return f"{words}\n  {self.text}\n  {marks}"


def _compared(compare: Callable[[Any, Any], Any], one: NDArray[Any], two: Any) -> Truth:
    present = [_present(side) for side in (one, two) if isinstance(side, np.ndarray)]
    return Truth.of(compare(one, two), *present)


def _present(found: NDArray[Any]) -> Mask:
    if found.dtype == object:
        return np.fromiter((value is not None for value in found), bool, len(found))
    return np.asarray(~np.isnan(found), bool)


def _numbers(values: Values, score: Score) -> NDArray[np.float64]:
    """Probabilities as Python's numbers, which the constants are."""
    return values.score(score).astype(np.float64)


def _near(name: str, names: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 1, 0.5)
    if close:
        return f"; did you mean {close[0]}?"
    shown = ", ".join(list(names)[:5])
    return f": expected {'one of ' * (len(names) > 1)}{shown}{', ...' * (len(names) > 5)}"


def _unique(items: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
