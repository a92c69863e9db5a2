"""What a file is that was given where a model was expected, and which command reads it.

    path, open file -> identify -> "labelled text: snailps train classifier --input trains with it"
    path -> identify_folder -> "a folder of checkpoints: snailps checkpoint export ..."

Only asked when a reader has refused a file, so it may take its time.  It raises nothing: what it
cannot tell is "".  Vectors and classifiers are opened by others.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

from snailps.data.array_archives import DAMAGED
from snailps.data.file_kinds import HEAD_BYTES, kind_of
from snailps.errors import ModelFileError
from snailps.vectors.fasttext_bin import MAGIC, read_header
from snailps.vectors.foreign_files import (
    glove_dim,
    is_rows_alone,
    is_word2vec_binary,
    what_is,
)
from snailps.vectors.npz import settings_of

START_BYTES = 1 << 16
_ABOUT_BYTES_MAX = 1 << 20
_MODELS = (".bin", ".ftz", ".vec", ".npz", ".bin.gz", ".vec.gz")
_ASKED = "snailps nn, similarity, analogy, vector and eval read it"
_UNPACK_AGAIN = "unpack it, or fetch it again if that fails"
_SETTING = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\r?\n)*(?:import +\S|[a-z][a-z0-9_]* *: *[^\s:])")
_VEC = re.compile(rb"\d+ \d+ *\r?\n")
# Of kinds that `what_is` has no word for.
_CURES = {
    "gzip": _UNPACK_AGAIN,
    "a zip archive (or .docx, .xlsx, .npz)": "unpack it, and name a model in it",
}


def identify(path: str | os.PathLike[str], file: IO[bytes]) -> str:
    """What a file is and what reads it, or ""; `path` gives the name, `file` keeps its position."""
    place = file.tell()
    try:
        file.seek(0)
        start = file.read(START_BYTES)
        file.seek(0)
        return _identity(path, start, file)
    except OSError:
        return ""
    finally:
        file.seek(place)


def _identity(path: str | os.PathLike[str], start: bytes, file: IO[bytes]) -> str:
    if not start:
        return "an empty file: was the export interrupted?"
    if start.startswith(MAGIC.to_bytes(4, "little")):
        return _of_fasttext(path, file)
    if start.startswith(b"PK\x03\x04"):
        return of_archive(file)
    if _VEC.match(start) or is_word2vec_binary(start) or glove_dim(start):
        return f"word vectors: {_ASKED}"
    if is_rows_alone(start):
        return "rows of numbers without words: snailps.load(path, words=...) reads them"
    if _SETTING.match(start):
        return "settings: snailps local -c FILE runs their job"
    if found := what_is(start):
        return found
    kind = kind_of(start[:HEAD_BYTES], text=True)
    return f"{kind}: {_CURES.get(kind, 'no command reads it')}" if kind else ""


def _of_fasttext(path: str | os.PathLike[str], file: IO[bytes]) -> str:
    try:
        header = read_header(path, file)
    except ModelFileError:
        return "a damaged fastText model: fetch or export it again"
    if header.model == "supervised":
        return "a classifier: snailps predict and snailps test read it"
    return f"word vectors: {_ASKED}"


def of_archive(file: IO[bytes]) -> str:
    """What a zip archive is, by the names and the description in it, and what reads it."""
    try:
        with zipfile.ZipFile(file) as archive:
            return of_members(archive, archive.namelist())
    except (OSError, *DAMAGED):
        return "a damaged zip archive or .npz: fetch or export it again"


def of_members(archive: zipfile.ZipFile, names: Iterable[str]) -> str:
    """As `of_archive`, of one that is open."""
    found = set(names)
    if "about.npy" in found:
        return _described(archive)
    if {"vectors.npy", "words.npy"} <= found:
        return f"word vectors: {_ASKED}"
    if {"embedding.npy", "output.npy", "round.npy"} <= found:
        return f"weights of federated averaging: {_ASKED}"
    if any(name.endswith("data.pkl") for name in found):
        return (
            "a file of PyTorch (torch.load): write its weights and words by "
            "snailps.Vectors(words, weights).save('vectors.npz')"
        )
    if any(name.endswith(".keys.npy") for name in found):
        return "tables of a model: numpy.load reads them"
    if found and all(name.endswith(".npy") for name in found):
        return "arrays of another program: numpy.load reads them"
    return "a zip archive: unpack it, and name a model in it"


def _described(archive: zipfile.ZipFile) -> str:
    """What a .npz of ours with a description is, and what reads it."""
    try:
        with archive.open("about.npy") as member:
            head = io.BytesIO(member.read(_ABOUT_BYTES_MAX))
        np.lib.format.read_magic(head)
        np.lib.format.read_array_header_1_0(head)  # which may announce any size
        made_by = str(settings_of(np.frombuffer(head.read(), np.uint8))["worker_class"])
    except (OSError, *DAMAGED):
        return "a model of another version: read it with the program that wrote it"
    if made_by.startswith("snailps.models.mlp"):
        return "a net of snailps train mlp: snailps.models.mlp.files.read_npz(path) reads it"
    if made_by.startswith("snailps.models.embeddings"):
        what = "a matrix factorisation" if ".mf" in made_by else "a knowledge graph"
        return f"{what}: snailps nn, similarity, vector and predict, and snailps.load, read it"
    return (
        f"a sparse model ({made_by}): snailps predict MODEL.npz FILE predicts with it, with "
        "--metrics judges it"
    )


def identify_folder(path: str | os.PathLike[str]) -> str:
    """What a folder is, and what to name instead of it."""
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208
    except OSError:
        return "a folder; give the path of a model in it"
    if "manifest.json" in names:
        return "a checkpoint: snailps checkpoint export makes a model of it"
    if any(re.fullmatch(r"checkpoint-\d{6,}", one) for one in names):
        return "a folder of checkpoints: snailps checkpoint export makes a model of it"
    if "passed.json" in names or ("lock" in names and str(path).endswith(".checkpoints")):
        return "a folder of checkpoints, without one: the training that kept them has ended"
    if "facts" in names and "life" in names:
        return "the journal of a training: the command that began it goes on with it"
    models = [one for one in names if one.endswith(_MODELS)]
    hint = f", such as {Path(path) / models[0]}" if models else ""
    return f"a folder; give the path of a model in it{hint}"
