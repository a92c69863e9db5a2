"""Whether a result can be written where a setting says.

output -> check_output -> its folder, made          files of a result -> refuse_existing

Which files a model writes, the model knows.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from snailps.errors import ConfigError


def check_output(output: str) -> None:
    """Makes the folder of the result before the job, not hours later at the export.

    Raises
    ------
    ConfigError
        The folder is not writable.
    """
    if not output:
        return
    folder = Path(output).absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"output: {output}: cannot write in {folder}: {error.strerror}; choose another output"
        ) from None


def refuse_existing(files: Sequence[str]) -> None:
    """Refuses to replace a result: training it may have taken days.

    Raises
    ------
    ConfigError
        A file is there: names it, its size and date, and what can be done.
    """
    there = [path for path in files if os.path.lexists(path)]
    if not there:
        return
    found = os.lstat(there[0])
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.st_mtime))
    more = f", and {len(there) - 1} more of its files" if len(there) > 1 else ""
    raise ConfigError(
        f"output: {there[0]} exists ({found.st_size / 1e6:,.1f} MB, written {written}){more}, and "
        "there is no unfinished run of this job to continue. To replace it, add --overwrite; to "
        "keep it, name another output"
    )


def refuse_folders(files: Sequence[str]) -> None:
    """Refuses paths of files where folders are.

    Raises
    ------
    ConfigError
    """
    for path in files:
        if Path(path).is_dir():
            raise ConfigError(
                f"output: {path} is a folder, and a file of that name is to be written: name "
                "another output"
            )
