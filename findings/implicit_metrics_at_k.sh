#!/usr/bin/env bash
# What:     precision@k of implicit's evaluation.
# Versions: implicit 0.7.3, numpy 2.3.5, scipy 1.16.3; 2026-11-29.
# Guess:    hits among the first k answers, divided by k.  With one held-out item a user,
#           precision@20 is at most 1/20.
# Happens:  the divisor is the sum over users of min(k, held-out items): with one held-out item a
#           user precision@k is recall@k, reaches 1, and rises with k.  Figures of papers and other
#           libraries (k in the divisor) cannot be compared with it.  Said in a comment of issue 713
#           of benfred/implicit, not in its documentation.
# Seen:     precision@1 0.025  precision@20 0.75
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install implicit==0.7.3 numpy==2.3.5 scipy==1.16.3
OPENBLAS_NUM_THREADS=1 python - <<'PYTHON'
import numpy as np
import scipy.sparse as sp
from implicit.als import AlternatingLeastSquares
from implicit.evaluation import ranking_metrics_at_k

random = np.random.default_rng(0)
chosen = sp.csr_matrix((random.random((40, 30)) < 0.2).astype(np.float32))
held_out = sp.lil_matrix((40, 30), dtype=np.float32)
for user in range(40):  # one item a user, which the training lacks
    held_out[user, random.choice(np.flatnonzero(chosen[user].toarray()[0] == 0))] = 1
model = AlternatingLeastSquares(factors=8, random_state=0, num_threads=1, use_gpu=False)
model.fit(chosen, show_progress=False)
at = {
    k: ranking_metrics_at_k(model, chosen, held_out.tocsr(), K=k, num_threads=1, show_progress=False)
    for k in (1, 20)
}
print(*(f"precision@{k} {figures['precision']:.3g}" for k, figures in at.items()), sep="  ")
assert at[20]["precision"] > 1 / 20, "divided by k now"
assert at[20]["precision"] > at[1]["precision"]
PYTHON
