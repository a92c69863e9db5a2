"""Tag pages by a fastText classifier with dolma; runs inside the bench's own environment.

JSON of the job (argument) -> documents (.jsonl.gz) -> its tagger, in worker processes -> JSON

dolma filters in two commands, `tag` and `mix`; the first one alone is timed.
"""

import json
import os
import sys
import time

from dolma.core.data_types import TextSlice
from dolma.core.ft_tagger import BaseFastTextTagger, Prediction
from dolma.core.registry import TaggerRegistry
from dolma.core.runtime import create_and_run_tagger

MODEL = "BENCH_MODEL"


@TaggerRegistry.add("quality")
class Quality(BaseFastTextTagger):
    """The best label of a page, as dolma's own taggers of documents ask for it."""

    def __init__(self):
        super().__init__(os.environ[MODEL], self.DOCUMENT_LEVEL_TAGGER)

    def predict_slice(self, text_slice: TextSlice):
        labels, scores = self.classifier.predict(text_slice.text.replace("\n", " "), k=1)
        return [Prediction(label, score) for label, score in zip(labels, scores, strict=True)]


def main():
    """Print the seconds of the tagging."""
    job = json.loads(sys.argv[1])
    os.environ[MODEL] = job["model"]
    began = time.perf_counter()
    create_and_run_tagger(
        documents=[f"{job['documents']}/*.jsonl.gz"],
        taggers=["quality"],
        experiment="bench",
        destination=[job["output"]],
        metadata=job["logs"],
        num_processes=job["threads"],
    )
    print(json.dumps({"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
