"""Examples in docstrings run; those that start processes do in tests/cluster."""

import contextlib

import docstrings
import pytest

with contextlib.suppress(ImportError):  # now, as it takes longer than a test may
    import torch  # noqa: F401

IN_CLUSTERS = ("snailps.estimators.", "snailps.local.")


@pytest.mark.parametrize(
    "module",
    [name for name in docstrings.modules_with_examples() if not name.startswith(IN_CLUSTERS)],
)
def test_examples_run(module, tmp_path, monkeypatch):
    if module.startswith("snailps.torch."):
        pytest.importorskip("torch", reason="PyTorch is not installed (make test-torch)")
    monkeypatch.chdir(tmp_path)
    ran = list(docstrings.examples_of(module))
    assert ran
    for test in ran:
        assert docstrings.run(test) == ""


def test_runner_tells_what_failed_and_leaves_out_what_is_skipped():
    whole = list(docstrings.examples_of("snailps.estimators.words", whole=True))
    skipping = list(docstrings.examples_of("snailps.estimators.words"))
    assert {test.name for test in whole} == {test.name for test in skipping}
    (wrong,) = (test for test in whole if test.name.endswith(".Word2Vec"))
    assert "NameError" in docstrings.run(wrong, Word2Vec=lambda **_: undefined)  # noqa: F821
    (skipped,) = (test for test in skipping if test.name.endswith(".Word2Vec"))
    assert docstrings.run(skipped, Word2Vec=None) == ""
