"""What a training writes for TensorBoard, read back from its event files."""

import logging
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from snailps.errors import ConfigError
from snailps.monitor import tensorboard_log
from snailps.monitor.tensorboard_log import ROWS_MAX, TensorboardLog
from snailps.store.checkpoint._crc32c import crc32c
from snailps.vectors.text_files import write_vec
from tests.support.master_world import World

tensorboardX = pytest.importorskip("tensorboardX", reason="pip install snailps[tensorboard]")
from tensorboardX.proto.event_pb2 import Event, SessionLog  # noqa: E402 - behind the skip


def masked(data):
    """The checksum of a record."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events_in(folder):
    """All events of a run: records of a length, a checksum of it, the data, and one of that."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            record = data[at + 12 : at + 12 + length]
            assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(record)
            yield Event.FromString(record)
            at += 16 + length


def values_in(folder):
    return [(event.step, value) for event in events_in(folder) for value in event.summary.value]


def status_of(**more):
    world = World()
    world.forms()
    return {**world.status(), **more}


def tables(**rows):
    """Tables as `Results` shows them, in pieces."""

    def scan(name):
        for begin in range(0, len(rows[name]), 1000):
            yield np.arange(begin, begin + 1000), rows[name][begin : begin + 1000]

    return SimpleNamespace(tables=dict.fromkeys(rows), scan=scan)


def test_each_test_during_the_training_is_one_point(tmp_path):
    board, tests = TensorboardLog(str(tmp_path)), []
    for step in (100, 200, 300, 400):
        if step in (200, 400):
            tests = [*tests, {"at_s": 1.0, "progress": step / 1000, "rmse": 100 / step}]
        board.on_status(status_of(units=step, tests=tests))
    board.close()
    found = [(step, v.tag, v.simple_value) for step, v in values_in(tmp_path) if "test" in v.tag]
    assert found == [(200, "test/rmse", 0.5), (400, "test/rmse", 0.25)]


def test_scalars_are_curves_over_the_words(tmp_path):
    board = TensorboardLog(str(tmp_path / "runs" / "a"))
    for step in (100, 200):
        told = status_of(units=step, loss=10.0 / step, lr=0.05, units_per_s=50.0, unit="words")
        board.on_status(told)
    board.close()
    found = {
        (value.tag, step): value.simple_value for step, value in values_in(tmp_path / "runs/a")
    }
    assert found["training/loss", 100] == pytest.approx(0.1)
    assert found["training/loss", 200] == pytest.approx(0.05)
    assert found["training/learning_rate", 200] == pytest.approx(0.05)
    assert found["speed/words_per_second", 100] == 50.0
    assert found["cluster/workers", 100] == 2.0
    assert ("cluster/longest_wait_seconds", 100) in found


def test_a_step_has_one_point_of_each_tag(tmp_path):
    board = TensorboardLog(str(tmp_path))
    for step, loss in ((0, None), (0, None), (100, 3.0), (100, 3.0), (200, None), (200, 2.0)):
        board.on_status(status_of(units=step, loss=loss))
        board.read(tables(words=np.ones((10, 2), np.float32)))
    board.close()
    tags = [(value.tag, step) for step, value in values_in(tmp_path)]
    assert len(tags) == len(set(tags))
    assert [step for tag, step in tags if tag == "training/loss"] == [100, 200]
    assert [step for tag, step in tags if tag == "row_norms/words"] == [0, 100, 200]


def test_resumed_run_begins_with_the_step_from_which_it_goes_on(tmp_path):
    """TensorBoard drops what it has from there on: points after the checkpoint of a killed run."""
    for steps in ((100, 200, 300), (150, 250)):
        board = TensorboardLog(str(tmp_path))
        for step in steps:
            board.on_status(status_of(units=step, phase="training"))
        board.close()
    board = TensorboardLog(str(tmp_path))  # of a command that fails before it trains
    board.on_status(status_of(units=0, phase="survey"))
    board.close()
    begun = [
        event.step for event in events_in(tmp_path) if event.session_log.status == SessionLog.START
    ]
    assert sorted(begun) == [100, 150]  # files of one second are in no order


def test_scalars_leave_out_what_is_not_known(tmp_path):
    board = TensorboardLog(str(tmp_path))
    board.on_status(status_of(loss=None, lr=None))
    board.close()
    tags = {value.tag for _, value in values_in(tmp_path)}
    assert "training/progress" in tags
    assert "training/loss" not in tags


def test_histograms_are_of_the_norms_of_rows(tmp_path):
    board = TensorboardLog(str(tmp_path))
    board.read(tables(input=np.full((3000, 4), 2.0, np.float32), empty=np.zeros((0, 4))))
    board.close()
    ((_, value),) = values_in(tmp_path)
    assert value.tag == "row_norms/input"
    assert (value.histo.num, value.histo.min, value.histo.max) == (3000, 4.0, 4.0)


def test_histograms_look_at_a_sample_of_large_tables(tmp_path):
    board = TensorboardLog(str(tmp_path))
    board.read(tables(input=np.ones((ROWS_MAX + 5000, 2), np.float32)))
    board.close()
    ((_, value),) = values_in(tmp_path)
    assert value.histo.num == ROWS_MAX


def test_the_projector_gets_words_and_vectors(tmp_path):
    path = tmp_path / "model.vec"
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    write_vec(path, [b"the", b"of", b"snail", "é".encode()], [rows], 2)
    board = TensorboardLog(str(tmp_path / "run"))
    board.exported([str(path)])
    board.close()
    (folder,) = [one.parent for one in (tmp_path / "run").rglob("tensors.tsv")]
    assert (folder / "metadata.tsv").read_text().split() == ["the", "of", "snail", "é"]
    written = np.loadtxt(folder / "tensors.tsv", delimiter="\t")
    np.testing.assert_allclose(written, rows)
    assert "tensors.tsv" in (tmp_path / "run" / "projector_config.pbtxt").read_text()


def test_words_with_blanks_are_cells_of_the_projector(tmp_path):
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    (tmp_path / "model.vec").write_text(
        "4 2\n" + "".join(f"{w} {a} {b}\n" for w, (a, b) in zip(
            ["new york", "a", "\u3000 x\ty", "b c d"], rows, strict=True))
    )  # fmt: skip
    board = TensorboardLog(str(tmp_path / "run"))
    board.exported([str(tmp_path / "model.vec")])
    board.close()
    (folder,) = [one.parent for one in (tmp_path / "run").rglob("tensors.tsv")]
    words = (folder / "metadata.tsv").read_text().splitlines()
    assert words == ["new york", "a", "\u3000 x\\ty", "b c d"]
    np.testing.assert_allclose(np.loadtxt(folder / "tensors.tsv", delimiter="\t"), rows)


def test_files_that_are_no_vectors_are_left_alone(tmp_path):
    (tmp_path / "model.npz").write_bytes(b"x")
    board = TensorboardLog(str(tmp_path / "run"))
    board.exported([str(tmp_path / "model.npz"), "weights.txt"])
    board.exported([])
    board.close()
    assert not list((tmp_path / "run").rglob("tensors.tsv"))


def test_later_jobs_of_a_session_have_folders_of_their_own(tmp_path):
    board = TensorboardLog(str(tmp_path))
    for job in (1, 2):
        board.on_status(status_of(loss=1.0, session={"jobs": job}))
    board.close()
    assert values_in(tmp_path)
    assert values_in(tmp_path / "job-2")


def test_a_disk_that_fails_is_a_warning_and_no_more(tmp_path, monkeypatch, caplog):
    def broken(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensorboardX, "SummaryWriter", broken)
    with caplog.at_level(logging.WARNING, "snailps"):
        board = TensorboardLog(str(tmp_path))
        board.on_status(status_of())
        board.on_status(status_of())
        board.close()
    assert caplog.text.count("No space left on device") == 1


def test_a_missing_package_and_a_bad_folder_are_said_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="tensorboard: cannot make"):
        TensorboardLog(str(tmp_path / "file" / "run"))

    def lacking(name, what, requirement):
        raise ConfigError(f"{what} needs {name}: pip install '{requirement}'")

    monkeypatch.setattr(tensorboard_log, "optional_module", lacking)
    with pytest.raises(ConfigError, match=r"pip install 'snailps\[tensorboard\]'"):
        TensorboardLog(str(tmp_path))


def test_tensorboards_own_reader_takes_it(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard itself is not installed: it takes 80 MB",
    )
    board = TensorboardLog(str(tmp_path))
    for step in (100, 200):
        board.on_status(status_of(units=step, loss=10.0 / step))
    board.read(tables(input=np.ones((3000, 2), np.float32)))
    board.close()
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(e.step, round(e.value, 3)) for e in read.Scalars("training/loss")] == [
        (100, 0.1), (200, 0.05)
    ]  # fmt: skip
    assert read.Histograms("row_norms/input")[0].histogram_value.num == 3000
