"""The report of a run: one file, no requests, nothing of the run becomes markup."""

import errno
import json
import os
import re

import pytest
from statuses import HOSTILE, status

from snailps.monitor.report import BYTES_MAX, Story, machine, render, write_report
from snailps.monitor.static_files import SCRIPTS, static

HISTORY = {
    "at_s": [1.0, 2.0],
    "units": [10, 20],
    "units_per_s": [10.0, 10.0],
    "loss": [None, 2.5],
}


def story(**size):
    return Story(
        {**status(**size), "phase": "done"},
        HISTORY,
        settings=[["epochs", "5", "default"], ["input", HOSTILE, "--input"]],
        lines=[f"12:00:00 info {HOSTILE}"],
        figures={"words": 20, "note": HOSTILE},
        words={"words": [HOSTILE, "a"], "xs": [0.1, 0.2], "ys": [0.0, 0.5], "sharp": True},
    )


@pytest.fixture(scope="module")
def text():
    return render(story(), {"processor": HOSTILE}, "today").decode()


def data_of(text):
    found = re.search(
        r'<script type="application/json" id="report-data">(.*?)</script>', text, re.S
    )
    return json.loads(found[1])


def test_report_has_the_last_picture_inside(text):
    data = data_of(text)
    assert data["state"] == "report"
    assert data["status"]["job_name"] == f"fasttext {HOSTILE}"
    assert data["series"]["loss"] == [None, 2.5]
    assert data["settings"][0] == ["epochs", "5", "default"]
    assert data["machine"] == {"processor": HOSTILE}


@pytest.mark.parametrize(
    ("figures", "words", "share"),
    [
        ({"ended_by": "interrupt", "progress": 0.25}, "ended early by Ctrl-C", 0.25),
        ({"ended_by": "max_steps", "progress": 0.5}, "done: max_steps is reached", 0.5),
        ({"ended_by": "converged", "progress": 0.5}, "done: the loss has stopped falling", 1.0),
        ({"ended_by": "epochs", "progress": 1.0}, "done", 1.0),
        ({}, "done", 1.0),
    ],
)
def test_report_of_a_training_that_ended_early_says_so(figures, words, share):
    ended = Story({**status(), "phase": "done", "progress": 1.0}, HISTORY, figures=figures)
    shown = data_of(render(ended, {}, "today").decode())["status"]
    assert (shown["phase_words"], shown["progress"]) == (words, share)


def test_report_makes_no_request(text):
    assert re.search(r"<\w[^>]*\s(src|href)=\"(?!#)", text) is None
    assert "<link" not in text
    assert "https:" not in text
    assert text.count("http:") == text.count("http://www.w3.org/2000/svg")
    assert "default-src 'none'" in text
    assert "unsafe-inline" not in text


def test_hostile_words_are_text_everywhere(text):
    assert "<script>alert" not in text
    assert "<img" not in text
    # Three scripts: the data, and the code; each ends where it should.
    assert len(re.findall(r"<script", text)) == 2
    assert len(re.findall(r"</script", text)) == 2
    assert len(re.findall(r"<title>", text)) == 1


def test_no_file_of_the_page_can_end_a_script_or_style_block():
    for name in ("page.css", *SCRIPTS):
        assert "</" not in static(name).decode()


def test_report_of_a_large_cluster_stays_small():
    made = render(story(servers=100, workers=3000, shards=8), machine(), "today")
    assert len(made) < BYTES_MAX


def test_processes_that_left_at_the_end_are_not_shown_as_lost():
    ended = status()
    for node in ended["nodes"]:
        node["state"] = "gone"
    found = data_of(render(Story({**ended, "phase": "done"}, HISTORY), {}, "today").decode())
    words = found["status"]["nodes"]["columns"].index("words")
    assert {row[words] for row in found["status"]["nodes"]["rows"]} == {"ended"}


def test_report_is_written_whole_beside_the_result(tmp_path):
    path = write_report(str(tmp_path / "x"), story(), "today")
    assert path == str(tmp_path / "x.report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["x.report.html"]


def test_report_that_cannot_be_written_is_told_and_harms_nothing(tmp_path, caplog):
    assert write_report(str(tmp_path / "none" / "x"), story(), "today") == ""
    assert "cannot write the report" in caplog.text


def test_report_that_does_not_fit_leaves_no_half_file(tmp_path, caplog, monkeypatch):
    pwrite = os.pwrite

    def half(file, data, at):
        pwrite(file, data[:100], at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", half)
    assert write_report(str(tmp_path / "x"), story(), "today") == ""
    assert "cannot write the report" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_machine_names_versions():
    assert {"snailps", "Python", "cores", "numpy"} <= set(machine())
