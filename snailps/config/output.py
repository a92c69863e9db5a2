"""Whether a result can be written where a setting says.

output -> check_output -> its folder, made
"""

from __future__ import annotations

import tempfile
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
