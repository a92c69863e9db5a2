"""bench/quick.py: what it calls red, how it goes on without a step, what it keeps and writes."""

import importlib
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from test_documents import anchors

ROOT = Path(__file__).resolve().parents[2]
XEON = "Intel(R) Xeon(R) Processor, 2 cores, Linux 6.18.44"
SVG = "{http://www.w3.org/2000/svg}"
SPEED, MEMORY, SECONDS = "pull / bare loop", "words, memory / fastText", "job of 3 MB, s"


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of bench/."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


@pytest.fixture
def quick(bench, monkeypatch):
    module = bench("quick")
    monkeypatch.setattr(module, "commit", lambda: "here")
    return module


@pytest.fixture
def figures(bench):
    return bench("quick_figures")


@pytest.fixture
def curves(bench):
    return bench("curves")


def run(commit, values, machine=XEON, **more):
    return {
        "date": "2026-11-30",
        "commit": commit,
        "machine": machine,
        "figures": values,
        **more,
    }


# --- red ------------------------------------------------------------------------------------------


def test_ratios_below_nine_tenths_of_their_best_are_red(figures):
    before = [run("a", {SPEED: 2.0}), run("b", {SPEED: 1.5})]
    assert figures.red(run("c", {SPEED: 1.81}), before) == []
    [line] = figures.red(run("c", {SPEED: 1.79}), before)
    assert line == f"{SPEED}: 1.79, 0.90 of the best (2, a, 2026-11-30)"


def test_memory_is_red_above_and_seconds_and_new_figures_are_not(figures):
    before = [run("a", {MEMORY: 0.5}), run("b", {MEMORY: 0.8}), run("c", {SECONDS: 1})]
    now = run("d", {MEMORY: 0.55, SECONDS: 9.0, SPEED: 0.1})
    assert figures.red(now, before) == []
    assert len(figures.red(run("d", {MEMORY: 0.57}), before)) == 1


@pytest.mark.parametrize(
    ("other", "is_red"),
    [
        ({"machine": XEON.replace("6.18.44", "7.0.1")}, True),
        ({"machine": XEON.replace("2 cores", "8 cores")}, False),
        ({"machine": "AMD EPYC, 2 cores, Linux 6.18.44"}, False),
        ({"sizes": "limits"}, False),
        ({"sizes": "quick"}, True),
    ],
)
def test_the_best_is_of_the_same_kind_of_machine_and_sizes(figures, other, is_red):
    before = [run("a", {SPEED: 2.0}, **other)]
    assert bool(figures.red(run("b", {SPEED: 1.0}), before)) == is_red


def test_history_has_the_runs_of_the_repository_and_those_kept_elsewhere(quick, tmp_path):
    elsewhere = tmp_path / "history.jsonl"
    kept = quick.history(quick.HISTORY)
    assert len(kept) >= 3
    assert quick.history(quick.HISTORY, elsewhere) == kept
    elsewhere.write_text(json.dumps(run("new", {})) + "\n")
    assert quick.history(quick.HISTORY, elsewhere) == [*kept, run("new", {})]
    assert quick.history(quick.HISTORY, quick.HISTORY) == kept


# --- texts ----------------------------------------------------------------------------------------


def test_begin_of_a_text_ends_with_a_word(quick, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(b"one two three four")
    assert quick.begin_of(corpus, 12, tmp_path / "begin").read_bytes() == b"one two "
    assert quick.begin_of(corpus, 13, tmp_path / "begin").read_bytes() == b"one two "
    assert quick.begin_of(corpus, 14, tmp_path / "begin").read_bytes() == b"one two three "


def test_lines_have_the_length_of_their_first_word_as_label(quick, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b" ".join([b"three", b"of"] * 16))
    lines = quick.labelled(text, tmp_path / "lines").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["__label__5", "__label__5"]
    assert [len(line.split()) - 1 for line in lines] == [30, 2]


# --- steps ----------------------------------------------------------------------------------------


def printed(script, *words):
    """What a script of bench/ prints, as far as quick.py reads it: ours is twice the peer."""
    systems = ("snailps", "other")
    if script in ("words.py", "classifier.py"):
        names = systems[:1] if {"", "--no-peer"} & {*words} else systems
        return [
            {"system": name, "words_per_s": rate, "peak_rss_mb": rate, "wall_s": 1.5}
            for name, rate in zip(names, (2, 1), strict=False)
        ]
    if script == "fasttext_place.py":
        return [{"system": "program", "ratio": 1}, {"system": "snailps", "ratio": 2}]
    if script == "sparse.py":
        names = systems[:1] if "--no-peers" in words else (*systems, "faster")
        rates = {"snailps": 6, "other": 2, "faster": 3}
        return [{"job": "ctr", "system": name, "examples_per_s": rates[name]} for name in names]
    return {
        "fits.py": [{"sgd": {"wall": 2}, "fit": {"wall": 1}}],
        "first_try.py": [{"first": 0.5, "later": 0.1}],
        "doors.py": [{"plain": 1, "tls": 2}],
        "hosts.py": [{"hosts": 8, "speed_up_beside": 4}],
        "transport.py": [
            {"pull_rows_per_s": 2, "limit_pull_rows_per_s": 1, "push_rows_per_s_add": 1}
        ],
    }[script]


@pytest.fixture
def args(quick, monkeypatch, tmp_path):
    """The command line of a run whose scripts print what `printed` says."""
    corpus, some_file = tmp_path / "corpus.txt", tmp_path / "file"
    corpus.write_text("some words " * 100)
    some_file.touch()
    monkeypatch.setattr(quick, "rows_of", printed)
    monkeypatch.setattr(quick, "with_translations", lambda lists, folder: folder)

    class NoGroups:
        def __init__(self, period_ms):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def add(self, name, cores):
            pass

    monkeypatch.setattr(quick, "Groups", NoGroups)

    def of(*words):
        own = ["--corpus", corpus, "--program", some_file, "--languages", some_file]
        own += ["--history", tmp_path / "history.jsonl", "--runs", "1"]
        monkeypatch.setattr("sys.argv", ["quick.py", *map(str, [*own, *words])])
        return quick.arguments()

    return of


@pytest.mark.parametrize("sizes", ["quick", "limits"])
def test_every_figure_of_every_step_has_a_row(quick, figures, args, tmp_path, sizes):
    measured = quick.measure(quick.Bench(args("--sizes", sizes), tmp_path), [*quick.STEPS])
    assert (measured["left_out"], measured["failed"]) == ({}, [])
    values = measured["figures"]
    assert values.keys() <= figures.ROWS.keys()
    if sizes == "limits":
        # Of transport.py only the pulls were printed.
        assert figures.ROWS.keys() - values.keys() <= quick.TRANSPORT.keys()
    assert values["clicks, examples/s / Vowpal Wabbit"] == 2  # of the faster of two
    assert values["clicks, bsp / async"] == values["subwords, four workers / one"] == 1
    assert values["words, hosts / ceiling"] == 4 / quick.SIZES[sizes].hosts


def test_a_step_that_fails_is_left_out_and_the_others_go_on(quick, args, monkeypatch, tmp_path):
    def fails(bench):
        raise quick.Failed("x.py ended with code 3")

    def cannot(bench):
        raise quick.LeftOut("needs a machine of its own")

    def says_something_else(bench):
        raise KeyError("words_per_s")

    steps = {
        "fails": fails,
        "cannot": cannot,
        "says something else": says_something_else,
        "works": lambda bench: {SPEED: 1.23456},
    }
    monkeypatch.setattr(quick, "STEPS", steps)
    measured = quick.measure(quick.Bench(args(), tmp_path), [*steps])
    assert measured == {
        "figures": {SPEED: 1.235},
        "left_out": {
            "fails": "Failed: x.py ended with code 3",
            "cannot": "needs a machine of its own",
            "says something else": "KeyError: 'words_per_s'",
        },
        "failed": ["fails", "says something else"],
    }


def test_ctrl_c_keeps_what_was_measured(quick, args, monkeypatch, tmp_path):
    def interrupted(bench):
        raise KeyboardInterrupt

    steps = {"first": lambda bench: {SPEED: 1.0}, "second": interrupted, "third": interrupted}
    monkeypatch.setattr(quick, "STEPS", steps)
    measured = quick.measure(quick.Bench(args(), tmp_path), [*steps])
    assert measured == {
        "figures": {SPEED: 1.0},
        "left_out": {"second": "interrupted", "third": "interrupted"},
        "failed": ["second", "third"],
    }


def test_a_script_that_fails_is_no_end_of_the_run(bench, tmp_path, monkeypatch):
    quick = bench("quick")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    (tmp_path / "late.py").write_text("import time; time.sleep(600)")
    (tmp_path / "good.py").write_text("import sys; print('text'); print('{\"x\": 1}')")
    monkeypatch.setattr(quick, "HERE", tmp_path)
    assert quick.rows_of("good.py") == [{"x": 1}]
    with pytest.raises(quick.Failed, match=r"bad\.py ended with code 3"):
        quick.rows_of("bad.py")
    monkeypatch.setattr(quick, "SCRIPT_S", 0.5)
    with pytest.raises(quick.Failed, match=r"late\.py took longer than"):
        quick.rows_of("late.py")


def test_a_script_that_is_stopped_may_end_what_it_has_started(quick):
    text = "import signal, time\nsignal.signal(2, signal.default_int_handler)\n"
    text += "try:\n print('begun', flush=True)\n time.sleep(600)\n"
    text += "finally:\n print('ended')"
    command = [sys.executable, "-c", text]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout.readline() == "begun\n"
        quick.stop(child)
        assert child.stdout.read() == "ended\n"


# --- a run ----------------------------------------------------------------------------------------


def one(quick, monkeypatch, args, value, *words):
    """Run main with one step, whose figure is `value`; its exit code."""

    def step(bench):
        if value is None:
            raise quick.Failed("it failed")
        return {SPEED: value}

    monkeypatch.setattr(quick, "STEPS", {"one": step})
    args(*words)
    try:
        quick.main()
    except SystemExit as ended:
        return ended.code
    return 0


def test_a_run_is_kept_drawn_and_red_where_it_is_slower(quick, args, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(quick, "machine", lambda: "a machine of this test, 3 cores, Linux 1")
    assert one(quick, monkeypatch, args, 2.0) == 0
    assert "nothing can be red" in capsys.readouterr().out
    assert one(quick, monkeypatch, args, 1.9) == 0
    assert "-5%" in capsys.readouterr().out
    assert one(quick, monkeypatch, args, 1.7) == 1
    assert f"red: {SPEED}: 1.7, 0.85 of the best (2, here" in capsys.readouterr().out
    kept = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [run["figures"][SPEED] for run in kept] == [2.0, 1.9, 1.7]
    assert f"{SPEED}</text>" in (tmp_path / "history.svg").read_text()
    assert one(quick, monkeypatch, args, None) == 1
    assert "left out: one: Failed: it failed" in capsys.readouterr().out


def test_a_resumed_run_measures_what_the_last_one_left_out(quick, args, monkeypatch, tmp_path):
    monkeypatch.setattr(quick, "machine", lambda: "a machine of this test, 3 cores, Linux 1")
    asked = []

    def step(name, value):
        def measured(bench):
            asked.append(name)
            if value[0] is None:
                raise quick.Failed("it failed")
            return {name: value[0]}

        return measured

    value = [None]
    steps = {"good": step(SPEED, [1.0]), "bad": step(MEMORY, value)}
    monkeypatch.setattr(quick, "STEPS", steps)
    args()
    with pytest.raises(SystemExit):
        quick.main()
    args("--resume", "--steps", "good")  # which has its figure
    quick.main()
    [last] = map(json.loads, (tmp_path / "history.jsonl").read_text().splitlines())
    assert (last["figures"], [*last["left_out"]]) == ({SPEED: 1.0}, ["bad"])
    value[0] = 0.5
    args("--resume")
    quick.main()
    assert asked == [SPEED, MEMORY, MEMORY]
    [last] = map(json.loads, (tmp_path / "history.jsonl").read_text().splitlines())
    assert (last["figures"], last["left_out"]) == ({SPEED: 1.0, MEMORY: 0.5}, {})
    monkeypatch.setattr(quick, "commit", lambda: "later")
    args("--resume")
    with pytest.raises(SystemExit, match="the last run is of another commit"):
        quick.main()
    assert len(asked) == 3


# --- the table ------------------------------------------------------------------------------------


def test_table_says_what_is_met_missed_and_left_out(figures):
    values = {SPEED: 1.0, MEMORY: 0.81, SECONDS: 4.0, "clicks, bsp / async": 0.5}
    told = figures.table(run("abc", values, sizes="limits", left_out={"tls": "no certificates"}))
    rows = [line for line in told.splitlines() if line.startswith("| ")]
    assert "commit abc, 2026-11-30" in told
    assert "2 of 3 targets met" in told
    by_name = {row.split(" | ")[0].removeprefix("| "): row for row in rows}
    assert by_name[SPEED].endswith("| 1 | 0.92 | met |")
    assert "| 0.81 | 0.8 | *missed*: " in by_name[MEMORY]
    assert by_name[SECONDS].endswith("| 4 | 5 | met |")
    assert by_name["clicks, bsp / async"].endswith("| 0.5 |  |  |")
    assert "- tls: no certificates" in told


def test_reasons_of_misses_lead_to_headings(figures):
    page = ROOT / "docs" / "limits.md"
    for row in figures.ROWS.values():
        for file, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", row.missed):
            target = page.parent / file if file else page
            assert target.is_file(), row.missed
            assert not anchor or anchor in anchors(target), row.missed


def test_fill_writes_the_targets_of_the_page_from_the_last_run_of_these_sizes(
    quick, args, tmp_path, monkeypatch
):
    page = tmp_path / "limits.md"
    page.write_text((ROOT / "docs" / "limits.md").read_text(encoding="utf-8"), encoding="utf-8")
    runs = [
        run("first", {SPEED: 1.25}, sizes="limits"),
        run("second", {SPEED: 1.5}, sizes="limits"),
        run("third", {SPEED: 1.75}, sizes="quick"),
    ]
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(run) + "\n" for run in runs))
    args("--draw", "--fill", page)
    quick.main()
    text = page.read_text(encoding="utf-8")
    assert "commit second" in text
    assert f"| {SPEED} | 100,000 rows of dim 100 | 1.5 | 0.92 | met |" in text
    assert "commit first" not in text


def test_fill_is_refused_for_other_sizes(args, tmp_path):
    page = tmp_path / "page.md"
    page.touch()
    with pytest.raises(SystemExit, match="--fill needs --sizes limits"):
        args("--fill", page)


# --- curves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high", "expected"),
    [(8, [0, 2, 4, 6, 8]), (6.4, [0, 2, 4, 6, 8]), (1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, [0, 1]),
     (1518, [0, 500, 1000, 1500, 2000])],
)  # fmt: skip
def test_ticks_are_round_and_reach_the_highest(curves, high, expected):
    assert curves.nice_ticks(high) == pytest.approx(expected)


def test_labels_are_short(curves):
    labels = [curves.label(v) for v in (0, 0.2, 8, 1000, 2.5e6, 1e9)]
    assert labels == ["0", "0.2", "8", "1k", "2.5M", "1G"]


def test_chart_is_svg_with_every_point_inside_its_axes(curves):
    points = [(float(2**i), 10.0 * 2**i) for i in range(7)]
    text = curves.chart("Title & more", "run", "words/s", [curves.Series("a < b & c", points)])
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    marks = root.findall(f"{SVG}circle")
    assert len(marks) == 7
    xs, ys = ([float(mark.get(name)) for mark in marks] for name in ("cx", "cy"))
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True)
    assert min(xs) >= curves.LEFT
    assert max(xs) <= curves.WIDTH - curves.RIGHT
    assert min(ys) >= curves.TOP
    assert max(ys) <= curves.HEIGHT - curves.BOTTOM
    assert {"a < b & c", "Title & more", "run", "words/s"} <= {
        node.text for node in root.iter(f"{SVG}text")
    }


def test_chart_without_points_is_refused(curves):
    with pytest.raises(ValueError, match="without points"):
        curves.chart("t", "x", "y", [curves.Series("a", [])])


def test_tables_are_written_between_marks(figures):
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\nc\n"
    first = figures.filled(page, {"x": "new", "y": "more"})
    assert first == (
        "a\n<!-- x -->\n\nnew\n\n<!-- end -->\nb\n<!-- y -->\n\nmore\n\n<!-- end -->\nc\n"
    )
    assert figures.filled(first, {"x": "new", "y": "more"}) == first
    with pytest.raises(ValueError, match="no place for a table"):
        figures.filled(page, {"z": "new"})
