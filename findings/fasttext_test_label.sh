#!/usr/bin/env bash
# What:     fastText's `test_label`, precision, recall and F1 of each label, from Python.
# Versions: fasttext-wheel 0.9.2, numpy 1.26.4 (CPython 3.11); 2026-11-29.
# Guess:    the three numbers that `fasttext test-label` prints.
# Happens:  lines that have a label are not counted, so recall is NaN, and F1, which is computed as
#           2 right / (predicted + lines), is exactly twice the precision: up to 2.  Precision is right,
#           and nothing warns.
# Seen:     F1 is 2 x precision for each label, up to 1.9; recall is NaN
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install fasttext-wheel==0.9.2 numpy==1.26.4
python - <<'PYTHON'
import math
import random

import fasttext

rng = random.Random(1)
with open("t.txt", "w") as file:
    for n in range(300):
        label = rng.choice("ab")
        words = [rng.choice([label, "x", "y"]) for _ in range(4)]
        file.write(f"__label__{label} {' '.join(words)}\n")
model = fasttext.train_supervised("t.txt", dim=8, epoch=20, lr=0.5, thread=1, verbose=0)
found = model.test_label("t.txt")
for label, scores in sorted(found.items()):
    print(label, scores)
    assert math.isnan(scores["recall"]), "recall is a number now"
    assert abs(scores["f1score"] - 2 * scores["precision"]) < 1e-9, "F1 is another one now"
top = max(scores["f1score"] for scores in found.values())
assert top > 1, "no F1 is above 1"
print(f"F1 is 2 x precision for each label, up to {top:.1f}; recall is NaN")
PYTHON
