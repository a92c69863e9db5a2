"""docs/settings.md is what the settings classes say, and says all of it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import snailps.models
from snailps.cli.options import settings_like
from snailps.cli.settings import documented_classes
from snailps.config import ROLE_CLASSES, JobSettings, setting, settings_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "settings.md"
describe = runpy.run_path(str(ROOT / "tools" / "settings_page.py"))["describe"]


@dataclass(frozen=True, slots=True)
class ModelSettings(JobSettings):
    """Settings of a model that the roles know nothing of."""

    epochs: int = setting(7, help="Rounds.", when="Never.", low=1)
    width: int = setting(1 << 20, help="Width | depth.", when="Now.", unit="bytes", low=0)


def test_settings_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == describe(documented_classes()), (
        "docs/settings.md is out of date; run: python tools/settings_page.py > docs/settings.md"
    )


def test_settings_module_prints_the_page():
    done = subprocess.run(
        [sys.executable, "tools/settings_page.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    assert done.stdout == describe(documented_classes())
    assert done.stderr == ""


def test_describe_names_every_setting_and_swiftsnails_name():
    page = describe(documented_classes())
    for _, cls in documented_classes():
        assert all(f"| `{name}` |" in page for name, s in settings_of(cls).items() if not s.hidden)
    for theirs in ("async_exec_num", "async_channel_thread_num", "num_iters", "adagrad", "zlib"):
        assert f"| `{theirs}` |" in page


def test_settings_that_are_the_programs_own_are_not_shown():
    for name, own in (("logistic", "encoding"), ("mlp", "inputs"), ("mlp", "continue_from")):
        cls = snailps.models.SETTINGS[name]
        assert settings_of(cls)[own].hidden
        section = describe([("Mine", cls)]).split("## Mine")[1].split("\n## ")[0]
        assert f"`{own}`" not in section
    assert settings_like("input") == ["input="]


def test_describe_section_of_a_model_leaves_out_what_it_inherits_unchanged():
    section = describe([("Mine", ModelSettings)]).split("## Mine")[1].split("\n## ")[0]
    assert "(inherits `JobSettings`): settings of a model" in section
    assert "| `epochs` | whole number of at least 1 | `7` | Rounds. | Never. |" in section
    assert (
        "| `width` | whole number of bytes of at least 0 | `1048576` | Width \\| depth" in section
    )
    assert "`seed`" not in section


def test_documented_classes_groups_models_by_their_class(monkeypatch):
    models = {"one": ModelSettings, "two": ModelSettings}
    monkeypatch.setattr(snailps.models, "SETTINGS", models, raising=False)
    assert documented_classes() == [*ROLE_CLASSES, ("Model: one, two", ModelSettings)]
