#!/usr/bin/env bash
# What:     an array of numpy.ma with hidden elements as the X of scikit-learn.
# Versions: scikit-learn 1.9.1, numpy 2.4.6, scipy 1.17.1; 2026-11-29.
# Guess:    the mask is honoured as missing (so that SimpleImputer fills it, HistGradientBoosting
#           takes it as NaN), or such an array is refused, as NaN is.
# Happens:  check_array drops the mask without a word and learns from what lies beneath it, here the
#           -9999 of a sensor that was masked away.  SimpleImputer fills nothing; a model that takes
#           NaN as missing splits on the hidden number.
# Seen:     coefficient with the mask -6.63e-06, of the rows that are not hidden 3.91; imputed: [-9999.]
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1
OPENBLAS_NUM_THREADS=1 python -W error - <<'PYTHON'
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression

random = np.random.default_rng(0)
x = random.normal(size=(400, 1))
y = (x[:, 0] + random.normal(size=400) * 0.4 > 0).astype(int)
x[::4] = -9999
hidden = np.ma.masked_equal(x, -9999)

beneath = LogisticRegression(max_iter=1000).fit(x, y).coef_[0, 0]
masked = LogisticRegression(max_iter=1000).fit(hidden, y).coef_[0, 0]
kept = ~hidden.mask[:, 0]
right = LogisticRegression(max_iter=1000).fit(x[kept], y[kept]).coef_[0, 0]
imputed = SimpleImputer().fit_transform(hidden)
print(f"coefficient with the mask {masked:.3g}, of the rows that are not hidden {right:.3g};", end=" ")
print("imputed:", np.unique(imputed[::4]))
assert masked == beneath and abs(masked) < right / 10
assert (imputed == x).all()

asked = HistGradientBoostingClassifier(random_state=0).fit(hidden, y).predict_proba
missing = HistGradientBoostingClassifier(random_state=0).fit(hidden.filled(np.nan), y).predict_proba
told = np.array([[np.nan]])
assert not np.allclose(asked(told), missing(told))
PYTHON
