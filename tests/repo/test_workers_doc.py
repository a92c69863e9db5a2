"""docs/workers.md lists what a subclass of `snailps.Worker` may override."""

import inspect
import pydoc
import re
from pathlib import Path

import pytest

from snailps.api.traits import NAMES, TRAITS, trait_of
from snailps.api.worker import Worker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")


SCREEN = 88
"""Lines of `help` about `Worker` itself, with its example, before the calls for its tables."""


def listed(heading):
    """Names in the first column of the table under a heading."""
    part = re.split(rf"^##+ {heading}\n", PAGE, flags=re.MULTILINE)[1]
    rows = re.split(r"^##", part, flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", rows, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_page_lists_what_a_model_may_override():
    own = {name: value for name, value in vars(Worker).items() if not name.startswith("_")}
    at_master = {name for name, value in own.items() if isinstance(value, classmethod)}
    in_worker = {name for name, value in own.items() if inspect.isfunction(value)}
    for heading, names in (
        ("In each worker", in_worker),
        ("At the master", at_master),
        ("Attributes of the class", own.keys() - at_master - in_worker),
        *((f".*: `{trait.__name__}`", NAMES[trait]) for trait in TRAITS),
    ):
        found = listed(heading)
        assert len(found) == len(set(found)), heading
        assert set(found) == set(names), heading


@pytest.mark.parametrize("trait", TRAITS)
def test_class_that_writes_what_the_page_names_has_the_trait(trait):
    for name in listed(f".*: `{trait.__name__}`"):
        mine = type("Mine", (Worker,), {name: vars(trait)[name]})
        derived = type("Derived", (mine,), {name: vars(trait)[name]})
        assert [one for one in TRAITS if trait_of(mine, one) is mine] == [trait]
        assert trait_of(derived, trait) is derived


def test_help_of_a_worker_fits_a_screen():
    text = pydoc.plain(pydoc.render_doc(Worker))
    assert len(text.partition(" |  Methods inherited from ")[0].splitlines()) <= SCREEN


def test_worked_example_is_a_model():
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space = {}
    exec(source, space)
    (model,) = (cls for cls in space.values() if isinstance(cls, type) and cls is not Worker)
    assert [table.name for table in model(model.Settings()).tables()] == ["lengths"]
