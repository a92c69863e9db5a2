"""A drawing of an estimator's history: loss by epoch.

    history_ -> plot_history -> matplotlib Axes

matplotlib is an extra, imported when a drawing is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from snailps.vectors.extras import optional_module

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_history(history: Sequence[Mapping[str, Any]], title: str, ax: Axes | None = None) -> Axes:
    """Draw the loss of each epoch of an estimator's `history_`, on new axes by default."""
    if ax is None:
        pyplot = optional_module("matplotlib.pyplot", "plot", "snailps[plot]")
        ax = pyplot.subplots()[1]
    epochs = [one["epoch"] for one in history]
    ax.plot(epochs, [one["loss"] for one in history], marker="o", label="training loss")
    ax.set_xlabel("epoch")
    ax.set_ylabel("training loss")
    ax.set_title(title)
    return ax
