"""Reads a whole model file, or raises an error that says what the file is instead.

path, expected kind -> read_model -> settings, arrays in memory
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from snailps.errors import ModelFileError, SnailError
from snailps.files.array_archives import DAMAGED
from snailps.files.model_file import HEADER, ModelFile, refuse_pipe, settings_of


@contextmanager
def read_model(
    path: str | os.PathLike[str], what: str, names: Collection[str] = (HEADER,)
) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
    """Yield settings and arrays of a file of `what` (such as ``a net``); `names` are required.

    A KeyError, TypeError, ValueError or SnailError that the caller raises inside the context
    becomes a ModelFileError: the file's arrays do not fit the model.
    """

    expected = f"{path}: expected the .npz of {what}, as snailps train writes it, got"

    def refusal(got: str) -> ModelFileError:
        from snailps.vectors.files import identify  # here: it imports this package's readers

        with open(path, "rb") as file:
            kind = identify(path, file)
        return ModelFileError(f"{expected} {got}: it is {kind}" if kind else f"{expected} {got}")

    refuse_pipe(path)
    try:
        with open(path, "rb") as file:
            arrays = ModelFile(path, file).arrays()
            lacks = [name for name in names if name not in arrays]
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read as {what}: {error.strerror or error}"
        ) from None
    except DAMAGED as error:
        raise refusal(f"a file that is no sound .npz ({error!s:.200})") from None
    if lacks:
        raise refusal(f"an .npz without {', '.join(lacks)}")
    try:
        header = arrays.pop(HEADER, None)
        yield {} if header is None else settings_of(header), arrays
    except (KeyError, TypeError, ValueError, SnailError) as error:
        got = str(error) if isinstance(error, SnailError) else repr(error)
        raise ModelFileError(f"{expected} {got:.200}") from None
