"""The condition of a filter: a boolean expression over model scores and columns.

    text of the condition, labels of the models -> parse -> Condition: clauses joined by `and`
    clause, values of rows -> Truth: yes, no, unknown for each row

Owns the grammar: Python's, restricted to comparisons, `and`, `or`, `not` and `in`.  The text is
parsed, never evaluated as Python, so a condition cannot run code.  An error shows the condition
with the mistake underlined.  Within a clause, tests on columns come first, and a model scores only
the rows that they leave open.  Integers are compared exactly, of any size.
Must not know files, nor how a score is computed.
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
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.filtering.values import Column, Mask, Truth, compared, nothing, rounded

Test = Callable[["Values"], Truth]
COMPARED: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt), ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge), ast.Eq: ("==", operator.eq), ast.NotEq: ("!=", operator.ne),
}  # fmt: skip
_QUOTED = re.compile(r""" "(?:\\.|[^"\\])*"? | '(?:\\.|[^'\\])*'? """, re.VERBOSE | re.DOTALL)
TOP, CHANCE = "top", "p"
"""Attributes of a model: its best label, and the probability of the best label."""
THRESHOLD = "threshold"
"""Attribute of a model: the threshold that it has for the label compared with it."""
COPIES, BENCHMARKS = "dup", "bench"
COMPUTED = {COPIES: ("contained", "near", "exact", "of"), BENCHMARKS: ("overlap",)}
"""What is known of a row without a model: of its copies in the input, of benchmarks in it."""
Thresholds = Mapping[str, Mapping[str, float | None]]
"""By model and label; None: the label is never predicted."""
GRAMMAR = ("and", "or", "not", "in", "True", "False")
"""Keywords of Python that a condition uses."""
LOGIC = "write and, or, not"
FORMS = 'MODEL["LABEL"] (its probability), MODEL.top (the best label), MODEL.p (its probability)'


class Score(NamedTuple):
    """What a condition asks of a model: the probability of `label`.

    With `label` None it is about the best label; `of_best` is `TOP` for its name, `CHANCE` for its
    probability.  What is `COMPUTED` has its names in `model` and `of_best`.
    """

    model: str
    label: str | None
    of_best: str = ""

    @property
    def is_computed(self) -> bool:
        return self.of_best in COMPUTED.get(self.model, ())

    def __str__(self) -> str:
        return (
            f"{self.model}.{self.of_best}"
            if self.label is None
            else f'{self.model}["{self.label}"]'
        )


class Values(Protocol):
    """Scores and columns of a set of rows."""

    def score(self, score: Score) -> NDArray[Any]:
        """Probabilities and shares as float32, NaN where there is none; for `TOP` label numbers, or
        -1.

        Runs the model for rows that it has not scored yet.
        """

    def column(self, name: str) -> Column:
        """Values of a column."""

    def of(self, rows: Mask) -> Values:
        """The same, of the rows where `rows` is true."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One operand of the condition's outermost `and`: its text, what it reads, and its test."""

    text: str
    scores: tuple[Score, ...]
    columns: tuple[str, ...]
    bounds: tuple[tuple[Score, float], ...]
    """Probabilities compared with a number: the report shows texts just above and below."""
    test: Test

    @property
    def judges_copies(self) -> bool:
        return any(score.is_computed and score.model == COPIES for score in self.scores)


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition; a row is kept if it passes all clauses."""

    text: str
    clauses: tuple[Clause, ...]

    @property
    def order(self) -> list[int]:
        """Numbers of clauses in the order of evaluation: those that need no model first, those on
        copies last, since only rows that pass the others are compared."""
        clauses = self.clauses
        return sorted(
            range(len(clauses)),
            key=lambda number: (clauses[number].judges_copies, bool(clauses[number].scores)),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return _unique(name for clause in self.clauses for name in clause.columns)

    @property
    def scores(self) -> tuple[Score, ...]:
        return _unique(score for clause in self.clauses for score in clause.scores)


def parse(
    text: str,
    labels: Mapping[str, Sequence[str]],
    thresholds: Thresholds = MappingProxyType({}),
) -> Condition:
    """Parse a condition; `labels` has the labels of each model, by model name.

    ConfigError, with the mistake underlined: a syntax error, an unknown model or label.
    """
    return _Parser(text, labels, thresholds).condition()


def parse_added(text: str, labels: Mapping[str, Sequence[str]]) -> dict[str, Score]:
    """Parse one value of ``--add``: scores by column name.

    ``lang.p`` and ``hq["yes"]`` are named as they are written; ``good=hq["yes"]`` names the column
    ``good``; a model, ``lang``, stands for its best label and the probability of it.
    """
    name, _, score = text.partition("=")
    if not name.strip().isidentifier() or not score:
        name, score = "", text
    parser = _Parser(score, labels)
    node = parser.tree()
    if isinstance(node, ast.Name) and node.id in labels:
        best = Score(node.id, None, TOP), Score(node.id, None, CHANCE)
        return {f"{name.strip() or part.model}.{part.of_best}": part for part in best}
    parsed = parser.score(node)
    if parsed is None:
        parser.fail(node, f"expected MODEL, or one of {FORMS}")
    return {name.strip() or str(parsed): parsed}


def _unquoted(text: str) -> Iterator[tuple[int, str]]:
    """Offset and character, for each character outside quotes."""
    quoted = {offset for match in _QUOTED.finditer(text) for offset in range(*match.span())}
    return ((offset, char) for offset, char in enumerate(text) if offset not in quoted)


def split_added(text: str) -> list[str]:
    """Split the value of ``--add`` at commas outside quotes; empty parts are dropped."""
    cuts = [-1, *(offset for offset, char in _unquoted(text) if char == ","), len(text)]
    parts = [text[begin + 1 : end].strip() for begin, end in pairwise(cuts)]
    return [part for part in parts if part]


class _Parser:
    """Compiles one text to tests; collects the scores and columns that a clause reads."""

    def __init__(
        self,
        text: str,
        labels: Mapping[str, Sequence[str]],
        thresholds: Thresholds = MappingProxyType({}),
    ) -> None:
        # A label may hold bytes that are not UTF-8, surrogates on the command line: ast.parse
        # refuses these, so they become escapes inside the quotes.
        text = re.sub(r"\r?\n|\r", " ", text).strip().encode("utf-8", "backslashreplace").decode()
        self.text = text
        self._labels, self._thresholds = labels, thresholds
        self._scores: list[Score] = []
        self._columns: list[str] = []
        self._bounds: list[tuple[Score, float]] = []

    def tree(self) -> ast.expr:
        # Python would drop everything after a #, also where a shell or an editor joined lines.
        for offset in (offset for offset, char in _unquoted(self.text) if char == "#"):
            raise ConfigError(self._shown(offset, offset + 1, "a condition has no comments"))
        if not self.text:
            raise ConfigError(
                "the condition is empty: compare a score with a number, as in hq.p >= .5"
            )
        try:
            return ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            offset = (getattr(error, "offset", None) or len(self.text) + 1) - 1
            words = getattr(error, "msg", error)
            if self.text[offset : offset + 1] == "=":
                following = self.text[offset + 1 : offset + 2]
                words = f"write {following}=" if following in ("<", ">") else "equal is =="
            elif self.text[offset : offset + 1] in ("&", "|", "!"):
                words = LOGIC
            elif (near := self._keyword_near(offset)) is not None:
                begin, word = near
                words = f"{word} is a word of the grammar: give the column another name"
                raise ConfigError(self._shown(begin, begin + len(word), words)) from None
            raise ConfigError(self._shown(offset, offset + 1, str(words))) from None

    def _keyword_near(self, offset: int) -> tuple[int, str] | None:
        """A keyword of Python that conditions do not use, at this offset or just before it.

        A column named ``class`` makes a syntax error that says nothing of the name.
        """
        words = [(m.start(), m.end(), m[0]) for m in re.finditer(r"\w+", self.text)]
        near = [(begin, word) for begin, end, word in words if begin <= offset <= end + 1]
        keywords = ((begin, word) for begin, word in near if is_reserved(word))
        return next(((begin, word) for begin, word in keywords if word not in GRAMMAR), None)

    def condition(self) -> Condition:
        tree = self.tree()
        operands = [tree]
        if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
            operands = tree.values
        return Condition(self.text, tuple(self._clause(operand) for operand in operands))

    def _clause(self, node: ast.expr) -> Clause:
        self._scores, self._columns, self._bounds = [], [], []
        try:
            test = self._test(node)
        except RecursionError:
            self.fail(node, "this is nested too deeply")
        computed = [score for score in self._scores if score.is_computed and score.model == COPIES]
        if computed and (self._columns or len(computed) < len(self._scores)):
            self.fail(
                node,
                f"{computed[0]} is known once all other clauses have chosen the texts to compare: "
                "write it as a clause of its own, joined by and",
            )
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
        self._refuse_operator(node)
        if (computed := self._computed(node)) is not None and computed.of_best == "exact":
            self._scores.append(computed)
            return lambda values: compared(operator.gt, _numbers(values, computed), 0)
        is_value = self.score(node) is not None or self._nested(node) is not None
        wanted = "compare it, as in hq.p >= .5" if is_value else "expected comparisons"
        return self.fail(node, wanted)

    def _refuse_operator(self, node: ast.expr) -> None:
        """ConfigError: an operator of frames' conditions, which binds more tightly here."""
        is_pair = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr))
        if is_pair or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)):
            self.fail(node, LOGIC)

    def _refuse_cover(self, node: ast.expr) -> None:
        computed = self._computed(node)
        if computed is not None and computed.of_best == "of":
            self.fail(node, f"{computed} names another text: add it as a column, --add {computed}")

    def _pair(self, whole: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Test:
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._member(left, right, isinstance(op, ast.NotIn))
        for node in (left, right):
            self._refuse_operator(node)
            if isinstance(node, ast.Constant) and node.value is None:
                self.fail(
                    node,
                    "None is no value: no condition asks for a missing one, and a comparison with "
                    "one is neither true nor false",
                )
        if type(op) not in COMPARED:
            self.fail(whole, "expected <, <=, >, >=, ==, != or in")
        sign, compare = COMPARED[type(op)]
        for node in (left, right):
            self._refuse_cover(node)
        left, right = self._with_threshold(left, right), self._with_threshold(right, left)
        if self._constant(left) is not None:
            if self._constant(right) is not None:
                self.fail(whole, "compares two constants")
            # A constant on the left: swap the sides.
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
            kind = "share" if score.is_computed else "probability"
            self.fail(right, f"{score} is a {kind}: compare it with a number from 0 to 1")
        # Scores are float32: as a double, .9 would be above the float32 that prints as 0.9.
        bound = float(np.float32(other))
        if score.of_best != "exact":
            self._bounds.append((score, bound))
        return lambda values: compared(compare, _numbers(values, score), bound)

    def _with_threshold(self, node: ast.expr, other: ast.expr) -> ast.expr:
        """Return the number that ``hq.threshold`` stands for, beside the score of a label."""
        if not (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr == THRESHOLD
        ):
            return node
        model = self._model(node.value)
        if not isinstance(other, ast.Subscript):
            self.fail(node, f'expected it beside {model}["LABEL"], whose threshold it is')
        score = self.score(other)
        if score is None or score.model != model:
            self.fail(node, f"{score} is of another model than this threshold")
        if not self._thresholds.get(model):
            self.fail(node, f"model {model} has no thresholds: snailps calibrate makes some")
        value = self._thresholds[model][str(score.label)]
        if value is None:
            self.fail(node, f"no threshold of {score} reached what snailps calibrate was to reach")
        return ast.copy_location(ast.Constant(value), node)

    def _two(self, left: ast.expr, right: ast.expr, compare: Callable[[Any, Any], Any]) -> Test:
        """Two probabilities, or a probability and a numeric column."""
        sides: list[Score | str] = []
        for node in (left, right):
            score = self.score(node)
            if score is not None and score.of_best != TOP:
                self._scores.append(score)
                sides.append(score)
            elif score is None and self._nested(node) is not None:
                sides.append(self._column(node))
            elif score is not None:
                self.fail(node, f"{score} is a label: compare it with a text in quotes")
            else:
                self.fail(node, f"expected a number, a text, a column, or one of {FORMS}")
        first, second = sides
        has_score = isinstance(first, Score) or isinstance(second, Score)

        def value(values: Values, side: Score | str) -> Column:
            if isinstance(side, Score):
                return _numbers(values, side)
            column = values.column(side)
            if column.are_texts and column.present.any():
                raise ConfigError(f"column {side!r} has texts: compare it with a text")
            if column.are_texts:
                return nothing(column, are_texts=False)
            return rounded(column) if has_score else column

        return lambda values: compared(compare, value(values, first), value(values, second))

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
        """``in``, ``not in``, and ``==`` of a label: membership in a list of constants."""
        if not items:
            if not isinstance(right, (ast.List, ast.Tuple, ast.Set)) or not right.elts:
                self.fail(right, 'expected a list after in, as in ["__label__en", "__label__de"]')
            items = right.elts
        constants = [self._constant(item) for item in items]
        for item, constant in zip(items, constants, strict=True):
            if constant is None:
                self.fail(item, "expected a text or a number")
        self._refuse_cover(node)
        score = self.score(node)
        if score is None:
            name = self._column(node)
            if len({isinstance(constant, str) for constant in constants}) > 1:
                self.fail(right, "texts and numbers are mixed")

            def is_member(values: Values) -> Truth:
                column = self._typed(values, name, right, constants)
                equal = [compared(operator.eq, column, constant) for constant in constants]
                truth = reduce(operator.or_, equal)
                return ~truth if is_not else truth

            return is_member
        if score.of_best != TOP:
            kind = "share" if score.is_computed else "probability"
            self.fail(node, f"{score} is a {kind}: compare it by <, <=, > or >=")
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
        """Return a column, checked to have values of the type of the constants compared with it.

        This is known only once there are values: in JSON lines types may differ from batch to
        batch.  A column of floats is not compared with an integer that its type cannot hold: no
        stored value would ever equal it.
        """
        column, are_texts = values.column(name), isinstance(constants[0], str)
        if not column.present.any():  # nothing but nulls: fits texts and numbers
            return nothing(column, are_texts=are_texts)
        if are_texts and column.texts is not None:
            return Column(column.texts, column.present, are_texts=True)
        if column.are_texts != are_texts:
            kinds = ("numbers", "a text") if are_texts else ("texts", "a number")
            self.fail(node, f"column {name!r} has {kinds[0]}, but is compared with {kinds[1]}")
        if (dtype := column.values.dtype).kind == "f":
            for constant in constants:
                if isinstance(constant, int) and not _holds(dtype, constant):
                    self.fail(
                        node,
                        f"column {name!r} has {dtype} numbers, which skip integers beyond "
                        f"2^{np.finfo(dtype).nmant + 1}: none is {constant}: store such numbers "
                        "as int64 or texts",
                    )
        return column

    # --- operands ---------------------------------------------------------------------------

    def score(self, node: ast.expr) -> Score | None:
        """The score that an operand names; None: it is a column or a constant."""
        if (computed := self._computed(node)) is not None:
            return computed
        if self._nested(node) is not None and not isinstance(node, ast.Name):
            return None
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

    def _computed(self, node: ast.expr) -> Score | None:
        """What ``dup.NAME`` or ``bench.NAME`` means, unless a model has this name.

        ``dup["NAME"]`` is always a column's field.
        """
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            return None
        name = self.name(node.value)
        if name in self._labels or name not in COMPUTED:
            return None
        if node.attr not in COMPUTED[name]:
            if difflib.get_close_matches(node.attr, COMPUTED[name], 1, 0.7):
                names = ", ".join(f"{name}.{attr}" for attr in COMPUTED[name])
                self.fail(node, f"expected {names}; a column's field is {name}[{node.attr!r}]")
            return None
        return Score(name, None, node.attr)

    def name(self, node: ast.Name) -> str:
        """A name as it is written: Python's parser normalises names to NFKC, files do not."""
        raw = self.text.encode()[node.col_offset : node.end_col_offset].decode()
        return raw if unicodedata.normalize("NFKC", raw) == node.id else node.id

    def _model(self, node: ast.Name) -> str:
        name = self.name(node)
        if not self._labels:
            self.fail(node, f"no model {name}: name it, as in --model {name}=quality.bin")
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
        name = self._nested(node)
        if name is None:
            self.fail(node, f"expected the name of a column, or one of {FORMS}")
        self._columns.append(name)
        return name

    def _nested(self, node: ast.expr) -> str | None:
        """The name of a column, or of a field in one, such as ``meta.source``, ``meta["a b"]``.

        None: the operand is another one, or is written as the score of a model is, so that a
        mistake in the model's name is not taken for a column.
        """
        if isinstance(node, ast.Name):
            return self.name(node)
        if self._computed(node) is not None:
            return None
        if isinstance(node, ast.Attribute):
            raw = self.text.encode()[node.col_offset : node.end_col_offset].decode()
            attr, field = node.attr, raw.rpartition(".")[2].strip()
            field = field if unicodedata.normalize("NFKC", field) == attr else attr
            is_score = attr in (TOP, CHANCE, THRESHOLD)
        elif isinstance(node, ast.Subscript):
            constant = self._constant(node.slice)
            if not isinstance(constant, str):
                return None
            field = constant
            is_score = any(constant in labels for labels in self._labels.values())
        else:
            return None
        if isinstance(node.value, ast.Name) and (is_score or self.name(node.value) in self._labels):
            return None
        column = self._nested(node.value)
        return None if column is None else f"{column}.{field}"

    def _constant(self, node: ast.expr) -> float | int | str | None:
        """A finite number or a text; None: another operand."""
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
        """ConfigError: the words, and the condition with this part underlined."""
        raw = self.text.encode()  # the parser's offsets count bytes of UTF-8
        begin = len(raw[: node.col_offset].decode())
        end = len(raw[: node.end_col_offset].decode())
        raise ConfigError(self._shown(begin, end, words))

    def _shown(self, begin: int, end: int, words: str) -> str:
        marks = " " * begin + "^" * max(end - begin, 1)
        return f"{words}\n  {self.text}\n  {marks}"


def is_reserved(name: str) -> bool:
    """Whether a name is a keyword of Python, so a condition can use it for neither model nor
    column."""
    return keyword.iskeyword(unicodedata.normalize("NFKC", name))


def _joined(cheap: Sequence[Test], asking: Sequence[Test], is_and: bool) -> Test:
    """All (`is_and`) or any of the tests.

    The tests on columns (`cheap`) run on all rows, each test that asks a model only on the rows
    that are still open: a row is decided by the first no of `and`, or the first yes of `or`.
    """

    def test(values: Values) -> Truth:
        join = operator.and_ if is_and else operator.or_
        truth = reduce(join, [first(values) for first in cheap or asking[:1]])
        for following in asking if cheap else asking[1:]:
            open_rows = ~(truth.no if is_and else truth.yes)
            if open_rows.all():
                truth = join(truth, following(values))
            elif open_rows.any():
                so_far = Truth(truth.yes[open_rows], truth.no[open_rows])
                joined = join(so_far, following(values.of(open_rows)))
                truth.yes[open_rows], truth.no[open_rows] = joined
        return truth

    return test


def _numbers(values: Values, score: Score) -> Column:
    """Probabilities as a column of numbers."""
    chances = values.score(score).astype(np.float64)
    return Column(chances, ~np.isnan(chances))


def _holds(dtype: Any, number: int) -> bool:
    """Whether a type of floats has this integer."""
    with np.errstate(over="ignore"):
        return float(dtype.type(number)) == number


def _near(name: str, names: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 1, 0.5)
    if close:
        return f"; did you mean {close[0]}?"
    shown = ", ".join(list(names)[:5])
    return f": expected {'one of ' * (len(names) > 1)}{shown}{', ...' * (len(names) > 5)}"


def _unique(items: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
