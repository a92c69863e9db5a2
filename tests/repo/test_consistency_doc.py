"""docs/consistency.md: which way each update of each model's rows takes."""

from importlib.util import find_spec
from pathlib import Path

from snailps.api.worker import load_class
from snailps.models import CLASSES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "consistency.md"


TORCH = {"torch": "snailps.torch.training:Worker"} if find_spec("torch") else {}


def lines_of_updates():
    """The table, a line for the updates of models that are alike."""
    models = {}
    for name, path in {**CLASSES, **TORCH}.items():
        for update, kind in load_class(path, "a test").row_updates.items():
            models.setdefault((update, kind.value), []).append(f"`{name}`")
    return [
        f"| {', '.join(names)} | {update} | {kind} |" for (update, kind), names in models.items()
    ]


def test_page_has_the_way_of_each_update_of_each_model():
    lines = PAGE.read_text().splitlines()
    if not TORCH:
        lines = [
            line.replace(", `torch` |", " |")
            for line in lines
            if not line.startswith("| `torch` |")
        ]
    begin = lines.index("| model | update of a row | way |") + 2
    wanted = lines_of_updates()
    assert lines[begin : begin + len(wanted)] == wanted, "\n".join(wanted)
    assert lines[begin + len(wanted)] == ""
