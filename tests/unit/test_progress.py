"""The progress display: plain lines, the live picture, and the estimate of the time left."""

import io
import re

import pytest
from rich.console import Console

import snailps
from snailps.cli import printing, progress, view
from snailps.cli.figures import count_text, seconds_text, size_text, sparkline
from snailps.cli.printing import end_lines, end_picture
from snailps.cli.progress import Eta, Progress
from snailps.cli.view import ending_of, view_of
from snailps.node.phrases import PHASE_WORDS, STATE_WORDS, phase_words, process_name
from snailps.node.status import Phase, Status


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
        "master": {"metrics": ""},
        "message": "",
        "figures": {},
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


def line_of(status, eta_s):
    return view_of(status, eta_s).line()


def plain(clock=None, **options):
    """A display that is no terminal, unless options say otherwise, and what it writes to."""
    stream = io.StringIO()
    return stream, Progress(stream, **{"terminal": False, "clock": clock or Clock(), **options})


def without_ansi(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_line_training_names_every_figure():
    assert line_of(make_status(), 83.0) == (
        "[12 s] training 25.0%, epoch 2/5, 1.23 M words/s, loss 2.3456, 1 min 23 s left, "
        "learning rate 0.0375"
    )


def test_line_verbose_names_blocks():
    assert (
        view_of(make_status(), None)
        .line(verbose=True)
        .endswith("blocks: 10 done 2 at work 30 left")
    )


def test_verbose_tells_states_in_words_of_users():
    stream, progress = plain(verbose=True)
    progress.update(make_status(nodes=[make_node(state="waiting for the export")]))
    assert "worker 1 (10.0.0.7, process 42): done\n" in stream.getvalue()


def test_line_forming_says_whom_it_waits_for_and_no_figures():
    status = make_status(phase="forming", pass_="", waiting_for="1 of 2 servers", elapsed_s=3.0)
    assert line_of(status, None) == "[3 s] starting the cluster, waits for 1 of 2 servers"


def test_line_exporting_says_what_is_done_and_how_much_is_left():
    text = "writing out.npz, 1,024 of 4,096 rows"
    status = make_status(phase="exporting", pass_=text, progress=0.625, elapsed_s=3.0, eta_s=7.0)
    assert line_of(status, 7.0) == f"[3 s] saving the model 62.5%, {text}, 7 s left"
    stream, progress = plain(Clock())
    progress.update(status)
    assert f"saving the model 62.5%, {text}, 7 s left" in stream.getvalue()


def test_line_almost_done_is_not_rounded_up_to_all():
    assert "99.9%" in line_of(make_status(progress=0.99999), None)
    assert "100.0%" in line_of(make_status(progress=1.0), None)


def test_line_unknown_values_are_left_out():
    line = line_of(make_status(loss=None, lr=None, units_per_s=0.0), None)
    assert "loss" not in line
    assert "learning rate" not in line
    assert "words/s" not in line
    assert "left" not in line


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


def test_plain_verbose_node_changes_state_gets_a_line_at_once():
    stream, progress = plain(verbose=True)
    progress.update(make_status(nodes=[make_node()]))
    progress.update(make_status(nodes=[make_node(state="lost", waits="nobody")]))
    progress.update(make_status(nodes=[make_node(state="lost", waits="nobody")]))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[12 s] worker 1 (10.0.0.7, process 42): training"
    assert lines[-1] == "[12 s] worker 1 (10.0.0.7, process 42): lost, waits for nobody"
    assert len(lines) == 4  # and that the cluster is up, and the training


def test_plain_forming_is_one_line():
    stream, progress = plain(Clock())
    progress.update(make_status(phase="forming", waiting_for="1 server", elapsed_s=0.1))
    nodes = [make_node(), make_node(role="server", id=2)]
    progress.update(make_status(phase="preparing", elapsed_s=0.4, nodes=nodes))
    joined = make_event("joined", "the cluster is complete")
    progress.update(make_status(elapsed_s=0.6, nodes=nodes))
    progress.update(make_status(elapsed_s=0.7, nodes=nodes, events=[joined]))  # noted later
    assert stream.getvalue().splitlines()[0] == "cluster of 1 server, 1 worker is up after 0.6 s"
    assert stream.getvalue().count("\n") == 2


def test_address_of_metrics_is_shown_once_the_cluster_is_up():
    stream, progress = plain(Clock())
    for _ in range(2):
        progress.update(make_status(nodes=[make_node()], master={"metrics": "127.0.0.1:9464"}))
    shown = [line for line in stream.getvalue().splitlines() if "metrics" in line]
    where = "metrics at http://127.0.0.1:9464/metrics"
    assert shown == [f"{where}; other processes' addresses: snailps status --json"]


def test_plain_forming_that_lasts_says_what_it_waits_for():
    stream, progress = plain(Clock())
    progress.update(make_status(phase="forming", pass_="", waiting_for="1 server", elapsed_s=2.5))
    assert "starting the cluster, waits for 1 server" in stream.getvalue()


def make_event(kind, text, who="", at_s=9.0):
    return {"at_s": at_s, "kind": kind, "who": who, "text": text}


def test_events_are_told_once_and_checkpoints_to_those_who_ask():
    for verbose in (False, True):
        stream, progress = plain(verbose=verbose)
        events = [make_event("joined", "worker 1 joined")]
        progress.update(make_status(nodes=[make_node()], events=events))
        events = [*events, make_event("lost", "server 2 was lost"), make_event("checkpoint", "c")]
        for _ in range(2):
            progress.update(make_status(nodes=[make_node()], events=events))
        shown = stream.getvalue()
        assert "worker 1 joined" not in shown  # it is in the line of the cluster
        assert shown.count("[9 s] server 2 was lost") == 1
        assert shown.count("[9 s] c\n") == verbose


def test_plain_output_is_ascii_without_escapes():
    stream, progress = plain(Clock())
    progress.update(make_status(nodes=[make_node()]))
    progress.close(ending_of(FIGURES, job="fasttext", losses=[3.0, 2.0]))
    assert stream.getvalue().isascii()
    assert "\x1b" not in stream.getvalue()


FIGURES = {
    "ended_by": "epochs", "words": 4_200_000, "words_per_s": 911_544.2, "train_s": 4.6,
    "survey_s": 0.2, "export_s": 0.3, "wall_s": 5.4, "loss_by_epoch": [2.7752, 2.5642],
    "vocabulary": 19_968, "bytes_per_word": 1310.4, "servers": 2, "files": ["no/x.bin", "no/x.vec"],
    "progress": 1.0,
}  # fmt: skip


def test_another_master_counts_on():
    stream, progress = plain(Clock(), interval_s=0.0)
    progress.update(make_status(elapsed_s=50.0, nodes=[make_node()]))
    events = [make_event("master", "the master was started again", at_s=1.0)]
    progress.update(make_status(elapsed_s=2.0, nodes=[make_node()], events=events))
    progress.update(make_status(elapsed_s=3.0, nodes=[make_node()], events=events))
    lines = stream.getvalue().splitlines()
    assert lines[2] == "[51 s] the master was started again"
    assert [line.partition("]")[0] for line in lines[3:]] == ["[52 s", "[53 s"]


def test_end_names_files_figures_and_the_next_command():
    assert end_lines(ending_of(FIGURES, job="fasttext")) == [
        "wrote no/x.bin",
        "wrote no/x.vec",
        "trained 4,200,000 words in 4.6 s, 911,544 words/s",
        "loss: 2.7752 -> 2.5642",
        "vocabulary: 19,968 words",
        "network: 1,310 bytes a word sent",
        "time: 5.4 s in all: counting 0.2 s, training 4.6 s, saving 0.3 s",
        "next: snailps nn no/x.bin WORD",
    ]


def test_end_says_that_few_words_were_trained_unless_the_user_ended_it():
    figures = FIGURES | {"wants_epochs": 12}
    words = "after 4,200,000 words in all epochs vectors of unlike words are still alike"
    line = f"few words: {words}: train more, as --set epochs=12"
    assert line in end_lines(ending_of(figures, job="fasttext"))
    figures["ended_by"] = "interrupt"
    assert "few words" not in "".join(end_lines(ending_of(figures, job="fasttext")))
    (warning,) = snailps.FastText()._remarks_on(FIGURES | {"wants_epochs": 12})
    assert isinstance(warning, snailps.ConvergenceWarning)
    assert str(warning) == f"FastText: {words}: train more (epochs=12)"


def test_end_says_that_the_loss_has_stopped_falling_or_has_not():
    figures = FIGURES | {"ended_by": "converged", "progress": 0.27, "epochs": 80}
    title = "logistic is trained: the loss has stopped falling, after 80 epochs"
    assert ending_of(figures, job="logistic").title == title
    lines = end_lines(ending_of(FIGURES | {"loss_falls": 0.076, "epochs": 2}, job="logistic"))
    assert (
        "loss: 2.7752 -> 2.5642, still falling 8% an epoch: more epochs would help, as "
        "--set epochs=4" in lines
    )
    figures = FIGURES | {"by_heart": True, "epochs": 90}
    assert (
        "loss: 2.7752 -> 2.5642, 90 epochs, chosen by size, may have learnt the lines by heart: "
        "--set held_out=.1 --set stop_after=3 lets lines that are held out decide"
    ) in end_lines(ending_of(figures, job="fm"))
    lines = end_lines(ending_of(FIGURES | {"constant_loss": 0.6931}, job="logistic"))
    assert "loss: 2.7752 -> 2.5642, a constant's is 0.6931: check labels and columns" in lines


def test_end_says_what_auto_has_chosen_and_how_many_pairs_come_again():
    figures = FIGURES | {"chosen": {"dim": 128, "a0": 0.02346, "l2": 0.03}, "repeated": 1234}
    lines = end_lines(ending_of(figures, job="mf"))
    assert "chosen: dim 128, a0 0.0235, l2 0.03" in lines
    assert "repeated: 1,234 lines have the pair of an earlier one, and count too" in lines
    once = FIGURES | {"repeated": 1, "bad_lines": 1, "vocabulary": 1}
    lines = end_lines(ending_of(once, job="mf"))
    assert "repeated: 1 line has the pair of an earlier one, and counts too" in lines
    assert {"left out: 1 malformed line of the input", "vocabulary: 1 word"} <= {*lines}


def test_end_says_that_one_worker_is_as_fast_only_where_it_is():
    said = (
        "workers: 32% of the processor time of 2 trained, the rest moved rows and coordinated: one "
        "worker with as many threads trains this input as fast"
    )
    several = FIGURES | {"workers": 3, "workers_timed": 2, "work_share": 0.32}  # one was lost
    assert said in end_lines(ending_of(several, job="classifier"))
    for more in ({"work_share": 0.5}, {"workers_timed": 4}, {"workers_timed": 1}, {"train_s": 1.9}):
        lines = end_lines(ending_of(several | more, job="classifier"))
        assert not any(line.startswith("workers:") for line in lines)


def test_end_says_which_epoch_is_saved_though_some_were_not_tested():
    tests = [{"epoch": epoch, "log_loss": 0.5 - epoch / 100} for epoch in (1, 2, 5)]
    figures = FIGURES | {"tests": tests}
    for more, said in (
        ({}, "5 (3 tested)"),
        ({"saved_epoch": 5, "best_epoch": 5}, "5, the best one by log loss (3 tested)"),
        ({"saved_epoch": 5, "best_epoch": 2}, "5; epoch 2 was better, and is lost (3 tested)"),
    ):
        lines = end_lines(ending_of(figures | more, job="logistic"))
        assert f"validation: log loss 0.45: saved is epoch {said}" in lines


def test_label_in_a_figure_stays_as_it_is_written():
    test = {"epoch": 1, "f1:__label__junk_mail": 0.5, "f1_at_1": 0.9}
    figures = FIGURES | {"tests": [test], "saved_epoch": 1, "best_epoch": 1}
    assert (
        "validation: f1:__label__junk_mail 0.5, f1 at 1 0.9: saved is epoch 1, the best one by "
        "f1:__label__junk_mail (1 tested)"
    ) in end_lines(ending_of(figures, job="classifier"))


def test_time_left_of_a_training_that_may_end_before_is_a_bound():
    line = line_of(make_status(pass_="epoch 12, at most 300"), 8.0)
    assert "epoch 12, at most 300" in line
    assert "at most 8" in line
    assert "at most" not in line_of(make_status(pass_="epoch 2 of 5"), 8.0)


def test_end_tells_the_faults_that_the_run_survived(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.npz").write_bytes(bytes(2_500_000))
    figures = {"files": ["m.npz"], "test": {"auc": 0.87654, "rows": []}}
    events = [make_event("lost", "server 2 was lost"), make_event("joined", "server 3 joined")]
    lines = end_lines(ending_of(figures, job="fm", status=make_status(events=events)))
    assert lines == [
        "wrote m.npz (2.5 MB)",
        "quality: auc 0.8765",
        "survived: server 2 was lost",
        "next: snailps predict m.npz FILE",
    ]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"users": 72, "users_without": 793, "seen": 0, "unknown": 4137, "held_out": 5541},
         ", of 72 users, 793 more had nothing to find; 4,137 of its lines have unknown names"),
        ({"users": 1, "users_without": 0, "seen": 1, "unknown": 0},
         ", of 1 user; 1 of its lines is in the training, and left out"),
        ({"unknown": 3}, ", 3 of its lines have unknown names"),
        ({"unknown": 0}, ""),
    ],
)  # fmt: skip
def test_end_says_of_how_many_users_and_lines_its_figures_are(counts, said):
    ending = ending_of({"test": {"recall_at_10": 0.20612, **counts}}, job="mf")
    (quality,) = [line for line in end_lines(ending) if line.startswith("quality")]
    assert quality == f"quality: recall at 10 0.2061{said}"


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("mf", "recommend m.npz -k 5"), ("kge", "predict m.npz FILE -k 5"),
        ("fm", "predict m.npz FILE"), ("fasttext", "nn m.npz WORD"),
    ],
)  # fmt: skip
def test_end_names_the_command_that_suits_the_model(job, said):
    assert dict(ending_of({"files": ["m.npz"]}, job=job).facts)["next"] == [f"snailps {said}"]


def test_end_interrupted_says_what_was_saved_and_how_to_go_on():
    figures = FIGURES | {"ended_by": "interrupt", "progress": 0.45}
    checkpoint = {"number": 3, "progress": 0.4, "age_s": 1.0, "path": "ck", "writing": False}
    status = make_status(checkpoint=checkpoint)
    ending = ending_of(figures, job="fasttext", status=status)
    assert ending.title == "fasttext is trained: ended early by Ctrl-C, 45% done"
    (saved,) = [line for line in end_lines(ending) if line.startswith("saved")]
    assert saved == (
        "saved: checkpoint 3 (40% of the training) in ck: the same command continues from there"
    )
    figures["checkpoint"] = {"number": 4, "progress": 0.45, "path": "ck"}  # behind that status
    (saved,) = dict(ending_of(figures, job="fasttext", status=status).facts)["saved"]
    assert saved.startswith("checkpoint 4 (45% of the training) in ck")
    ending = ending_of({}, job="fm", status=make_status(), why="interrupted while training")
    assert ending.title == "fm: interrupted"
    assert end_lines(ending) == ["saved: nothing: there is no checkpoint (checkpoint_interval)"]


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_end_panel_fits_and_cuts_nothing(columns):
    console = Console(file=io.StringIO(), width=columns, force_terminal=True)
    long = "server 2 was lost (Connection reset by peer); server 1 takes over its 4 shards " * 3
    status = make_status(events=[make_event("lost", long)])
    ending = ending_of(FIGURES, job="fasttext", status=status, losses=list(range(300)))
    console.print(end_picture(ending))
    shown = without_ansi(console.file.getvalue())
    assert all(len(line) <= columns for line in shown.splitlines())
    words = re.sub(r"[\u2500-\u257f\s]+", " ", shown)
    for piece in (*long.split(), "911,544 words/s", "snailps nn no/x.bin WORD", "▁"):
        assert piece in words


@pytest.mark.parametrize("terminal", [False, True])
def test_close_shows_the_end_and_then_nothing(terminal):
    stream, progress = plain(terminal=terminal)
    progress.update(make_status())
    progress.close(ending_of(FIGURES, job="fasttext"))
    size = len(stream.getvalue())
    assert (
        "snailps nn no/x.bin WORD"
        in without_ansi(stream.getvalue()).splitlines()[-2 if terminal else -1]
    )
    progress.update(make_status(phase="training"))
    progress.close()
    assert len(stream.getvalue()) == size


def test_every_phase_has_words():
    for phase in Phase.__args__:
        assert phase_words(make_status(phase=phase)).startswith(PHASE_WORDS[phase])
    assert phase_words(make_status(phase="survey")) == "counting words"
    assert process_name("server", 2) == "server 2"
    assert process_name("master", 0) == "the master"
    assert STATE_WORDS["ready"][1] == "good"


def test_sparkline_follows_the_course():
    assert sparkline([3, 2, 1], 3) == "█▅▁"
    assert sparkline([1.0] * 5, 3) == "▁▁▁"
    assert sparkline([1.0], 3) == ""
    assert len(sparkline(range(1000), 40)) == 40


@pytest.mark.parametrize("terminal", [False, True])
def test_update_broken_stream_does_not_end_the_run(terminal):
    stream, progress = plain(terminal=terminal)
    stream.close()
    progress.update(make_status())
    progress.update(make_status(phase="exporting"))
    progress.close(ending_of(FIGURES))


@pytest.fixture
def wide(monkeypatch):
    """A terminal that rich draws on, whatever these tests are run in."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")


def test_terminal_shows_bar_figures_and_processes(wide):
    clock = Clock()
    stream, progress = plain(clock, terminal=True)
    nodes = [
        make_node(),
        make_node(role="server", id=2, pid=43, state="serving", rate=None),
        make_node(id=3, pid=44, state="waiting", waits="a block", waits_s=1.0),
        make_node(id=4, waits="a part that comes at once", waits_s=0.9),
    ]
    progress.update(make_status(nodes=nodes))
    progress.close()
    shown = without_ansi(stream.getvalue())
    for piece in ("training, epoch 2/5", "25.0%", "1.23 M words/s", "loss 2.3456", "worker 1",
                  "10.0.0.7, process 42", "500 k", "server 2", "serving", "a block"):  # fmt: skip
        assert piece in shown
    assert "at once" not in shown  # or each look would show other waits
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back


def test_terminal_redraws_no_more_than_five_times_a_second(wide):
    clock = Clock()
    stream, progress = plain(clock, terminal=True)
    progress.update(make_status())
    size = len(stream.getvalue())
    clock.now += 0.1
    progress.update(make_status(progress=0.26))
    assert len(stream.getvalue()) == size
    clock.now += 0.15
    progress.update(make_status(progress=0.27))
    assert len(stream.getvalue()) > size
    progress.close()


def test_terminal_markup_in_names_is_shown_as_it_is(wide):
    stream, progress = plain(terminal=True)
    node = make_node(waits="[red]block[/red]", waits_s=2.0)
    progress.update(make_status(nodes=[node], message="file [1].txt vanished"))
    progress.close()
    assert "[red]block[/red]" in without_ansi(stream.getvalue())
    assert "file [1].txt vanished" in without_ansi(stream.getvalue())


EVEN = [(second, "training", second / 16) for second in range(5)]
PACES = {
    "even": (EVEN, 4.0, 12.0),
    "even, between two steps": (EVEN, 4.5, 11.5),
    "two steps": (EVEN[:2], 1.0, None),
    "no change": ([(second, "training", 0.5) for second in range(100)], 99.0, None),
    "nearly stalled": (EVEN, 16.9, 11.0),
    "stalled": (EVEN, 17.1, None),
    "another phase": ([*EVEN, (5, "exporting", 0.9)], 5.0, None),
    "long steps": ([(60 * step, "training", step / 8) for step in range(5)], 240.0, 240.0),
    # Half is done; the last ten seconds moved 1/32 a second: 16 s, not the mean's 112 s.
    "a slow start": (
        [(0, "training", 0), *((100 + n, "training", (4 + n) / 32) for n in range(13))], 112.0, 16.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("pace", PACES)
def test_eta_of_a_pace_is_the_time_at_that_of_the_last_steps(pace):
    seen, now, seconds = PACES[pace]
    eta = Eta(window_s=10.0)
    for one in seen:
        eta.note(*one)
    assert eta.seconds(now) == seconds


def test_progress_masters_eta_is_preferred():
    clock = Clock()
    stream, progress = plain(clock, interval_s=0.0)
    for step in range(4):
        clock.now += 1.0
        progress.update(make_status(progress=step / 8))
    progress.update(make_status(progress=3 / 8, eta_s=77.0))
    lines = stream.getvalue().splitlines()
    assert "left" not in lines[1]
    assert "5 s left" in lines[3]
    assert "1 min 17 s left" in lines[4]


TEXTS = {
    size_text: {0: "0 bytes", 999: "999 bytes", 8_200_000: "8.2 MB", 1.43e9: "1.4 GB"},
    count_text: {
        0: "0", 950: "950", 1000: "1.00 k", 12_345: "12.3 k", 1_234_567: "1.23 M", 123e6: "123 M",
        4.56e9: "4.56 G",
    },
    seconds_text: {
        0: "0 s", 59.4: "59 s", 59.6: "1 min 00 s", 185: "3 min 05 s", 3600: "1 h 00 min",
        7620: "2 h 07 min",
    },
}  # fmt: skip


@pytest.mark.parametrize("text_of", TEXTS)
def test_text_of_known_numbers(text_of):
    assert {number: text_of(number) for number in TEXTS[text_of]} == TEXTS[text_of]


def test_each_test_during_the_training_is_a_line_and_the_last_one_stands_beside_the_loss():
    tests = [
        {"at_s": 1.5, "progress": 0.1, "ndcg_at_10": 0.4, "recall_at_10": 0.5},
        {"at_s": 3.5, "progress": 0.2, "ndcg_at_10": 0.45, "recall_at_10": 0.55},
    ]
    stream, progress = plain()
    for count in (0, 1, 1, 2, 1):  # then another job's
        progress.update(make_status(tests=tests[:count]))
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("  test")]
    first = "  test after 10%: ndcg at 10 0.4, recall at 10 0.5"
    assert lines == [first, "  test after 20%: ndcg at 10 0.45, recall at 10 0.55", first]
    assert ", loss 2.3456, test ndcg at 10 0.45, " in line_of(make_status(tests=tests), None)


def test_test_of_the_finished_model_is_a_step_of_its_own():
    text = "testing: lists, 1,024 of 4,096 users"
    status = make_status(phase="exporting", pass_=text, progress=0.25, elapsed_s=3.0, eta_s=7.0)
    assert line_of(status, 7.0) == f"[3 s] testing the model 25.0%, {text}, 7 s left"
    figures = {"wall_s": 9.0, "train_s": 4.0, "test_s": 3.0, "export_s": 1.0}
    ending = str(ending_of(figures))
    assert "9.0 s in all: training 4.0 s, testing 3.0 s, saving 1.0 s" in ending


@pytest.mark.parametrize("terminal", [False, True])
def test_validation_is_written_once_a_line_a_name(terminal):
    stream, progress = plain(terminal=terminal)
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


def test_plain_lines_need_nothing_that_draws_a_terminal():
    """Its import is some 7% of the start of a job."""
    for module in (printing, progress, view):
        owners = [
            getattr(v, "__module__", getattr(v, "__name__", "")) for v in vars(module).values()
        ]
        assert not [name for name in owners if str(name).startswith("rich")]


def test_panel_shows_a_reliability_that_a_narrow_terminal_has_room_for():
    parts = [{"examples": 10, "predicted": n / 10, "observed": n / 11} for n in range(10)]
    figures = {"examples": 100, "servers": 1, "bytes_per_example": 0.26, "wall_s": 1.0}
    ending = ending_of(figures | {"test": {"auc": 0.9, "reliability": parts}}, job="logistic")
    stream = io.StringIO()
    Console(file=stream, width=80).print(end_picture(ending))
    shown = stream.getvalue()
    assert "predicted 0.00 0.10 0.20 0.30 0.40 0.50 0.60 0.70 0.80 0.90 " in shown
    assert "observed  0.00 0.09" in shown
    assert "0.3 bytes an example sent" in shown
    assert not any("predicted" in line for line in end_lines(ending))  # the result has it
