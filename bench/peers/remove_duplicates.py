"""Remove near-duplicates from Parquet by peers of `snailps filter`, in an environment of their own.

JSON of the job (argument) -> the files of `input`, two processes -> files of `output`
    -> JSON: rows that stay
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HASHES, BANDS = 112, 14


def datatrove(job):
    """Its four steps, with 14 bands of 8, as it has by default."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter

    config = MinhashConfig(num_buckets=BANDS, hashes_per_bucket=HASHES // BANDS)
    scratch, workers, files = job["scratch"], job["workers"], job["files"]
    reader = ParquetReader(job["input"], text_key="text", id_key="id")
    steps = [
        (files, [reader, MinhashDedupSignature(f"{scratch}/signatures", config=config)]),
        (
            BANDS,
            [MinhashDedupBuckets(f"{scratch}/signatures", f"{scratch}/buckets", config=config)],
        ),
        (1, [MinhashDedupCluster(f"{scratch}/buckets", f"{scratch}/gone", config=config)]),
        (files, [reader, MinhashDedupFilter(f"{scratch}/gone"), ParquetWriter(job["output"])]),
    ]
    for number, (tasks, pipeline) in enumerate(steps):
        LocalPipelineExecutor(
            pipeline, tasks=tasks, workers=workers, logging_dir=f"{scratch}/logs{number}"
        ).run()


def keys_of_file(path):
    """dupekit's keys of the texts of a file: clean text, signature, bands."""
    import dupekit_native as native
    import pyarrow.parquet as pq

    step = native.Transformation
    steps = [
        step.CleanText("text", "clean"), step.MinHash("clean", "signature", HASHES, 5, 1),
        step.MinHashLSH("signature", "keys", BANDS), step.SelectColumns(["keys"]),
    ]  # fmt: skip
    table = pq.read_table(path, columns=["text"]).combine_chunks()
    keys = []
    for batch in table.to_batches():
        keys += native.transform(batch, steps)["keys"].to_pylist()
    return keys


def dupekit(job):
    """Groups by shared bands, closed: the first of each stays. Files are read again and written."""
    import pyarrow.parquet as pq

    paths = sorted(Path(job["input"]).glob("*.parquet"))
    with ProcessPoolExecutor(job["workers"]) as pool:
        keys = list(pool.map(keys_of_file, paths))
    parent, first = [*range(sum(map(len, keys)))], {}

    def root(at):
        while parent[at] != at:
            parent[at] = at = parent[parent[at]]
        return at

    for number, bands in enumerate(bands for of_file in keys for bands in of_file):
        for band in enumerate(bands):
            other = first.setdefault(band, number)
            low, high = sorted((root(other), root(number)))
            parent[high] = low
    begin = 0
    for path, of_file in zip(paths, keys, strict=True):
        stays = [root(at) == at for at in range(begin, begin + len(of_file))]
        begin += len(of_file)
        pq.write_table(pq.read_table(path).filter(stays), Path(job["output"]) / path.name)


def main():
    """Print how many rows stay."""
    import pyarrow.parquet as pq

    job = json.loads(sys.argv[1])
    Path(job["output"]).mkdir(parents=True, exist_ok=True)
    {"datatrove": datatrove, "dupekit": dupekit}[job["peer"]](job)
    kept = sum(pq.read_metadata(path).num_rows for path in Path(job["output"]).glob("*.parquet"))
    print(json.dumps({"kept": kept}))


if __name__ == "__main__":
    main()
