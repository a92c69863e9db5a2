"""Quantise with fastText; runs inside the bench's own environment.

JSON of the job (argument) -> load, quantize, save
"""

import json
import sys

import fasttext


def main():
    """Do the job."""
    job = json.loads(sys.argv[1])
    model = fasttext.load_model(job["model"])
    model.quantize(**job["settings"])
    model.save_model(job["output"])


if __name__ == "__main__":
    main()
