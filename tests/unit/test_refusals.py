"""Refusals of strangers: how many are kept, and what the log says of them."""

import logging
import resource

import pytest

from snailps.errors import ProtocolError
from snailps.transport.frame import FrameDecoder
from snailps.transport.security.refusals import (
    LINES_MAX,
    PERIOD_S,
    UNKNOWN_MAX,
    RefusalLog,
    strangers_max,
)


@pytest.mark.parametrize(
    ("limit", "descriptor", "kept"),
    [
        (resource.RLIM_INFINITY, 100, UNKNOWN_MAX),
        (1 << 20, 100, UNKNOWN_MAX),
        (1024, 24, 250),
        (1024, 624, 100),
        (1024, 1023, 1),
        (64, 100, 1),  # it was lowered
    ],
)
def test_strangers_take_a_part_of_the_descriptors_that_are_left(
    monkeypatch, limit, descriptor, kept
):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit))
    assert strangers_max(descriptor) == kept


def test_who_speaks_tls_to_a_port_without_is_told_what_is_missing():
    with pytest.raises(ProtocolError, match="it uses TLS, and `tls` is not set here"):
        list(FrameDecoder().feed(b"\x16\x03\x01\x02\x00\x01" + bytes(200)))


# --- the log ----------------------------------------------------------------------------------


def test_attempts_writes_a_bounded_number_of_lines_and_sums_up_the_others(caplog):
    now = [0.0]
    seen = RefusalLog(lambda: now[0])
    for number in range(1000):
        seen.note(f"10.0.0.{number % 7}:{number}", "wrong secret" + "x" * 10_000)
    assert len(caplog.records) == LINES_MAX
    assert max(len(record.getMessage()) for record in caplog.records) < 400
    assert caplog.records[0].getMessage().startswith("refused 10.0.0.0:0: wrong secret")
    assert seen.unreported
    seen.sum_up()
    assert len(caplog.records) == LINES_MAX
    now[0] = PERIOD_S
    seen.sum_up()
    assert not seen.unreported
    assert caplog.records[-1].levelno == logging.WARNING
    assert (
        f"{1000 - LINES_MAX} more attempts to get in were refused within 60 s, from 7 addresses"
        in caplog.records[-1].getMessage()
    )
    seen.note("10.0.0.1:1", "again")
    assert len(caplog.records) == LINES_MAX + 2


def test_attempts_says_what_was_refused(caplog):
    now = [0.0]
    seen = RefusalLog(lambda: now[0], "messages of members")
    for _ in range(LINES_MAX + 3):
        seen.note("10.0.0.1:1", "no message")
    now[0] = PERIOD_S
    seen.sum_up()
    assert "3 more messages of members were refused" in caplog.records[-1].getMessage()


def test_attempts_without_any_says_nothing(caplog):
    now = [0.0]
    seen = RefusalLog(lambda: now[0])
    now[0] = 2 * PERIOD_S
    seen.sum_up()
    assert not caplog.records
