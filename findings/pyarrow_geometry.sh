#!/usr/bin/env bash
# What:     reading Parquet with a GEOMETRY or GEOGRAPHY column by pyarrow, and writing the same
#           table again.
# Versions: pyarrow 22.0.0; 2026-11-29.
# Guess:    pyarrow knows these annotations since version 21 and shows them, with their coordinate
#           system, in `ParquetFile(...).schema`: a copy has them, too.
# Happens:  unless geoarrow's types are registered in the process the column is read as `binary`, and
#           written as bytes without annotation or CRS, also where the field still has GeoArrow's
#           metadata. Nothing is said. An extension type of one's own with the name `geoarrow.wkb`,
#           registered nowhere, keeps both: the writer looks at its name.
# Seen:     Geometry(crs=EPSG:3857) -> binary -> None; by an extension type: Geometry(crs=EPSG:3857)
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install pyarrow==22.0.0
python - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq


class Geometry(pa.ExtensionType):
    def __init__(self, storage, about):
        self._about = about
        super().__init__(storage, "geoarrow.wkb")

    def __arrow_ext_serialize__(self):
        return self._about

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, about):
        return cls(storage, about)


def annotation(path):
    return str(pq.ParquetFile(path).schema.column(0).logical_type)


kind = Geometry(pa.binary(), b'{"crs": "EPSG:3857"}')
point = bytes.fromhex("0101000000000000000000f03f0000000000000040")  # POINT (1 2)
points = pa.ExtensionArray.from_storage(kind, pa.array([point]))
pq.write_table(pa.table({"at": points}), "made.parquet")
read = pq.read_table("made.parquet")
pq.write_table(read, "copied.parquet")
print(annotation("made.parquet"), "->", read.schema.field("at").type, "->", annotation("copied.parquet"), end="; ")
again = pa.table({"at": pa.ExtensionArray.from_storage(kind, read["at"].combine_chunks())})
pq.write_table(again, "kept.parquet")
print("by an extension type:", annotation("kept.parquet"))
assert annotation("made.parquet") == annotation("kept.parquet") == "Geometry(crs=EPSG:3857)"
assert read.schema.field("at").type == pa.binary()
assert annotation("copied.parquet") == "None"
PYTHON
