#!/usr/bin/env bash
# What:     fastText's `predict` of a list with k labels a text, in Python with NumPy 2.
# Versions: fasttext-wheel 0.9.2, numpy 2.4.6 and 1.26.4 (CPython 3.11); 2026-11-29.
# Guess:    the probabilities of each text fall, and sum up to 1 over all labels, as with NumPy 1; or
#           an error, as `predict` of one text has ("Unable to avoid copy").
# Happens:  each of the k probabilities of a text is the first one: no warning, and the labels are
#           right.  (The pybind11 of the wheel is older than NumPy 2, which keeps the size of an element
#           elsewhere; with k=1 all is well.)  Whoever sums probabilities, or filters by the second,
#           gets numbers that look like some.
# Seen:     numpy 1.26.4: [0.99, 0.01, 0.0]
#           numpy 2.4.6: [0.99, 0.99, 0.99]
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
cat > look.py <<'PYTHON'
import sys

import fasttext
import numpy as np

with open("t.txt", "w") as file:
    file.write("__label__a x y\n__label__b z w\n__label__c v u\n" * 200)
model = fasttext.train_supervised("t.txt", epoch=5, dim=4, thread=1, verbose=0)
labels, (chances,) = model.predict(["x y"], k=3)
print(f"numpy {np.__version__}:", [round(float(p), 2) for p in chances])
assert labels[0][0] == "__label__a" and len(set(labels[0])) == 3
if sys.argv[1] == "right":
    assert chances[0] > 0.9 > chances[1] > chances[2] and abs(sum(chances) - 1) < 0.01
else:
    assert chances[0] > 0.9 and chances[1] == chances[2] == chances[0]
PYTHON
install fasttext-wheel==0.9.2 numpy==1.26.4
python look.py right
install numpy==2.4.6
python look.py wrong
