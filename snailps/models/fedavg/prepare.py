"""Prepares the files of a job in rounds from a text: vocabulary, test windows, cfg.json.

    text, stop words -> words by frequency -> vocab.txt
    text as numbers -> windows at random -> test.txt

The test windows are windows of the text itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snailps.config import settings_of
from snailps.config.output import make_folder
from snailps.data._text import WordCounter
from snailps.data.windows import KnownWords, Tokenizer, WordReader, letters_only, share_of_input
from snailps.errors import DataError
from snailps.files.atomic import atomic_file
from snailps.files.blocks import expand, files_of
from snailps.files.scratch import Scratch
from snailps.files.unpacking import open_content, read_errors
from snailps.models.fedavg import settings
from snailps.models.fedavg.settings import CFG, TEST, VOCAB

FILES = (VOCAB, TEST, CFG)
"""The files that `prepare` writes, replaces or removes in its folder."""


def prepare(
    inputs: Sequence[str],
    folder: Path,
    *,
    stop_words: Path | None = None,
    max_vocab: int = 0,
    test_windows: int = 1000,
    window: int = 5,
    seed: int = 1,
    cfg: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write vocab.txt, test.txt and, with `cfg`, cfg.json into a folder; returns their properties.

    Files that are there are replaced; an earlier cfg.json is removed, as it belongs to another
    text.  `stop_words` is a text file whose words are left out; they count in `max_vocab` (0: no
    limit).  `test_windows` different windows of `window` words (odd) are drawn.  The result's
    ``entropy`` is that of word frequencies, in nats: the loss of a model that ignores the context.
    """
    settings.refuse_data_files(files_of(inputs), folder, "another folder for what is made")
    settings.check_cfg(cfg or {}, folder / CFG)
    declared = settings_of(settings.FedAvgSettings)
    for key, value in (cfg or {}).items():
        declared[key].parse(declared[key].format(value), str(folder / CFG))
    make_folder(folder, "folder")
    left_out = set(letters_only(_read(stop_words)).split()) if stop_words else set()
    counter = WordCounter()
    for piece in _pieces(inputs):
        counter.count(piece + b" ")
    counts = counter.counts()
    order = counter.words().order(counts)
    if max_vocab:
        order = order[:max_vocab]
    listed = list(zip(counter.words().take(order), counts[order].tolist(), strict=True))
    kept = [(word, count) for word, count in listed if word not in left_out]
    if not kept:
        raise DataError("the text has no words besides stop words")
    words = [word for word, _ in kept]
    ids = np.concatenate(list(KnownWords(words)(_pieces(inputs))))
    windows = len(ids) - window + 1
    if windows < test_windows:
        raise DataError(
            f"the text has {max(0, windows)} windows of {window} known words, {test_windows} are "
            "wanted: a longer text, or fewer"
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    starts = rng.choice(windows, test_windows, replace=False)
    # The test windows last: without them, nothing of an interrupted call is used.
    for name in (TEST, CFG):
        (folder / name).unlink(missing_ok=True)
    with atomic_file(folder / VOCAB) as file:
        file.write(b"\n".join(words) + b"\n")
    if cfg is not None:
        with atomic_file(folder / CFG) as file:
            file.write(json.dumps(cfg, indent=2).encode() + b"\n")
    with atomic_file(folder / TEST) as file:
        for start in starts:
            file.write(b" ".join(words[i] for i in ids[start : start + window]) + b"\n")
    shares = np.array([count for _, count in kept]) / sum(count for _, count in kept)
    return {
        "words": len(words),
        "tokens": len(ids),
        "windows": windows,
        "entropy": float((shares * -np.log(shares)).sum()),
    }


def _pieces(inputs: Sequence[str]) -> Iterator[bytes]:
    """The tokenized text in pieces, once."""
    with Scratch("", 0) as scratch:
        sources = expand(inputs, scratch)
        yield from Tokenizer()(WordReader(share_of_input(sources, 0, 1), passes=1)(iter(())))


def _read(path: Path) -> bytes:
    with read_errors(str(path)), open_content(str(path)) as file:
        return file.read()
