"""Examples in docstrings that start processes; the others run in tests/unit."""

import io

import docstrings
import numpy as np
import pytest

import snailps

MODULES = [
    name
    for name in docstrings.modules_with_examples()
    if name.startswith(("snailps.estimators.", "snailps.local."))
]
ELSEWHERE = {
    "snailps.estimators.quantizing.quantize": "a model: tests/unit/test_quantising.py",
    "snailps.local.cluster.connect": "a host: test_ten_tasks.py",
    "snailps.local.session.JobResult.results": "a job: test_session.py",
}
"""Docstrings whose examples take what a test of their own has."""


@pytest.fixture(scope="module")
def kept():
    with snailps.cluster(threads=1, log=io.StringIO()):
        yield


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.usefixtures("kept")
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {
        "np": np,
        "snailps": snailps,
        "sentences": [["north", "wind"], ["south", "wind"]] * 500,
    }
    ran = list(docstrings.examples_of(module, whole=True))
    assert ran
    for test in ran:
        if test.name not in ELSEWHERE:
            assert docstrings.run(test, **names) == ""


def test_those_that_run_elsewhere_are_there():
    found = {test.name for module in MODULES for test in docstrings.examples_of(module)}
    assert found >= ELSEWHERE.keys()
