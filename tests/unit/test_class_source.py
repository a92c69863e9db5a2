"""Classes of a notebook: what travels with them, what is refused, what a traceback shows."""

import linecache
import sys
import traceback
import types

import pytest

from snailps.api.class_source import decode, define, encode, is_local_class, module_name, source_of
from snailps.errors import ConfigError, frames_of

FIRST = """\
import math
import numpy as np
import os.path as paths
from collections import OrderedDict
from dataclasses import dataclass
from snailps import JobSettings, Worker, setting

SCALE = 2.5
NAMES = {"a": [1, (2, None)]}
table = np.zeros(3)
seen = []
"""
SECOND = """\
def inner(x):
    return math.sqrt(x) * SCALE


@dataclass(frozen=True, slots=True)
class Settings(JobSettings):
    width: int = setting(3, help="h", when="w")


class Base(Worker):
    Settings = Settings
"""
THIRD = """\
unused = table

class Mine(Base):
    known = OrderedDict(NAMES)

    def train(self, block):
        table = inner(block)  # of its own
        if table < 0 or not paths.sep:
            return Mine
        return {"units": np.float32(table)}

    def fails(self):
        return inner(-1)
"""


class Notebook:
    """A module without a file, whose cells are known to linecache as IPython's are."""

    def __init__(self, name):
        self.module = sys.modules[name] = types.ModuleType(name)
        self.cells = []

    def run(self, *cells):
        """Executes cells."""
        for text in cells:
            file = f"/tmp/ipykernel_1/{self.module.__name__}-{len(self.cells)}.py"
            self.cells.append(file)
            lines = text.splitlines(keepends=True)
            linecache.cache[file] = (len(text), None, lines, file)
            exec(compile(text, file, "exec"), vars(self.module))
        return vars(self.module)

    def close(self):
        """Forgets all of it."""
        del sys.modules[self.module.__name__]
        for file in self.cells:
            linecache.cache.pop(file, None)


@pytest.fixture
def notebook(request):
    made = Notebook(f"cells_of_{request.node.name[:20]}")
    yield made
    made.close()


def travelled(cls):
    """The class as another process has it."""
    source = encode(source_of(cls))
    define(source)
    return getattr(sys.modules[module_name(source)], cls.__name__)


def test_class_travels_with_what_it_uses(notebook):
    found = notebook.run(FIRST, SECOND, THIRD)
    assert is_local_class(found["Mine"])
    other = travelled(found["Mine"])
    assert other is not found["Mine"]
    assert other.known == {"a": [1, (2, None)]}
    assert other.Settings().width == 3
    assert other.train(None, 4.0) == {"units": 5.0}
    assert travelled(found["Mine"]) is other  # the same source is the same module
    assert "unused" not in vars(sys.modules[other.__module__])


def test_dataclass_travels_where_the_text_of_the_command_line_is_known(notebook, monkeypatch):
    """As Python 3.13 knows that of ``-c``, by which processes of pools are started."""
    lines = ["import this\n"] * 9
    monkeypatch.setitem(linecache.cache, "<string>", (len(lines), None, lines, "<string>"))
    notebook.run(FIRST, SECOND, THIRD)
    mine = travelled(notebook.module.Mine)
    assert mine.Settings().width == 3


def test_class_that_is_defined_again_travels_as_it_now_is(notebook):
    found = notebook.run(FIRST, SECOND, THIRD)
    first = travelled(found["Mine"])
    changed = notebook.run(THIRD.replace("np.float32(table)", "7"))["Mine"]
    assert travelled(changed).train(None, 4.0) == {"units": 7}
    assert first.train(None, 4.0) == {"units": 5.0}


def test_traceback_has_the_lines_of_the_cells(notebook):
    found = notebook.run(FIRST, SECOND, THIRD)
    other = travelled(found["Mine"])
    with pytest.raises(ValueError) as caught:
        other.fails(None)
    lines = frames_of(caught.value.with_traceback(caught.value.__traceback__.tb_next))
    assert f'File "{notebook.cells[2]}", line 13, in fails' in lines
    assert f'File "{notebook.cells[1]}", line 2, in inner' in lines
    assert "return math.sqrt(x) * SCALE" in lines
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "inner"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return table", r"Bad uses table, which is a ndarray of this notebook.*setting"),
        ("seen.append(lambda: 1)", None),
    ],
)
def test_value_that_does_not_travel_is_refused(notebook, body, words):
    notebook.run(FIRST)
    cls = notebook.run(f"class Bad(Worker):\n    def train(self, block):\n        {body}\n")["Bad"]
    if words is None:
        assert travelled(cls).train(None, None) is None  # an empty list is a plain value
        return
    with pytest.raises(ConfigError, match=words):
        source_of(cls)


def test_names_that_hide_builtins_travel(notebook):
    notebook.run(FIRST)
    notebook.run("from textwrap import dedent as range\ndef sum(values):\n    return 77\n")
    body = "class Mine(Worker):\n    def train(self, block):\n        return sum(range('  a')), len"
    made = source_of(notebook.run(body)["Mine"])
    text = "".join(piece.text for piece in made)
    assert "def sum(values):" in text
    assert "from textwrap import dedent as range" in text
    assert "len =" not in text
    assert "import len" not in text


def test_helper_with_a_decorator_travels_with_it(notebook):
    notebook.run(FIRST)
    notebook.run(
        "import functools\ncalls = []\n\n"
        "@functools.lru_cache(maxsize=None)\ndef vocabulary():\n"
        "    calls.append(1)\n    return len(calls)\n"
    )
    body = "class Mine(Worker):\n    def train(self, block):\n        return vocabulary()"
    other = travelled(notebook.run(body)["Mine"])
    assert [other.train(None, None) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("value", ["Held()", "functools.lru_cache(Held)", "doubled(one)"])
def test_value_that_the_notebook_made_of_its_own_is_refused_by_its_kind(notebook, value):
    notebook.run(FIRST)
    notebook.run(
        "import functools\nclass Held:\n    pass\n\ndef one():\n    return 1\n\n"
        "def doubled(function):\n"
        "    return functools.wraps(function)(lambda: 2 * function())\n"
    )
    body = f"held = {value}\nclass Mine(Worker):\n    def train(self, block):\n        return held"
    with pytest.raises(ConfigError, match=r"uses held, which is a .* does not travel"):
        source_of(notebook.run(body)["Mine"])


def test_value_of_a_corpus_is_refused_before_its_text_is_made(notebook):
    notebook.run(FIRST)
    cell = "corpus = [['word'] * 1000] * 1000\nclass Mine(Worker):\n    def train(self, block):\n"
    with pytest.raises(ConfigError, match="uses corpus, which is a list"):
        source_of(notebook.run(cell + "        return corpus")["Mine"])


def test_numbers_that_are_not_finite_travel(notebook):
    notebook.run(FIRST)
    cell = "BEST = float('-inf')\nclass Mine(Worker):\n    def train(self, block):\n"
    made = source_of(notebook.run(cell + "        return BEST")["Mine"])
    assert any("BEST = float('-inf')" in piece.text for piece in made)


def test_class_without_source_or_inside_a_function_is_refused(notebook):
    found = notebook.run(FIRST)
    exec("class Typed(Worker):\n    pass\n", found)
    with pytest.raises(ConfigError, match="source of Typed is not known here"):
        source_of(found["Typed"])
    found = notebook.run("def make():\n    class Inner(Worker):\n        pass\n    return Inner\n")
    with pytest.raises(ConfigError, match=r"make.<locals>.Inner is defined inside a function"):
        source_of(found["make"]())


def test_source_that_fails_says_where():
    source = encode([("cell", 3, "import nowhere_at_all\n")])
    with pytest.raises(ConfigError, match=r"cannot be defined: ModuleNotFoundError.*"):
        define(source)
    assert module_name(source) not in sys.modules
    for wrong in (b"", b"\xff", b"[1]", b'{"a": 1}', b'[["f", "x", "t"]]'):
        with pytest.raises(ConfigError, match="cannot be read"):
            decode(wrong)
