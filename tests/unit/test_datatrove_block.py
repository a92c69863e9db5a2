"""`snailps.datatrove`, on a base class of the shape of datatrove's."""

import importlib
import sys
import types
from types import SimpleNamespace

import pytest

from snailps.errors import ConfigError

TEXT = "one two three four five six seven eight nine ten eleven twelve thirteen"
TEXTS = [TEXT, TEXT.upper(), f"{TEXT} and more", "something else", ""]
KEPT = [2, 3, 4]


class BaseFilter:
    """What `DropCopies` uses of datatrove 0.10.1's."""

    def __init__(self, exclusion_writer=None, batch_size=1):
        self.exclusion_writer, self.batch_size = exclusion_writer, batch_size

    def run(self, data, rank=0, world_size=1):
        batch = list(data)
        for doc, result in zip(batch, self.filter_batch(batch), strict=True):
            if result is True:
                yield doc
            elif self.exclusion_writer is not None:
                doc.metadata["filter_reason"] = result[1]
                self.exclusion_writer.append(doc)


@pytest.fixture
def block(monkeypatch):
    parts = ["datatrove", "pipeline", "filters", "base_filter"]
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(parts[end - 1]))
    sys.modules[".".join(parts)].BaseFilter = BaseFilter
    monkeypatch.delitem(sys.modules, "snailps.datatrove", raising=False)
    yield importlib.import_module("snailps.datatrove")
    sys.modules.pop("snailps.datatrove", None)


def docs():
    return [SimpleNamespace(text=text, id=f"d{at}", metadata={}) for at, text in enumerate(TEXTS)]


def test_documents_that_stay_are_in_their_order(block):
    gone = []
    step = block.DropCopies(threads=1, exclusion_writer=gone)
    assert [doc.id for doc in step.run(docs())] == [f"d{at}" for at in KEPT]
    assert [doc.id for doc in gone] == ["d0", "d1"]
    assert {doc.metadata["copy_of"] for doc in gone} == {"d2"}
    assert {doc.metadata["filter_reason"] for doc in gone} == {"copy"}
    assert list(step.run([])) == []


def test_bounds_are_those_of_dedup(block):
    alone = block.DropCopies(None, None)
    assert [doc.id for doc in alone.run(docs())] == ["d0", "d2", "d3", "d4"]
    with pytest.raises(ConfigError, match="contained: expected a number above 0"):
        block.DropCopies(contained=3)


def test_several_tasks_are_refused_unless_copies_between_them_may_stay(block):
    with pytest.raises(ConfigError, match=r"one of 3 tasks.*tasks=1.*snailps.filter.*within_tasks"):
        list(block.DropCopies().run(docs(), 0, 3))
    assert len(list(block.DropCopies(within_tasks=True).run(docs(), 0, 3))) == len(KEPT)


def test_without_datatrove_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove", None)
    monkeypatch.delitem(sys.modules, "snailps.datatrove", raising=False)
    with pytest.raises(ImportError, match=r"block for datatrove.*pip install 'datatrove"):
        importlib.import_module("snailps.datatrove")
