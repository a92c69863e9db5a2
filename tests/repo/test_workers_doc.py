"""docs/workers.md lists what a subclass of `snailps.Worker` may override."""

import inspect
import pydoc
import re
from pathlib import Path

import pytest

from snailps.api.at_master import AtMaster
from snailps.api.configured import Configured
from snailps.api.results import Results
from snailps.api.traits import NAMES, TRAITS, trait_of
from snailps.api.worker import Worker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")


def public(cls):
    """What a class itself defines, by name."""
    return {name: value for name, value in vars(cls).items() if not name.startswith("_")}


def listed(heading):
    """Names in the first column of the table under a heading."""
    part = re.split(rf"^##+ {heading}\n", PAGE, flags=re.MULTILINE)[1]
    rows = re.split(r"^##", part, flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", rows, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_page_lists_what_a_model_may_override():
    in_worker, at_master = public(Worker), public(AtMaster)
    assert all(inspect.isfunction(value) for value in in_worker.values())
    assert all(isinstance(value, classmethod) for value in at_master.values())
    for heading, names in (
        ("In each worker", in_worker),
        ("At the master", at_master),
        ("Attributes of the class", public(Configured)),
        *((f".*: `{trait.__name__}`", NAMES[trait]) for trait in TRAITS),
    ):
        found = listed(heading)
        assert len(found) == len(set(found)), heading
        assert set(found) == set(names), heading


def test_page_lists_the_names_of_results():
    results = Results(None, b"", {}, None, {}, {}, 1)
    names = {name for name in (*vars(Results), *vars(results)) if not name.startswith("_")}
    assert sorted(listed("The model at the master: `Results`")) == sorted(names)


@pytest.mark.parametrize("trait", TRAITS)
def test_class_that_writes_what_the_page_names_has_the_trait(trait):
    for name in listed(f".*: `{trait.__name__}`"):
        mine = type("Mine", (Worker,), {name: vars(trait)[name]})
        derived = type("Derived", (mine,), {name: vars(trait)[name]})
        assert [one for one in TRAITS if trait_of(mine, one) is mine] == [trait]
        assert trait_of(derived, trait) is derived


def test_help_of_a_worker_begins_with_the_five_methods_of_most_models():
    text = pydoc.plain(pydoc.render_doc(Worker))
    own = text.partition(" |  Methods defined here:")[2].partition(" inherited from ")[0]
    names = set(re.findall(r"^ \|  (\w+)(?:\(| =)", own, re.MULTILINE))
    assert {name for name in names if name[0] != "_"} == {
        "tables",
        "setup",
        "prepare",
        "train",
        "finish",
    }


def test_worked_example_is_a_model():
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space = {}
    exec(source, space)
    (model,) = (cls for cls in space.values() if isinstance(cls, type) and cls is not Worker)
    assert [table.name for table in model(model.Settings()).tables()] == ["lengths"]
