#!/usr/bin/env python3
"""Rare labels: a classifier with and without balanced classes, beside scikit-learn's.

    package descriptions, labelled by Section -> a part for training, a part for the test
    both systems train on single words, plain and balanced -> accuracy, mean F1 of the labels

scikit-learn gets the same features: a text is the mean of its words.

    python bench/label_weights.py --lines 8000 --seeds 3
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from classifier import LISTS, prepare
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import normalize

import snailps


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, help="lines of __label__x and words")
    parser.add_argument("--lists", type=Path, default=LISTS)
    parser.add_argument("--lines", type=int, default=8000, help="lines of the training, at most")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--epochs", default="auto")
    parser.add_argument("--penalty", type=float, default=3000.0, help="C of scikit-learn")
    parser.add_argument("--iterations", type=int, default=60, help="most of scikit-learn")
    return parser.parse_args()


def read(path: Path, lines: int) -> tuple[list[str], list[str]]:
    """Texts and labels."""
    rows = path.read_text(encoding="utf-8", errors="replace").splitlines()[:lines]
    pairs = [row.partition(" ") for row in rows]
    return [text for _, _, text in pairs], [label for label, _, _ in pairs]


def main() -> None:
    """Print a Markdown table."""
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        train, test, _ = prepare(args, Path(folder))
        (texts, y), (held, truth) = read(train, args.lines), read(test, args.lines // 4)
    sizes = Counter(y).most_common()
    print(f"{len(texts):,} texts, {len(sizes)} labels of {sizes[-1][1]} to {sizes[0][1]:,} texts\n")
    print("| system | weights | accuracy | mean F1 |\n|---|---|---|---|")
    counter = CountVectorizer(token_pattern=r"\S+", lowercase=False)
    features = normalize(counter.fit_transform(texts), "l1")
    held_features = normalize(counter.transform(held), "l1")
    weights = (None, "balanced")

    def row(system: str, weight: str | None, said: list[list[str]]) -> None:
        right = np.mean([accuracy_score(truth, one) for one in said])
        f1 = np.mean([f1_score(truth, one, average="macro", zero_division=0) for one in said])
        print(f"| {system} | {weight or 'none'} | {right:.3f} | {f1:.3f} |", flush=True)

    warnings.simplefilter("ignore")
    for weight in weights:
        said = []
        for seed in range(args.seeds):
            model = snailps.TextClassifier(
                maxn=0, lr=args.lr, epochs=args.epochs, class_weight=weight, seed=seed,
                verbose=False,
            )  # fmt: skip
            said.append(model.fit(texts, y).predict(held).tolist())
        row("snailps", weight, said)
    for weight in weights:
        peer = LogisticRegression(C=args.penalty, class_weight=weight, max_iter=args.iterations)
        answers = peer.fit(features, y).predict(held_features).tolist()
        row(f"scikit-learn, C = {args.penalty:g}", weight, [answers])


if __name__ == "__main__":
    main()
