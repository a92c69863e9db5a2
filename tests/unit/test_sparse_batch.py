"""models.sparse.batch: numbering, pieces in threads, rare features, weights, messages."""

from types import SimpleNamespace

import numpy as np
import pytest

from snailps import write_matrix
from snailps.data._admission import Admission, Admitted
from snailps.data.examples import ExampleReader
from snailps.errors import DataError
from snailps.files.joined import Text
from snailps.models.sparse import batch
from snailps.models.sparse.batch import BIAS_KEY, BatchReader, joined
from snailps.pieces import Piece
from tests.support.blocks import HeldContent, held_block


def lines(n=400, seed=1):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        keys = sorted(rng.choice(50, rng.integers(0, 6), replace=False))
        entries = [f"{key}:{rng.integers(1, 9)}" for key in keys]
        made.append(" ".join([str(rng.integers(0, 2)), *entries]))
    return "\n".join(made).encode() + b"\n"


def read(text, threads=1, format="libsvm", on_bad_line="stop", path="", **options):
    reader = BatchReader(ExampleReader(format, on_bad_line=on_bad_line), threads=threads, **options)
    try:
        return reader.read(text, path)
    finally:
        reader.close()


def meaning(found):
    """Labels, and each example's keys with their values."""
    entries = list(zip(found.keys[found.places].tolist(), found.values.tolist(), strict=True))
    spans = zip(found.ptr[:-1].tolist(), found.ptr[1:].tolist(), strict=True)
    return [
        (label, entries[a:b]) for label, (a, b) in zip(found.labels.tolist(), spans, strict=True)
    ]


def test_batch_of_lines_has_their_entries_and_each_key_once():
    found = read(b"1 7:2 9:3\n0 9:4\n-1\n")
    assert meaning(found) == [(1, [(7, 2), (9, 3)]), (0, [(9, 4)]), (-1, [])]
    assert found.keys.tolist() == [7, 9]
    assert (found.bias, len(found), found.bad) == (-1, 3, 0)


def test_batch_with_bias_has_its_key_last():
    found = read(b"1 7:2\n", bias=True)
    assert found.keys.tolist() == [7, BIAS_KEY]
    assert found.bias == 1
    assert found.places.tolist() == [0]


def test_batch_of_a_block_of_csv_is_read_as_the_head_of_its_file_says():
    data = b"1,x\ty\tz\tt,Rome\n"
    heads = [b"0\tx\ty,z", b"0,x\ty,Oslo"]
    found = []
    for head in heads:
        block = held_block(HeldContent(data, head), piece=Piece("f", 9, 26))
        columns = "y:label, a:categorical, b:categorical"
        reader = BatchReader(ExampleReader(columns=columns, on_bad_line="skip"))
        found.append(reader.read_block(block))
    assert [(len(batch), batch.bad) for batch in found] == [(0, 1), (1, 0)]


def test_block_of_several_files_is_read_text_by_text_each_with_its_header(monkeypatch):
    texts = [Text(b"y,a\n1,2\n", "f", 0), Text(b"0,3\n", "g", 9), Text(b"y,a\n1,4\n", "g", 0)]
    block = held_block(HeldContent(texts=texts), piece=Piece("f and 1 more", 0, 20))
    reader = BatchReader(ExampleReader("csv", columns="y:label, a:numeric"))
    found = reader.read_block(block)
    assert (found.labels.tolist(), found.values.tolist()) == ([1, 0, 1], [2, 3, 4])
    texts[1] = Text(b"0,x\n", "g", 9, lambda at: ("/data/g", -1))
    with pytest.raises(DataError, match=r"/data/g, line 1 of the block at byte 9, column 3"):
        reader.read_block(block)


def test_examples_without_weights_have_1_beside_those_of_others():
    some = ExampleReader().read(b"1 7:2\n0 9:4\n")
    weights = np.array([0.5, 2], np.float32)
    found = joined([some, some._replace(weights=weights)]).weights
    assert found.tolist() == [1, 1, 0.5, 2]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_fields_of_some_files_are_left_out_or_refused_by_the_name_of_the_others(tmp_path, order):
    x, paths = np.eye(3)[[0, 1, 2, 0]], [tmp_path / "with.mx", tmp_path / "without.mx"]
    write_matrix(paths[0], x, [0, 1, 0, 1], fields=[0, 1, 1])
    write_matrix(paths[1], x, [0, 1, 0, 1])
    texts = [(paths[at].read_bytes(), str(paths[at]), 0, None) for at in order]
    block = SimpleNamespace(head=lambda: texts[0][0], texts=lambda: iter(texts))
    plain = BatchReader(ExampleReader()).parse_block(block)
    assert (len(plain.labels), len(plain.keys), len(plain.fields)) == (8, 8, 0)
    with pytest.raises(DataError, match=r"without\.mx: expected fields 0 to 1, got none"):
        BatchReader(ExampleReader(), fields=2).parse_block(block)


def test_batch_of_nothing_is_empty():
    found = read(b"", bias=True)
    assert (len(found), found.ptr.tolist()) == (0, [0])


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_batch_parsed_in_pieces_equals_whole(monkeypatch, threads):
    monkeypatch.setattr(batch, "PIECE_BYTES", 64)
    text = lines()
    whole, pieces = read(text), read(text, threads)
    assert meaning(pieces) == meaning(whole)
    assert pieces.keys.tolist() == whole.keys.tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_pieces_of_text_are_as_long_for_any_number_of_threads(monkeypatch, threads):
    monkeypatch.setattr(batch, "PIECE_BYTES", 64)
    text = lines()
    reader = BatchReader(ExampleReader("libsvm"), threads=threads)
    sizes = reader.pieces(text, lambda examples: len(examples.labels))
    reader.close()
    assert len(sizes) == len(text) // 64
    assert sum(sizes) == 400


def test_batch_with_bad_line_in_second_piece_names_its_line(monkeypatch, tmp_path):
    monkeypatch.setattr(batch, "PIECE_BYTES", 64)
    text = lines(100) + b"1 x:1\n" + lines(10)
    with pytest.raises(DataError, match="line 101"):
        read(text, threads=4)


def test_batch_skipping_bad_lines_counts_them_all(monkeypatch):
    monkeypatch.setattr(batch, "PIECE_BYTES", 64)
    text = b"1 x:1\n" + lines(100) + b"0 1:y\n"
    assert read(text, threads=3, on_bad_line="skip").bad == 2


def test_batch_without_rare_features_has_no_trace_of_them():
    admission = Admission(2, 1000)
    admission.count(np.array([7, 7, 9, 11, 11], np.uint64))
    admitted = Admitted(admission.verdict())
    found = read(b"1 7:2 9:3 11:4\n0 9:1\n1 11:5\n", admitted=admitted, bias=True)
    assert meaning(found) == [(1, [(7, 2), (11, 4)]), (0, []), (1, [(11, 5)])]
    assert found.keys.tolist() == [7, 11, BIAS_KEY]


def test_batch_without_rare_features_keeps_the_fields_of_others():
    admission = Admission(1, 1000)
    admission.count(np.array([7], np.uint64))
    admitted = Admitted(admission.verdict())
    found = read(b"1 0:5:1 3:7:2\n", format="libffm", admitted=admitted, fields=4)
    assert (found.keys.tolist(), found.fields.tolist()) == ([7], [3])


def test_class_weights_count_labels_below_one_as_class_zero():
    found = read(b"-1\n0\n1\n2\n", class_weights=[0.5, 2, 3])
    assert found.weights.tolist() == [0.5, 0.5, 2, 3]


def test_class_weights_count_labels_above_zero_as_yes():
    found = read(b"-0.5\n0\n0.25\n1\n", class_weights=[0.5, 2])
    assert found.weights.tolist() == [0.5, 0.5, 2, 2]


def test_class_weights_without_one_for_a_label_refuses():
    with pytest.raises(DataError, match=r"in\.svm: class 2 has no weight"):
        read(b"1\n2\n", class_weights=[1, 1], path="in.svm")


def test_edges_of_parts_hold_about_as_many_entries():
    found = read(lines(1000))
    edges = found.edges(4)
    assert (edges[0], edges[-1], len(edges)) == (0, 1000, 5)
    entries = np.diff(found.ptr[edges])
    assert entries.min() > 0.9 * found.ptr[-1] / 4


def test_edges_of_few_examples_are_few():
    assert read(b"1 7:1\n").edges(8) == [0, 1]
