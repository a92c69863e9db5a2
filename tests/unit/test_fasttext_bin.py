"""fastText's binary format: known bytes, the official package in both directions, damaged files."""

import struct

import floret_models
import numpy as np
import official_fasttext
import pytest
from machine import peak_bytes

from snailps.errors import ModelFileError, UnknownWord
from snailps.vectors.fasttext_bin import BinHeader, read_bin, write_bin
from snailps.vectors.files import load

WORDS = [b"</s>", "größe".encode(), b"a", "日本".encode(), b"walking", b"__x__"]
COUNTS = [9, 7, 5, 5, 2, 1]


def rows_of(count, dim=8, seed=1):
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def write_small(path, dim=8, bucket=50, minn=2, maxn=4):
    header = BinHeader(dim=dim, bucket=bucket, minn=minn, maxn=maxn, tokens=40)
    rows, outputs = rows_of(len(WORDS) + bucket, dim), rows_of(len(WORDS), dim, seed=2)
    write_bin(path, header, WORDS, COUNTS, [rows[:3], rows[3:]], iter([outputs]))
    return header, rows, outputs


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    return official_fasttext.train(tmp_path_factory.mktemp("official"))


def write_tiny(path):
    header = BinHeader(
        dim=2, bucket=1, minn=3, maxn=6, window=4, epochs=7, min_count=1, negatives=9,
        word_ngrams=1, loss="ns", model="cbow", lr_update_rate=100, sample=0.5, tokens=11,
    )  # fmt: skip
    rows = np.array([[1, 2], [3, 4]], dtype=np.float32)
    write_bin(path, header, [b"hi"], [10], [rows], [rows[:1]])
    return header


def test_write_bin_tiny_model_gives_known_bytes(tmp_path):
    header = write_tiny(tmp_path / "m.bin")
    assert (tmp_path / "m.bin").read_bytes() == bytes.fromhex(
        "ba164f2f 0c000000"  # magic, version
        "02000000 04000000 07000000 01000000"  # dim ws epoch minCount
        "09000000 01000000 02000000 01000000"  # neg wordNgrams, loss ns, model cbow
        "01000000 03000000 06000000 64000000"  # bucket minn maxn lrUpdateRate
        "000000000000e03f"  # t = 0.5
        "01000000 01000000 00000000"  # entries, words, labels
        "0b00000000000000 ffffffffffffffff"  # tokens, not pruned
        "686900 0a00000000000000 00"  # "hi", 10 times, a word
        "00 0200000000000000 0200000000000000 0000803f 00000040 00004040 00008040"
        "00 0100000000000000 0200000000000000 0000803f 00000040"
    )
    assert read_bin(tmp_path / "m.bin").header == header


def test_docs_worked_example_is_the_tiny_model(tmp_path, repo_root):
    write_tiny(tmp_path / "m.bin")
    page = (repo_root / "docs" / "files.md").read_text(encoding="utf-8")
    example = page[page.index("ba164f2f") :].split("```")[0]
    # The description begins at column 37; what stands before it is the file.
    digits = "".join(line[:36] for line in example.splitlines())
    assert bytes.fromhex(digits) == (tmp_path / "m.bin").read_bytes()


def test_read_bin_of_official_package_gives_its_dictionary_and_matrices(official):
    path, model = official
    ours = read_bin(path)
    words, counts = model.get_words(include_freq=True)
    assert [word.decode() for word in ours.words] == words
    assert ours.counts.tolist() == counts.tolist()
    np.testing.assert_array_equal(ours.input, model.get_input_matrix())
    np.testing.assert_array_equal(ours.output, model.get_output_matrix())
    header = ours.header
    assert (header.dim, header.bucket, header.minn, header.maxn) == (16, 500, 3, 6)
    assert (header.loss, header.model, header.epochs, header.min_count) == ("ns", "skipgram", 3, 2)
    assert header.tokens == 6000 + 500


def test_write_bin_of_what_was_read_gives_official_bytes(official, tmp_path):
    path, _ = official
    model = read_bin(path)
    again = tmp_path / "again.bin"
    write_bin(again, model.header, model.words, model.counts, [model.input], [model.output])
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("bucket", "minn", "maxn"), [(50, 2, 4), (1, 1, 3), (0, 0, 0)])
def test_write_bin_random_model_is_equal_in_official_package(tmp_path, bucket, minn, maxn):
    _, rows, outputs = write_small(tmp_path / "m.bin", bucket=bucket, minn=minn, maxn=maxn)
    theirs = official_fasttext.module().load_model(str(tmp_path / "m.bin"))
    ours = load(tmp_path / "m.bin")
    assert theirs.get_words() == [word.decode() for word in WORDS]
    np.testing.assert_array_equal(theirs.get_input_matrix(), rows)
    np.testing.assert_array_equal(theirs.get_output_matrix(), outputs)
    unknown = ["unseen", "größer", "日", "wal"] if maxn else []
    for word in [*theirs.get_words(), *unknown]:
        np.testing.assert_array_equal(ours.vector(word), theirs.get_word_vector(word))
    for word in ["walking", "</s>", *unknown]:
        expected = theirs.get_nearest_neighbors(word, k=4)
        found = ours.neighbours(word, k=4)
        assert [other for other, _ in found] == [other for _, other in expected]
        np.testing.assert_allclose([s for _, s in found], [s for s, _ in expected], atol=1e-5)


def test_read_bin_of_supervised_model_leaves_its_labels_out(tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("__label__a red apple\n__label__b green pear\n" * 20)
    model = official_fasttext.module().train_supervised(
        str(text), dim=4, epoch=2, thread=1, verbose=0, wordNgrams=2, bucket=300
    )
    model.save_model(str(tmp_path / "m.bin"))
    ours = load(tmp_path / "m.bin")
    assert sorted(ours.words) == ["</s>", "apple", "green", "pear", "red"]
    assert not ours.has_subwords
    np.testing.assert_array_equal(ours.vector("pear"), model.get_word_vector("pear"))
    model.quantize(str(text), retrain=False)
    model.save_model(str(tmp_path / "m.ftz"))
    with pytest.raises(ModelFileError, match="quantised"):
        read_bin(tmp_path / "m.ftz")


def test_load_bin_cut_anywhere_is_refused(tmp_path):
    write_small(tmp_path / "m.bin", dim=3, bucket=4)
    whole = (tmp_path / "m.bin").read_bytes()
    cut = tmp_path / "cut.bin"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            load(cut)
    cut.write_bytes(whole + b"\0")
    with pytest.raises(ModelFileError, match="ends at byte"):
        load(cut)


@pytest.mark.parametrize("name", floret_models.MODELS)
def test_load_of_floret_gives_its_vectors_to_the_bit(tmp_path, name):
    wanted = floret_models.write(name, tmp_path / "m.bin")
    wv = load(tmp_path / "m.bin")
    for word, row in wanted.items():
        if any(row) or word in wv:
            assert wv[word].tolist() == row
        else:
            with pytest.raises(UnknownWord, match="has no n-grams"):
                wv[word]
    np.testing.assert_array_equal(wv.vectors, [wanted[word] for word in wv.words])
    wv.save(tmp_path / "again.bin")
    if name == "fasttext":  # its mode is fastText's, and so is then the file
        assert read_bin(tmp_path / "again.bin").header == read_bin(tmp_path / "m.bin").header
        theirs = official_fasttext.module().load_model(str(tmp_path / "again.bin"))
        assert theirs.get_word_vector("unseen").tolist() == wanted["unseen"]
    else:
        assert (tmp_path / "again.bin").read_bytes() == (tmp_path / "m.bin").read_bytes()


def test_damaged_file_of_floret_is_refused(tmp_path):
    floret_models.write("two", tmp_path / "m.bin")
    whole = (tmp_path / "m.bin").read_bytes()
    path = tmp_path / "cut.bin"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            load(path)
    for offset, value in ((52, 3), (56, 0), (56, 5), (36, 3)):  # mode, hashes, supervised
        path.write_bytes(whole[:offset] + struct.pack("<i", value) + whole[offset + 4 :])
        with pytest.raises(ModelFileError):
            load(path)


def unversioned(whole, entries_bytes, inputs):
    """The bytes that fastText wrote of a model before its format had a number."""
    matrices = 92 + entries_bytes
    output = matrices + 17 + 4 * inputs
    return b"".join((
        whole[8:84], whole[92:matrices], whole[matrices + 1 : output], whole[output + 1 :]
    ))  # fmt: skip


def test_file_from_before_the_format_had_a_number_is_read(tmp_path):
    write_small(tmp_path / "m.bin")
    entries = sum(len(word) + 10 for word in WORDS)
    old = unversioned((tmp_path / "m.bin").read_bytes(), entries, (len(WORDS) + 50) * 8)
    (tmp_path / "old.bin").write_bytes(old)
    wv, wanted = load(tmp_path / "old.bin"), load(tmp_path / "m.bin")
    for word in ("größe", "</s>", "unseen"):
        np.testing.assert_array_equal(wv[word], wanted[word])
    wv.save(tmp_path / "new.bin")
    assert (tmp_path / "new.bin").read_bytes() == (tmp_path / "m.bin").read_bytes()
    for length in (*range(80, len(old), 7), len(old) - 1):
        (tmp_path / "old.bin").write_bytes(old[:length])
        with pytest.raises(ModelFileError):
            load(tmp_path / "old.bin")


ENTRIES_AT, PRUNED_AT = 64, 84


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, struct.pack("<i", 7), "not a fastText .bin model, by its first 4 bytes"),
        (4, struct.pack("<i", 13), "format 11 or 12, got 13"),
        (8, struct.pack("<i", -1), "damaged header: dim -1"),
        (8, struct.pack("<i", 2**31 - 1), "declares an input matrix of 56 x 2147483647"),
        (32, struct.pack("<i", 9), "loss 9"),
        (40, struct.pack("<i", 2**31 - 1), "declares an input matrix of 2147483653 x 8"),
        (ENTRIES_AT, struct.pack("<ii", 2**31 - 1, 2**31 - 1), "cut short in its dictionary"),
        (ENTRIES_AT, struct.pack("<ii", -5, -5), "damaged dictionary"),
        (ENTRIES_AT + 4, struct.pack("<i", 3), "damaged dictionary"),
        (PRUNED_AT, struct.pack("<q", 1), "quantised or pruned"),
        (PRUNED_AT + 8 + 5 + 8, b"\x01", "entry 0 at byte 92 is of type 1"),
    ],
)
def test_read_bin_with_absurd_field_says_which(tmp_path, offset, value, message):
    path = tmp_path / "m.bin"
    write_small(path)
    data = bytearray(path.read_bytes())
    data[offset : offset + len(value)] = value
    path.write_bytes(data)

    def read():
        with pytest.raises(ModelFileError, match=message):
            read_bin(path)

    assert peak_bytes(read) < 1 << 20


def test_read_bin_maps_the_matrices_instead_of_reading_them(tmp_path):
    rows = np.zeros((100_001, 50), dtype=np.float32)
    header = BinHeader(dim=50, bucket=100_000, minn=3, maxn=6)
    write_bin(tmp_path / "m.bin", header, [b"one"], [1], [rows], [rows[:1]])
    assert peak_bytes(lambda: load(tmp_path / "m.bin").vector("other")) < 1 << 20


def test_write_bin_streams_its_chunks(tmp_path):
    chunk = np.zeros((10_000, 50), dtype=np.float32)  # 2 MB, written 20 times
    header = BinHeader(dim=50, bucket=199_999, minn=3, maxn=6)
    chunks = (chunk.copy() for _ in range(20))
    path = tmp_path / "m.bin"
    assert peak_bytes(lambda: write_bin(path, header, [b"one"], [1], chunks, [chunk[:1]])) < 7 << 20
    assert path.stat().st_size > 40_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "nce"}, "expected a loss of"),
        ({"bucket": 0}, "need buckets"),
        ({"dim": 0}, "outside the format's range"),
        ({"epochs": 2**40}, "does not fit the format"),
    ],
)
def test_write_bin_with_impossible_header_is_refused(tmp_path, change, message):
    header = BinHeader(**{"dim": 2, "bucket": 5, "minn": 3, "maxn": 6, **change})
    with pytest.raises(ModelFileError, match=message):
        write_bin(tmp_path / "m.bin", header, [b"a"], [1], [rows_of(6, 2)], [rows_of(1, 2)])
    assert list(tmp_path.iterdir()) == []


def test_write_bin_with_count_zero_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match="at least 1, got 0"):
        write_bin(tmp_path / "m", BinHeader(dim=2), [b"a"], [0], [rows_of(1, 2)], [rows_of(1, 2)])
