#!/usr/bin/env bash
# What:     a column of instants (with zone UTC) that is written to Parquet as INT96, as Spark, Hive and
#           Impala have it, then read and written again by pyarrow with its defaults.
# Versions: pyarrow 26.0.1; 2026-11-30.
# Guess:    INT96 is an instant, so the copy is one too: the zone, or "adjusted to UTC", is kept.
# Happens:  INT96 is read as a time without zone, and the copy says isAdjustedToUTC=false: a local time.
#           Readers that keep to the format, Spark with a session zone among them, show another instant.
#           The schema that pyarrow stores beside does not help here; without INT96 the zone comes back.
# Seen:     read timestamp[ns], written again isAdjustedToUTC=false; not as INT96: timestamp[us, tz=UTC]
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install pyarrow==26.0.1
python - <<'PYTHON'
import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq

noon = datetime.datetime(2024, 5, 31, 12, tzinfo=datetime.timezone.utc)
table = pa.table({"at": pa.array([noon], pa.timestamp("us", "UTC"))})


def adjusted(path):
    return json.loads(pq.ParquetFile(path).schema.column(0).logical_type.to_json())["isAdjustedToUTC"]


pq.write_table(table, "plain.parquet")
plain = pq.read_table("plain.parquet").schema.field("at").type
assert adjusted("plain.parquet") is True and plain.tz == "UTC"

pq.write_table(table, "int96.parquet", use_deprecated_int96_timestamps=True)
read = pq.read_table("int96.parquet")
pq.write_table(read, "again.parquet")
kind, is_instant = read.schema.field("at").type, adjusted("again.parquet")
print(f"read {kind}, written again isAdjustedToUTC={str(is_instant).lower()}; not as INT96: {plain}")
assert kind.tz is None and not is_instant
PYTHON
