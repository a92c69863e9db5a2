"""Start a classifier from its file, with more lines and more labels, or from word vectors.

    settings + header of a .bin or of vectors -> adopt -> settings
    counts of the new text + words and labels of the .bin -> count_on -> two vocabularies
    .bin or vectors -> put_model, put_vectors -> rows of the tables, before the training

Runs once, at the master, so that no lost worker has written a row that another writes again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from snailps.api.worker import Results
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError
from snailps.models import text_model
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.packed_tables import opened, with_shape
from snailps.models.pretrained import first_vectors, with_dim
from snailps.models.text_model import vocabulary_of
from snailps.vectors.fasttext_bin import read_bin
from snailps.vectors.label_prediction import training_prefix
from snailps.vectors.words import to_text

log = logging.getLogger(__name__)


def adopt(s: ClassifierSettings, explicit: Callable[[str], str | None]) -> ClassifierSettings:
    """Take the shape of the file that training starts from; the user must not set another."""
    if not s.continue_from:
        return with_dim(s, explicit)
    model = read_bin(opened(s))  # refuses a .ftz
    path, header = s.continue_from, model.header
    if header.model != "supervised":
        raise ConfigError(
            f"{path}: continue_from: expected a classifier, got word vectors ({header.model})"
        )
    habits = header.habits
    if header.prefix:
        habits["label"] = to_text(training_prefix(model))
    adopted = with_shape(s, {"minn": 0, **header.shape}, path, explicit, habits)
    adopted.validate(lambda name: f"{path}: {name}")
    if adopted.held_out and explicit("seed") is None:
        log.warning(
            "held_out: %s does not say which lines were held out of it. On the same input, set "
            "seed to that of its training (now %d): another one tests the model on lines that it "
            "was trained on",
            path, adopted.seed,
        )  # fmt: skip
    return adopted.decided(small=False)


def count_on(s: ClassifierSettings, counter: WordCounter) -> tuple[Vocabulary, Vocabulary]:
    """Make vocabularies: words and labels of the continued model, then those of the new text.

    Labels of a tree are ordered by their counts; without new labels they keep those of the file.
    """
    model = read_bin(opened(s))
    prefix = s.label.encode()
    if other := next((label for label in model.labels if not label.startswith(prefix)), None):
        raise ConfigError(
            f"label: expected the prefix of the labels of {s.continue_from}, such as "
            f"{other.decode(errors='replace')!r}; got {s.label!r}. No line could have them"
        )
    words = vocabulary_of(model.words, model.counts, model.header.tokens)
    labels = vocabulary_of(model.labels, model.label_counts, model.header.tokens)
    grown = labels.extended(counter, s.min_count_label, labels=True, label_prefix=prefix)
    if s.loss == "hs":
        # The same counts give the same tree, whose rows go on exactly; readers build another tree
        # from counts in the order of the file.
        grown = labels if len(grown) == len(labels) else grown.by_counts()
    return words.extended(counter, s.min_count, label_prefix=prefix), grown


def put_model(
    results: Results, s: ClassifierSettings, words: Vocabulary, labels: Vocabulary
) -> None:
    """Set the rows of features and labels from the `.bin`; other rows start as usual."""
    text_model.put_model(results, s, words, labels, buckets=s.buckets > 0)


def put_vectors(results: Results, s: ClassifierSettings, words: Vocabulary) -> None:
    """Set the rows of words from the file in `pretrained`; n-grams and labels start as usual."""
    pieces = first_vectors(results, s, words)
    results.puts("input", ((ids.astype(np.uint64), vectors) for ids, vectors in pieces))
