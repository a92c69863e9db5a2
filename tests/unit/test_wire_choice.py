"""As what rows travel: the choice by measured speed, and when rounding is paid back."""

import pytest

from snailps.abi import loops
from snailps.api.tables import Table
from snailps.api.wire_choice import (
    AGAIN_BYTES,
    FAST_BYTES_PER_S,
    MEASURED_BYTES,
    SLOW_BYTES_PER_S,
    WireChoice,
)
from snailps.store.route import Route, ShardAddress


class Speed:
    """A client that moved so many bytes in a second."""

    def __init__(self, moved, seconds=1.0):
        self.moved, self.seconds = moved, seconds

    def goodput(self):
        return self.moved, self.seconds


def route_to(host):
    return Route.build(1, [ShardAddress(0, host, 1)], 4)


@pytest.mark.parametrize(
    ("speed", "chosen"),
    [(FAST_BYTES_PER_S, "float32"), (FAST_BYTES_PER_S - 1, "float16"), (150e6, "float16")],
)
def test_auto_goes_by_measured_speed_and_says_so(speed, chosen, caplog):
    client, table = Speed(int(speed)), Table("t", 4, wire="auto")
    wires = WireChoice(client, route_to("10.0.0.1"))
    with caplog.at_level("INFO"):
        assert wires.of_pull(table) == loops.WIRE_TYPES[chosen]
    assert f"rows travel as {chosen}" in caplog.text
    assert wires.of_push(table)[0] == loops.WIRE_TYPES[chosen]


def test_auto_waits_for_enough_traffic_before_it_decides():
    client, table = Speed(MEASURED_BYTES - 1, 3600.0), Table("t", 4, wire="auto")
    wires = WireChoice(client, route_to("10.0.0.1"))
    assert wires.of_pull(table) == 0
    client.moved += 1
    assert wires.of_pull(table) == 1


@pytest.mark.parametrize(
    ("table", "chosen"),
    [
        (Table("t", 4, wire="auto"), "float16"),
        (Table("t", 4, access="sgd", lr=0.1, wire="auto"), "float16"),
        (Table("t", 4, access="adagrad", lr=0.1, wire="auto"), "float32"),
        (Table("t", 4, wire="float32"), "float32"),
        (Table("t", 4, wire="int8"), "int8"),
    ],
)
def test_narrow_rows_are_float16_on_a_fast_network_where_that_does_not_matter(table, chosen):
    wires = WireChoice(Speed(10 * MEASURED_BYTES, 1e-3), route_to("127.0.0.1"))
    assert wires.of_pull(table, narrow=True) == loops.WIRE_TYPES[chosen]
    wire, feedback = wires.of_push(table, narrow=True)
    assert wire == loops.WIRE_TYPES[chosen]
    assert wire != loops.WIRE_TYPES["float16"] or not feedback
    assert wires.of_pull(table, state=True, narrow=True) == loops.WIRE_TYPES["float32"]
    if table.wire == "auto":
        repeatable = WireChoice(Speed(0), route_to("10.0.0.1"), exact=True)
        assert repeatable.of_pull(table, narrow=True) == loops.WIRE_TYPES["float32"]


@pytest.mark.parametrize("speed", [SLOW_BYTES_PER_S, SLOW_BYTES_PER_S - 1])
def test_narrow_deltas_are_int8_and_their_rounding_is_carried_on_a_slow_network_only(speed):
    table, is_slow = Table("t", 4, wire="auto"), speed < SLOW_BYTES_PER_S
    wires = WireChoice(Speed(int(speed)), route_to("10.0.0.1"))
    assert wires.of_push(table, narrow=True, narrower=True) == (loops.WIRE_TYPES["int8"], is_slow)
    named = "int8" if is_slow else "float16"
    assert wires.of_pull(table, narrow=True) == loops.WIRE_TYPES[named]


@pytest.mark.parametrize(
    ("table", "state", "chosen"),
    [
        (Table("t", 4, access="adagrad", lr=0.1, wire="auto"), False, "float16"),
        (Table("t", 4, access="adagrad", lr=0.1, wire="auto"), True, "float32"),
        (Table("t", 4, wire="float16"), False, "float16"),
        (Table("t", 4, wire="float32"), False, "float32"),
    ],
)
def test_narrow_deltas_are_of_rows_that_may_be_narrow(table, state, chosen):
    wires = WireChoice(Speed(int(SLOW_BYTES_PER_S)), route_to("10.0.0.1"))
    wire, _ = wires.of_push(table, state, narrow=True, narrower=True)
    assert wire == loops.WIRE_TYPES[chosen]
    auto = Table("t", 4, wire="auto")
    assert wires.of_push(auto, narrower=True)[0] == loops.WIRE_TYPES["float16"]
    clocked = WireChoice(Speed(0), route_to("10.0.0.1"), exact=True)
    assert clocked.of_push(auto, narrow=True, narrower=True) == (0, False)


@pytest.mark.parametrize(
    ("speed", "chosen"), [(SLOW_BYTES_PER_S, "float16"), (SLOW_BYTES_PER_S - 1, "int8")]
)
def test_narrow_rows_are_int8_with_feedback_on_a_slow_network(speed, chosen):
    client, table = Speed(int(speed)), Table("t", 4, wire="auto")
    wires = WireChoice(client, route_to("10.0.0.1"))
    assert wires.of_pull(table, narrow=True) == loops.WIRE_TYPES[chosen]
    assert wires.of_push(table, narrow=True) == (loops.WIRE_TYPES[chosen], chosen == "int8")
    assert wires.of_pull(table) == loops.WIRE_TYPES["float16"]


def test_auto_looks_again_when_much_more_has_moved(caplog):
    client, table = Speed(MEASURED_BYTES, 1e-3), Table("t", 4, wire="auto")
    wires = WireChoice(client, route_to("10.0.0.1"))
    assert wires.of_pull(table) == 0
    client.moved, client.seconds = client.moved + AGAIN_BYTES - 1, 10.0
    assert wires.of_pull(table) == 0
    client.moved += 1
    with caplog.at_level("INFO"):
        assert wires.of_pull(table) == 1
        client.moved, client.seconds = client.moved + AGAIN_BYTES, 20.0
        assert wires.of_pull(table) == 1
    assert caplog.text.count("rows travel as float16") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_auto_on_this_machine_is_float32_whatever_the_speed(host):
    wires = WireChoice(Speed(MEASURED_BYTES, 3600.0), route_to(host))
    assert wires.of_pull(Table("t", 4, wire="auto")) == 0


def test_auto_on_this_machine_is_measured_where_encryption_takes_its_time():
    client = Speed(MEASURED_BYTES, 0.05)  # 84 MB/s
    wires = WireChoice(client, route_to("127.0.0.1"), sealed=True)
    assert wires.of_pull(Table("t", 4, wire="auto")) == 1


@pytest.mark.parametrize(
    ("access", "wire", "expected"),
    [
        ("add", "float16", (1, False)),
        ("sgd", "float16", (1, False)),
        ("adagrad", "float16", (1, True)),
        ("add", "int8", (3, True)),
        ("average", "int8", (0, True)),
    ],
)
def test_push_says_whether_what_is_rounded_off_is_kept(access, wire, expected):
    table = Table("t", 4, access=access, wire=wire, lr=0.1)
    wires = WireChoice(Speed(0), route_to("10.0.0.1"))
    assert wires.of_push(table) == expected
    assert wires.of_push(table, state=True)[0] == 0


def test_exact_wires_measure_nothing_and_keep_nothing_for_later():
    client = Speed(int(FAST_BYTES_PER_S) - 1)
    wires = WireChoice(client, route_to("10.0.0.1"), exact=True)
    assert wires.of_push(Table("t", 4, wire="auto")) == (0, False)
    assert wires.of_push(Table("t", 4, access="adagrad", lr=0.1, wire="int8")) == (
        loops.WIRE_TYPES["int8"],
        False,
    )


@pytest.mark.parametrize(
    ("wire", "shards", "expected"),
    [("auto", 1, "float32"), ("auto", 2, "float16"), ("float32", 2, "float32")],
)
def test_parts_of_a_product_are_narrow_where_there_are_several(wire, shards, expected):
    table = Table("t", 2, access="adagrad", lr=0.1, wire=wire)
    chosen = WireChoice(Speed(0), route_to("127.0.0.1"))
    assert chosen.of_product(table, shards) == loops.WIRE_TYPES[expected]
