#!/usr/bin/env bash
# What:     scikit-learn's `load_svmlight_file` on what its own `dump_svmlight_file` wrote.
# Versions: scikit-learn 1.8.0, numpy 2.3.5, scipy 1.16.3; 2026-11-29.
# Guess:    the matrix that was written, at least where `n_features` is given.
# Happens:  `dump_svmlight_file` counts columns from 0, `load_svmlight_file` guesses the base from
#           each file (`zero_based="auto"`): a file without an entry in column 0 is taken as counted
#           from 1, and all of its columns are shifted by one.  With `n_features` the shape is right
#           and the values stand in the wrong columns.  So of two files of one data set (training and
#           test, or days) one may be shifted and the other not.  `zero_based=True` gives the matrix.
# Seen:     written [[0. 1.] [0. 2.]], read with n_features=2 [[1. 0.] [2. 0.]]
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install scikit-learn==1.8.0 numpy==2.3.5 scipy==1.16.3
python - <<'PYTHON'
import io

import numpy as np
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

written = np.array([[0.0, 1.0], [0.0, 2.0]])
file = io.BytesIO()
dump_svmlight_file(written, [0, 1], file)

def read(**options):
    file.seek(0)
    return load_svmlight_file(file, **options)[0].toarray()

print("written", written.tolist(), "read with n_features=2", read(n_features=2).tolist())
assert read().shape == (2, 1)
assert np.array_equal(read(n_features=2), [[1, 0], [2, 0]])
assert np.array_equal(read(n_features=2, zero_based=True), written)
PYTHON
