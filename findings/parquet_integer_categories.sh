#!/usr/bin/env bash
# What:     Parquet written by pyarrow of columns of categories: pandas' Categorical, Arrow's dictionary.
# Versions: pyarrow 26.0.1, pandas 3.1.1; 2026-11-29.
# Guess:    what is a category stays one: zip codes in a Categorical of int64 come back as such, as
#           those in a Categorical of texts do; the schema of Arrow is in the file.
# Happens:  categories of texts come back as a dictionary, those of numbers as plain int64: no warning
#           where they are written, and a library that takes numbers for amounts and categories for
#           names learns a weight for the size of a zip code.
# Seen:     zip int64 city dictionary<values=string, indices=int32, ordered=0>
#           in pandas int64 category
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install pyarrow==26.0.1 pandas==3.1.1
python - <<'PYTHON'
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

codes = {"zip": [10115, 20095, 10115], "city": ["Berlin", "Hamburg", "Berlin"]}
table = pa.table({name: pa.array(column).dictionary_encode() for name, column in codes.items()})
assert all(pa.types.is_dictionary(field.type) for field in table.schema)
pq.write_table(table, "arrow.parquet")
back = pq.read_table("arrow.parquet").schema
print("zip", back.field("zip").type, "city", back.field("city").type)
assert back.field("zip").type == pa.int64()
assert pa.types.is_dictionary(back.field("city").type)

frame = pd.DataFrame({name: pd.Categorical(column) for name, column in codes.items()})
frame.to_parquet("pandas.parquet")
back = pd.read_parquet("pandas.parquet").dtypes
print("in pandas", back["zip"], back["city"])
assert back["zip"] == "int64" and back["city"] == "category"
PYTHON
