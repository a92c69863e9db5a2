#!/usr/bin/env bash
# What:     `to_numpy` of a pyarrow column of codes (dictionary type) with a missing value: what each
#           column of a table that was read from Parquet is, a `ChunkedArray`.
# Versions: pyarrow 26.0.1, NumPy 2.4.6; 2026-11-30.
# Guess:    the missing value is None or NaN, as `Array.to_numpy` has it, and `to_pandas`.
# Happens:  it becomes the last category. The code of a null is -1, and NumPy takes the last item for
#           that index. No warning: a model learns from a label that nobody gave.
# Seen:     array   ['good', 'bad', None, 'good']
#           pandas  ['good', 'bad', nan, 'good']
#           chunked ['good', 'bad', 'bad', 'good']
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install pyarrow==26.0.1 numpy==2.4.6 pandas==3.1.1
python - <<'PYTHON'
import pyarrow as pa

codes = pa.array(["good", "bad", None, "good"]).dictionary_encode()
column = pa.table({"y": codes})["y"]
print("array  ", codes.to_numpy(zero_copy_only=False).tolist())
print("pandas ", column.to_pandas().tolist())
print("chunked", column.to_numpy().tolist())
assert column.null_count == 1
assert codes.to_numpy(zero_copy_only=False).tolist() == ["good", "bad", None, "good"]
assert column.to_numpy().tolist() == ["good", "bad", "bad", "good"]
PYTHON
