"""The same rows in every documented format, for tests/cluster/test_data_door.py.

    variant -> text_rows, example_rows, rating_rows -> files by name; tables in memory

Packed files have two members, cut anywhere.  TSV cannot hold a newline within a cell.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import lz4.frame
import numpy as np

VARIANTS = ("shuffled", "by label", "by feature", "late column", "quoted newlines", "wide columns")
ROWS = 240
"""More than the heads that tests/cluster/test_data_door.py leaves to each reader."""


def packed(data, ending):
    """Two members, the second one from the middle of a line on, as `cat` makes them."""
    if ending == ".zst":
        import zstandard

        pack = zstandard.ZstdCompressor().compress
    elif ending == ".lz4":
        pack = lz4.frame.compress
    else:
        pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[ending]
    half = len(data) // 2
    return pack(data[:half]) + pack(data[half:])


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """The address of a folder on a web server of this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def separated(rows, separator, quotes, header=True):
    """CSV or TSV; None is an empty cell."""
    out = io.StringIO()
    quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    writer = csv.writer(out, delimiter=separator, lineterminator="\n", quoting=quoting)
    if header:
        writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return out.getvalue().encode()


def json_lines(rows):
    return "\n".join(map(json.dumps, rows)).encode() + b"\n"


def parquet(rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=64)
    return out.getvalue()


def orc(rows):
    import pyarrow as pa
    from pyarrow import orc as module

    out = io.BytesIO()
    module.write_table(pa.Table.from_pylist(rows), out, stripe_size=1 << 12)
    return out.getvalue()


def arrow(rows, stream=False):
    """An Arrow file as Feather writes it, or a stream as Hugging Face's save_to_disk does."""
    import pyarrow as pa

    table, out = pa.Table.from_pylist(rows), io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=None if stream else "lz4")
    writer = (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema, options=options)
    with writer:
        writer.write_table(table, max_chunksize=64)
    return out.getvalue()


def tables(rows, newlines=False):
    """Name of a file -> its bytes."""
    plain = {"t.csv": separated(rows, ",", True), "t.jsonl": json_lines(rows)}
    plain["t.parquet"], plain["t.arrow"] = parquet(rows), arrow(rows, stream=not newlines)
    plain["t.orc"] = orc(rows)
    if not newlines:
        plain["t.tsv"] = separated(rows, "\t", False)
    more = {f"{name}{end}": packed(plain[name], end) for name, end in PACKED_TABLES}
    more["t.parquet.gz"] = gzip.compress(plain["t.parquet"])
    return plain | more


PACKED_TABLES = (("t.csv", ".gz"), ("t.csv", ".bz2"), ("t.jsonl", ".gz"), ("t.jsonl", ".zst"))
URLS = ("t.csv", "t.jsonl.gz", "t.parquet")


def frames(rows):
    """The table in memory."""
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    return {
        "Arrow": pa.Table.from_pylist(rows),
        "pandas": pd.DataFrame(rows),
        "polars": pl.DataFrame(rows, infer_schema_length=None),
    }


def text_rows(variant):
    """Rows of `label`, `text`; columns that nobody reads come before and after."""
    rng, rows = np.random.default_rng(1), []
    for at in range(ROWS):
        label = "abc"[rng.integers(3)]
        words = [f"{label}{word}" for word in rng.integers(9, size=rng.integers(2, 12))]
        between = "\n" if variant == "quoted newlines" else " "
        row = {"label": label, "text": between.join(words)}
        if variant == "late column":
            row = {"late": f"late, {at}" if at > ROWS // 2 else None, **row}
        if variant == "wide columns":
            row |= {"html": "<p>wide, unread</p>" * 20, "number": at / 7}
        rows.append(row)
    return _ordered(rows, variant, lambda row: row["label"], lambda row: len(row["text"]))


def text_lines(rows):
    lines = (f"__label__{row['label']} " + row["text"].replace("\n", " ") for row in rows)
    return "\n".join(lines).encode() + b"\n"


def example_rows(variant, loss, named=False):
    """Rows of `y` and numbers; if `named`, also a category.  All numbers are exact in float32."""
    rng, rows = np.random.default_rng(2), []
    for at in range(ROWS):
        x = np.round(rng.normal(size=3) * (1, 40, 3) * 8) / 8 + (0, 500, 0)
        x[x == 0] = 0.125
        told = x[0] + (x[1] - 500) / 40
        y = {
            "logistic": int(told > 0),
            "multinomial": int(told > -0.5) + int(told > 0.5),
            "poisson": int(abs(told) * 2),
            "squared": round(told * 8) / 8 + 300,
        }[loss]
        row = {"y": y, "x0": x[0], "x1": x[1], "x2": x[2]}
        if variant == "late column":
            row["x2"] = x[2] if at > ROWS // 2 else None
        if named:
            between = "\n" if variant == "quoted newlines" else " "
            row["c"] = f"city{at % 5}{between}{at % 3}"
        if variant == "wide columns":
            row["wide"] = "unread, " * 100
        rows.append(row)
    return _ordered(rows, variant, lambda row: row["y"], lambda row: row["x1"])


def svm(rows, first=1, fields=False):
    """Lines of LIBSVM or LIBFFM with features from number `first` on."""
    lines = []
    for row in rows:
        values = [(at, row[name]) for at, name in enumerate(NUMBERS) if row[name] is not None]
        entries = (f"{at}:" * fields + f"{at + first}:{value}" for at, value in values)
        lines.append(f"{row['y']} {' '.join(entries)}\n")
    return "".join(lines).encode()


NUMBERS = ("x0", "x1", "x2")


def matrix(rows, first=0):
    """Dense numbers, 0 where there is none, from column `first` on; labels."""
    numbers = np.array([[row[name] or 0 for name in NUMBERS] for row in rows], np.float32)
    return np.pad(numbers, ((0, 0), (first, 0))), np.array([row["y"] for row in rows])


def rating_rows(variant):
    rng = np.random.default_rng(3)
    comma = "," if variant == "quoted newlines" else ""  # of what else CSV has quotes for
    rows = [
        {"user": f"u{comma}{user}", "item": f"i{item}", "value": int((user * item) % 5 + 1)}
        for user, item in rng.integers(20, size=(ROWS, 2))
    ]
    return _ordered(rows, variant, lambda row: row["value"], lambda row: row["user"])


def _ordered(rows, variant, label, feature):
    keys = {"by label": label, "by feature": feature}
    return sorted(rows, key=keys[variant]) if variant in keys else rows
