"""fastText's Python interface: ``import snailps.fasttext as fasttext`` runs a script of fastText.

    train_supervised, train_unsupervised -> a job on the cluster -> a model
    load_model(.bin, .ftz) -> a model -> predict, get_word_vector, get_nearest_neighbors, test, ...

A table of names: `training` has arguments, `model` has methods.  Estimators train, `vectors`
answers.  docs/fasttext.md lists every name, and where the answers differ on purpose.
"""

from typing import NoReturn

from snailps.fasttext import FastText, util
from snailps.fasttext.FastText import (
    BOW,
    EOS,
    EOW,
    cbow,
    load_model,
    skipgram,
    supervised,
    tokenize,
    train_supervised,
    train_unsupervised,
)
from snailps.fasttext.model import unknown_name

__all__ = [
    "BOW",
    "EOS",
    "EOW",
    "FastText",
    "cbow",
    "load_model",
    "skipgram",
    "supervised",
    "tokenize",
    "train_supervised",
    "train_unsupervised",
    "util",
]


def __getattr__(name: str) -> NoReturn:
    raise unknown_name(f"module {__name__!r}", name, __all__)
