#!/usr/bin/env bash
# What:     fastText's `train_supervised(..., epoch=E, pretrainedVectors=FILE)`.
# Versions: fasttext-wheel 0.9.2, numpy 1.26.4 (CPython 3.11); 2026-11-30.
# Guess:    the text is read E times; words of FILE that it does not have change nothing.
# Happens:  the words of FILE count as words of the text, and training ends after E times that count.
#           A text of W words beside a file of F is read E (W + F) / W times: a small text with a large
#           file gets many times the epochs asked for, and is compared with runs that had E.
# Seen:     2,000 tokens of text, 1 epoch: probability of the right label .50;
#           with 8,000 words more in the file .98, where 5 epochs without them have .95
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install fasttext-wheel==0.9.2 numpy==1.26.4
python - <<'PYTHON'
import random

import fasttext

fasttext.FastText.eprint = lambda *given, **named: None
rng = random.Random(1)
with open("t.txt", "w") as file:  # 400 lines of five tokens: label, three words, the line's end
    for number in range(400):
        label = "ab"[number % 2]
        words = [rng.choice([label, "x", "y", "z"]) for _ in range(3)]
        file.write(f"__label__{label} {' '.join(words)}\n")
for name, others in (("few.vec", 0), ("many.vec", 8000)):
    with open(name, "w") as file:
        file.write(f"{others + 4} 4\n")
        for word in ["a", "b", "x", "y", *(f"other{n}" for n in range(others))]:
            file.write(f"{word} {' '.join(f'{rng.uniform(-0.1, 0.1):.3f}' for _ in range(4))}\n")


def right(vectors, epoch):
    model = fasttext.train_supervised(
        "t.txt", dim=4, epoch=epoch, lr=0.05, thread=1, verbose=0, pretrainedVectors=vectors
    )
    labels, chances = model.predict("a a a", k=2)
    return dict(zip(labels, chances))["__label__a"]


few, many, five = right("few.vec", 1), right("many.vec", 1), right("few.vec", 5)
print(f"1 epoch: {few:.2f}; 8,000 other words in the file: {many:.2f}; 5 epochs: {five:.2f}")
assert many - few > 0.3, "the file's words change nothing now"
assert abs(many - five) < 0.1, "the passes are not multiplied by (W + F) / W any more"
PYTHON
