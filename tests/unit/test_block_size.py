"""The size of a block by what its rows take: known answers, and the rows of real text."""

import re
from dataclasses import replace

import numpy as np
import pytest

from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError
from snailps.models.word_vectors.block_size import (
    COPIES,
    check_block,
    fit_block,
    pool_size,
    rows_of_block,
)
from snailps.models.word_vectors.settings import WordVectorSettings

PLAIN = WordVectorSettings(dim=100, maxn=0, sample=0.0)
WORDS = Vocabulary([b"w%07d" % i for i in range(200_000)], np.full(200_000, 10), 2_000_000)


def test_rows_of_a_block_of_equal_words_are_as_many_as_draws_without_repeats():
    tokens = 100_000
    inputs = 200_000 * -np.expm1(-tokens / 200_000)
    outputs = 200_000 * -np.expm1(-(tokens + pool_size(tokens)) / 200_000)
    rows = rows_of_block(WORDS, PLAIN, tokens)
    assert rows == pytest.approx(inputs + outputs, rel=0.01)


def test_rows_of_a_block_with_subwords_has_their_buckets_at_most():
    tokens = 100_000
    plain = rows_of_block(WORDS, PLAIN, tokens)
    for bucket, least in ((10, 10), (5000, 4900)):
        settings = replace(PLAIN, minn=3, maxn=6, bucket=bucket)
        assert least <= rows_of_block(WORDS, settings, tokens) - plain <= bucket


def test_rows_of_a_block_leave_out_what_sampling_drops():
    few = Vocabulary([b"w%07d" % i for i in range(1000)], np.full(1000, 10**6), 10**9)
    kept = rows_of_block(few, PLAIN, 1000) - rows_of_block(few, replace(PLAIN, sample=1e-9), 1000)
    assert kept > 500


def test_rows_of_real_text_are_no_more_than_foreseen():
    rng = np.random.default_rng(3)
    counts = np.sort(rng.zipf(1.3, 50_000).clip(1, 10**6))[::-1].astype(np.int64)
    words = Vocabulary([b"x%06d" % i for i in range(len(counts))], counts, int(counts.sum()))
    tokens = rng.choice(len(counts), 30_000, p=counts / counts.sum())
    distinct = len(np.unique(tokens))
    foreseen = rows_of_block(words, PLAIN, 30_000)
    outputs_only = rows_of_block(words, PLAIN, 0)  # negatives alone
    assert distinct <= foreseen - outputs_only + 0.02 * distinct


@pytest.mark.parametrize("memory", [1 << 20, 16 << 20, 64 << 20])
def test_fit_block_has_rows_that_fit(memory):
    settings = replace(PLAIN, worker_memory=memory)
    size = fit_block(WORDS, settings, 6 << 20, 20_000_000)
    rows = rows_of_block(WORDS, settings, size // 10)
    room = memory / (COPIES * 400)
    assert size == 4096 or 0.5 * room < rows <= room


def test_fit_block_of_a_model_that_goes_on_does_not_count_the_tokens_of_its_first_text():
    text = b"".join(b"w%07d " % i for i in range(200_000)) * 2 + b"\n" * 50_000
    counter = WordCounter()
    counter.count(text)
    settings = replace(PLAIN, worker_memory=128 << 20)
    alone = fit_block(Vocabulary.from_counter(counter, 1), settings, 6 << 20, len(text))
    both = fit_block(WORDS.extended(counter, 1), settings, 6 << 20, len(text))
    assert 4096 < alone < 6 << 20
    assert both == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize(("memory", "size"), [(1 << 40, 12_345), (1 << 20, 100)])
def test_fit_block_with_room_enough_or_a_tiny_block_leaves_the_size(memory, size):
    assert fit_block(WORDS, replace(PLAIN, worker_memory=memory), size, 20_000_000) == size


def test_memory_that_the_smallest_block_exceeds_is_refused_with_what_it_needs():
    settings = replace(PLAIN, worker_memory=1 << 20)
    size = fit_block(WORDS, settings, 6 << 20, 20_000_000)
    with pytest.raises(ConfigError, match=r"worker_memory: .*; set it to") as refused:
        check_block(WORDS, settings, size, 20_000_000)
    least = int(re.search(r"set it to (\d+) or more", str(refused.value))[1])
    check_block(WORDS, replace(PLAIN, worker_memory=least), size, 20_000_000)
