"""Predict with fastText or one of its forks; runs inside the bench's own environment.

    JSON of the job (argument) -> load, predict all lines, some times -> one JSON line

The package's own call for many texts is timed: a list, or one after the other where it has none.
"""

import importlib
import json
import sys
import time


def asker(model, texts, threads):
    """What answers all texts, by the best way that the package has."""
    if hasattr(model, "predict_batch"):
        for named in ({"threads": threads}, {"num_threads": threads}, {"n_threads": threads}, {}):
            try:
                model.predict_batch(texts[:4], k=1, **named)
            except TypeError:
                continue
            return lambda: model.predict_batch(texts, k=1, **named)
    try:
        found = model.predict(texts[:4], k=1)
        if len(found[0]) == 4:
            return lambda: model.predict(texts, k=1)
    except Exception as error:
        print(f"a list is refused ({error}): one after the other", file=sys.stderr)
    return lambda: [model.predict(text, k=1) for text in texts]


def first_labels(found, count):
    """The best label of each text, whatever the package returns."""
    if isinstance(found, tuple) and len(found) == 2 and len(found[0]) == count:
        found = found[0]
    labels = []
    for one in found:
        while not isinstance(one, (str, bytes)) and one is not None:
            one = getattr(one, "labels", None) or getattr(one, "label", None) or (
                one[0] if len(one) else None)  # fmt: skip
        labels.append(one.decode() if isinstance(one, bytes) else one)
    return labels


def main():
    """Print seconds of each repetition, of the load and the first answer, and write the labels."""
    job = json.loads(sys.argv[1])
    module = importlib.import_module(job["module"])
    with open(job["text"], encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in file]
    began = time.perf_counter()
    model = module.load_model(job["model"])
    model.predict(texts[0], k=1) if job["module"] != "fasttext" else None
    load_s = time.perf_counter() - began
    ask = asker(model, texts, job["threads"])
    seconds = []
    for _ in range(job["repeat"]):
        began = time.perf_counter()
        found = ask()
        seconds.append(time.perf_counter() - began)
    with open(job["labels"], "w", encoding="utf-8") as file:
        file.writelines(f"{label}\n" for label in first_labels(found, len(texts)))
    print(json.dumps({"seconds": seconds, "load_s": load_s}))


if __name__ == "__main__":
    main()
