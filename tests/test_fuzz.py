"""A short slice of the long fuzzing run: ``PYTHONPATH=tests python -m fuzz 5_000_000``."""

import random
import socket

import pytest
from fuzz.attack import FRAG_NUM, Attacker, Hung, attack
from fuzz.mutate import ControlCorpus, DataCorpus, broken_header, handshake, mutated
from live import Live

from snailps.transport.session import Channel

FRAMES = 30_000


def test_fuzzed_master_and_shard_serve_on_and_do_not_grow(tmp_path):
    live = Live(tmp_path, frag_num=FRAG_NUM)
    try:
        tally = attack(live, 5, FRAMES)
    finally:
        live.close()
    assert tally.frames >= FRAMES
    assert tally.connections > 100


def test_fuzzer_sends_the_same_for_the_same_seed():
    for make in (
        lambda random_: handshake(random_, Channel.DATA, 7),
        lambda random_: mutated(bytes(range(200)), random_),
        lambda random_: broken_header(bytes(48), random_),
        DataCorpus(7, FRAG_NUM, 1).frame,
        DataCorpus(7, FRAG_NUM, 1).broken,
        ControlCorpus().frame,
        ControlCorpus().broken,
    ):
        first, again, other = (
            [make(random_) for _ in range(50)]
            for random_ in (random.Random(1), random.Random(1), random.Random(2))
        )
        assert first == again != other


def test_attacker_notices_who_does_not_end_a_connection(tmp_path, monkeypatch):
    """The fuzzer would be worth nothing if a hang went unseen."""
    monkeypatch.setattr("fuzz.attack.END_LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        live = type("Live", (), {"job": 1, "addresses": {"master": silent.getsockname()}})
        with pytest.raises(Hung, match="master, seed 1, connection 0"):
            Attacker(live, "master", 1).connection(0)
