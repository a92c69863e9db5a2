#!/usr/bin/env bash
# What:     times of microseconds in ORC, written and read by pyarrow: the far date that stands for "still
#           valid" in many tables.
# Versions: pyarrow 26.0.1; 2026-11-30.
# Guess:    a type that the writer takes comes back: timestamp[us] reaches far beyond the year 9999, and so
#           does ORC. Parquet and Feather of the same table come back.
# Happens:  the file is written without a word, and no read of that column succeeds: ORC's times are read
#           as nanoseconds, which end in the year 2262. The other columns can be read.
# Seen:     parquet 9999-12-31 00:00:00; orc ArrowInvalid: ORC timestamp (...) is out of range for nanosecond
#           resolution; the column beside [7]
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install pyarrow==26.0.1
python - <<'PYTHON'
import datetime

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

far = datetime.datetime(9999, 12, 31)
table = pa.table({"until": pa.array([far], pa.timestamp("us")), "price": [7]})
pq.write_table(table, "table.parquet")
orc.write_table(table, "table.orc")
(back,) = pq.read_table("table.parquet")["until"].to_pylist()
assert back == far
try:
    orc.read_table("table.orc")
except pa.ArrowInvalid as error:
    beside = orc.read_table("table.orc", columns=["price"])["price"].to_pylist()
    print(f"parquet {back}; orc ArrowInvalid: {error}; the column beside {beside}")
    assert "out of range for nanosecond" in str(error) and beside == [7]
else:
    raise SystemExit("ORC's far time was read")
PYTHON
