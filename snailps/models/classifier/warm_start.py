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
from snailps.data.huffman import COUNT_MAX, Tree
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, shown_bytes
from snailps.models import text_model
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.local_sgd import Floats
from snailps.models.packed_tables import opened, with_shape
from snailps.models.pretrained import first_vectors, with_dim
from snailps.models.text_model import export_rows, vocabulary_of
from snailps.vectors.calibration import path_beside
from snailps.vectors.fasttext_bin import BinModel, read_bin
from snailps.vectors.label_prediction import training_prefix
from snailps.vectors.words import to_text

NEW_SHARE = 0.2
"""Share of new labels in a text beyond which a tree forgets: with half of 40 lines it
lost .15 of the accuracy on old labels in five epochs."""
_NEW_TREE = (
    "hierarchical softmax would need another tree, which knows the old labels badly. Train anew on "
    "all lines, or leave out the lines with new labels"
)

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
    beside = path_beside(path)
    if beside.exists() and not adopted.calibrate:
        log.warning(
            "%s is of the earlier model: the one that is trained now is not calibrated. Run "
            "snailps calibrate after it, or set calibrate: true and held_out",
            beside,
        )  # fmt: skip
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

    Labels of a tree keep the counts of the file, so the tree stays; new ones are hung into it.
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
        of_text = grown.counts_in(counter)
        share = of_text[len(labels) :].sum() / max(1, of_text.sum())
        if share > NEW_SHARE:
            log.warning(
                "continue_from: new labels, such as %s, are %.0f%% of the labels of the text. With "
                "hierarchical softmax they share the rows of old labels, which then take lines of "
                "these: add lines of the old labels, at least %.0f times as many",
                shown_bytes(grown.words[len(labels)]), 100 * share, 1 / NEW_SHARE - 1,
            )  # fmt: skip
        grown = labels if len(grown) == len(labels) else hung(labels, grown, s.continue_from)
    return words.extended(counter, s.min_count, label_prefix=prefix), grown


def hung(before: Vocabulary, grown: Vocabulary, path: str) -> Vocabulary:
    """Give new labels such counts that the tree of the labels before stays, and only its rarest
    leaf becomes a node: new labels are on its left, that leaf is on its right.

    A file has no tree, but counts from which each reader builds it.  The new labels together have
    at most half of the rarest label's count, which has the rest; so they are joined first, then
    with that label, and what they make is as large as it was.  Where there is no room for a count
    of 1 each, all old counts are multiplied, which changes no tree.
    """
    counts, number = before.counts, len(grown) - len(before)
    if (np.diff(counts) > 0).any():
        raise ConfigError(
            f"continue_from: the text has new labels, such as "
            f"{shown_bytes(grown.words[len(before)])}, and the counts of the labels of {path} do "
            f"not fall: {_NEW_TREE}"
        )
    factor = max(1, -(-2 * number // int(counts[-1])))
    if float(counts.sum()) * factor >= COUNT_MAX / 2:
        raise ConfigError(
            f"continue_from: the text has new labels, such as "
            f"{shown_bytes(grown.words[len(before)])}, and {path} has got new ones too often to "
            f"keep its tree: {_NEW_TREE}"
        )
    counts = counts * factor
    wanted = grown.counts[len(before) :].astype(np.float64)
    share = min(1.0, (counts[-1] // 2 - number) / max(1.0, float((wanted - 1).sum())))
    new = 1 + np.floor((wanted - 1) * share).astype(np.int64)
    counts[-1] -= new.sum()
    counts = np.concatenate((counts, new))
    return Vocabulary(grown.words, counts, max(grown.tokens, int(counts.sum())))


def put_model(
    results: Results, s: ClassifierSettings, words: Vocabulary, labels: Vocabulary
) -> None:
    """Set the rows of features and labels from the `.bin`.  New labels begin where labels are that
    a line does not have; other rows start as usual.
    """
    text_model.put_model(results, s, words, labels, buckets=s.buckets > 0)
    model = read_bin(opened(s))
    old = len(model.labels)
    if len(labels) == old:
        return
    if s.loss == "hs":
        # The node above the new labels and the rarest old one, on its right.
        node = np.array([len(labels) - old - 1], np.uint64)
        results.puts("output", iter([(node, _slope_of_last(model)[None])]))
        return
    rows: Floats = model.output[:]
    mean = rows.mean(0, np.float64).astype(np.float32)
    step = export_rows(len(mean))
    results.puts(
        "output",
        (
            (keys, np.tile(mean, (len(keys), 1)))
            for keys in (
                np.arange(first, min(first + step, len(labels)), dtype=np.uint64)
                for first in range(old, len(labels), step)
            )
        ),
    )


def _slope_of_last(model: BinModel) -> Floats:
    """How far a hidden vector speaks for the rarest label: the sum of the rows on its path."""
    paths = Tree.of(model.label_counts).paths()
    turns = paths.turns[paths.ptr[-2] : paths.ptr[-1]]
    signs = np.where(turns & 1, 1.0, -1.0)
    slope: Floats = (signs @ model.output[:][turns >> 1]).astype(np.float32)
    return slope


def put_vectors(results: Results, s: ClassifierSettings, words: Vocabulary) -> None:
    """Set the rows of words from the file in `pretrained`; n-grams and labels start as usual."""
    pieces = first_vectors(results, s, words)
    results.puts("input", ((ids.astype(np.uint64), vectors) for ids, vectors in pieces))
