"""roles.journal: facts go into a file and come back, whole lines only."""

import errno
import os

import pytest

from snailps.errors import ClusterError
from snailps.roles import journal as module
from snailps.roles.journal import BASE, FACTS, Fact, Journal, decode, encode

LIFE = Fact("life", {"life": 7, "settings": {"dim": "3"}})
FACT = Fact("done", {"node": 3, "number": 12, "metrics": {"loss": 1.5}, "path": "a\udcff"})


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out.journal"


@pytest.fixture
def journal(folder):
    opened = Journal(folder)
    assert opened.take() == []
    opened.begin([LIFE])
    yield opened
    opened.close()


def taken(folder):
    """The facts that the next master finds."""
    other = Journal(folder)
    facts = other.take()
    other.close()
    return facts


def test_fact_as_bytes_is_a_line_with_its_checksum():
    assert encode(Fact("tick", {"tick": 3})) == b'da7147ff ["tick",{"tick":3}]\n'
    assert decode(encode(LIFE) + encode(FACT))[0] == [LIFE, FACT]


def test_journal_that_is_taken_over_has_every_fact_noted(folder, journal):
    journal.note(FACT.kind, FACT.data)
    journal.note("settled", {"node": 3, "numbers": [12]})
    journal.close()
    assert taken(folder) == [LIFE, FACT, Fact("settled", {"node": 3, "numbers": [12]})]


def test_journal_has_facts_without_being_closed(folder, journal):
    journal.note(FACT.kind, FACT.data)
    assert decode((folder / FACTS).read_bytes())[0] == [LIFE, FACT]


@pytest.mark.parametrize("cut", range(1, len(encode(FACT)), 7))
def test_journal_with_half_a_line_gives_the_lines_before(folder, journal, cut, caplog):
    journal.note(FACT.kind, FACT.data)
    journal.note(FACT.kind, FACT.data)
    journal.close()
    path = folder / FACTS
    os.truncate(path, path.stat().st_size - cut)
    assert taken(folder) == [LIFE, FACT]
    assert "damaged from byte" in caplog.text
    assert str(path) in caplog.text


def test_journal_with_a_flipped_byte_is_cut_there(folder, journal):
    journal.note(FACT.kind, FACT.data)
    journal.note("tick", {"tick": 1})
    journal.close()
    data = bytearray((folder / FACTS).read_bytes())
    data[len(encode(LIFE)) + 20] ^= 4
    (folder / FACTS).write_bytes(data)
    assert taken(folder) == [LIFE]


@pytest.mark.parametrize("junk", [b"\n", b"xxxxxxxx []\n", b"\0" * 4096, b"garbage"])
def test_journal_with_anything_behind_gives_the_lines_before(folder, journal, junk):
    journal.close()
    with (folder / FACTS).open("ab") as file:
        file.write(junk)
    assert taken(folder) == [LIFE]


def test_journal_that_is_begun_anew_has_only_what_it_was_given(folder, journal):
    journal.note(FACT.kind, FACT.data)
    journal.begin([LIFE, FACT])
    journal.note("tick", {"tick": 1})
    journal.close()
    assert taken(folder) == [LIFE, FACT, Fact("tick", {"tick": 1})]


def test_journal_of_a_run_that_ended_is_gone(folder, journal):
    journal.keep_base(b"abc")
    journal.end()
    assert not folder.exists()
    assert not journal.kept
    journal.note("tick", {"tick": 1})


def test_journal_that_another_process_keeps_is_refused(folder, journal):
    with pytest.raises(ClusterError, match=rf"another master.*process {os.getpid()} on"):
        Journal(folder).take()


def test_journal_without_a_folder_keeps_nothing():
    journal = Journal(None)
    assert journal.take() == []
    journal.begin([LIFE])
    journal.note(FACT.kind, FACT.data)
    journal.keep_base(b"abc")
    assert not journal.kept
    journal.end()


def test_journal_on_a_full_disk_is_removed_and_says_so(folder, journal, monkeypatch, caplog):
    def full(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "_write", full)
    journal.note(FACT.kind, FACT.data)
    assert not journal.kept
    assert "CANNOT BE WRITTEN (No space left on device)" in caplog.text
    journal.close()
    assert taken(folder) == []


def test_base_is_kept_beside_the_facts(folder, journal):
    journal.keep_base(b"old")
    journal.keep_base(b"new")
    journal.close()
    assert Journal(folder).base() == b"new"
    (folder / BASE).unlink()
    with pytest.raises(ClusterError, match="journal cannot be used: No such file"):
        Journal(folder).base()


def test_facts_are_made_durable_soon(journal, monkeypatch):
    synced = []
    done = module.threading.Event()

    def sync(file):
        synced.append(file)
        done.set()

    monkeypatch.setattr(module.os, "fdatasync", sync)
    journal.note(FACT.kind, FACT.data)
    assert done.wait(20)
