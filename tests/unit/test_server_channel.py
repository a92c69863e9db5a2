"""A thread's talk with servers: it ends, and it says for whom it waits."""

import logging
from types import SimpleNamespace

import pytest
from snailps.master.server_channel import ServerChannel

from snailps.errors import CheckpointError
from snailps.master import server_channel
from snailps.transport import messages


def server(number, saved_bytes=0):
    stats = {"saved_bytes": saved_bytes}
    return SimpleNamespace(number=number, name=f"server {number}", stats=stats)


def test_silence_is_told_and_then_given_up_naming_who_is_silent(monkeypatch, caplog):
    monkeypatch.setattr(server_channel, "LATE_S", 0.2)
    monkeypatch.setattr(server_channel, "STALL_S", 0.6)
    talk, servers = ServerChannel(None), [server(1), server(2), server(3)]
    talk.heard(servers[1], messages.Saved(4, []))
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(CheckpointError, match="waited for server 1, server 3: not a byte in 1 s"),
    ):
        talk.collect(servers, messages.Saved, 4)
    assert [record.getMessage()[:42] for record in caplog.records] == [
        "a checkpoint waits for server 1, server 3:"
    ]


def test_server_that_is_lost_matters_only_while_it_has_something_to_tell():
    talk, servers = ServerChannel(None), [server(1), server(2)]
    talk.lost(server(3), "it left")
    talk.heard(servers[0], messages.Saved(4, []))
    talk.lost(servers[0], "it left")
    talk.heard(servers[1], messages.Saved(4, []))
    assert len(talk.collect(servers, messages.Saved, 4)) == 2
    talk.lost(servers[1], "its connection broke")
    with pytest.raises(CheckpointError, match="server 2: it is lost: its connection broke"):
        talk.collect(servers, messages.Saved, 5)


def test_words_of_an_earlier_checkpoint_and_of_those_that_have_told_are_no_answer():
    talk, servers = ServerChannel(None), [server(1), server(2)]
    for number, one in ((3, 0), (4, 0), (4, 0), (3, 1), (4, 1)):
        talk.heard(servers[one], messages.Saved(number, [number]))
    assert [saved.number for saved in talk.collect(servers, messages.Saved, 4)] == [4, 4]
