"""bench/alike.py: what it compares, and what it reports."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "bench" / "alike.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("bench_alike", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_are_compared_with_one_worker_of_the_same_schedule(tool):
    x, y = [name for name, case in tool.BY_NAME.items() if not case.relative][:2]
    figures = {
        (x, "async", 1): {"figure": 0.75},
        (x, "async", 8): {"figure": 0.5},
        (x, "ssp", 1): {"figure": 0.5},
        (x, "ssp", 8): {"figure": 0.5},
        (x, "bsp", 1): {"bits": "a"},
        (x, "bsp", 8): {"bits": "b"},
        (y, "async", 8): {"refused": "too many"},
    }
    differences = list(tool.differences(figures, x))
    assert differences == [("async", 8, -0.25), ("ssp", 8, 0.0), ("bsp", 8, "differs")]
    assert [tool.wrong(value) for *_, value in differences] == [True, False, True]
    assert next(tool.differences(figures, y)) == ("async", 8, "refused")
    assert "-0.250" in tool.picture(figures, [x, y])
    assert "**0.500**" in "\n".join(tool.table(figures, [x, y]))
