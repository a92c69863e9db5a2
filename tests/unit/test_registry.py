"""What the core finds by name: it is there, or the message names the option."""

import importlib.util

import pytest

import snailps  # noqa: F401  (fills the registry)
from snailps.api.range_passes import RangePasses
from snailps.api.rotation import Rotation
from snailps.errors import ConfigError
from snailps.registry import OPTIONS, named


def test_each_option_has_its_module():
    assert "tables" in OPTIONS
    assert [name for name in OPTIONS.values() if importlib.util.find_spec(name) is None] == []


def test_plans_name_the_options_that_have_their_schedules():
    for plan in (Rotation(1, 1), RangePasses(1, 1)):
        assert callable(named(plan.option).of_training)


def test_option_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(OPTIONS, "tables", "snailps.data.no_tables")
    with pytest.raises(ConfigError, match="option tables is not installed: there is no"):
        named("tables")


def test_module_that_an_option_lacks_is_not_taken_for_the_option(monkeypatch, tmp_path):
    (tmp_path / "lacking_option.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(OPTIONS, "tables", "lacking_option")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        named("tables")


def test_job_in_rounds_is_refused_before_it_begins_where_rounds_are_not_installed(
    make_job, monkeypatch
):
    make_job.values.pop("block_bytes")
    settings = {"worker_class": "clock_models:MeanByEpochs"}
    monkeypatch.setitem(OPTIONS, "rounds", "snailps.master.job.no_rounds")
    with pytest.raises(ConfigError, match="option rounds is not installed: there is no"):
        make_job(**settings)
    monkeypatch.undo()
    assert make_job(**settings).model.rounds.number == 5
