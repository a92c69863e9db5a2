"""The names of fastText's inner module, which scripts import types from or silence by `eprint`."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from snailps.data.word_counts import END_OF_LINE
from snailps.fasttext.arguments import loss_name, model_name, unsupervised_default
from snailps.fasttext.model import Model as _FastText
from snailps.fasttext.model import load_model, tokenize
from snailps.fasttext.training import train_supervised, train_unsupervised
from snailps.vectors.label_meter import Meter as _Meter

__all__ = [
    "BOW",
    "EOS",
    "EOW",
    "_FastText",
    "_Meter",
    "cbow",
    "eprint",
    "load_model",
    "loss_name",
    "model_name",
    "skipgram",
    "supervised",
    "tokenize",
    "train_supervised",
    "train_unsupervised",
    "unsupervised_default",
]

EOS, BOW, EOW = END_OF_LINE.decode(), "<", ">"


def eprint(*values: Any, **options: Any) -> None:
    """Print to standard error.  Nothing here calls it; scripts replace it to silence fastText."""
    print(*values, file=sys.stderr, **options)


def cbow(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse a name of 2019."""
    raise TypeError("cbow was removed in 2019: call train_unsupervised(input, model='cbow')")


def skipgram(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse a name of 2019."""
    raise TypeError("skipgram was removed in 2019: call train_unsupervised(input)")


def supervised(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse a name of 2019."""
    raise TypeError("supervised was removed in 2019: call train_supervised(input)")
