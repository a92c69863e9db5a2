"""The page of `snailps status`: what it shows, and what a narrow terminal leaves out."""

import io

import pytest
from rich.console import Console
from statuses import status as make_status

from snailps.cli.printing import page_lines, page_picture


def drawn(status, width, height=40):
    """The page on a terminal of this size, as lines."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, force_terminal=False)
    console.print(page_picture(status, height, width))
    return stream.getvalue().splitlines()


def titles_of(status):
    """The line above the processes."""
    return next(line for line in page_lines(status) if line.startswith("process"))


def test_page_has_no_columns_in_which_nothing_stands():
    status = make_status()
    for node in status["nodes"]:
        node["clock"] = None
    assert "step" not in titles_of(status)
    assert "behind" not in "".join(page_lines(status))
    status["nodes"][-1]["clock"] = 7
    assert "step" in titles_of(status)


def test_head_names_the_job_and_the_time_left_at_this_speed():
    status = make_status(at_s=60.0, word="x")
    status |= {"units_per_s": 1e6, "total_units": 100_000_000, "progress": 0.25}
    first, second, *_ = page_lines(status)
    assert ", 1 min 15 s left" in first
    assert second.startswith("fasttext x to out/x, master 127.0.0.1:16831, 4 processes")
    status |= {"phase": "forming", "job_name": "", "progress": 0.0, "units_per_s": 0.0}
    first, second, *_ = page_lines(status)
    assert "left" not in first
    assert second.startswith("master 127.0.0.1:16831")


def test_page_of_one_machine_has_no_addresses_of_processes():
    status = make_status()
    assert "address" not in titles_of(status)
    status["nodes"][0]["host"] = "other"
    assert "address" in titles_of(status)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_rows_of_a_terminal_are_not_cut(width):
    status = make_status(servers=2, workers=20)
    status["nodes"][0]["host"] = "other"
    lines = drawn(status, width)
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)
    assert any("words/s" in line and line.startswith("process") for line in lines)
    assert any("pulls/s" in line and line.startswith("shard") for line in lines)
    assert any("waits for" in line for line in lines)
    joined = " ".join(" ".join(lines).split())
    assert joined.count(", loss") == joined.count("learning rate") == 1  # wrapped, not cut


def test_server_that_is_back_serves():
    status = make_status()
    status["nodes"][0]["state"] = "back"
    assert any(line.startswith("server 1") and "serving" in line for line in page_lines(status))
