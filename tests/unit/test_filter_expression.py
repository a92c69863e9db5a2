"""filtering.expression: conditions on scores and columns, and what is said of mistakes in them."""

import numpy as np
import pytest

from snailps.errors import ConfigError
from snailps.filtering.expression import Score, parse, parse_added, split_added
from snailps.filtering.values import Column

LABELS = {"hq": ["yes", "no"], "lang": ["en", "de", "fr"]}
NAN = float("nan")
SCORES = {
    Score("hq", "yes"): np.array([0.9, 0.4, 0.6, NAN], np.float32),
    Score("lang", None, "top"): np.array([0, 0, 2, -1], np.int32),
    Score("lang", None, "p"): np.array([0.7, 0.5, 0.9, NAN], np.float32),
}
FIRST = 2**53
"""Beyond it float64 lacks whole numbers."""
ALL = np.ones(4, bool)
SOME = np.array([True, True, False, True])


def texts(*values):
    return Column(np.array(values, object), np.array([v is not None for v in values]), True)


COLUMNS = {
    "n": Column(np.array([1, 2, NAN, 4.0]), SOME),
    "url": texts("a", "b", None, "a"),
    "never": texts(None, None, None, None),
    "id": Column(np.array([FIRST, FIRST + 1, 0, -FIRST - 1]), SOME),
    "hash": Column(np.array([2**64 - 1, FIRST + 1, 2**63, 2**53], np.uint64), ALL),
    "big": Column(np.array([2**70, 2**70 + 1, FIRST + 1.0, 0.5], object), ALL),
    "far": Column(np.array([2.0**53, 2.0**60, NAN, 0.5]), SOME),
    # Float32 of a table: .9 as float64 is above each of them, 16777217 is not among their type's.
    "short": Column(np.array([0.9, 0.1, NAN, 2**24], np.float32), SOME),
    # What JSON has of a score: nine digits, or a whole number.
    "nine": Column(np.array([0.899999976, 0.5, NAN, 1.0]), SOME),
    "mixed": Column(np.array([0.899999976, 1, 10**400, -(10**400)], object), ALL),
    "\ufb01le": Column(np.array([1, 2, 3, 4]), ALL),
}


class Values:
    """Four rows, or some of them; the last one has no score."""

    def __init__(self, rows=range(4)):
        self.rows, self.asked = np.array(rows), []

    def score(self, score):
        self.asked.append((str(score), self.rows.tolist()))
        return SCORES[score][self.rows]

    def column(self, name):
        return COLUMNS[name].at(self.rows)

    def of(self, rows):
        some = Values(self.rows[rows])
        some.asked = self.asked
        return some


def kept(text, values=None):
    clauses = parse(text, LABELS).clauses
    values = values or Values()
    return np.flatnonzero(np.all([one.test(values).yes for one in clauses], axis=0)).tolist()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        # Bounds are float32, which probabilities are: as in `predict` and `test`.
        ('hq["yes"] >= .9', [0]),
        ('hq["yes"] == 0.9', [0]),
        ("lang.p < .9", [0, 1]),
        (".9 <= lang.p", [2]),
        ("lang.p <= .7", [0, 1]),
        ("not lang.p >= .7", [1]),
        ('hq["yes"] >= .5', [0, 2]),
        (".5 <= hq['yes']", [0, 2]),
        ('.5 < hq["yes"] <= .7', [2]),
        ('hq["yes"] >= .5 and lang.top == "en" and lang.p >= .65', [0]),
        ('lang.top == "de" or hq["yes"] < .5', [1]),
        ('lang.top in ["en", "fr"]', [0, 1, 2]),
        ('lang.top not in ("en",)', [2]),
        ('lang.top != "en"', [2]),
        ('not lang.top == "en"', [2]),
        ('not (hq["yes"] > .5 or n == 2)', []),
        ('not (hq["yes"] > .8 and n > 5)', [0, 1, 2, 3]),
        ('not (hq["yes"] > .8 and n > 0)', [1, 2]),
        ("hq['yes'] != lang.p", [0, 1, 2]),
        ("n != hq['yes']", [0, 1]),
        ("n != lang.p or not n > 5", [0, 1, 3]),
        ("not never > hq['yes']", []),
        ("lang.p > .6\n  and n < 2", [0]),
        ("hq['yes'] > lang.p", [0]),
        ("n > lang.p", [0, 1]),
        ("n != 1", [1, 3]),
        ("n in [1, 4]", [0, 3]),
        ("n not in [1, 4]", [1]),
        ("n > -1", [0, 1, 3]),
        ('url == "a"', [0, 3]),
        ('url != "a"', [1]),
        ('url in ["b"]', [1]),
        ('never == "a" or never > 1', []),
        ("id == 9007199254740993", [1]),
        ("id != 9007199254740993", [0, 3]),
        ("id in [9007199254740993, 5]", [1]),
        ("id not in [9007199254740993]", [0, 3]),
        ("id > 9007199254740992", [1]),
        ("id >= 9007199254740992.0", [0, 1]),
        ("id < -9007199254740992", [3]),
        ("9007199254740992 < id < 1e18", [1]),
        ("id > .5", [0, 1]),
        ("id == 1.5 or id < 1e300", [0, 1, 3]),
        ("id < 100000000000000000000000", [0, 1, 3]),
        ("hash == 18446744073709551615", [0]),
        ("hash > 9223372036854775807", [0, 2]),
        ("hash > -1", [0, 1, 2, 3]),
        ("hash == id", [1]),
        ("hash > id", [0, 3]),
        ("id < far or id == far", [0, 1, 3]),
        ("id > far", []),
        ("big == 1180591620717411303424", [0]),
        ("big > hash", [0, 1]),
        ("big == id", []),
        ("big < 9007199254740993", [2, 3]),
        ("far == 1152921504606846976", [1]),
        ("n == True or n in [2, 4.0]", [0, 1, 3]),
        ("\ufb01le > 3", [3]),
        ("short == .9", [0]),
        ("short >= .9", [0, 3]),
        ("short in [.1, .9]", [0, 1]),
        ("short != .1", [0, 3]),
        ("short < 1e300 and short > -1e300", [0, 1, 3]),
        ("hq['yes'] == nine", [0]),
        ("hq['yes'] >= nine", [0]),
        ("nine > hq['yes']", [1]),
        ("mixed >= hq['yes']", [0, 1, 2]),
    ],
)
def test_condition_keeps_rows_and_never_for_what_is_missing(text, rows):
    assert kept(text) == rows


def test_clauses_are_what_and_joins_and_know_what_they_need():
    condition = parse('hq["yes"] >= .5 and (lang.top == "en" or n > 1) and n < 9', LABELS)
    first, second, third = condition.clauses
    assert [one.text for one in condition.clauses] == [
        'hq["yes"] >= .5', 'lang.top == "en" or n > 1', "n < 9",
    ]  # fmt: skip
    assert first.bounds == ((Score("hq", "yes"), 0.5),)
    assert second.scores == (Score("lang", None, "top"),)
    assert second.columns == third.columns == condition.columns == ("n",)
    assert [str(score) for score in condition.scores] == ['hq["yes"]', "lang.top"]


@pytest.mark.parametrize(
    ("text", "marked", "words"),
    [
        ("", None, "is empty"),
        ("hq.p >", None, "invalid syntax"),
        ('lang.top = "en"', "=", "equal is =="),
        ("hq", "hq", "what of model hq"),
        ("hq >= .5", "hq", "what of model hq"),
        ("hg.p > .5", "hg", "did you mean hq"),
        ("hq.tops == 1", "hq.tops", "hq has no tops"),
        ('hq["yess"] > 1', '"yess"', "no label 'yess'; did you mean yes"),
        ("hq[1] > .5", "1", "expected a label"),
        ('lang.top == "eng"', '"eng"', "did you mean en?"),
        ('lang.top > "en"', 'lang.top > "en"', "no order"),
        ("lang.top == 1", "1", "expected a label"),
        ('lang.p == "en"', '"en"', "is a probability"),
        ('lang.p in ["en"]', "lang.p", "is a probability"),
        ("lang.top in x", "x", "expected a list"),
        ("lang.top in [x]", "x", "expected a text or a number"),
        ('n in [1, "a"]', '[1, "a"]', "mixed"),
        ("1 < 2", "1 < 2", "two constants"),
        ("n", "n", "compare it"),
        ("größe > 1 and hq.x > 1", "hq.x", "hq has no x"),
        ("f(hq) > 1", "f(hq)", "name of a column"),
        ("__import__('os').system('x') > 1", "__import__('os').system('x')", "name of a column"),
        ("(1).real > 0", "(1).real", "name of a column"),
        ("n is 1", "n is 1", "expected <"),
        ("n + 1 > 2", "n + 1", "name of a column"),
        ("lambda: 1", "lambda: 1", "expected comparisons"),
        ("n > 1e999", "1e999", "finite"),
        ("n > hq.top", "hq.top", "hq.top is a label: compare it with a text"),
        ("hq.p => .5", "=", "write >="),
        ("hq.p =< .5", "=", "write <="),
        ("hq.p > .5 && n > 1", "&", "write and, or, not"),
        ("n > 1 & hq.p > .5", "1 & hq.p", "write and, or, not"),
        ("(n > 1) | (n < 0)", "(n > 1) | (n < 0)", "write and, or, not"),
        ("~(n > 1)", "~(n > 1)", "write and, or, not"),
        ("n is None", "None", "asks for a missing one"),
        ("n != None", "None", "asks for a missing one"),
        ("hq.p >= 50", "50", "a number from 0 to 1"),
        ('url > "a"', '"a"', "no order"),
        ("(" * 400 + "n", None, "nested"),
        ("n > 1 and " + "not " * 2000 + "n > 2", "not " * 2000 + "n > 2", "nested too deeply"),
    ],
)
def test_mistake_is_shown_where_it_stands(text, marked, words):
    with pytest.raises(ConfigError) as error:
        parse(text, LABELS)
    said = str(error.value)
    assert words in said
    if marked:
        _, shown, marks = said.split("\n")
        begin = marks.index("^")
        assert shown[begin : begin + marks.count("^")] == marked


def test_float_column_is_not_compared_with_a_whole_number_that_it_cannot_have():
    with pytest.raises(ConfigError, match=r"float64 numbers.* none is 9007199254740993: store"):
        kept("far != 9007199254740993")
    with pytest.raises(ConfigError, match=r"float32 numbers.* beyond 2\^24: none is 16777217: st"):
        kept("short == 16777217")


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ('hq["yes"] > .5 or n > 1', [[0, 2]]),
        ('n > 1 and hq["yes"] > .5 or n < 2', [[1, 2, 3]]),
        ('not (hq["yes"] > .5 and n == 2)', [[1, 2]]),
        ('(hq["yes"] > .5 or url == "b") or never == "a"', [[0, 2, 3]]),
        ('n > 9 or url == "a" or lang.p > .6 or hq["yes"] > .5', [[1, 2], [1]]),
        ('hq["yes"] > .5 or lang.p > .4', [[0, 1, 2, 3], [1, 3]]),
    ],
)
def test_model_is_asked_of_rows_that_columns_leave_open(text, asked):
    values = Values()
    (clause,) = parse(text, LABELS).clauses
    found = clause.test(values)
    assert [rows for _, rows in values.asked] == asked
    one_by_one = [clause.test(Values([row])) for row in range(4)]
    for side in ("yes", "no"):
        assert getattr(found, side).tolist() == [getattr(one, side)[0] for one in one_by_one]


def test_clauses_on_columns_are_asked_first():
    condition = parse('hq["yes"] >= .5 and n < 9 and lang.p > .1 and url == "a"', LABELS)
    assert condition.order == [1, 3, 0, 2]


def test_names_that_the_grammar_has_are_named():
    with pytest.raises(ConfigError, match=r"^class is a word of the grammar.*\n.*\n {12}\^{5}$"):
        parse("n > 1 and class == 2", LABELS)
    names = {"\ufb01lter": ["a"], "\u212b": ["b"]}
    assert parse('\ufb01lter["a"] > .5 and \u212b.p > .5', names).scores[0].model == "\ufb01lter"


@pytest.mark.parametrize("text", ["url > 1", 'n == "a"', 'n in ["a"]', "url > lang.p"])
def test_column_of_another_type_is_refused_when_it_is_seen(text):
    with pytest.raises(ConfigError, match=r"has (texts|numbers)"):
        kept(text)


def test_added_columns_are_split_at_commas_outside_of_quotes_and_have_names():
    parts = split_added("""hq, lang.p,good=hq["yes"] ,x = lang,hq['a,"b'],hq["a\\",b"]""")
    assert parts == [
        "hq", "lang.p", 'good=hq["yes"]', "x = lang", "hq['a,\"b']", r'hq["a\",b"]',
    ]  # fmt: skip
    assert parse(r'url == "\" # x"', LABELS).columns == ("url",)
    assert parse_added("hq", LABELS) == {
        "hq.top": Score("hq", None, "top"), "hq.p": Score("hq", None, "p"),
    }  # fmt: skip
    assert list(parse_added("x = lang", LABELS)) == ["x.top", "x.p"]
    assert parse_added('good=hq["yes"]', LABELS) == {"good": Score("hq", "yes")}
    assert parse_added('hq["yes"]', LABELS) == {'hq["yes"]': Score("hq", "yes")}
    with pytest.raises(ConfigError, match="expected MODEL"):
        parse_added("n", LABELS)
