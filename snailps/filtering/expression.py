"""The condition of a filter, on the labels that models give a text, and on its columns.

    text of the condition, labels of the models -> parse -> Condition: clauses joined by `and`
    clause, values of some rows -> bool[rows]

Python's grammar is parsed, of which comparisons, `and`, `or`, `not` and `in` are understood;
nothing is evaluated but these.  Each mistake is shown where it stands.  What needs no model is
asked first, and a model of the rows only that this leaves open.  Whole numbers are compared as
such, of any size.  Must not know files, nor how a score is computed.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import operator
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.filtering.values import Column, Mask, Truth, compared, nothing

Test = Callable[["Values"], Truth]
COMPARED: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt), ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge), ast.Eq: ("==", operator.eq), ast.NotEq: ("!=", operator.ne),
}  # fmt: skip
_QUOTED = re.compile(r""" "(?:\\.|[^"\\])*"? | '(?:\\.|[^'\\])*'? """, re.VERBOSE | re.DOTALL)
TOP, CHANCE = "top", "p"
GRAMMAR = ("and", "or", "not", "in", "True", "False")
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

    def column(self, name: str) -> Column:
        """Values of a column."""

    def of(self, rows: Mask) -> Values:
        """Values of some of these rows."""


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
    """A parsed condition; rows that pass all clauses are kept."""

    text: str
    clauses: tuple[Clause, ...]

    @property
    def order(self) -> list[int]:
        """Numbers of clauses as they are asked: those on columns alone first."""
        return sorted(range(len(self.clauses)), key=lambda at: bool(self.clauses[at].scores))

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
            elif (found := self._keyword_near(at)) is not None:
                at, word = found
                words = f"{word} is a word of the grammar: give the column another name"
                raise ConfigError(self._shown(at, at + len(word), words)) from None
            raise ConfigError(self._shown(at, at + 1, str(words))) from None

    def _keyword_near(self, at: int) -> tuple[int, str] | None:
        """A keyword of Python that is none of a condition, at this place or just before it."""
        words = [(m.start(), m.end(), m[0]) for m in re.finditer(r"\w+", self.text)]
        near = [(begin, word) for begin, end, word in words if begin <= at <= end + 1]
        return next((one for one in near if is_reserved(one[1]) and one[1] not in GRAMMAR), None)

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
            cheap: list[Test] = []
            asking: list[Test] = []
            for operand in node.values:
                before = len(self._scores)
                test = self._test(operand)
                (asking if len(self._scores) > before else cheap).append(test)
            return _joined(cheap, asking, isinstance(node.op, ast.And))
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
        if isinstance(other, str) or not 0 <= other <= 1:
            self.fail(right, f"{score} is a probability: compare it with a number from 0 to 1")
        bound = float(np.float32(other))  # as predict and test: .9 is what is shown as 0.9
        self._bounds.append((score, bound))
        return lambda values: compared(compare, _numbers(values, score), bound)

    def _two(self, left: ast.expr, right: ast.expr, compare: Callable[[Any, Any], Any]) -> Test:
        """Two probabilities, or a number of the table beside one."""
        sides: list[Score | str] = []
        for node in (left, right):
            score = self.score(node)
            if score is not None and score.of_best != TOP:
                self._scores.append(score)
                sides.append(score)
            elif score is None and isinstance(node, ast.Name):
                sides.append(self._column(node))
            elif score is not None:
                self.fail(node, f"{score} is a label: compare it with a text in quotes")
            else:
                self.fail(node, f"expected a number, a text, a column, or one of {FORMS}")
        one, two = sides

        def value(values: Values, side: Score | str) -> Column:
            if isinstance(side, Score):
                return _numbers(values, side)
            column = values.column(side)
            if column.are_texts and column.present.any():
                raise ConfigError(f"column {side!r} has texts: compare it with a text")
            return column if not column.are_texts else nothing(column, are_texts=False)

        return lambda values: compared(compare, value(values, one), value(values, two))

    def _column_with(
        self, node: ast.expr, right: ast.expr, other: float | int | str, sign: str,
        compare: Callable[[Any, Any], Any],
    ) -> Test:  # fmt: skip
        name = self._column(node)
        if isinstance(other, str) and sign not in ("==", "!="):
            self.fail(right, "texts have no order here: use ==, != or in")

        def test(values: Values) -> Truth:
            column = self._typed(values, name, right, [other])
            return compared(compare, column, other)

        return test

    def _member(
        self, node: ast.expr, right: ast.expr, is_not: bool, items: Sequence[ast.expr] = ()
    ) -> Test:
        """Whether a label or a column is one of some texts or numbers."""
        if not items:
            if not isinstance(right, (ast.List, ast.Tuple, ast.Set)) or not right.elts:
                self.fail(right, 'expected a list after in, as in ["__label__en", "__label__de"]')
            items = right.elts
        constants = [self._constant(item) for item in items]
        for item, constant in zip(items, constants, strict=True):
            if constant is None:
                self.fail(item, "expected a text or a number")
        score = self.score(node)
        if score is None:
            name = self._column(node)
            if len({isinstance(constant, str) for constant in constants}) > 1:
                self.fail(right, "texts and numbers are mixed")

            def is_one(values: Values) -> Truth:
                column = self._typed(values, name, right, constants)
                same = [compared(operator.eq, column, constant) for constant in constants]
                found = reduce(operator.or_, same)
                return ~found if is_not else found

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

    def _typed(self, values: Values, name: str, node: ast.expr, constants: Sequence[Any]) -> Column:
        """A column of the type of the constants that it is compared with."""
        column, are_texts = values.column(name), isinstance(constants[0], str)
        if not column.present.any():  # of what type these would be is not known
            return nothing(column, are_texts=are_texts)
        if are_texts and column.texts is not None:
            return Column(column.texts, column.present, are_texts=True)
        if column.are_texts != are_texts:
            kinds = ("numbers", "a text") if are_texts else ("texts", "a number")
            self.fail(node, f"column {name!r} has {kinds[0]}, and is compared with {kinds[1]}")
        if column.values.dtype == np.float64:
            for constant in constants:
                if float(constant) != constant:
                    self.fail(
                        node,
                        f"column {name!r} has float64 numbers, which are not each whole number "
                        f"beyond 2^53, and none is {constant}: keep such numbers as int64 or texts",
                    )
        return column

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
        if isinstance(node, ast.Name) and (name := self.name(node)) in self._labels:
            self.fail(node, f"what of model {name}? {FORMS}")
        return None

    def name(self, node: ast.Name) -> str:
        """A name as it is written: Python's own is in the normal form NFKC."""
        raw = self.text.encode()[node.col_offset : node.end_col_offset].decode()
        return raw if unicodedata.normalize("NFKC", raw) == node.id else node.id

    def _model(self, node: ast.Name) -> str:
        name = self.name(node)
        if name not in self._labels:
            self.fail(node, f"no model {name}{_near(name, self._labels)}")
        return name

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
        self._columns.append(self.name(node))
        return self._columns[-1]

    def _constant(self, node: ast.expr) -> float | int | str | None:
        """A number or a text; None: something else."""
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node, sign = node.operand, -1
        if not isinstance(node, ast.Constant) or isinstance(node.value, (bytes, complex)):
            return None
        if isinstance(node.value, str) and sign > 0:
            return node.value
        if isinstance(node.value, (bool, int, float)):
            if not abs(node.value) <= sys.float_info.max:
                self.fail(node, "expected a finite number")
            return sign * node.value
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


def is_reserved(name: str) -> bool:
    """Whether Python's grammar has a word, so that it can name neither a model nor a column."""
    return keyword.iskeyword(unicodedata.normalize("NFKC", name))


def _joined(cheap: Sequence[Test], asking: Sequence[Test], is_and: bool) -> Test:
    """All or any of some tests: those that ask no model first, others of what is open then."""

    def test(values: Values) -> Truth:
        join = operator.and_ if is_and else operator.or_
        found = reduce(join, [one(values) for one in cheap or asking[:1]])
        for one in asking if cheap else asking[1:]:
            open_rows = ~(found.no if is_and else found.yes)
            if open_rows.all():
                found = join(found, one(values))
            elif open_rows.any():
                here = Truth(found.yes[open_rows], found.no[open_rows])
                there = join(here, one(values.of(open_rows)))
                found.yes[open_rows], found.no[open_rows] = there
        return found

    return test


def _numbers(values: Values, score: Score) -> Column:
    """Probabilities as numbers of a column."""
    chances = values.score(score).astype(np.float64)
    return Column(chances, ~np.isnan(chances))


def _near(name: str, names: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 1, 0.5)
    if close:
        return f"; did you mean {close[0]}?"
    shown = ", ".join(list(names)[:5])
    return f": expected {'one of ' * (len(names) > 1)}{shown}{', ...' * (len(names) > 5)}"


def _unique(items: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
