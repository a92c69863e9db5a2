"""bench/quick.py: which figures it calls red, and where its history comes from."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("quick_of_bench", BENCH / "quick.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def run(commit, **figures):
    names = {name.replace("_", " / "): value for name, value in figures.items()}
    return {"date": "2026-11-30", "commit": commit, "figures": names}


def test_ratios_below_nine_tenths_of_their_best_are_red(quick):
    before = [run("a", speed_peer=2.0), run("b", speed_peer=1.5)]
    assert quick.red({"speed / peer": 1.81}, before) == []
    [line] = quick.red({"speed / peer": 1.79}, before)
    assert line == "speed / peer: 1.79, 0.90 of the best (2, a, 2026-11-30)"


def test_memory_is_red_above_and_seconds_and_new_figures_are_not(quick):
    before = [
        run("a", memory_peer=0.5),
        run("b", memory_peer=0.8),
        {**run("c"), "figures": {"s": 1}},
    ]
    assert quick.red({"memory / peer": 0.55, "s": 9.0, "new / peer": 0.1}, before) == []
    assert len(quick.red({"memory / peer": 0.57}, before)) == 1


def test_history_has_the_runs_of_the_repository_and_those_kept_elsewhere(quick, tmp_path):
    elsewhere = tmp_path / "history.jsonl"
    kept = quick.history(quick.HISTORY)
    assert len(kept) >= 3
    assert quick.history(elsewhere) == kept
    elsewhere.write_text(json.dumps(run("new")) + "\n")
    assert quick.history(elsewhere) == [*kept, run("new")]
