"""The table of file formats: which ones hold vectors or classifiers, and what any other file is.

    path -> opened: unpacked if it is a .gz -> `FORMATS`, by its first bytes -> Vectors, LabelModel
    path -> open_bin -> a fastText model as it is in the file
    path, open file -> identify -> "labelled text: snailps train classifier --input trains with it"

A new format is a line of `FORMATS`.  `fasttext_bin`, `text_files` and `files/model_file.py` own
what is inside a .bin, a text file and an .npz.  Must not know how vectors were trained.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from snailps.data.normal_forms import normal_parts
from snailps.dataclass import replace
from snailps.errors import DataError, ModelFileError
from snailps.files.array_archives import DAMAGED
from snailps.files.file_kinds import HEAD_BYTES, content_name
from snailps.files.model_file import ModelFile
from snailps.vectors.calibration import read_calibration
from snailps.vectors.fasttext_bin import (
    BinModel,
    is_bin,
    read_bin,
    read_header,
)
from snailps.vectors.opening import START_BYTES, first_bytes, opened
from snailps.vectors.query import Vectors
from snailps.vectors.text_files import (
    glove_dim,
    is_bare_rows,
    is_word2vec_binary,
    read_glove,
    read_vec,
    read_word2vec,
    vec_shape,
)

if TYPE_CHECKING:
    from snailps.vectors.label_prediction import LabelModel

Float32 = npt.NDArray[np.float32]
Path_: TypeAlias = "str | os.PathLike[str]"
WordsOfRows: TypeAlias = "str | os.PathLike[str] | Sequence[str] | Sequence[bytes]"


def load(path: Path_, *, words: WordsOfRows | None = None, mapped: bool = True) -> Vectors:
    """Open vectors as `load_model` does; for a classifier, the vectors of its words."""
    vectors = load_model(path, words=words, of_texts=False, mapped=mapped)
    assert isinstance(vectors, Vectors)
    return vectors


def load_model(
    path: Path_, *, words: WordsOfRows | None = None, of_texts: bool = True, mapped: bool = True
) -> Vectors | LabelModel:
    """Open a file of any format of word vectors or, if `of_texts`, a classifier of texts.

    Raises what ``snailps.load`` raises.  `mapped` applies to .bin and .npz; others are read.
    """
    if words is not None and not words:
        raise DataError("words: expected the words of a file's rows, got none")
    with opened(path) as file:
        given = Given.of(path, file, words, of_texts, mapped)
        form = given.format
        if not form.takes_words:
            given.refuse_words()
        if form.read is not None:
            return form.read(given)
        meaning = given.meaning
    if not given.start:
        raise ModelFileError(f"{path}: empty; was the export interrupted?")
    if meaning:
        raise ModelFileError(f"{path}: not a vector file, but {meaning}")
    raise ModelFileError(
        f"{path}: not a vector file: expected fastText's .bin, a .vec (text, first line "
        "'words dim'), word2vec's binary, GloVe's text or a .npz, got a file that begins with "
        f"{given.start[:8]!r}"
    )


def open_bin(
    path: Path_,
    expected: str,
    file: IO[bytes] | None = None,
    *,
    mapped: bool = True,
    calibrated: bool = True,
) -> BinModel:
    """Open a whole .bin or .ftz; `ModelFileError` asks for `expected` if it is no such file.

    `file` is the opened file, if there is one.  If `calibrated`, a classifier gets the calibration
    beside the path.
    """
    if file is None:
        with opened(path) as source:
            return open_bin(path, expected, source, mapped=mapped, calibrated=calibrated)
    if not is_bin(file.read(START_BYTES)):
        kind = identify(path, file) or "a file of another format: fetch or export it again"
        raise ModelFileError(f"{path}: expected {expected}, got {kind}")
    file.seek(0)
    model = read_bin(path, quantised=True, file=file, mapped=mapped)
    if not calibrated or model.header.model != "supervised":
        return model
    return replace(model, calibration=read_calibration(path, model.mapped, model.labels))


class WordPieces(NamedTuple):
    """`word_num` words and their vectors, float32 (k, dim), in pieces that are read once."""

    word_num: int
    dim: int
    pieces: Iterator[tuple[Sequence[bytes], Float32]]


def word_pieces(path: Path_) -> WordPieces:
    """Open word vectors of any format that `load` reads, in its order of words.

    A .vec is read piece by piece, so that one of any size needs little memory.
    """
    first_bytes(path)  # its error suggests names, if the file is missing
    with open(path, "rb") as file:
        is_vec = Given.of(path, file).format.read is _read_vec
    if is_vec:
        return WordPieces(*vec_shape(path), read_vec(path))
    vectors = load(path)
    return WordPieces(len(vectors), vectors.dim, _pieces_of(vectors))


def _pieces_of(vectors: Vectors) -> Iterator[tuple[Sequence[bytes], Float32]]:
    done = 0
    for rows in vectors.chunks():
        yield vectors.raw_words[done : done + len(rows)], rows
        done += len(rows)


def identify(path: Path_, file: IO[bytes]) -> str:
    """Describe what a file is and what reads it; empty: unknown.  The position of `file` stays."""
    place = file.tell()
    try:
        return Given.of(path, file).meaning
    except OSError:
        return ""
    finally:
        file.seek(place)


class Given(NamedTuple):
    """An open file, its first bytes, and the arguments of `load_model`."""

    path: Path_
    file: IO[bytes]
    start: bytes
    words: WordsOfRows | None = None
    of_texts: bool = False
    mapped: bool = True

    @classmethod
    def of(cls, path: Path_, file: IO[bytes], *how: Any) -> Given:
        file.seek(0)
        start = file.read(START_BYTES)
        file.seek(0)
        return cls(path, file, start, *how)

    @property
    def format(self) -> ModelFormat:
        return next(form for form in FORMATS if form.begins(self.start))

    @property
    def meaning(self) -> str:
        means = self.format.means
        return means if isinstance(means, str) else means(self)

    def refuse_words(self) -> None:
        """Raise DataError if words were given although the file has its own."""
        if self.words is not None:
            raise DataError(
                f"words: given for the rows of {self.path}, which has words of its own; leave them "
                "out"
            )

    def with_words(self, matrix: Float32) -> Vectors:
        """Combine the rows of a file without words with the given words."""
        if self.words is None:
            raise ModelFileError(
                f"{self.path}: {len(matrix):,} vectors without their words, as federated averaging "
                "writes them: give its data_dir's too, snailps.load(path, words='FOLDER/vocab.txt')"
            )
        listed: Sequence[str] | Sequence[bytes]
        if isinstance(self.words, (str, os.PathLike)):
            try:
                listed = Path(self.words).read_bytes().split()
            except OSError as error:
                raise ModelFileError(
                    f"{self.words}: cannot be read as a list of words: {error.strerror or error}"
                ) from error
        else:
            listed = self.words
        if len(listed) != len(matrix):
            raise ModelFileError(
                f"{self.path}: has {len(matrix):,} vectors, but there are {len(listed):,} words: "
                "are they of another job?"
            )
        return Vectors(listed, matrix)


class ModelFormat(NamedTuple):
    """A format: `begins` recognises it by the first `START_BYTES`; `means` says what reads it.

    `read` is None for files that hold neither vectors nor a classifier.
    """

    begins: Callable[[bytes], object]
    means: str | Callable[[Given], str]
    read: Callable[[Given], Vectors | LabelModel] | None = None
    takes_words: bool = False


def _starts(pattern: bytes) -> Callable[[bytes], object]:
    return lambda start: re.match(pattern, start, re.DOTALL)  # compiled on first use, not on import


def _is_text(start: bytes) -> bool:
    """Whether a file looks like text: UTF-8, several words, no digit at the start."""
    text = start[: max(start.rfind(b" "), start.rfind(b"\n"), 0)]  # no half character at the end
    if start[:1].isdigit() or len(text.split()) <= 3 or min(text) < 9:
        return False
    with suppress(UnicodeDecodeError):
        return bool(text.decode())
    return False


def _read_bin(given: Given) -> Vectors | LabelModel:
    path, file = given.path, given.file
    if given.of_texts and read_header(path, file).model == "supervised":
        from snailps.vectors.label_prediction import LabelModel

        return LabelModel(path, file=file, mapped=given.mapped)
    return Vectors.of_model(read_bin(path, quantised=True, file=file, mapped=given.mapped))


def _means_bin(given: Given) -> str:
    try:
        header = read_header(given.path, given.file)
    except ModelFileError:
        return "a damaged fastText model: fetch or export it again"
    if header.model == "supervised":
        return "a classifier: snailps predict and snailps test read it"
    return _ASKED


def _read_npz(given: Given) -> Vectors:
    """Read word vectors from an .npz, or the `embedding` from one of federated averaging."""
    path = given.path
    try:
        model = ModelFile(path, given.file)
        names = {name.removesuffix(".npy") for name in model.members}
        is_federated = {"embedding", "output", "round"} <= names and "vectors" not in names
        if "vectors" not in names and any(n == "about" or n.endswith("data.pkl") for n in names):
            raise ModelFileError(f"{path}: not a vector file, but {_means_npz(given)}")
        if not is_federated and not {"vectors", "words"} <= names:
            raise ModelFileError(
                f"{path}: expected arrays 'words' (uint8) and 'vectors' (float32), "
                f"got {sorted(model.members)[:8]}; it is not a vector file of ours"
            )
        text = model.map("words", np.dtype(np.uint8), 1) if "words" in names else None
        rows = model.map("embedding" if is_federated else "vectors", np.dtype("<f4"), 2)
        form = model.map("normalize", np.dtype(np.uint8), 1) if "normalize" in names else b""
    except ModelFileError:
        raise
    except (OSError, *DAMAGED) as error:
        raise ModelFileError(
            f"{path}: damaged or cut short ({error}); fetch or export it again"
        ) from error
    vectors = rows.astype(np.float32, copy=not given.mapped)
    if text is None:
        return given.with_words(vectors)
    given.refuse_words()
    listed = text.tobytes().split(b"\n")
    if len(listed) != len(vectors):
        raise ModelFileError(
            f"{path}: has {len(listed)} words but {len(vectors)} vectors; export it again"
        )
    return Vectors(listed, vectors, normalize=_normal_parts_in(path, bytes(form)))


def _normal_parts_in(path: Path_, form: bytes) -> str:
    """Read the parts of a normal form from a .npz."""
    try:
        return normal_parts(form.decode("ascii"))
    except ValueError as error:
        raise ModelFileError(
            f"{path}: its words have a normal form that this version does not know ({error}): use "
            "a newer snailps"
        ) from None


def _means_npz(given: Given) -> str:
    """Describe an .npz by its header and the names of its arrays."""
    try:
        model = ModelFile(given.path, given.file)
    except (OSError, *DAMAGED):
        return "a damaged zip archive or .npz: fetch or export it again"
    names = set(model.members)
    if "about.npy" in names:
        try:
            made_by = str(model.settings()["worker_class"])
        except (OSError, *DAMAGED):
            return "a model of another version: read it with the program that wrote it"
        for module, means in _MODELS.items():
            if made_by.startswith(f"snailps.models.{module}"):
                return means
        return (
            f"a sparse model ({made_by}): snailps predict MODEL.npz FILE predicts with it, with "
            "--metrics judges it"
        )
    if {"vectors.npy", "words.npy"} <= names:
        return _ASKED
    if {"embedding.npy", "output.npy", "round.npy"} <= names:
        return _ASKED.replace("word vectors", "weights of federated averaging")
    if any(name.endswith("data.pkl") for name in names):
        return (
            "a file of PyTorch (torch.load): write its weights and words by "
            "snailps.Vectors(words, weights).save('vectors.npz')"
        )
    if any(name.endswith(".keys.npy") for name in names):
        return "tables of a model: numpy.load reads them"
    if names and all(name.endswith(".npy") for name in names):
        return "arrays of another program: numpy.load reads them"
    return "a zip archive: unpack it, and name a model in it"


def _means_other(given: Given) -> str:
    found = content_name(given.start[:HEAD_BYTES], text=True)
    return f"{found}: {_CURES.get(found, 'no command reads it')}" if found else ""


def _read_bare_rows(given: Given) -> Vectors:
    """Read rows of numbers without words, as federated averaging writes them."""
    try:
        matrix = np.loadtxt(given.file, np.float32, ndmin=2, comments=None)
    except ValueError as error:
        raise ModelFileError(
            f"{given.path}: expected lines of equally many numbers: {error}; export it again"
        ) from error
    return given.with_words(matrix)


def _read_word2vec(given: Given) -> Vectors:
    shape = vec_shape(given.path, given.file)
    return Vectors(*read_word2vec(given.path, given.file, *shape))


def _read_vec(given: Given) -> Vectors:
    count, dim = vec_shape(given.path, given.file)
    matrix = np.empty((count, dim), np.float32)
    words: list[bytes] = []
    for part, rows in read_vec(given.path, given.file):
        if len(words) + len(part) > len(matrix):  # GloVe's first line does not count <unk>
            matrix.resize((len(words) + len(part), dim), refcheck=False)
        matrix[len(words) : len(words) + len(part)] = rows
        words += part
    return Vectors(words, matrix)


# --- the table ------------------------------------------------------------------------------------

_ASKED = "word vectors: snailps nn, similarity, analogy, vector and eval read it"
_NAMES = "snailps nn, similarity, vector and predict, and snailps.load, read it"
_MODELS = {
    "mlp": "a net of snailps train mlp: snailps.models.mlp.files.read_npz(path) reads it",
    "embeddings.mf": f"a matrix factorisation: {_NAMES}",
    "embeddings": f"a knowledge graph: {_NAMES}",
}
"""Description of an .npz with a header, by the module of its model."""
_CURES = {
    "gzip": "unpack it, or fetch it again if that fails",
    "a zip archive (or .docx, .xlsx, .npz)": "unpack it, and name a model in it",
}
"""Advice for some of the kinds that `content_name` returns."""
_VEC = re.compile(rb"\d+ \d+ *\r?\n")
_OTHERS = (
    (rb"(?:[ \t]*(?:#[^\n]*)?\r?\n)*(?:import +\S|[a-z][a-z0-9_]* *: *[^\s:])",
     "settings: snailps local -c FILE runs their job"),
    (rb"\x80[\x02-\x05]", "a Python pickle, as gensim's save() writes it, and snailps unpickles "
     "nothing: load it with gensim and write it with wv.save_word2vec_format(path)"),
    (rb"\x93NUMPY", "a NumPy array, which has no words: snailps.Vectors(words, numpy.load(path))"),
    (rb"PAR1", "a Parquet table: pandas.read_parquet reads it"),
    (rb"\x89HDF", "an HDF5 file: h5py reads it"),
    (rb"BZh", "packed with bzip2: unpack it first (bunzip2)"),
    (rb"\xfd7zXZ", "packed with xz: unpack it first (unxz)"),
    (rb"\x28\xb5\x2f\xfd", "packed with zstd: unpack it first (unzstd)"),
    (rb"\0\0\x08[\x01\x03]", "images or labels in idx format: snailps train mlp reads it"),
    (rb"\{.*windows_per_learner", "a history of federated averaging: snailps fedavg plot draws it"),
    (rb"\{.*\"data_name\"", "a history of federated averaging: snailps fedavg plot draws it"),
    (rb"[{\[]", "JSON: pandas.read_json reads it"),
    (rb"solver_type ", "a linear model in LIBLINEAR's format: LIBLINEAR's predict reads it"),
    (rb"(?-s:.*)__label__", "labelled text: snailps train classifier --input trains with it"),
    (rb"[+-]?[\d.]+( \d+(:\d+)?:[-+\d.eE]+)+\s", "examples in LIBSVM's or LIBFFM's format: snailps "
     "train logistic --input trains with them, snailps predict MODEL.npz FILE predicts for them"),
)  # fmt: skip
"""Files that hold no vectors: how they begin, and their description."""
FORMATS = (
    ModelFormat(lambda start: not start, "an empty file: was the export interrupted?"),
    ModelFormat(
        is_bin,
        _means_bin,
        _read_bin,
    ),
    ModelFormat(
        _starts(rb"PK\x03\x04"),
        _means_npz,
        _read_npz,
        takes_words=True,
    ),
    ModelFormat(
        is_bare_rows,
        "rows of numbers without words: snailps.load(path, words=...) reads them",
        _read_bare_rows,
        takes_words=True,
    ),
    ModelFormat(
        glove_dim, _ASKED, lambda g: Vectors(*read_glove(g.path, g.file, glove_dim(g.start)))
    ),
    ModelFormat(is_word2vec_binary, _ASKED, _read_word2vec),
    *(ModelFormat(_starts(pattern), means) for pattern, means in _OTHERS),
    ModelFormat(_is_text, "text: snailps train fasttext --input trains word vectors with it"),
    ModelFormat(
        _starts(rb"(\d+ ){6}\S+ \S+\r?\n"),
        "floret's table of hashed rows, without words: load the .bin or .vec of the same training",
    ),
    ModelFormat(
        lambda start: start[:1].isdigit(),
        lambda given: _ASKED if _VEC.match(given.start) else _means_other(given),
        _read_vec,
    ),
    ModelFormat(lambda start: True, _means_other),
)
"""The first format whose `begins` is true counts, so the order matters: the last takes any file."""
