"""bench/scaling.py: constants are found again, predictions obey their formulas; curves are SVG."""

import importlib
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from processes import LIMIT_S, PACKAGE

BENCH = PACKAGE / "bench"
MARKS = ("measured", "tested", "predicted", "curves")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("scaling")


@pytest.fixture
def curves(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("curves")


@pytest.fixture
def truth(scaling):
    return scaling.Constants(
        one_us=1.2, kernel_us=1.5, host_us=0.02, byte_us=0.002, one_bytes=80.0, form="affine",
        a=60.0, b=8.0, wait=1.02, wait_log=0.03, server_share=0.0, master_host=0.001,
        master_block_us=700.0, blocks=1e-7, blocks_host=2e-7, overlap=0.75,
    )  # fmt: skip


def measured(scaling, truth, hosts, mbit=None, cores=0.22):
    """What a cluster of these constants would show."""
    rate = scaling.predict(truth, hosts, scaling.Host(cores, mbit, shards=1)).units_per_s
    cpu_us = truth.cpu_at(hosts)
    blocks = truth.blocks + truth.blocks_host * hosts
    master = truth.master_host * hosts + truth.master_block_us * 1e-6 * blocks * rate
    return scaling.Measured(
        hosts=hosts, units_per_s=rate, cpu_us=cpu_us, server_us=0.001 * truth.bytes_at(hosts),
        master_us=master / rate * 1e6, blocks_per_unit=blocks,
        bytes_per_unit=truth.bytes_at(hosts), busy=1 / scaling.waited(truth, hosts), cores=cores,
        mbit=mbit,
    )  # fmt: skip


# --- constants ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("xs", "ys", "expected"),
    [
        ([1, 2, 4], [5, 7, 11], (3, 2)),
        ([1, 2, 4], [6, 6, 6], (6, 0)),
        ([1, 2, 4], [2, 4, 8], (0, 2)),
        ([3], [7], (7, 0)),  # one point says nothing of a slope
        ([2, 2], [7, 7], (7, 0)),
    ],
)
def test_line_goes_through_points_that_lie_on_one(scaling, xs, ys, expected):
    assert scaling.line(xs, ys) == pytest.approx(expected)


def test_line_has_no_constant_below_zero(scaling):
    assert scaling.line([1, 2, 4], [8, 4, 2])[1] == 0
    a, b = scaling.line([1, 2, 4], [1, 4, 10])
    assert a == 0
    assert 1 < b < 2.5


def test_line_without_points_is_refused(scaling):
    with pytest.raises(ValueError, match="no measurements"):
        scaling.line([], [])


def test_power_is_found_and_at_most_linear(scaling):
    assert scaling.power([2, 4, 8], [2 * x**0.5 for x in (2, 4, 8)]) == pytest.approx((2, 0.5))
    assert scaling.power([2, 4], [4, 16])[1] == 1
    assert scaling.power([2, 4], [16, 4])[1] == 0
    assert scaling.power([2], [16]) == pytest.approx((16, 0))


def test_bytes_take_the_form_that_fits(scaling, truth):
    free = [measured(scaling, truth, n) for n in (1, 2, 4, 8)]
    assert scaling.bytes_form(free) == ("affine", pytest.approx(60), pytest.approx(8))
    falling = [replace(m, bytes_per_unit=100 * m.hosts**0.3) for m in free]
    assert scaling.bytes_form(falling) == ("power", pytest.approx(100), pytest.approx(0.3))
    # Two points fit both: then as much more with each doubling.
    assert scaling.bytes_form(free[:3])[0] == "power"
    assert scaling.bytes_form(free[:1]) == ("affine", 80, 0)


def test_constants_are_found_again(scaling, truth):
    all_ = [measured(scaling, truth, n) for n in (1, 2, 4, 8)]
    all_ += [measured(scaling, truth, n, mbit=100.0) for n in (2, 8)]
    found = scaling.fit(all_, host_us=truth.host_us)
    for name in ("one_us", "kernel_us", "host_us", "byte_us", "one_bytes", "a", "b", "wait",
                 "wait_log", "master_host", "master_block_us", "blocks", "blocks_host",
                 "overlap"):  # fmt: skip
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-6), name
    assert all(abs(e["error"]) < 1e-9 for e in scaling.errors(found, all_))


def test_constants_of_few_hosts_predict_more(scaling, truth):
    truth = replace(truth, form="power", a=60.0, b=0.2)
    some = [measured(scaling, truth, n) for n in (1, 2, 4)]
    found = scaling.fit(some, host_us=truth.host_us)
    found = scaling.errors(found, [*some, measured(scaling, truth, 8)])
    assert [e["hosts"] for e in found] == [1, 2, 4, 8]
    assert found[-1]["error"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("factor", [1.0, 1.4])
def test_constants_do_not_depend_on_how_much_the_machine_is_shared(scaling, truth, factor):
    """Hosts that share caches take longer; the prediction of others does not know it."""
    free = [measured(scaling, truth, n) for n in (1, 2, 8)]
    slow = [
        m
        if m.hosts == 1
        else replace(
            m, shared=factor, cpu_us=m.cpu_us * factor, server_us=m.server_us * factor,
            units_per_s=m.units_per_s / factor,
        )
        for m in free
    ]  # fmt: skip
    found = scaling.fit(slow, host_us=truth.host_us)
    for name in ("one_us", "kernel_us", "byte_us"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name)), name
    assert all(abs(e["error"]) < 1e-9 for e in scaling.errors(found, slow))


def test_files_without_one_host_are_compared_with_that_of_others(scaling, truth):
    free = data(scaling, truth, [1, 2, 8])
    one = free["summary"][0]
    for row, factor in zip(free["summary"][1:], (0.9, 1.4), strict=True):
        row["beside_cpu_us"] = factor * one["cpu_us_per_unit"]["all"]
        row["beside_units_per_s"] = one["units_per_s"] / factor
    capped = data(scaling, truth, [8], "100mbit")
    other = data(scaling, truth, [8])
    other["about"]["input"] = "other.txt"
    scaling.compared([free, capped, other])
    (row,) = capped["summary"]
    assert row["speed_up"] == pytest.approx(row["units_per_s"] / one["units_per_s"], rel=1e-3)
    assert row["speed_up_beside"] == pytest.approx(1.4 * row["speed_up"], rel=1e-3)
    assert scaling.sharing([free]) == {2: 1.0, 8: pytest.approx(1.4)}
    assert scaling.sharing([capped]) == {8: pytest.approx(1.4)}
    assert scaling.sharing([other]) == {}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"set": ["dim=300"]}, False),
        ({"set": ["optimizer=adagrad", "wire=auto"]}, False),
        ({"threads": 2}, False),
        ({"set": ["wire=auto"]}, True),
        ({"link": "100mbit", "replication": "sync", "date": "2026-11-23"}, True),
    ],
)
def test_one_host_of_other_settings_is_no_comparison(scaling, truth, changed, same):
    one, other = data(scaling, truth, [1]), data(scaling, truth, [1])
    one["about"] |= {"set": ["wire=float32"], "threads": 1}
    other["about"] |= {**one["about"], **changed}
    assert (scaling.job_of(one) == scaling.job_of(other)) == same


def test_work_for_all_hosts_is_that_of_word_vectors_alone(scaling, truth):
    file = data(scaling, truth, [1])
    assert scaling.host_us_of(file, None) == scaling.HOST_US
    for model in ("logistic", None):
        file["about"]["model"] = model
        assert scaling.host_us_of(file, None) == 0
        assert scaling.host_us_of(file, 0.5) == 0.5


def test_names_tell_files_apart(scaling, truth):
    file = data(scaling, truth, [1])
    assert scaling.name_of(file) == "word2vec"
    file["about"] |= {"input": "a/large.txt", "set": ["wire=float32"], "replication": "sync"}
    assert scaling.name_of(file) == "word2vec, large, replication sync"
    file["about"] |= {"link": "100mbit", "set": ["wire=float32", "wire=auto"]}
    assert scaling.name_of(file) == "word2vec, large, replication sync, 100mbit, wire auto"
    assert "mbit" not in scaling.name_of(file, linked=False)


def test_tables_are_written_between_marks(scaling):
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\nc\n"
    first = scaling.filled(page, {"x": "new", "y": "more"})
    assert first == (
        "a\n<!-- x -->\n\nnew\n\n<!-- end -->\nb\n<!-- y -->\n\nmore\n\n<!-- end -->\nc\n"
    )
    assert scaling.filled(first, {"x": "new", "y": "more"}) == first
    with pytest.raises(ValueError, match="no place for a table"):
        scaling.filled(page, {"z": "new"})


def test_exchange_takes_twice_what_servers_take_and_at_most_half_of_all(scaling, truth):
    one = replace(measured(scaling, truth, 2), cpu_us=4.0, server_us=0.5, bytes_per_unit=100.0)
    assert scaling.exchange_us([one, one]) == pytest.approx(0.01)
    assert scaling.exchange_us([replace(one, server_us=3.0)]) == pytest.approx(0.02)
    assert scaling.exchange_us([replace(one, bytes_per_unit=0.0)]) == 0


def test_constants_need_a_run_without_a_limit(scaling, truth):
    with pytest.raises(ValueError, match="without a limit"):
        scaling.fit([measured(scaling, truth, 2, mbit=100.0)])


def test_overlap_is_unknown_where_one_part_is_short(scaling, truth):
    assert scaling.overlap_of(truth, measured(scaling, truth, 2, mbit=100_000.0)) is None
    m = measured(scaling, truth, 8, mbit=100.0)
    assert scaling.overlap_of(truth, m) == pytest.approx(0.75)
    assert scaling.overlap_of(truth, replace(m, units_per_s=1e9)) == 1
    assert scaling.overlap_of(truth, replace(m, units_per_s=1)) == 0


# --- predictions ----------------------------------------------------------------------------------


def test_prediction_without_exchange_is_that_of_the_cores(scaling):
    plain = scaling.Constants(2.0, 2.0, 0.0, 0.0, 0.0, "affine", 0.0, 0.0)
    for hosts in (1, 2, 64):
        found = scaling.predict(plain, hosts, scaling.Host(16, None))
        assert found.units_per_s == pytest.approx(hosts * 16 / 2e-6)
        assert (found.limit, found.network_share) == ("processors", 0)
    less = replace(plain, core_loss=0.02)
    found = scaling.predict(less, 1, scaling.Host(16, None))
    assert found.units_per_s == pytest.approx(16 / 1.3 / 2e-6)
    assert scaling.predict(less, 1, scaling.Host(0.5, None)).units_per_s == pytest.approx(0.25e6)


def test_prediction_of_a_slow_link_is_that_of_the_link(scaling):
    bound = scaling.Constants(0.001, 0.001, 0.0, 0.0, 0.0, "affine", 100.0, 0.0)
    found = scaling.predict(bound, 4, scaling.Host(16, 100.0))
    # 75 of 100 bytes leave their host; each of four links carries 11.75 MB/s.
    assert found.units_per_s == pytest.approx(4 * 100e6 / 8 * 0.94 / 75)
    assert found.limit == "network"
    assert found.network_share == pytest.approx(1)
    assert scaling.predict(bound, 1, scaling.Host(16, 100.0)).limit == "processors"


def test_prediction_without_overlap_adds_both(scaling):
    both = scaling.Constants(1.0, 1.0, 0.0, 0.0, 0.0, "affine", 100.0, 0.0)
    host = scaling.Host(1, 100.0)
    computing = scaling.predict(both, 2, scaling.Host(1, None)).units_per_s
    link = 2 * 100e6 / 8 * 0.94 / 50
    assert scaling.predict(both, 2, host).units_per_s == pytest.approx(min(computing, link))
    found = scaling.predict(replace(both, overlap=0.0), 2, host)
    assert found.units_per_s == pytest.approx(1 / (1 / computing + 1 / link))


def test_prediction_has_limits_of_shards_and_of_the_master(scaling):
    many = scaling.Constants(1.0, 1.0, 0.0, 0.0, 0.0, "affine", 0.0, 0.0, server_share=0.5)
    found = scaling.predict(many, 2, scaling.Host(64, None, shards=8))
    assert (found.limit, found.units_per_s) == ("shards", pytest.approx(2 * 8 / 0.5e-6))
    busy = replace(many, server_share=0.0, master_host=0.01, master_block_us=1000.0, blocks=1e-4)
    found = scaling.predict(busy, 50, scaling.Host(64, None))
    assert (found.limit, found.units_per_s) == ("master", pytest.approx(0.5 / 1e-7))
    assert scaling.predict(busy, 101, scaling.Host(64, None)).units_per_s == 0


# --- files ----------------------------------------------------------------------------------------


def data(scaling, truth, numbers, link="loopback"):
    mbit = scaling.link_of(link)[1]
    rows = []
    for n in numbers:
        m = measured(scaling, truth, n, mbit)
        cpu = {"all": m.cpu_us + m.master_us, "master": m.master_us, "server": m.server_us,
               "worker": m.cpu_us - m.server_us}  # fmt: skip
        rows.append(
            {"hosts": n, "unit": "words", "units": 10**9, "blocks": m.blocks_per_unit * 1e9,
             "units_per_s": m.units_per_s, "cpu_us_per_unit": cpu, "quota_used": m.busy,
             "bytes_per_unit": m.bytes_per_unit}
        )  # fmt: skip
    for row in rows:
        row["speed_up"] = row["units_per_s"] / rows[0]["units_per_s"]
    about = {"core": 0.22, "link": link, "model": "word2vec", "conf": None, "replication": "none"}
    return {"about": about, "summary": rows, "runs": []}


def test_measurements_of_a_file(scaling, truth):
    found = scaling.measured_of(data(scaling, truth, [1, 4], "100mbit"))
    for one, n in zip(found, (1, 4), strict=True):
        expected = measured(scaling, truth, n, 100.0)
        for name, figure in vars_of(one).items():
            assert figure == pytest.approx(getattr(expected, name)), name


def vars_of(measured):
    return {name: getattr(measured, name) for name in type(measured).__dataclass_fields__}


def test_files_without_a_share_of_a_core_are_refused(scaling, truth):
    free = data(scaling, truth, [1])
    free["about"]["core"] = 0
    with pytest.raises(ValueError, match="compete"):
        scaling.measured_of(free)
    with pytest.raises(ValueError, match=r"hosts\.py --out"):
        scaling.measured_of({"summary": []})


def test_command_tells_errors_and_predictions_and_draws(scaling, truth, tmp_path):
    files = []
    for link, numbers in (("loopback", [1, 2, 4, 8]), ("100mbit", [2, 8])):
        files.append(tmp_path / f"{link}.json")
        files[-1].write_text(json.dumps(data(scaling, truth, numbers, link)))
    page = tmp_path / "page.md"
    marks = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in MARKS)
    page.write_text(marks)
    command = [sys.executable, str(BENCH / "scaling.py"), *map(str, files), "--hosts", "1,64"]
    done = subprocess.run(
        [*command, "--svg", str(tmp_path / "s"), "--fit", "1,2,4", "--fill", str(page)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "| 100 Mbit/s |" in text
    assert "![s-speed-up](s-speed-up.svg)" in text
    assert "| 64 |" not in text
    assert len([row for row in done.stdout.splitlines() if row.endswith("% |")]) == 6
    assert "| 64 |" in done.stdout
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert drawn == ["s-bytes-words.svg", "s-predicted-words.svg", "s-speed-up.svg"]
    subprocess.run([*command, "--fill", str(page)], capture_output=True, check=True)
    assert page.read_text().count("| 64 |") == 1

    told = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    found = json.loads(told)
    assert [guess["hosts"] for guess in found["predictions"]] == [1, 64]
    bad = subprocess.run(
        [*command, str(BENCH / "README.md")], capture_output=True, text=True, check=False
    )
    assert bad.returncode
    assert "Traceback" not in bad.stderr


# --- curves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high", "expected"),
    [(8, [0, 2, 4, 6, 8]), (6.4, [0, 2, 4, 6, 8]), (1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, [0, 1]),
     (1518, [0, 500, 1000, 1500, 2000])],
)  # fmt: skip
def test_ticks_are_round_and_reach_the_highest(curves, high, expected):
    assert curves.nice_ticks(high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(3e5, 4e9, [1e5, 1e6, 1e7, 1e8, 1e9, 1e10]), (3, 40, [2, 5, 10, 20, 50]), (10, 10, [10, 20])],
)
def test_log_ticks_enclose_the_range(curves, low, high, expected):
    assert curves.log_ticks(low, high) == pytest.approx(expected)


def test_labels_are_short(curves):
    found = [curves.label(v) for v in (0, 0.2, 8, 1000, 2.5e6, 1e9)]
    assert found == ["0", "0.2", "8", "1k", "2.5M", "1G"]


@pytest.mark.parametrize("log", [False, True])
def test_chart_is_svg_with_every_point_inside_its_axes(curves, log):
    points = [(float(2**i), 10.0 * 2**i) for i in range(7)]
    series = [curves.Series("a < b & c", points), curves.Series("ideal", points, dashed=True)]
    text = curves.chart("Title & more", "hosts", "words/s", series, log=log)
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    marks = root.findall(f"{SVG}circle")
    assert len(marks) == 7  # those of the dashed one are left out
    xs, ys = ([float(mark.get(name)) for mark in marks] for name in ("cx", "cy"))
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True)
    assert min(xs) >= curves.LEFT
    assert max(xs) <= curves.WIDTH - curves.RIGHT
    assert min(ys) >= curves.TOP
    assert max(ys) <= curves.HEIGHT - curves.BOTTOM
    if log:  # equal ratios are equal distances
        steps = [b - a for a, b in pairwise(xs)]
        assert max(steps) - min(steps) < 0.21
        assert math.isclose(xs[0], curves.LEFT)
    assert {"a < b & c", "ideal", "Title & more", "hosts", "words/s"} <= {
        node.text for node in root.iter(f"{SVG}text")
    }
    assert text == curves.chart("Title & more", "hosts", "words/s", series, log=log)


def test_chart_without_points_is_refused(curves):
    with pytest.raises(ValueError, match="without points"):
        curves.chart("t", "x", "y", [curves.Series("a", [])])
