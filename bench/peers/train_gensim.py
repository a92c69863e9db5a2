"""Train with gensim; runs inside the bench's own environment.

    JSON of the job (argument) -> gensim -> PREFIX.vec, one JSON line

`train()` is timed apart from `build_vocab()`.  gensim reads the corpus by `corpus_file`, its
fastest way in (workers that read for themselves, no Python iterator), from a copy with 1,000
words a line, which the bench makes: one line means one sentence, and gensim cuts sentences.
"""

import json
import sys
import time

import gensim
from gensim.models import FastText, Word2Vec


def build(job):
    """The untrained model."""
    common = {
        "vector_size": job["dim"],
        "window": job["window"],
        "hs": int(job["loss"] == "hs"),
        "negative": 0 if job["loss"] == "hs" else job["negatives"],
        "min_count": job["min_count"],
        "sample": job["sample"],
        "sg": int(job["model"] == "skipgram"),
        "workers": job["threads"],
        "epochs": job["epochs"],
        "seed": job["seed"],
    }
    if job["peer_lr"] is not None:
        common["alpha"] = job["peer_lr"]
    if job["maxn"] > 0:
        return FastText(min_n=job["minn"], max_n=job["maxn"], bucket=job["bucket"], **common)
    return Word2Vec(**common)


def main():
    """Read the job, count, train, save, report."""
    job = json.loads(sys.argv[1])
    model = build(job)
    model.build_vocab(corpus_file=job["lines"])
    begin_s = time.monotonic()
    model.train(
        corpus_file=job["lines"],
        total_words=model.corpus_total_words,
        total_examples=model.corpus_count,
        epochs=job["epochs"],
    )
    train_s = time.monotonic() - begin_s
    model.wv.save_word2vec_format(job["prefix"] + ".vec")
    figures = {
        "train_s": train_s,
        "words_per_s": job["words"] * job["epochs"] / train_s,
        "lr": float(model.alpha),
        "version": f"gensim {gensim.__version__}",
        "timing": "train() alone; corpus_file, 1,000 words a line",
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
