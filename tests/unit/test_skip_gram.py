"""models.word_vectors.skip_gram: how long runs are, and what pairs take."""

from dataclasses import replace

import numpy as np

from snailps import kernels
from snailps.models.word_vectors.block_size import pairs_bytes
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.models.word_vectors.skip_gram import (
    BUNDLE,
    LANES,
    RUN_MAX,
    bundling,
)


def zipf(words, tokens, seed=0):
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, words + 1)
    made = rng.choice(words, tokens, p=share / share.sum()).astype(np.int32)
    made[::50] = -1
    return made


def test_pairs_bytes_are_what_sorting_returns_and_its_copy():
    settings = replace(WordVectorSettings(), window=5, model="skipgram")
    tokens = zipf(5000, 60_000)
    centres, starts, contexts = kernels.sort_pairs(tokens, 5, 1, BUNDLE).take(0)
    used = centres.nbytes + starts.nbytes + 2 * contexts.nbytes + 12 * len(centres)
    assert 0.7 * used < pairs_bytes(settings, len(tokens)) < 1.5 * used
    assert pairs_bytes(replace(settings, model="cbow"), len(tokens)) == 0


def test_runs_are_long_where_bags_share_few_rows_and_single_where_they_share_most():
    words = 500
    own = np.arange(words + 1, dtype=np.int64)
    kept = np.ones(words)
    whole = (LANES, RUN_MAX)
    assert bundling(kept, own, own[:-1].astype(np.int32), 64) == whole  # nothing is shared
    # Ten rows a bag: some of few words each, one of all words.
    rng = np.random.default_rng(1)
    rows = words + rng.integers(5000, size=(words, 10))
    rows[:, 0] = np.arange(words)
    natural = rows.ravel().astype(np.int32)
    assert bundling(kept, 10 * own, natural, 2) == whole
    rows[:, 1:] = words + rng.integers(8, size=(words, 9))
    alike = rows.ravel().astype(np.int32)
    one, many = (bundling(kept, 10 * own, alike, threads) for threads in (1, 4))
    assert many.lanes < one.lanes < LANES  # few side by side
    assert many.run == one.run == 1
    assert bundling(kept, 10 * own, alike, 1, rate=2.0).lanes == one.lanes // 2
