#!/usr/bin/env bash
# What:     `pyarrow.parquet.write_table(..., store_schema=False)`, which leaves out Arrow's own schema, as
#           other readers need none.
# Versions: pyarrow 26.0.1, pandas 3.1.1; 2026-11-30.
# Guess:    the key `ARROW:schema` is left out, and the table's own metadata stays.
# Happens:  all metadata of the table is left out with it: pandas' description of index and types, Spark's
#           row schema, GeoParquet's `geo`, one's own keys.
# Seen:     stored: ARROW:schema, mine, pandas; not stored: nothing
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install pyarrow==26.0.1 pandas==3.1.1
python - <<'PYTHON'
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

table = pa.Table.from_pandas(pd.DataFrame({"x": [1, 2]}, index=["a", "b"]))
table = table.replace_schema_metadata({**table.schema.metadata, b"mine": b"1"})
keys = {}
for is_stored in (True, False):
    pq.write_table(table, "table.parquet", store_schema=is_stored)
    keys[is_stored] = sorted(key.decode() for key in pq.read_metadata("table.parquet").metadata or {})
print(f"stored: {', '.join(keys[True])}; not stored: {', '.join(keys[False]) or 'nothing'}")
assert keys == {True: ["ARROW:schema", "mine", "pandas"], False: []}
PYTHON
