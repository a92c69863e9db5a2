"""How words are split into parts, and a text into chunks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from snailps.abi.key_hash import fragment_of
from snailps.api.rotation import OUTPUTS_PER_INPUT, outputs_for
from snailps.data._subwords import subwords_csr
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary
from snailps.models.rotation.splits import assign, assign_by_hash
from snailps.models.word_vectors import block_size
from snailps.models.word_vectors.block_size import COPIES, pairs_bytes, rows_of_block
from snailps.models.word_vectors.partitions import (
    assign_by_grams,
    most_parts,
    parts_by_words,
)
from snailps.models.word_vectors.plan import (
    CBOW_TOKEN_BYTES,
    CHUNKS_MAX,
    LEASE_WORDS,
    LEASE_WORDS_SOLE,
    TRAININGS,
    chunks_enough,
    chunks_of,
    chunks_that_fit,
    id_bytes,
    keeps_near,
)
from snailps.models.word_vectors.row_classes import classes_of, gram_rows
from snailps.models.word_vectors.settings import WordVectorSettings


def zipf(words: int) -> np.ndarray:
    """Masses of words as a text has them."""
    return 1e6 / np.arange(1.0, words + 1)


def vocabulary(words: int = 3000, tokens: int = 10_000_000) -> Vocabulary:
    """A vocabulary with the counts of a text of so many words."""
    counts = np.maximum(5, zipf(words) * tokens / zipf(words).sum()).astype(np.int64)
    names = [b"word%d" % n for n in range(words)]
    return Vocabulary(PackedWords.of(names), counts, int(counts.sum()))


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_parts_have_the_same_mass_and_size(parts: int) -> None:
    mass = np.sqrt(zipf(20_000))
    placed = assign(mass, (1,) * parts, seed=3)
    sums = np.bincount(placed, mass, parts)
    assert sums.max() / sums.mean() < 1.02
    assert np.ptp(np.bincount(placed, minlength=parts)) <= 80 * parts
    assert (assign(mass, (1,) * parts, seed=3) == placed).all()


def test_parts_have_masses_as_their_sizes() -> None:
    mass, sizes = zipf(20_000), (20, 20, 16, 8)
    found = np.bincount(assign(mass, sizes, seed=3), mass) / mass.sum()
    assert found == pytest.approx(np.array(sizes) / 64, rel=0.02)
    for few in ((21, 21, 21, 1), (32, 8, 8)):  # no small part begins with the most frequent word
        found = np.bincount(assign(mass, few, seed=3), mass) / mass.sum()
        assert found == pytest.approx(np.array(few) / sum(few), rel=0.25)
    known, settings = vocabulary(2000), WordVectorSettings(bucket=5000)
    own = known.counts.astype(np.float64)
    for together in (True, False):
        placed, _ = assign_by_grams(known, settings, own, sizes, together=together)
        found = np.bincount(placed, own) / own.sum()
        assert found == pytest.approx(np.array(sizes) / 64, rel=0.11)


def share_beyond_two_shards(mass: np.ndarray, parts: int, shards: int) -> float:
    """Share of the names that are not at the two shards with most of their partition."""
    keys = np.arange(len(mass), dtype=np.uint64) + (1 << 40)
    placed = assign_by_hash(mass, keys, parts)
    owner = fragment_of(keys, 1 << 12).astype(np.int64) * shards >> 12
    counts = np.bincount(placed * shards + owner, minlength=parts * shards)
    return 1.0 - np.sort(counts.reshape(parts, shards))[:, -2:].sum() / len(mass)


@pytest.mark.parametrize(("parts", "shards"), [(4, 2), (12, 8), (24, 16), (12, 3)])
def test_parts_by_hash_have_the_same_mass_and_their_rows_at_few_shards(
    parts: int, shards: int
) -> None:
    for mass in (zipf(20_000) ** 0.7, np.ones(20_000)):
        placed = assign_by_hash(mass, np.arange(20_000, dtype=np.uint64), parts)
        load = np.bincount(placed, mass, parts)
        assert load.max() <= 1.05 * load.mean()
        assert load.min() > 0.9 * load.mean()
        assert np.bincount(placed).min() > 0.85 * 20_000 / parts
        assert share_beyond_two_shards(mass, parts, shards) < 0.005


def test_a_part_with_a_name_that_is_too_frequent_keeps_its_share_of_the_rare_ones() -> None:
    mass = np.r_[9000.0, zipf(20_000) ** 0.5]
    placed = assign_by_hash(mass, np.arange(20_001, dtype=np.uint64), 8)
    load, rare = np.bincount(placed, mass, 8), np.bincount(placed[64 * 8 :], minlength=8)
    assert load.argmax() == placed[0]
    assert load.max() > 1.05 * load.mean()
    assert rare.min() > 0.9 * rare.mean()


def test_parts_by_hash_are_as_even_as_others_with_a_few_very_frequent_names() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mass = np.r_[np.full(3, 0.08), np.full(1997, 0.76 / 1997)]
        keys = rng.integers(0, 1 << 50, 2000, dtype=np.uint64)
        found = [assign_by_hash(mass, keys, 8), assign(mass, (1,) * 8, seed)]
        loads = [np.bincount(placed, mass, 8).max() for placed in found]
        assert loads[0] <= 1.05 * loads[1]
        assert np.bincount(found[0]).min() >= 64


def test_output_partitions_are_more_than_input_partitions_by_half_or_four() -> None:
    found = [outputs_for(parts) for parts in (1, 2, 3, 4, 5, 8, 16, 64)]
    assert found == [2, 4, 6, 8, 9, 12, 24, 96]
    assert all(outputs_for(parts) <= OUTPUTS_PER_INPUT * parts for parts in range(1, 100))


def test_splits_of_two_seeds_have_nothing_to_do_with_each_other() -> None:
    mass = zipf(50_000)
    pairs = np.bincount(assign(mass, (1,) * 4, 1) * 4 + assign(mass, (1,) * 4, 2), minlength=16)
    assert pairs.min() > 0.8 * pairs.mean()


@pytest.mark.parametrize("words", [0, 1, 5])
def test_fewer_words_than_parts(words: int) -> None:
    placed = assign(np.ones(words), (1,) * 8, seed=1)
    assert len(set(placed.tolist())) == words


@pytest.mark.parametrize(("epochs", "chunks"), [(1, 6), (2, 3), (4, 2), (5, 2), (50, 1)])
def test_training_has_six_chunks_or_one_an_epoch(epochs: int, chunks: int) -> None:
    settings = WordVectorSettings(dim=100, minn=0, maxn=0, epochs=epochs)
    known = vocabulary(30_000, 8_000_000)
    assert chunks_of(known, settings, 8e6, 2) == chunks
    assert chunks_of(known, settings, 8e6, 1) == 1  # sees no others


@pytest.mark.parametrize(
    ("tokens", "optimizer", "chunks"),
    [(4e5, "add", 4), (2e6, "add", 2), (2e6, "adagrad", 12), (8e6, "adagrad", 12)],
)
def test_training_of_words_alone_has_more_chunks_if_it_is_small_or_with_adagrad(
    tokens: float, optimizer: str, chunks: int
) -> None:
    settings = WordVectorSettings(dim=100, minn=0, maxn=0, epochs=5, optimizer=optimizer)
    known = vocabulary(3_000, int(tokens))
    assert chunks_of(known, settings, tokens, 2) == chunks
    assert chunks_of(known, replace(settings, model="cbow"), tokens, 2) == 2


def test_cbow_with_ngrams_has_half_as_many_chunks() -> None:
    settings = WordVectorSettings(epochs=1)
    assert chunks_enough(settings, 2e7) == 6
    assert chunks_enough(replace(settings, model="cbow"), 2e7) == 3
    assert chunks_enough(replace(settings, model="cbow", minn=0, maxn=0), 2e7) == 6


def test_workers_share_a_small_text_as_far_as_its_chunks_allow() -> None:
    settings = WordVectorSettings(dim=16, minn=0, maxn=0, epochs=5)
    for optimizer, parts in (("add", 2), ("adagrad", 1)):
        chunks = chunks_enough(replace(settings, optimizer=optimizer), 72_000)
        assert most_parts(72_000 / chunks, 8) == parts


def test_long_text_has_more_chunks_as_a_lease_is_what_a_lost_worker_costs() -> None:
    settings = WordVectorSettings(dim=100, minn=0, maxn=0)
    known = vocabulary(30_000, 200_000_000)
    for workers, most in ((1, LEASE_WORDS_SOLE), (2, LEASE_WORDS), (8, LEASE_WORDS)):
        assert 200e6 / chunks_of(known, settings, 200e6, workers) / workers <= most


def test_traffic_bounds_the_number_of_chunks() -> None:
    settings = WordVectorSettings(dim=100, minn=0, maxn=0, epochs=1)
    tokens, most = 7_000_000.0, TRAININGS["skipgram", False].bytes_a_word
    known = vocabulary(30_000, int(tokens))
    for workers in (8, 10):
        chunks = chunks_of(known, settings, tokens, workers)
        traffic = chunks * workers * len(known) * 800 / tokens
        assert 0.7 * most < traffic < 1.3 * most
    squares = replace(settings, optimizer="adagrad")
    traffic = chunks_of(known, squares, tokens, 8) * 8 * len(known) * 1600 / tokens
    assert 1.4 * most < traffic < 2.6 * most


def test_short_checkouts_and_memory_bound_the_number_of_chunks() -> None:
    settings = WordVectorSettings(dim=100, bucket=2_000_000)
    assert chunks_of(vocabulary(100, 30_000), settings, 30_000.0, 2) == 1
    assert chunks_of(vocabulary(100, 30_000), replace(settings, maxn=0), 30_000.0, 2) == 2
    assert chunks_of(vocabulary(100, 10**9), settings, 1e9, 2) == CHUNKS_MAX
    tight = replace(settings, worker_memory=1 << 20)
    assert chunks_of(vocabulary(100, 10**8), tight, 1e8, 2) > 100


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_chunks_of_a_long_text_fit_into_a_workers_memory(model: str) -> None:
    settings = WordVectorSettings(dim=100, model=model, bucket=2_000_000)
    chunks = chunks_of(vocabulary(100_000, 10**10), settings, 1e10, 1)
    assert 1e10 / chunks * CBOW_TOKEN_BYTES < settings.worker_memory


def memory_of(known: Vocabulary, settings: WordVectorSettings, tokens: int) -> float:
    """Memory for the rows and pairs of so much text, the words drawn."""
    kept = known.counts @ known.keep_probability(settings.sample) / known.tokens
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_size, "NOISE_POOL_MIN", 0)  # it is for blocks alone
        rows = rows_of_block(known, settings, tokens) * COPIES * 4 * settings.dim
    return rows + pairs_bytes(settings, int(tokens * kept))


@pytest.mark.parametrize("maxn", [0, 6])
@pytest.mark.parametrize("memory", [64 << 20, 80 << 20])
def test_chunks_of_one_worker_fit_into_its_memory(maxn: int, memory: int) -> None:
    settings = WordVectorSettings(
        dim=100, minn=min(3, maxn), maxn=maxn, bucket=2_000_000, worker_memory=memory
    )
    known = vocabulary(20_000, 3_000_000)
    assert chunks_that_fit(known, replace(settings, worker_memory=2 << 30), 3e6, 3) == 3
    chunks = chunks_that_fit(known, settings, 3e6, 1)
    assert chunks > 1
    assert 0.6 * memory < memory_of(known, settings, int(3e6 / chunks)) < 1.02 * memory


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_chunks_of_several_workers_fit_into_the_memory_of_each(model: str) -> None:
    """Skip-gram's workers have each their words; CBOW's each a share of the text."""
    settings = WordVectorSettings(dim=100, minn=0, maxn=0, model=model, worker_memory=8 << 20)
    known, tokens, workers = vocabulary(20_000, 3_000_000), 3e6, 3
    chunks = chunks_that_fit(known, settings, tokens, 1, workers)
    own = int(tokens / chunks / workers)
    met = own if model == "cbow" else own * workers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_size, "NOISE_POOL_MIN", 0)
        rows = rows_of_block(known, settings, met) * own / met
    kept = known.counts @ known.keep_probability(settings.sample) / known.tokens
    text = own * kept * CBOW_TOKEN_BYTES if model == "cbow" else pairs_bytes(settings, own * kept)
    needed = rows * COPIES * 400 + text
    assert chunks > 1
    assert 0.6 * settings.worker_memory < needed < 1.02 * settings.worker_memory


def test_ids_of_a_chunk_that_many_workers_have_each_fit_into_memory() -> None:
    """Skip-gram's workers have the ids near their words; few workers those of the whole chunk."""
    settings = WordVectorSettings(dim=10, minn=0, maxn=0, worker_memory=32 << 20)
    known, tokens = vocabulary(20_000, 3_000_000), 100e6
    kept = known.counts @ known.keep_probability(settings.sample) / known.tokens
    chunks = []
    for workers, near in ((16, False), (64, True), (256, True)):
        chunks.append(chunks_that_fit(known, settings, tokens, 1, workers))
        of_chunk = tokens / chunks[-1] * kept
        assert id_bytes(settings, workers, of_chunk) < settings.worker_memory
        assert keeps_near(settings, workers, of_chunk) == near
    assert chunks == sorted(chunks, reverse=True)  # more workers need no more chunks


def test_a_short_text_has_fewer_parts_than_workers() -> None:
    assert most_parts(0, 2) == 1
    assert most_parts(5_000, 8) == 1
    assert most_parts(500_000, 8) == 11
    assert most_parts(17e6, 8) == 16
    assert most_parts(17e6, 64) == 65
    assert most_parts(1e9, 64) == 128


@pytest.mark.parametrize(
    ("mass", "parts"),
    [
        (np.ones(0), 0),
        (np.ones(127), 0),
        (np.ones(128), 1),
        (np.ones(6400), 67),
        (np.r_[850, np.ones(150)], 0),  # one word is most of the text
        (np.r_[100, np.ones(900)], 7),  # and a tenth of it
        (zipf(500), 2),
        (zipf(20_000), 11),
        (np.sqrt(zipf(20_000)), 159),
    ],
)
def test_few_or_very_frequent_words_allow_few_parts(mass: np.ndarray, parts: int) -> None:
    assert parts_by_words(mass) == parts
    if parts:
        keys = np.arange(len(mass), dtype=np.uint64)
        placed = assign_by_hash(mass, keys, outputs_for(parts))
        assert np.bincount(placed).min() >= 7
        assert mass.max() < 0.9 * mass[placed == placed[mass.argmax()]].sum()


@pytest.mark.parametrize("parts", [2, 9, 70])
def test_words_split_by_their_grams_share_few_and_are_balanced(parts: int) -> None:
    settings = WordVectorSettings(bucket=5000)
    known, mass = vocabulary(3000), np.sqrt(zipf(3000))
    inputs, sharers = assign_by_grams(known, settings, mass, (1,) * parts)
    load = np.bincount(inputs, mass, parts)
    assert load.max() <= 1.02 * load.mean()
    assert load.min() > 0.85 * load.mean()
    assert sharers.tolist() == sharers_of(known, settings, inputs)
    at_random = sharers_of(known, settings, assign(mass, (1,) * parts, 1))
    assert sharers.sum() < 0.95 * sum(at_random)
    again, _ = assign_by_grams(known, settings, mass, (1,) * parts)
    assert (again == inputs).all()


def test_words_are_split_evenly_and_their_sharers_are_known_if_not_together() -> None:
    settings, mass = WordVectorSettings(bucket=5000), zipf(900)
    inputs, sharers = assign_by_grams(vocabulary(900), settings, mass, (1,) * 3, together=False)
    assert sharers.tolist() == sharers_of(vocabulary(900), settings, inputs)
    together, fewer = assign_by_grams(vocabulary(900), settings, mass, (1,) * 3)
    assert fewer.sum() < sharers.sum()
    load = np.bincount(inputs, mass, 3)
    assert load.max() <= np.bincount(together, mass, 3).max()


def test_word_that_is_heavier_than_a_partition_goes_to_the_least_loaded_one() -> None:
    mass = np.array([100.0, *np.ones(99)])
    inputs, _ = assign_by_grams(vocabulary(100), WordVectorSettings(bucket=5000), mass, (1,) * 4)
    assert np.bincount(inputs, minlength=4)[inputs[0]] == 1
    assert np.bincount(inputs, mass, 4).max() == 100


def sharers_of(known: Vocabulary, settings: WordVectorSettings, inputs: np.ndarray) -> list[int]:
    """Of each bucket, the number of parts with a word that has an n-gram of it."""
    having: list[set[int]] = [set() for _ in range(settings.bucket)]
    ptr, ids = subwords_csr(known.words, settings.minn, settings.maxn, settings.bucket)
    for word in range(len(known)):
        for gram in ids[ptr[word] : ptr[word + 1]].tolist():
            if gram >= len(known):
                having[gram - len(known)].add(int(inputs[word]))
    return [len(parts) for parts in having]


def test_rows_of_ngrams_count_in_the_traffic() -> None:
    few, tokens = vocabulary(20_000, 5_000_000), 5e6
    letters = np.random.default_rng(1).integers(97, 105, (len(few), 12)).astype(np.uint8)
    many = Vocabulary(list(map(bytes, letters)), few.counts, few.tokens)
    settings = WordVectorSettings(dim=100, epochs=1, bucket=2_000_000)
    assert 1 <= chunks_of(many, settings, tokens, 4) < chunks_of(few, settings, tokens, 4)


@pytest.mark.parametrize("workers", [2, 6])
def test_rows_of_ngrams_of_workers_are_those_that_a_split_gives(workers: int) -> None:
    settings = WordVectorSettings(bucket=5000)
    known = vocabulary(3000)
    foreseen = gram_rows(settings, known).in_shares(workers)
    classes = classes_of(settings, known)
    assert classes is not None
    sharers = sharers_of(known, settings, assign(zipf(3000), (1,) * workers, 1))
    stored = classes.roles[len(known) :] > 0
    assert 0 < np.count_nonzero(stored) < 5000
    assert foreseen == pytest.approx(np.array(sharers)[stored].sum(), rel=0.03)
