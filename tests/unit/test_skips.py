"""skips.py and the hooks of conftest.py: what tests may be skipped for."""

import os

import pytest
import skips
from cases import each
from skips import excess


@each(
    "reason, root, expected",
    [
        ("root may read everything", True, ""),
        ("root may read everything", False, "that is not so here"),
        ("a full disk needs the right to mount one (root)", False, ""),
        ("gives files to others", False, ""),
        ("gives files to others", True, "that is not so here"),
        ("pytest is not installed", True, "pytest is here"),
        ("could not import 'pytest': no", True, "pytest is here"),
        ("no-such-module is not installed", True, ""),
        ("could not import 'no_such_module': No module", True, ""),
        ("20 times there was no such moment", True, "tests/support/skips.py has no such reason"),
        ("got empty parameter set for (a)", True, "tests/support/skips.py has no such reason"),
    ],
)
def test_skip_is_for_what_this_machine_lacks(reason, root, expected, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    assert excess(reason) == expected


def test_skip_for_want_of_data_is_so_where_the_folder_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("SNAILPS_DATA", str(tmp_path))
    assert excess("no test data: set SNAILPS_DATA") == ""
    (tmp_path / "words").mkdir()
    assert excess("no test data: set SNAILPS_DATA") == "that is not so here"


def test_data_are_nowhere_but_where_the_variable_says(monkeypatch):
    monkeypatch.delenv("SNAILPS_DATA", raising=False)
    assert skips.data_folder() is None
    assert excess("no test data: set SNAILPS_DATA") == ""


def test_skip_for_want_of_git_is_so_in_a_tree_that_is_no_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(skips, "ROOT", tmp_path)
    assert excess("no git here: this is no clone") == ""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(skips, "is_absent", lambda name: name == "git")
    assert excess("no git here: there is no program to ask") == ""
    monkeypatch.setattr(skips, "is_absent", lambda name: False)
    assert excess("no git here: this is no clone") == "that is not so here"


def test_continuous_integration_has_the_extra_but_not_what_it_may_lack(monkeypatch):
    monkeypatch.setattr(skips, "is_absent", lambda name: True)
    for reason in ("could not import 'pandas': no", "scikit-learn is not installed"):
        assert excess(reason) == ""
        assert excess(reason, ci=True).endswith("has to be there (--ci)")
    assert excess("PyTorch is not installed: make test-torch", ci=True) == ""


@pytest.fixture
def report_of(request):
    """Reports of a skip, as a test's or a file's, past the hook that judges them."""

    hooks = request.config.pluginmanager.get_plugin(str(skips.ROOT / "tests" / "conftest.py"))

    def made(reason):
        report = pytest.CollectReport("a.py", "skipped", ("a.py", 1, f"Skipped: {reason}"), [])
        return hooks.note_excess(report, request.config)

    return made


def test_report_of_a_skip_that_need_not_have_been_is_a_failure(report_of):
    assert report_of("no-such-module is not installed").outcome == "skipped"
    report = report_of("no luck")
    assert report.outcome == "failed"
    assert "no luck" in report.longrepr
    assert "no such reason" in report.longrepr
