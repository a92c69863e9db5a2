#!/usr/bin/env bash
# What:     scikit-learn's `dump_svmlight_file` of a sparse matrix with repeated entries.
# Versions: scikit-learn 1.9.1, numpy 2.4.6, scipy 1.16.3; 2026-12-01.
# Guess:    they are summed, as by `toarray`, products, and each estimator of scikit-learn.
# Happens:  each entry is written as it is stored.  The loader refuses the file ("should be sorted and
#           unique"); other readers keep the last value, or both.  Such matrices come of (data, indices,
#           indptr) as a hand-written vectoriser makes them, before `sum_duplicates`.
#           Order is mended: unsorted indices are sorted before they are written.
# Seen:     written b'1 3:1 3:2\n'; toarray has a 3; read: ValueError
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install scikit-learn==1.9.1 numpy==2.4.6 scipy==1.16.3
python - <<'PYTHON'
import io

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

def written(columns, values):
    row = csr_matrix((np.array(values), np.array(columns), np.array([0, 2])), shape=(1, 5))
    file = io.BytesIO()
    dump_svmlight_file(row, [1], file)
    file.seek(0)
    return row, file

row, file = written([4, 3], [1.0, 2.0])
assert np.array_equal(load_svmlight_file(file, n_features=5, zero_based=True)[0].toarray(), row.toarray())

row, file = written([3, 3], [1.0, 2.0])
print("written", file.getvalue(), "toarray", row.toarray().tolist())
assert row.toarray()[0, 3] == 3
assert file.getvalue() == b"1 3:1 3:2\n"
try:
    load_svmlight_file(file, n_features=5, zero_based=True)
except ValueError as error:
    assert "unique" in str(error)
    print("read", repr(error))
else:
    raise SystemExit("the file is read")
PYTHON
