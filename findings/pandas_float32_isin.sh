#!/usr/bin/env bash
# What:     a float32 column, such as scores and probabilities are, compared with a number: by `==`, and as
#           one of a list (`isin`, `is_in`, `query` with `in`, a join).
# Versions: pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, NumPy 2.4.6; 2026-11-30.
# Guess:    x == .9 and "x is one of [.9]" say the same of each row.
# Happens:  `==` takes the constant as float32, and finds the row. The list becomes float64, and .9 as
#           float32 is none of it: no row, no error. pyarrow's `equal` finds none either.
# Seen:     rows by ==, by a list: pandas 1, 0; query 1, 0; polars 1, 0; joined 0, 0; pyarrow equal 0
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 numpy==2.4.6
python - <<'PYTHON'
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

scores = np.array([0.9], np.float32)
frame, polars_frame = pd.DataFrame({"x": scores}), pl.DataFrame({"x": scores})
constants = {"x": [0.9]}
rows = {
    "pandas": (len(frame[frame.x == 0.9]), len(frame[frame.x.isin([0.9])])),
    "query": (len(frame.query("x == .9")), len(frame.query("x in [.9]"))),
    "polars": (
        polars_frame.filter(pl.col("x") == 0.9).height,
        polars_frame.filter(pl.col("x").is_in([0.9])).height,
    ),
    "joined": (
        len(frame.merge(pd.DataFrame(constants))),
        polars_frame.join(pl.DataFrame(constants), on="x").height,
    ),
}
equal = pc.sum(pc.equal(pa.array(scores), 0.9)).as_py()
shown = "; ".join(f"{name} {by_equal}, {by_list}" for name, (by_equal, by_list) in rows.items())
print(f"rows by ==, by a list: {shown}; pyarrow equal {equal}")
assert rows.pop("joined") == (0, 0) and equal == 0
assert set(rows.values()) == {(1, 0)}
PYTHON
