"""The progress display: plain lines, the live picture, and the estimate of the time left."""

import io
import re

import pytest

from snailps.cli.progress import (
    Eta,
    Progress,
    Status,
    count_text,
    line_of,
    seconds_text,
)


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def make_status(**changes) -> Status:
    status: Status = {
        "phase": "training",
        "waiting_for": "",
        "progress": 0.25,
        "pass_": "epoch 2/5",
        "unit": "words",
        "units": 1_000_000,
        "units_per_s": 1_234_567.0,
        "loss": 2.3456,
        "lr": 0.0375,
        "eta_s": None,
        "elapsed_s": 12.0,
        "blocks": {"left": 30, "leased": 2, "done": 10},
        "nodes": [],
        "message": "",
    }
    status.update(changes)
    return status


def make_node(**changes):
    node = {
        "role": "worker", "id": 1, "host": "10.0.0.7", "pid": 42,
        "state": "training", "waits": "", "waits_s": 0.0, "rate": 500_000.0,
    }  # fmt: skip
    node.update(changes)
    return node


def plain(clock, interval_s=5.0):
    stream = io.StringIO()
    return stream, Progress(stream, terminal=False, clock=clock, interval_s=interval_s)


def without_ansi(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_line_training_names_every_figure():
    assert line_of(make_status(), 83.0) == (
        "[12 s] training 25.0%, epoch 2/5, 1.23 M words/s, loss 2.3456, lr 0.03750, "
        "ETA 1 min 23 s, blocks 10 done 2 leased 30 left"
    )


def test_line_forming_says_whom_it_waits_for_and_no_figures():
    status = make_status(phase="forming", pass_="", waiting_for="1 of 2 servers", elapsed_s=3.0)
    assert line_of(status, None) == "[3 s] forming, waits for 1 of 2 servers"


def test_line_exporting_says_what_is_done_and_how_much_is_left():
    text = "writing out.npz, 1,024 of 4,096 rows"
    status = make_status(phase="exporting", pass_=text, progress=0.625, elapsed_s=3.0, eta_s=7.0)
    assert line_of(status, 7.0) == f"[3 s] exporting 62.5%, {text}, ETA 7 s"
    stream, progress = plain(Clock())
    progress.update(status)
    assert f"exporting 62.5%, {text}, ETA 7 s" in stream.getvalue()
    assert line_of(make_status(phase="exporting", pass_=""), None) == "[12 s] exporting"


def test_line_almost_done_is_not_rounded_up_to_all():
    assert "99.9%" in line_of(make_status(progress=0.99999), None)
    assert "100.0%" in line_of(make_status(progress=1.0), None)


def test_line_unknown_values_are_left_out():
    line = line_of(make_status(loss=None, lr=None, units_per_s=0.0), None)
    assert "loss" not in line
    assert "lr" not in line
    assert "words/s" not in line
    assert "ETA unknown yet" in line


def test_line_failed_ends_with_the_message():
    status = make_status(phase="failed", pass_="", message="server 2 was lost")
    assert line_of(status, None) == "[12 s] failed, server 2 was lost"


def test_plain_within_interval_writes_once():
    clock = Clock()
    stream, progress = plain(clock)
    progress.update(make_status())
    clock.now += 4.9
    progress.update(make_status(progress=0.3))
    assert stream.getvalue().count("\n") == 1
    clock.now += 0.1
    progress.update(make_status(progress=0.35))
    assert stream.getvalue().count("\n") == 2


@pytest.mark.parametrize(
    "change", [{"phase": "exporting"}, {"waiting_for": "server 1"}, {"message": "disk is full"}]
)
def test_plain_news_is_written_at_once(change):
    stream, progress = plain(Clock())
    progress.update(make_status())
    progress.update(make_status(**change))
    assert stream.getvalue().count("\n") == 2


def test_plain_node_changes_state_gets_a_line_at_once():
    stream, progress = plain(Clock())
    progress.update(make_status(nodes=[make_node()]))
    progress.update(make_status(nodes=[make_node(state="lost", waits="nobody")]))
    progress.update(make_status(nodes=[make_node(state="lost", waits="nobody")]))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[12 s] worker 1 (10.0.0.7:42): training"
    assert lines[-1] == "[12 s] worker 1 (10.0.0.7:42): lost, waits for nobody"
    assert len(lines) == 3


def test_plain_output_is_ascii_without_escapes():
    stream, progress = plain(Clock())
    progress.update(make_status(nodes=[make_node()]))
    progress.close(make_status(phase="done", message="vectors written"))
    assert stream.getvalue().isascii()
    assert "\x1b" not in stream.getvalue()


def test_close_writes_last_status_and_then_nothing():
    stream, progress = plain(Clock())
    progress.update(make_status())
    progress.close(make_status(phase="done", progress=1.0, pass_="", message="42 words kept"))
    assert stream.getvalue().splitlines()[-1] == "[12 s] done, 42 words kept"
    size = len(stream.getvalue())
    progress.update(make_status(phase="training"))
    progress.close(make_status())
    assert len(stream.getvalue()) == size


@pytest.mark.parametrize("terminal", [False, True])
def test_update_broken_stream_does_not_end_the_run(terminal):
    stream = io.StringIO()
    progress = Progress(stream, terminal=terminal, clock=Clock())
    stream.close()
    progress.update(make_status())
    progress.update(make_status(phase="exporting"))
    progress.close(make_status(phase="done"))


def test_terminal_shows_bar_figures_and_processes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    clock = Clock()
    progress = Progress(stream, terminal=True, clock=clock)
    nodes = [
        make_node(),
        make_node(role="server", id=2, pid=43, state="serving", rate=None),
        make_node(id=3, pid=44, state="waiting", waits="a block"),
    ]
    progress.update(make_status(nodes=nodes))
    progress.close(make_status(phase="done", nodes=nodes))
    shown = without_ansi(stream.getvalue())
    for piece in ("training 25.0%, epoch 2/5", "1.23 M words/s", "loss 2.3456", "worker 1",
                  "10.0.0.7:42", "500 k", "server 2", "serving", "a block", "done"):  # fmt: skip
        assert piece in shown
    assert stream.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_terminal_redraws_no_more_than_five_times_a_second(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = io.StringIO()
    clock = Clock()
    progress = Progress(stream, terminal=True, clock=clock)
    progress.update(make_status())
    size = len(stream.getvalue())
    clock.now += 0.1
    progress.update(make_status(progress=0.26))
    assert len(stream.getvalue()) == size
    clock.now += 0.15
    progress.update(make_status(progress=0.27))
    assert len(stream.getvalue()) > size
    progress.close(make_status())


def test_terminal_markup_in_names_is_shown_as_it_is(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = io.StringIO()
    progress = Progress(stream, terminal=True, clock=Clock())
    progress.update(make_status(nodes=[make_node(waits="[red]block[/red]")]))
    progress.close(make_status(message="file [1].txt vanished"))
    assert "[red]block[/red]" in without_ansi(stream.getvalue())
    assert "file [1].txt vanished" in without_ansi(stream.getvalue())


def test_eta_too_few_steps_is_unknown():
    eta = Eta()
    eta.note(0.0, "training", 0.0)
    eta.note(1.0, "training", 0.1)
    assert eta.seconds(1.0) is None


def test_eta_even_pace_is_exact():
    eta = Eta()
    for second in range(5):
        eta.note(float(second), "training", second / 16)
    assert eta.seconds(4.0) == 12.0
    assert eta.seconds(4.5) == 11.5  # it counts down between two steps


def test_eta_slow_start_is_forgotten():
    eta = Eta(window_s=10.0)
    eta.note(0.0, "training", 0.0)
    eta.note(100.0, "training", 0.125)
    for second in range(1, 13):
        eta.note(100.0 + second, "training", 0.125 + second / 32)
    # Half is done; the last ten seconds moved 1/32 a second: 16 s, not the mean's 112 s.
    assert eta.seconds(112.0) == pytest.approx(16.0)


def test_eta_long_blocks_keep_three_steps():
    eta = Eta(window_s=10.0)
    for step in range(5):
        eta.note(step * 60.0, "training", step / 8)
    assert eta.seconds(240.0) == pytest.approx(240.0)


def test_eta_observations_without_change_do_not_count():
    eta = Eta()
    for second in range(100):
        eta.note(float(second), "training", 0.5)
    assert eta.seconds(99.0) is None


def test_eta_stalled_is_unknown():
    eta = Eta(window_s=10.0)
    for second in range(5):
        eta.note(float(second), "training", second / 16)
    assert eta.seconds(16.9) is not None
    assert eta.seconds(17.1) is None


def test_eta_another_phase_starts_afresh():
    eta = Eta()
    for second in range(5):
        eta.note(float(second), "survey", second / 5)
    eta.note(5.0, "training", 0.9)
    assert eta.seconds(5.0) is None


def test_progress_masters_eta_is_preferred():
    clock = Clock()
    stream, progress = plain(clock, interval_s=0.0)
    for step in range(4):
        clock.now += 1.0
        progress.update(make_status(progress=step / 8))
    progress.update(make_status(progress=3 / 8, eta_s=77.0))
    lines = stream.getvalue().splitlines()
    assert "ETA unknown yet" in lines[1]
    assert "ETA 5 s" in lines[3]
    assert "ETA 1 min 17 s" in lines[4]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (950, "950"), (1000, "1.00 k"), (12_345, "12.3 k"), (1_234_567, "1.23 M"),
     (123e6, "123 M"), (4.56e9, "4.56 G")],
)  # fmt: skip
def test_count_text_known_counts(count, text):
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"),
     (3600, "1 h 00 min"), (7620, "2 h 07 min")],
)  # fmt: skip
def test_seconds_text_known_durations(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize("terminal", [False, True])
def test_validation_is_written_once_a_line_a_name(terminal):
    stream = io.StringIO()
    progress = Progress(stream, terminal=terminal, clock=Clock())
    found = {"king": [("queen", 0.756), ("man", 0.5)], "x": []}
    for _ in range(2):
        progress.update(make_status(validation=found))
        progress.update(make_status())  # a status of before has none
    progress.validate(found)
    progress.validate({**found, "x": [("caf\udce9", 1.0)]})
    progress.close()
    lines = [line.rstrip() for line in without_ansi(stream.getvalue()).splitlines()]
    assert lines.count("  king: queen 0.756, man 0.5") == 2
    assert lines.count("     x: not known") == 1
    assert lines.count("     x: caf\ufffd 1") == 1
