"""Train with the official fastText package; runs inside the bench's own environment.

    JSON of the job (argument) -> fastText C++ -> PREFIX.bin, PREFIX.vec, one JSON line

Training time is fastText's own clock: its last progress line gives words/s/thread since the
training threads started, vocabulary and initial values not included.  The line is written by
C++ to file descriptor 2, so that descriptor is pointed at a file for the time of the training.
"""

import json
import os
import re
import sys
import tempfile

import fasttext
import numpy as np

SPEED = re.compile(rb"words/sec/thread:\s*(\d+)")


def train(job):
    """Train; returns the model and words/s/thread by fastText's own clock."""
    same = {
        "lr": job["lr"], "dim": job["dim"], "epoch": job["epochs"], "minCount": job["min_count"],
        "loss": job["loss"], "neg": job["negatives"], "minn": job["minn"], "maxn": job["maxn"],
        "bucket": job["bucket"], "thread": job["threads"], "verbose": 2,
    }  # fmt: skip
    # The seed comes from these defaults in both: older packages take it from nowhere else.
    fasttext.FastText.unsupervised_default["seed"] = job["seed"]
    if job["model"] == "supervised":
        work = fasttext.train_supervised
        settings = {"wordNgrams": job["word_ngrams"]}
    else:
        work = fasttext.train_unsupervised
        settings = {"model": job["model"], "ws": job["window"], "t": job["sample"]}
    with tempfile.TemporaryFile() as log:
        stderr_fd = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            model = work(job["corpus"], **same, **settings)
        finally:
            os.dup2(stderr_fd, 2)
            os.close(stderr_fd)
        log.seek(0)
        speeds = SPEED.findall(log.read())
    if not speeds:
        sys.exit("fastText printed no words/sec/thread: its progress lines have changed")
    return model, int(speeds[-1])


def save_text(model, path):
    """Write the vectors as text, most frequent word first, as fastText's command line does."""
    words = [word for word in model.get_words() if word != "</s>"]
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"{len(words)} {model.get_dimension()}\n")
        for word in words:
            vector = np.asarray(model.get_word_vector(word))
            out.write(word + " " + " ".join(f"{value:.5g}" for value in vector) + "\n")


def main():
    """Read the job, train, save, report."""
    job = json.loads(sys.argv[1])
    model, words_per_s_thread = train(job)
    model.save_model(job["prefix"] + ".bin")
    figures = {
        "words_per_s": words_per_s_thread * job["threads"],
        "lr": job["lr"],
        "version": _version(),
        "timing": "fastText's own clock: its words/sec/thread at 100% x threads",
    }
    # The parent stops its clock and its look at the memory here: the rest is for our evaluation.
    print(json.dumps(figures), flush=True)
    if job["model"] != "supervised":
        save_text(model, job["prefix"] + ".vec")


def _version():
    from importlib.metadata import PackageNotFoundError, version

    for name in ("fasttext", "fasttext-wheel"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "fasttext (unknown version)"


if __name__ == "__main__":
    main()
