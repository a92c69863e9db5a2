"""What a file is that was given where a model was expected."""

import io
import json
import zipfile

import numpy as np
import pytest

from snailps.errors import ModelFileError
from snailps.estimators.loading import fitted_of
from snailps.files.model_file import header_of
from snailps.vectors.files import identify, load
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.opening import identify_folder
from snailps.vectors.saving import write_npz

ROWS = np.eye(2, 3, dtype=np.float32)


def archive_of(*names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return file.getvalue()


def npz_of(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


KINDS = [
    (b"", "an empty file"),
    (b"the cat sat on the mat and the dog sat too\n", "text: snailps train fasttext"),
    (b"__label__a one two\n", "labelled text: snailps train classifier"),
    (b"1 3:1 7:0.5\n", "examples in LIBSVM's"),
    (b"# a job\n\nworker_class: mymodel:Model\ninput: a.txt\n", "settings: snailps local -c"),
    (b"import common.conf\n", "settings: snailps local -c"),
    (b"2 3\na 1 0 0\nb 0 1 0\n", "word vectors: snailps nn"),
    (b"\x89PNG\r\n\x1a\n" + bytes(40), "a PNG image: no command reads it"),
    (b"\x93NUMPY\x01\x00", "a NumPy array"),
    (b"\xba\x16\x4f\x2f" + bytes(9), "a damaged fastText model"),
    (b"PK\x03\x04" + bytes(9), "a damaged zip archive"),
    (archive_of("a.docx"), "a zip archive: unpack it"),
    (archive_of("t.keys.npy", "t.rows.npy"), "tables of a model"),
    (archive_of("vectors.npy", "words.npy"), "word vectors: snailps nn"),
    (archive_of("x/data.pkl"), "a file of PyTorch"),
    (bytes(range(256)) * 2, "binary data"),
    (b"\x80\x04\x95abc", "a Python pickle"),
    (b"PAR1\x15", "a Parquet table"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"BZh91AY", "packed with bzip2"),
    (b"\xfd7zXZ\0", "packed with xz"),
    (b"\x28\xb5\x2f\xfd\0", "packed with zstd"),
    (b"\0\0\x08\x03\0\0", "images or labels in idx format: snailps train mlp"),
    (b'{"data_name": "moby"}\n', "a history of federated averaging: snailps fedavg plot"),
    (b'{"a": 1}\n', "JSON: pandas.read_json"),
    (b"temperature 3.5\nhumidity 40 percent\n", "text: snailps train fasttext"),
    (b"solver_type L2R_LR\n", "a linear model in LIBLINEAR's format"),
    (b"0 1:3:0.5 2:7:1\n", "examples in LIBSVM's or LIBFFM's format: snailps train logistic"),
    (npz_of(about=np.zeros(3, np.uint8), weights=ROWS), "a model of another version"),
    (npz_of(about=header_of({"worker_class": "a.fm:FM"})), "a sparse model (a.fm:FM)"),
    (npz_of(about=header_of({"worker_class": "snailps.models.mlp:Mlp"})), "a net of snailps"),
    (npz_of(x=ROWS), "arrays of another program"),
]


@pytest.mark.parametrize(("content", "expected"), KINDS)
def test_file_is_told_with_what_reads_it(content, expected):
    file = io.BytesIO(content)
    file.seek(min(3, len(content)))
    assert identify("file", file).startswith(expected)
    assert file.tell() == min(3, len(content))


@pytest.mark.parametrize(("content", "expected"), [k for k in KINDS if "word vectors" not in k[1]])
@pytest.mark.parametrize("reads", [load, LabelModel, fitted_of])
def test_readers_of_models_refuse_it_by_name(tmp_path, reads, content, expected):
    path = tmp_path / "m.npz"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as refused:
        reads(path)
    text = str(refused.value)
    assert text.startswith(f"{path}: ")
    assert "\\x" not in text
    words = ("empty", "damaged", "cut short", "expected arrays", "not a fastText model", "of a net")
    assert expected in text or any(word in text for word in words)


def test_a_first_line_of_other_numbers_is_told_by_the_reader_of_text(tmp_path):
    (tmp_path / "m").write_bytes(b"1" * 5000 + b" " + b"2" * 5000 + b"\n")
    with pytest.raises(ModelFileError, match="its first line must be"):
        load(tmp_path / "m")


@pytest.mark.parametrize("reads", [LabelModel, fitted_of])
def test_word_vectors_are_named_where_another_model_is_needed(tmp_path, reads):
    write_npz(tmp_path / "m.npz", [b"a", b"b"], [ROWS], 3)
    with pytest.raises(ModelFileError, match="word vectors: snailps nn"):
        reads(tmp_path / "m.npz")


@pytest.mark.parametrize(("names", "expected"), [
    (["manifest.json"], "a checkpoint: snailps checkpoint export"),
    (["checkpoint-000003", "lock"], "a folder of checkpoints: snailps checkpoint export"),
    (["passed.json"], "a folder of checkpoints, without one"),
    (["facts", "cluster"], "the journal of a training"),
    (["facts", "life"], "the journal of a training"),  # of 0.1
    (["a.bin", "b.txt"], r"a folder; give the path of a model in it, such as .*a\.bin"),
    ([], "a folder; give the path of a model in it"),
])  # fmt: skip
def test_folder_is_told_with_what_to_name_instead(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).write_text(json.dumps({}))
    with pytest.raises(ModelFileError, match=f"^{tmp_path}: {expected}"):
        load(tmp_path)
    assert identify_folder(tmp_path)
