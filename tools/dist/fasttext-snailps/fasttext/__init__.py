"""The name ``fasttext`` for ``snailps.fasttext``; refuses to share it with another package."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

_MINE = "fasttext-snailps"


def _refuse_others() -> None:
    """Raise ImportError if files of another package named fasttext are here.

    pip installs packages of one name over each other, and removes the files of all with one.
    """
    here = Path(__file__).parent
    others = [path for path in here.iterdir() if path.name not in ("__init__.py", "__pycache__")]
    others += [path for name in ("fasttext.*", "fasttext_pybind.*") for path in here.parent.glob(name)]
    if not others:
        return
    names = {*importlib.metadata.packages_distributions().get("fasttext", []), _MINE}
    raise ImportError(
        f"{_MINE}: another package named fasttext is installed, too ({others[0]}). Remove both, "
        f"then install the one that you want: pip uninstall -y {' '.join(sorted(names))}; "
        f"pip install {_MINE}"
    )


_refuse_others()
for _name in ("", ".FastText", ".util"):
    sys.modules["fasttext" + _name] = importlib.import_module("snailps.fasttext" + _name)
