"""Signatures and keys of pages by peers of `snailps.duplicates`, in an environment of their own.

JSON of the job (argument) -> pages, one a line -> each way, some times -> microseconds a page
"""

import json
import sys
import time

HASHES, BANDS = 112, 14


def word_grams(text):
    """The 3-grams of words, as a user of these packages makes them."""
    words = text.split()
    return [" ".join(words[at : at + 3]) for at in range(len(words) - 2)]


def ways_of_rensa(texts):
    """Elements are what the user gives: words, as in its examples, or 3-grams."""
    import rensa

    sign = rensa.RMinHash.digest_matrix_from_token_sets
    grams = [word_grams(text) for text in texts]
    yield "words split", lambda: sign([text.split() for text in texts], HASHES, 1)
    yield "3-grams made", lambda: sign([word_grams(text) for text in texts], HASHES, 1)
    yield "3-grams given", lambda: sign(grams, HASHES, 1)


def ways_of_datasketch(texts):
    """Elements are bytes."""
    from datasketch import MinHash

    def encoded(text):
        return [gram.encode() for gram in word_grams(text)]

    grams = [encoded(text) for text in texts]
    yield "3-grams made", lambda: MinHash.bulk(map(encoded, texts), num_perm=HASHES)
    yield "3-grams given", lambda: MinHash.bulk(grams, num_perm=HASHES)


def ways_of_dupekit(texts):
    """Cleaning, signature and keys, from Arrow to Arrow; 5-grams of characters."""
    import dupekit_native as native
    import pyarrow as pa

    step = native.Transformation
    steps = [
        step.CleanText("text", "clean"), step.MinHash("clean", "signature", HASHES, 5, 1),
        step.MinHashLSH("signature", "keys", BANDS),
    ]  # fmt: skip
    table = pa.RecordBatch.from_pydict({"id": [*range(len(texts))], "text": texts})
    yield "text to keys", lambda: native.transform(table, steps)


WAYS = {"rensa": ways_of_rensa, "datasketch": ways_of_datasketch, "dupekit": ways_of_dupekit}


def main():
    """Print the least processor time of each way."""
    job = json.loads(sys.argv[1])
    with open(job["pages"], encoding="utf-8") as file:
        texts = file.read().splitlines()
    least = {}
    try:
        for way, call in WAYS[job["peer"]](texts):
            for _ in range(job["runs"]):
                began = time.process_time()
                call()
                spent = (time.process_time() - began) / len(texts) * 1e6
                least[way] = min(spent, least.get(way, spent))
    except ModuleNotFoundError as error:
        print(f"{job['peer']}: {error}", file=sys.stderr)
    print(json.dumps(least))


if __name__ == "__main__":
    main()
