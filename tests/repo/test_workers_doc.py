"""docs/workers.md lists what a subclass of `snailps.Worker` may override."""

import inspect
import re
from pathlib import Path

from snailps.api.worker import Worker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")


def listed(heading):
    """Names in the first column of the table under a heading."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", part, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_page_lists_what_a_model_may_override():
    own = {name: value for name, value in vars(Worker).items() if not name.startswith("_")}
    at_master = {name for name, value in own.items() if isinstance(value, classmethod)}
    in_worker = {
        name
        for name, value in own.items()
        if inspect.isfunction(value) or isinstance(value, property)
    }
    for heading, names in (
        ("In each worker", in_worker),
        ("At the master", at_master),
        ("Attributes of the class", own.keys() - at_master - in_worker),
    ):
        found = listed(heading)
        assert len(found) == len(set(found)), heading
        assert set(found) == names, heading


def test_worked_example_is_a_model():
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space = {}
    exec(source, space)
    (model,) = (cls for cls in space.values() if isinstance(cls, type) and cls is not Worker)
    assert [table.name for table in model(model.Settings()).tables()] == ["lengths"]
