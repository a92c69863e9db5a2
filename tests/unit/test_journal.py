"""master.journal: facts go into a file and come back, all of them, or damage is refused."""

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from machine import fails
from waiting import happens, joined, until

from snailps.errors import ClusterError
from snailps.master import journal as module
from snailps.master.journal import (
    BASE,
    BEGUN,
    CLUSTER,
    FACTS,
    GIVEN_UP,
    Damaged,
    Fact,
    Journal,
    create_file,
    decode,
    encode,
)

FIRST = Fact("cluster", {"cluster_id": 7, "settings": {"dim": "3"}})
NUMBERS = Fact("numbers", {"until": 1024})
HEAD = [FIRST, NUMBERS, BEGUN]
FACT = Fact("done", {"node": 3, "number": 12, "metrics": {"loss": 1.5}, "path": "a\udcff"})


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out.journal"


@pytest.fixture
def journal(folder):
    opened = Journal(folder)
    assert not opened.take()
    opened.begin([FIRST, NUMBERS])
    yield opened
    opened.close()


def taken(folder):
    """The facts that the next master finds."""
    other = Journal(folder)
    try:
        other.take()
        return other.read()
    finally:
        other.close()


def test_fact_as_bytes_is_a_line_with_its_checksum():
    assert encode(Fact("tick", {"tick": 3})) == b'da7147ff ["tick",{"tick":3}]\n'
    assert decode(encode(FIRST) + encode(FACT))[0] == [FIRST, FACT]


def test_journal_that_is_taken_over_has_every_fact_noted(folder, journal):
    journal.note(FACT.kind, FACT.data)
    journal.note("durable", {"node": 3, "numbers": [12]})
    journal.close()
    assert taken(folder) == [*HEAD, FACT, Fact("durable", {"node": 3, "numbers": [12]})]


def test_journal_has_facts_without_being_closed(folder, journal):
    journal.note(FACT.kind, FACT.data)
    assert decode((folder / FACTS).read_bytes())[0] == [*HEAD, FACT]


def fill(journal):
    """Notes some facts; all that the file has then."""
    facts = [
        FACT,
        Fact("durable", {"node": 3, "numbers": [12]}),
        Fact("route", {"route": {"epoch": 1}}),
        Fact("tick", {"tick": 1}),
    ]
    for fact in facts:
        journal.note(fact.kind, fact.data)
    journal.close()
    return [*HEAD, *facts]


def test_journal_that_is_cut_anywhere_gives_whole_records_or_is_refused(folder, journal):
    """As a power cut leaves it, with or without zeros behind."""
    facts = fill(journal)
    path, reader = folder / FACTS, Journal(folder)
    size, end, left = path.stat().st_size, path.stat().st_size, list(facts)
    for cut in range(size - 1, 0, -1):
        if cut < end - 1:  # all but the newline is a whole record, too
            end -= len(encode(left.pop()))
        for length in (cut, size + 700):  # there are zeros behind, the second time
            os.truncate(path, cut)
            os.truncate(path, length)
            if BEGUN in left:
                assert reader.read() == left
            else:
                with pytest.raises(ClusterError, match="its beginning is incomplete"):
                    reader.read()


def test_journal_with_half_a_record_says_so(folder, journal, caplog):
    fill(journal)
    os.truncate(folder / FACTS, (folder / FACTS).stat().st_size - 3)
    taken(folder)
    assert f"{folder / FACTS}: incomplete from byte" in caplog.text


@pytest.mark.parametrize("bit", range(8))
def test_journal_with_a_flipped_bit_anywhere_is_whole_or_refused(folder, journal, bit):
    """One run a byte: what a master goes on with is never less than there was."""
    facts = fill(journal)
    data, first, reader = (folder / FACTS).read_bytes(), len(encode(FIRST)), Journal(folder)
    with (folder / FACTS).open("r+b", buffering=0) as file:
        for at in range(len(data)):
            byte = bytes([data[at] ^ 1 << (at + bit) % 8])
            os.pwrite(file.fileno(), byte, at)
            if at < first or at == len(data) - 1:  # the copy has it; the last newline says nothing
                assert reader.read() == facts
            else:
                with pytest.raises(ClusterError, match=r"facts is damaged: .* at byte \d+ of"):
                    reader.read()
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert reader.read() == facts


def test_journal_whose_copy_of_the_first_record_is_damaged_is_whole(folder, journal):
    facts = fill(journal)
    data, reader = encode(FIRST), Journal(folder)
    assert (folder / CLUSTER).read_bytes() == data
    with (folder / CLUSTER).open("r+b", buffering=0) as file:
        for at in range(len(data)):
            os.pwrite(file.fileno(), bytes([data[at] ^ 1 << at % 8]), at)
            assert reader.read() == facts
            os.pwrite(file.fileno(), data[at : at + 1], at)
    (folder / CLUSTER).unlink()
    assert taken(folder) == facts


@pytest.mark.parametrize("damage", ["both", "another life", "no facts", "empty", "no beginning"])
def test_journal_that_does_not_say_what_it_is_of_is_refused(folder, journal, damage):
    fill(journal)
    line = encode(Fact("cluster", {"cluster_id": 8}))
    if damage == "both":
        for name in (FACTS, CLUSTER):
            data = bytearray((folder / name).read_bytes())
            data[11] ^= 1
            (folder / name).write_bytes(data)
    elif damage == "no facts":
        (folder / FACTS).unlink()
    else:
        beginnings = {"another life": line + encode(BEGUN), "empty": b"", "no beginning": line}
        (folder / FACTS).write_bytes(beginnings[damage])
        if damage == "no beginning":
            (folder / CLUSTER).write_bytes(line)
    with pytest.raises(ClusterError, match=r"is damaged.*Nothing was changed.*over with --fresh"):
        taken(folder)


@pytest.mark.parametrize("junk", [b"\n", b"xxxxxxxx []\n", b"ab\0\n"])
def test_journal_with_a_whole_line_behind_that_is_no_record_is_refused(folder, journal, junk):
    with pytest.raises(Damaged, match="nothing after it does"):
        decode(encode(FACT) + junk)
    with pytest.raises(Damaged, match="2 records after it do"):
        decode(encode(FACT) + junk + encode(FACT) + encode(FACT))


@pytest.mark.parametrize("damage", ["", "first", "tail", "newline", "copy"])
def test_journal_that_goes_on_is_mended_and_has_what_was_noted_since(folder, journal, damage):
    facts = fill(journal)
    data = bytearray((folder / FACTS).read_bytes())
    if damage == "first":
        data[3] ^= 1
    elif damage == "tail":
        data += b'0123abcd ["don'
    elif damage == "newline":
        del data[-1]
    elif damage == "copy":
        (folder / CLUSTER).unlink()
    (folder / FACTS).write_bytes(data)
    other = Journal(folder)
    assert other.take()
    assert other.read() == facts
    other.go_on([Fact("numbers", {"until": 2048})])
    other.note("tick", {"tick": 2})
    other.close()
    more = [Fact("numbers", {"until": 2048}), Fact("tick", {"tick": 2})]
    expected = b"".join(map(encode, [*facts, *more]))
    assert (folder / FACTS).read_bytes() == expected
    assert (folder / CLUSTER).read_bytes() == encode(FIRST)


def test_journal_that_is_begun_anew_has_only_what_it_was_given(folder, journal):
    journal.note(FACT.kind, FACT.data)
    journal.close()
    other = Journal(folder)
    assert other.take()
    other.begin([Fact("cluster", {"cluster_id": 8}), FACT])
    other.note("tick", {"tick": 1})
    other.close()
    assert taken(folder) == [
        Fact("cluster", {"cluster_id": 8}),
        FACT,
        BEGUN,
        Fact("tick", {"tick": 1}),
    ]


def test_journal_of_a_run_that_ended_is_gone(folder, journal):
    journal.keep_base(b"abc")
    journal.end()
    assert not folder.exists()
    assert not journal.kept
    journal.note("tick", {"tick": 1})


def test_journal_in_which_nothing_was_begun_leaves_no_folder(folder, monkeypatch):
    other = Journal(folder)
    assert not other.take()
    other.release()
    assert not folder.exists()

    again = Journal(folder)
    assert not again.take()
    monkeypatch.setattr(module, "write_all", fails(errno.ENOSPC))
    with pytest.raises(ClusterError, match="No space left"):
        again.begin([FIRST])
    again.release()
    assert not folder.exists()


def test_journal_on_a_disk_without_a_byte_leaves_no_folder(folder, monkeypatch):
    monkeypatch.setattr(os, "pwrite", fails(errno.ENOSPC))
    with pytest.raises(ClusterError, match=r"left on device\. Make room on its disk, or choose"):
        Journal(folder).take()
    assert not folder.exists()


def test_journal_of_another_run_is_left_as_it_is(folder, journal):
    journal.close()
    files = {path.name for path in folder.iterdir()}
    other = Journal(folder)
    assert other.take()
    third = Journal(folder)
    with pytest.raises(ClusterError, match="another master"):
        third.take()
    third.release()
    other.release()
    assert {path.name for path in folder.iterdir()} == files


def test_journal_that_another_process_keeps_is_refused(folder, journal):
    with pytest.raises(ClusterError, match=rf"another master.*process {os.getpid()} on"):
        Journal(folder).take()


def test_journal_without_a_folder_keeps_nothing():
    journal = Journal(None)
    assert not journal.take()
    assert journal.read() == []
    journal.begin([FIRST])
    journal.go_on()
    journal.note(FACT.kind, FACT.data)
    journal.keep_base(b"abc")
    assert not journal.kept
    journal.end()


def test_journal_on_a_full_disk_is_removed_and_says_so(folder, journal, monkeypatch, caplog):
    monkeypatch.setattr(module, "write_all", fails(errno.ENOSPC))
    journal.note(FACT.kind, FACT.data)
    assert not journal.kept
    assert "CANNOT BE WRITTEN (No space left on device)" in caplog.text
    journal.close()
    assert taken(folder) == []
    assert "could not be written to its end: a new run begins" in caplog.text
    other = Journal(folder)
    other.take()
    monkeypatch.undo()
    other.begin([FIRST])
    other.close()
    assert not (folder / GIVEN_UP).exists()


def compact(journal, meanwhile=lambda: None):
    journal.compact(module.Snapshot({"job": 1}, {}, []))
    meanwhile()
    for thread in threading.enumerate():
        if thread.name == "snailps-compact":
            joined(thread)


@pytest.mark.parametrize("when", ["facts", "during a compaction", "a sync"])
def test_journal_is_kept_again_once_its_disk_has_room(folder, journal, monkeypatch, caplog, when):
    """A disk that was full for a moment took the journal for ever."""
    if when == "a sync":
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fails(errno.ENOSPC))
            journal.sync()
        assert not journal.kept
    is_full = threading.Event()

    def create(path):
        if threading.current_thread().name == "snailps-compact":
            happens(is_full, "facts on the full disk")
        return create_file(path)

    def fill_disk():
        monkeypatch.setattr(module, "write_all", fails(errno.ENOSPC))
        journal.note("table", {"number": 1})
        journal.keep_base(b"base")
        is_full.set()

    monkeypatch.setattr(module, "create_file", create)
    if when == "during a compaction":
        compact(journal, fill_disk)
    else:
        fill_disk()
    assert not journal.kept
    for at in range(2):  # twice in a row: it is still full
        assert journal.is_to_be_kept_again(at * module.AGAIN_S)
        assert not journal.is_to_be_kept_again((at + 0.9) * module.AGAIN_S)
        compact(journal)
        assert not journal.kept
    journal.note("table", {"number": 2})
    assert not (folder / module.FACTS).exists()
    monkeypatch.undo()
    assert journal.is_to_be_kept_again(2 * module.AGAIN_S)
    compact(journal)
    assert journal.kept
    assert not journal.is_to_be_kept_again(9 * module.AGAIN_S)
    journal.note("table", {"number": 3})
    journal.close()
    facts = taken(folder)
    assert facts[0] == FIRST
    assert [fact.data["number"] for fact in facts if fact.kind == "table"] == [1, 2, 3]
    assert Journal(folder).base() == b"base"
    assert not (folder / GIVEN_UP).exists()
    assert caplog.text.count("CANNOT BE WRITTEN") == 1
    assert "the journal is kept again" in caplog.text


@pytest.mark.parametrize("by", ["removed", "moved away", "taken by another"])
def test_journal_whose_folder_goes_under_it_says_so_and_leaves_what_is_there(
    folder, journal, caplog, by
):
    """The next master said so, and began anew."""
    if by == "removed":
        shutil.rmtree(folder)
    else:
        folder.rename(folder.with_name("elsewhere"))
    other = Journal(folder)
    if by == "taken by another":
        other.take()
        other.begin([FIRST, FACT])
    journal.note("table", {"number": 1})
    until(lambda: not journal.kept)
    assert "CANNOT BE WRITTEN (its files were removed or moved away)" in caplog.text
    assert "tried again" not in caplog.text
    assert not journal.is_to_be_kept_again(1e9)
    journal.end()
    other.close()
    assert taken(folder) == ([FIRST, FACT, BEGUN] if by == "taken by another" else [])


def test_journal_whose_facts_alone_are_removed_is_kept_again(folder, journal, caplog):
    (folder / module.FACTS).unlink()
    journal.note("table", {"number": 1})
    until(lambda: not journal.kept)
    assert journal.is_to_be_kept_again(0.0)
    compact(journal)
    assert journal.kept
    journal.close()
    assert [fact.data for fact in taken(folder) if fact.kind == "table"] == [{"number": 1}]


def test_journal_that_lacks_a_fact_is_never_kept_again(journal):
    """No file may have a gap."""
    journal.note("table", {"number": object()})
    assert not journal.kept
    assert not journal.is_to_be_kept_again(1e9)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_takeover_without_room_says_how_the_run_goes_on(folder, journal, monkeypatch, number):
    """Another journal_dir would begin anew, and lose it."""
    journal.close()
    other = Journal(folder)
    other.take()
    other.read()
    monkeypatch.setattr(module, "write_all", fails(number))
    with pytest.raises(ClusterError, match=r"start again: the run goes on") as caught:
        other.go_on([FACT])
    assert "another journal_dir" not in str(caught.value)
    other.release()
    monkeypatch.undo()
    assert taken(folder) == [*HEAD]


def test_base_is_kept_beside_the_facts(folder, journal):
    journal.keep_base(b"old")
    journal.keep_base(b"new")
    journal.close()
    assert Journal(folder).base() == b"new"
    data = (folder / BASE).read_bytes()
    with (folder / BASE).open("r+b", buffering=0) as file:
        for at in range(len(data)):
            os.pwrite(file.fileno(), bytes([data[at] ^ 1 << at % 8]), at)
            with pytest.raises(ClusterError, match="base is damaged: it does not fit"):
                Journal(folder).check([Fact("train", {})])
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert Journal(folder).base() == b"new"
    os.truncate(folder / BASE, len(data) - 1)
    with pytest.raises(ClusterError, match="base is damaged: it does not fit"):
        Journal(folder).base()
    (folder / BASE).unlink()
    with pytest.raises(ClusterError, match="base is damaged: it is missing"):
        Journal(folder).check([Fact("summary", {})])
    Journal(folder).check([Fact("survey", {})])


def test_facts_are_made_durable_soon(journal, monkeypatch):
    synced = []
    done = module.threading.Event()

    def sync(file):
        synced.append(file)
        done.set()

    monkeypatch.setattr(module.os, "fdatasync", sync)
    journal.note(FACT.kind, FACT.data)
    happens(done, "a sync of the journal")


def failing_once(error):
    """A sync that fails once, as the kernel tells of lost writes, and what happens then."""
    told = module.threading.Event()

    def sync(file):
        if not told.is_set():
            told.set()
            raise OSError(error, os.strerror(error))

    return sync, told


def test_journal_whose_sync_fails_once_is_given_up_and_says_so(
    folder, journal, monkeypatch, caplog
):
    sync, told = failing_once(errno.EDQUOT)
    monkeypatch.setattr(module.os, "fdatasync", sync)
    journal.note(FACT.kind, FACT.data)
    happens(told, "a sync of the journal")
    until(lambda: not journal.kept, "the end of the journal")
    journal.note(FACT.kind, FACT.data)
    assert not journal.kept
    assert f"CANNOT BE WRITTEN ({os.strerror(errno.EDQUOT)})" in caplog.text
    journal.close()
    assert taken(folder) == []


def test_journal_whose_close_tells_of_lost_writes_is_given_up(folder, journal, monkeypatch):
    real = os.close

    def close(descriptor):
        is_journal = Path(f"/proc/self/fd/{descriptor}").readlink() == folder / module.FACTS
        real(descriptor)
        if is_journal:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(module.os, "close", close)
    journal.close()
    monkeypatch.undo()
    assert taken(folder) == []
    assert (folder / GIVEN_UP).exists()


@pytest.mark.parametrize("syncs", [1, 2])
def test_journal_whose_new_file_may_lose_its_name_is_kept_or_given_up(
    folder, journal, monkeypatch, syncs
):
    """The folder's sync before the new file has its name, and the one behind that."""
    calls = []

    def sync(disk, path):
        calls.append(path)
        if len(calls) == syncs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(module, "sync_folder", sync)
    journal.compact(module.Snapshot({}, {}, []))
    for thread in threading.enumerate():
        if thread.name == "snailps-compact":
            joined(thread)
    journal.note(FACT.kind, FACT.data)
    assert len(calls) == syncs
    assert journal.kept == (syncs == 1)
    journal.close()
    assert taken(folder) == ([*HEAD, FACT] if syncs == 1 else [])


def test_journal_on_a_file_system_that_syncs_no_folders_is_kept(folder, monkeypatch):
    monkeypatch.setattr(module.OS_DISK, "sync_folder", fails(errno.EINVAL))
    opened = Journal(folder)
    opened.take()
    opened.begin([FIRST, NUMBERS])
    assert opened.kept
    opened.close()
