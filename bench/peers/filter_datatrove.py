"""Filter Parquet by a fastText classifier with datatrove; runs inside the bench's own environment.

JSON of the job (argument) -> readers, its fastText filter, writers, in worker processes -> JSON
"""

import json
import sys
import time

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import FastTextClassifierFilter
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter


def main():
    """Print the seconds of the whole pipeline."""
    job = json.loads(sys.argv[1])
    began = time.perf_counter()
    LocalPipelineExecutor(
        [
            ParquetReader(job["input"], text_key="text", id_key="id"),
            FastTextClassifierFilter(job["model"], keep_labels=[("l0", job["bound"])]),
            ParquetWriter(job["output"]),
        ],
        tasks=job["files"],
        workers=job["threads"],
        logging_dir=job["logs"],
    ).run()
    print(json.dumps({"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
