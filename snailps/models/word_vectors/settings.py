"""The settings of fastText and word2vec: names, ranges, and combinations that are refused.

Declarations alone; knows no files and no tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from snailps.config import Alias, JobSettings, setting
from snailps.config.legacy import cbow_to_model
from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.models.ngram_rows import AUTO
from snailps.models.shared_settings import (
    BUCKET,
    COLUMN,
    MIN_COUNT,
    NORMAL_PARTS,
    NORMALIZE,
    PRETRAINED,
    SUBWORD,
    refuse_both,
)

LR = 0.05
CBOW_LR = 0.1
"""A hidden vector of CBOW is the mean of many rows: at 0.05 it is undertrained by far, and at 0.2
some texts diverge (docs/training.md).  Not so with a tree: the root is in each step."""
ADAGRAD_LR, ADAGRAD_LR_SUBWORDS = 0.3, 0.7
"""Higher with subwords: their rows get many gradients, whose summed squares shorten steps."""
ADAGRAD_EPS = 1.0
"""With less, rare words would take steps as long as frequent words do (docs/training.md)."""


@dataclass(frozen=True, slots=True)
class WordVectorSettings(JobSettings):
    """Settings of fastText and word2vec; the defaults are fastText's."""

    dim: int = setting(
        100,
        help="Length of a word's vector.",
        when="200 to 300 for corpora of a billion words.",
        low=1,
        high=4096,
        aliases=["len_vec"],
    )
    model: Literal["skipgram", "cbow"] = setting(
        "skipgram",
        help="Direction of prediction. `skipgram` predicts the context from a word, `cbow` a word "
        "from its context.",
        when="`cbow` is faster, and a little worse on rare words.",
        aliases=[Alias("cbow", cbow_to_model, "true means `model: cbow`, false `skipgram`")],
    )
    loss: Literal["ns", "nce", "hs"] = setting(
        "ns",
        help="`ns`: negative sampling. `nce`: noise-contrastive estimation (scores minus "
        "log k q(w)). `hs`: hierarchical softmax, a Huffman tree of words.",
        when="`nce` if scores should estimate probabilities; `hs` for small texts and rare words.",
    )
    window: int = setting(
        5,
        help="Maximum distance to a context word. Each centre draws its distance from 1 to this, "
        "unless `shrink_windows` is false.",
        when="Smaller for syntax, larger for topics.",
        unit="words",
        low=1,
        high=256,
    )
    negatives: int = setting(
        5,
        help="Negative samples for each context word.",
        when="10 to 20 for small corpora.",
        unit="words",
        low=1,
        high=1000,
        read_if={"loss": ("ns", "nce")},
        aliases=["negative"],
    )
    lr: float = setting(
        0.0,
        help=(
            "Initial learning rate. It falls linearly to 0 over the job. `auto`: 0.05, with "
            "`model: cbow` 0.1 unless `loss: hs` or words share many n-grams; with `optimizer: "
            "adagrad` 0.3, or 0.7 with subwords."
        ),
        when="Lower if the loss jumps.",
        low=1e-6,
        high=10.0,
        auto=True,
        aliases=["learning_rate"],
    )
    sample: float = setting(
        1e-4,
        help="Subsampling threshold. Words more frequent than this share of the text are "
        "subsampled (fastText's `-t`). 0: no subsampling.",
        when="1e-5 for very large corpora.",
        low=0.0,
        high=1.0,
    )
    min_count: int = setting(5, **MIN_COUNT, when="1 for tiny texts.", aliases=["min_reduce"])
    max_vocab: int = setting(
        0,
        help="Maximum size of the vocabulary; the most frequent words are kept. 0: no limit.",
        when="Memory is short.",
        unit="words",
        low=0,
        high=1 << 31,
    )
    minn: int = setting(3, **SUBWORD, help="Shortest subword.", when="With `maxn`.")
    maxn: int = setting(
        6,
        help="Longest subword. 0: no subwords (word2vec).",
        when="0 for word2vec, or for languages without word parts.",
        **SUBWORD,
    )
    bucket: int = setting(
        AUTO,
        help="Hash rows for subwords. `auto`: four times the number of different "
        "subwords in the vocabulary, at most 2000000.",
        **BUCKET,
        read_if={"maxn": range(1, 33)},
    )
    shrink_windows: bool = setting(
        True,
        help="Whether each centre draws its distance from 1 to `window`. `false`: it is always "
        "`window`.",
        when="`false` if a distant word of the window counts as much as a near one.",
    )
    ns_exponent: float = setting(
        0.5,
        help="Negative samples are drawn by the count of a word to this power. 0: all words alike; "
        "1: as often as they occur.",
        when="0.75 as in word2vec and gensim; below 0 for recommendations of rare items.",
        low=-1.0,
        high=2.0,
        read_if={"loss": ("ns", "nce")},
    )
    worker_memory: int = setting(
        2 << 30,
        help=(
            "Memory for a worker's rows: its block's, the prefetched block's, and deltas in "
            "flight. Blocks are made smaller to fit."
        ),
        when="A worker's machine has less memory; or much more, and the vocabulary is large.",
        unit="bytes",
        low=1 << 20,
        high=1 << 46,
    )
    continue_from: str = setting(
        "",
        help=(
            "Model file to continue from. A `.bin` of snailps or fastText. Its words "
            "keep their rows and counts, and new words are added; dim, model and subwords come "
            "from the file, and so do window, negatives, sample and min_count unless you set them."
        ),
        when="There is new text, or more time for the same text.",
        unit="path",
    )
    pretrained: str = setting(
        "",
        help="File of word vectors (`.vec`, `.bin`, ...) with which words of the text start; words "
        "that it lacks start at random.",
        **PRETRAINED,
    )
    validation_words: tuple[str, ...] = setting(
        (),
        help="Words whose nearest neighbours are logged after each tenth of the training.",
        when="To watch the model learn.",
        unit="words",
    )
    formats: tuple[str, ...] = setting(
        ("bin", "vec"),
        help="Result files: bin, vec, npz. `bin` is fastText's format, with subwords; `vec` is "
        "text, `npz` NumPy's.",
        when="`bin` takes dim x bucket x 4 bytes; leave it out if unknown words are not needed.",
    )
    normalize: str = setting(
        "",
        help="Normal form of texts. It is kept in a `.bin` or `.npz`, and applied to the words of "
        f"every query; a `.vec` cannot keep it. {NORMAL_PARTS} Empty: texts are read as they are.",
        when="Words in another case, with other digits or accents in another encoding are to be "
        "the same words.",
        **NORMALIZE,
    )
    column: str = setting("", **COLUMN)

    @property
    def reach_min(self) -> int:
        """Least distance to a context word that a centre draws."""
        return 1 if self.shrink_windows else self.window

    @property
    def rate(self) -> float:
        """Initial learning rate: `lr`, with auto resolved."""
        return self.lr or self.usual_rate

    @property
    def usual_rate(self) -> float:
        """Learning rate if `lr` is auto."""
        adagrad = ADAGRAD_LR_SUBWORDS if self.maxn else ADAGRAD_LR
        plain = CBOW_LR if self.model == "cbow" and self.loss != "hs" else LR
        return adagrad if self.optimizer == "adagrad" else plain

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse impossible subword lengths, two initial models, and wrong formats."""
        JobSettings.validate(self, where)
        if self.maxn and not 1 <= self.minn <= self.maxn:
            raise ConfigError(
                f"{where('minn')}: expected 1 to maxn ({self.maxn}, from {where('maxn')}), "
                f"got {self.minn}; for no subwords at all set maxn: 0"
            )
        refuse_both(self, where)
        if self.output and not self.formats:
            raise ConfigError(
                f"{where('formats')}: expected bin, vec or npz, got nothing, and the "
                "result would be lost: name one, or leave output empty"
            )
        for name in self.formats:
            if name not in ("bin", "vec", "npz"):
                raise ConfigError(f"{where('formats')}: expected bin, vec or npz, got {name!r}")
