"""Quality of predicted probabilities, by the same code for every system.

    test file, file of probabilities (a number a line) -> log loss, AUC, calibration

Independent of snailps's own metrics, so that errors of either show.
"""

from pathlib import Path

import numpy as np

CLIP = 1e-7
"""Probabilities are kept so far from 0 and 1: one sure mistake must not be infinitely bad."""
READ_BYTES = 1 << 24


def labels_of(path: Path) -> np.ndarray:
    """True where a line's label is above zero, bool (n,); the label is the line's first word."""
    found = [np.empty(0, bool)]
    rest = b""
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            # "1", "+1", "0" and "-1" differ in their first character.
            found.append(np.array([line[:1] in b"1+" for line in lines if line], bool))
    if rest:
        found.append(np.array([rest[:1] in b"1+"]))
    return np.concatenate(found)


def numbers_of(path: Path) -> np.ndarray:
    """The first number of every line, float64 (n,)."""
    text = path.read_bytes()
    first = text.partition(b"\n")[0].split()
    if len(first) == 1:
        return np.fromstring(text.decode(), np.float64, sep=" ")
    return np.array([float(line.split(None, 1)[0]) for line in text.splitlines()])


def quality(clicked: np.ndarray, probabilities: np.ndarray) -> dict:
    """Log loss (natural), AUC and calibration (mean prediction / mean label)."""
    if clicked.shape != probabilities.shape:
        raise ValueError(f"{len(clicked)} labels but {len(probabilities)} predictions")
    p = np.clip(probabilities, CLIP, 1 - CLIP)
    return {
        "log_loss": float(-np.where(clicked, np.log(p), np.log1p(-p)).mean()),
        "auc": area(clicked, probabilities),
        "calibration": float(probabilities.mean() / clicked.mean()),
    }


def area(clicked: np.ndarray, scores: np.ndarray) -> float:
    """P(a clicked example scores above one that was not), ties counted half."""
    _, place, times = np.unique(scores, return_inverse=True, return_counts=True)
    # Mean rank of each distinct score, from 1.
    ranks = np.cumsum(times) - (times - 1) / 2.0
    positive = int(clicked.sum())
    negative = len(clicked) - positive
    total = ranks[place][clicked].sum()
    return float((total - positive * (positive + 1) / 2) / (positive * negative))
