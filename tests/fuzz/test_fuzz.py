"""Short slices of the long fuzzing runs.

``PYTHONPATH=tests python -m fuzz 5_000_000``, ``PYTHONPATH=tests python -m fuzz.control 1_000_000``
"""

import random
import socket

import pytest
from live import Live

from fuzz import control
from fuzz.attack import FRAG_NUM, Attacker, Hung, attack
from fuzz.mutate import ControlCorpus, DataCorpus, broken_header, handshake, mutated
from snailps.errors import ProtocolError
from snailps.transport import messages
from snailps.transport.frame import FrameDecoder, Kind
from snailps.transport.handshake import Channel

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
    monkeypatch.setattr("fuzz.attack.LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        live = type("Live", (), {"job": 1, "addresses": {"master": silent.getsockname()}})
        with pytest.raises(Hung, match="master, seed 1, connection 0"):
            Attacker(live, "master", 1).connection(0)


# --- the control port ----------------------------------------------------------------------------

MESSAGES = 3_000


def test_master_under_attack_finishes_its_job_right_and_does_not_grow(tmp_path):
    job = control.LiveJob(tmp_path, MESSAGES)
    try:
        tally = control.attack(job, 7, MESSAGES)
        job.finish()
    finally:
        job.close()
    assert tally.messages >= MESSAGES
    assert tally.heard > 0.8 * tally.messages
    assert tally.honest > 2


def test_control_fuzzer_sends_the_same_for_the_same_seed():
    first, again, other = (
        [control.Attacker(("", 0), 7, seed).messages_of(number)[:2] for number in range(60)]
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_control_fuzzer_reaches_every_message_and_both_sides_of_the_door():
    attacker = control.Attacker(("", 0), 7, 1)
    good, refused = set(), 0
    for number in range(600):
        persona, frames, _ = attacker.messages_of(number)
        for frame in FrameDecoder().feed(b"" if persona == "pulse" else b"".join(frames)):
            if frame.kind != Kind.ERROR:
                try:
                    good.add(type(messages.decode(frame.body)).__name__)
                except ProtocolError:
                    refused += 1
    said = [*control.calls(7).values(), *control.NOTES.values(), control.ANSWERS]
    assert good >= {type(message).__name__ for group in said for message in group}
    assert refused > 200
