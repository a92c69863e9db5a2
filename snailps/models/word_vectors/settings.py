"""The settings of fastText and word2vec: names, ranges, and what cannot go together.

Declarations only; no files, no tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from snailps.config import Alias, JobSettings, setting
from snailps.config.legacy import cbow_to_model
from snailps.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WordVectorSettings(JobSettings):
    """Settings of fastText and word2vec; the defaults are fastText's."""

    dim: int = setting(
        100,
        help="Length of a word's vector.",
        when="200 to 300 for corpora of a thousand million words.",
        low=1,
        high=4096,
        aliases=["len_vec"],
    )
    model: Literal["skipgram", "cbow"] = setting(
        "skipgram",
        help="Predict the context from a word, or a word from its context.",
        when="`cbow` is faster and a little worse on rare words.",
        aliases=[Alias("cbow", cbow_to_model, "true means `model: cbow`, false `skipgram`")],
    )
    loss: Literal["ns", "nce"] = setting(
        "ns",
        help="Negative sampling, or noise-contrastive estimation (scores minus log of k q(w)).",
        when="`nce` where the scores themselves should estimate probabilities.",
    )
    window: int = setting(
        5,
        help="Farthest context word; each centre draws its own reach from 1 to this.",
        when="Smaller for syntax, larger for topics.",
        unit="words",
        low=1,
        high=256,
    )
    negatives: int = setting(
        5,
        help="Noise words for each true one.",
        when="10 to 20 for small corpora.",
        unit="words",
        low=1,
        high=1000,
        aliases=["negative"],
    )
    lr: float = setting(
        0.05,
        help=(
            "Learning rate at the beginning; it falls to 0 in a straight line over the job. With "
            "`optimizer: adagrad` it is 0.3, or 0.7 with subwords, unless you set it."
        ),
        when="Lower when the loss jumps.",
        low=1e-6,
        high=10.0,
        aliases=["learning_rate"],
    )
    sample: float = setting(
        1e-4,
        help="Words more frequent than this are thinned out (fastText's `-t`). 0: keep all.",
        when="1e-5 for very large corpora.",
        low=0.0,
        high=1.0,
    )
    min_count: int = setting(
        5,
        help="Words that occur less often are left out.",
        when="1 for tiny texts.",
        unit="occurrences",
        low=1,
        high=1 << 40,
        aliases=["min_reduce"],
    )
    max_vocab: int = setting(
        0,
        help="Most words to keep, the most frequent ones. 0: no limit.",
        when="Memory is short.",
        unit="words",
        low=0,
        high=1 << 31,
    )
    minn: int = setting(
        3,
        help="Shortest subword.",
        when="With `maxn`.",
        unit="characters",
        low=0,
        high=32,
    )
    maxn: int = setting(
        6,
        help="Longest subword. 0: no subwords (word2vec).",
        when="0 for word2vec, or for languages whose words have no parts.",
        unit="characters",
        low=0,
        high=32,
    )
    bucket: int = setting(
        2_000_000,
        help="Rows that subwords are hashed to.",
        when="Smaller for small vocabularies and small files.",
        unit="rows",
        low=1,
        high=1 << 30,
    )
    worker_memory: int = setting(
        2 << 30,
        help=(
            "Memory that the rows of a worker may take: those of its block, of the next one, and "
            "differences on their way. Blocks become smaller where they would take more."
        ),
        when="A worker's machine has less, or the vocabulary is large and it has much more.",
        unit="bytes",
        low=1 << 20,
        high=1 << 46,
    )
    continue_from: str = setting(
        "",
        help=(
            "A `.bin` file, ours or fastText's own, to train on from: its words keep their rows "
            "and counts, new words follow, its dim, model and subwords rule."
        ),
        when="There is new text, or more time for the old one.",
        unit="path",
    )
    pretrained: str = setting(
        "",
        help="A `.vec` file: known words begin with its vectors, the others at random.",
        when="The text is too small to learn its words from.",
        unit="path",
    )
    validation_words: tuple[str, ...] = setting(
        (),
        help="Words whose neighbours are shown and logged each tenth of the training.",
        when="To watch the model learn.",
        unit="words",
    )
    formats: tuple[str, ...] = setting(
        ("bin", "vec"),
        help="Result files: `bin` (fastText's, knows subwords), `vec` (text), `npz` (NumPy).",
        when="`bin` takes dim x bucket x 4 bytes; leave it out if unknown words are not needed.",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse subword lengths that cannot be, and formats that do not exist."""
        JobSettings.validate(self, where)
        if self.maxn and not 1 <= self.minn <= self.maxn:
            raise ConfigError(
                f"{where('minn')}: minn: expected 1 to maxn ({self.maxn}, from {where('maxn')}), "
                f"got {self.minn}; for no subwords at all set maxn: 0"
            )
        if self.continue_from and self.pretrained:
            raise ConfigError(
                f"{where('pretrained')}: pretrained: expected nothing beside continue_from (from "
                f"{where('continue_from')}), got {self.pretrained}: a word's row begins once"
            )
        for name in self.formats:
            if name not in ("bin", "vec", "npz"):
                raise ConfigError(
                    f"{where('formats')}: formats: expected bin, vec or npz, got {name!r}"
                )
