#!/usr/bin/env bash
# What:     `recommend(..., filter_already_liked_items=True)` of implicit, where fewer items are left
#           than were asked for.
# Versions: implicit 0.7.3, numpy 2.3.5, scipy 1.16.3; 2026-11-29.
# Guess:    it returns the items that are left, fewer than N.
# Happens:  it returns N items: after those that are left come the user's own, which were to be left
#           out, with the score -3.4028235e+38, the least float32.  Who does not look at scores shows
#           them.  A stored zero counts as liked, too: a matrix from which interactions were
#           taken back by writing zeros has all of them filtered.
# Seen:     asked for 5, left 2: [0 3 4 2 1] [0.498 -0.052 -3.4e38 -3.4e38 -3.4e38]; stored zeros left: 0 of 6
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install implicit==0.7.3 numpy==2.3.5 scipy==1.16.3
OPENBLAS_NUM_THREADS=1 python - <<'PYTHON'
import numpy as np
import scipy.sparse as sp
from implicit.als import AlternatingLeastSquares

random = np.random.default_rng(0)
liked = (random.random((40, 6)) < 0.4).astype(np.float32)
liked[0] = [0, 1, 1, 0, 1, 1]
chosen = sp.csr_matrix(liked)
model = AlternatingLeastSquares(factors=4, random_state=0, num_threads=1, use_gpu=False)
model.fit(chosen, show_progress=False)
least = np.finfo(np.float32).min

items, scores = model.recommend(0, chosen[0], N=5, filter_already_liked_items=True)
print("asked for 5, left 2:", items, scores)
assert len(items) == 5 and set(items[:2]) == {0, 3}
assert (scores[2:] == least).all() and liked[0, items[2:]].all()

nothing = sp.csr_matrix((np.zeros(6, np.float32), np.arange(6), [0, 6]), shape=(1, 6))
assert nothing.sum() == 0 and nothing.nnz == 6  # six stored zeros
items, scores = model.recommend(0, nothing, N=6, filter_already_liked_items=True)
print("stored zeros left:", (scores > least).sum(), "of 6")
assert (scores == least).all()
PYTHON
