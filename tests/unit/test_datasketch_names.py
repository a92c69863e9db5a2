"""`snailps.datasketch`: estimates beside exact shares, and datasketch's names and answers."""

import pickle
import random

import numpy as np
import pytest

from snailps.datasketch import MinHash, MinHashLSH


def two_sets(share, size, seed):
    """Sets of `size` values, of which about this share of all is in both; their Jaccard share."""
    both = [f"b{seed} {at}".encode() for at in range(round(size * 2 * share / (1 + share)))]
    rest = size - len(both)
    sets = [both + [f"{side}{seed} {at}".encode() for at in range(rest)] for side in "xy"]
    return *sets, len(both) / (len(both) + 2 * rest)


def made(values, **options):
    sketch = MinHash(**options)
    sketch.update_batch(values)
    return sketch


@pytest.mark.parametrize("size", [3, 20, 128, 2000])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("num_perm", [64, 128])
def test_jaccard_is_the_share_within_its_error(size, share, num_perm):
    tries = 200
    errors = []
    for seed in range(tries):
        one, other, jaccard = two_sets(share, size, seed)
        a, b = made(one, num_perm=num_perm, seed=seed), made(other, num_perm=num_perm, seed=seed)
        errors.append(a.jaccard(b) - jaccard)
        assert a.jaccard(b) == b.jaccard(a)
    deviation = np.sqrt(jaccard * (1 - jaccard) / num_perm)
    assert abs(np.mean(errors)) <= 4 * max(np.std(errors), deviation) / np.sqrt(tries)
    # Few values fill few bins, whose copies say nothing new: then the error is of `size` numbers.
    worst = np.sqrt(jaccard * (1 - jaccard) / min(num_perm, size))
    assert np.std(errors) <= 1.3 * worst + 1e-9


@pytest.mark.parametrize("size", [1, 10, 128, 1000, 50_000])
def test_count_is_the_number_of_different_values(size):
    counts = [
        made([f"{seed} {at}".encode() for at in range(size)] * 2, seed=seed).count()
        for seed in range(40)
    ]
    assert np.mean(counts) == pytest.approx(size, rel=4 / np.sqrt(128 * 40) + 0.01)
    assert np.std(counts) <= 1.5 * size / np.sqrt(128)
    assert MinHash().count() == 0


@pytest.mark.parametrize("length", [*range(20), 31, 32, 33, 100])
def test_each_byte_of_a_value_counts(length):
    value = bytes(range(1, length + 1))
    values = [
        value,
        value + b"\0",
        *(value[:at] + b"\xff" + value[at + 1 :] for at in range(length)),
    ]
    sketches = [made([each], num_perm=32) for each in values]
    assert sketches[0].jaccard(sketches[0]) == 1
    for at, sketch in enumerate(sketches[1:], 1):
        assert sketches[0].jaccard(sketch) < 1, at
    # What holds the same bytes is the same value.
    for same in (bytearray(value), memoryview(value), np.frombuffer(value, np.uint8)):
        assert made([same], num_perm=32) == sketches[0]


def test_order_batches_and_merging_change_nothing():
    values = [f"value {at}".encode() for at in range(300)]
    whole = made(values)
    shuffled = values * 2
    random.Random(1).shuffle(shuffled)
    single = MinHash()
    for value in shuffled:
        single.update(value)
    first, second = made(values[:200]), made(values[100:])
    assert single == whole == MinHash.union(first, second)
    first.merge(second)
    assert first == whole
    assert first != made(values[:150])
    assert made(values, seed=2) != whole
    assert MinHash.bulk([values, values[:9]])[1] == made(values[:9])
    assert [len(sketch) for sketch in MinHash.generator([values], num_perm=32)] == [32]


def test_a_copy_is_another_one():
    sketch = made([b"a", b"b"], num_perm=16, seed=5)
    copy = sketch.copy()
    assert copy == sketch
    copy.update(b"c")
    assert sketch == made([b"a", b"b"], num_perm=16, seed=5)
    assert copy != sketch
    copy.clear()
    assert copy.is_empty()
    assert copy == MinHash(16, 5)
    assert copy.jaccard(MinHash(16, 5)) == 1


def test_pickled_ones_go_on():
    sketch = made([b"a", b"b", b"c"], num_perm=40, seed=7)
    again = pickle.loads(pickle.dumps(sketch))
    for each in (sketch, again):
        each.update(b"d")
    assert again == sketch
    lsh = MinHashLSH(0.5, 40)
    lsh.insert("a", sketch)
    assert pickle.loads(pickle.dumps(lsh)).query(sketch) == ["a"]


def test_hash_values_are_compared_but_not_added_to():
    values = [b"a", b"b"]
    whole = made(values)
    again = MinHash(hashvalues=whole.digest(), seed=whole.seed)
    assert again.jaccard(whole) == 1
    assert again == whole
    assert (again.hashvalues == whole.hashvalues).all()
    assert again.hashvalues.dtype == np.uint32
    for change in (
        lambda: again.update(b"c"),
        lambda: again.merge(whole),
        lambda: whole.merge(again),
    ):
        with pytest.raises(ValueError, match="pickle the MinHash instead"):
            change()


def test_a_hash_function_of_the_user_is_asked():
    asked = []

    def hashfunc(value):
        asked.append(value)
        return hash((value, 1)) & 0xFFFFFFFF

    numbers = MinHash(hashfunc=hashfunc)
    numbers.update_batch([1, 2, 3])
    numbers.update(4)
    assert asked == [1, 2, 3, 4]
    assert not numbers.is_empty()
    bad = MinHash(hashfunc=lambda value: -1)
    with pytest.raises(ValueError, match=r"hashfunc: expected numbers of 0 to 2\*\*64 - 1"):
        bad.update(1)


# What datasketch 2.0.0 chooses, recorded with its own optimisation.
CHOSEN = {
    (0.5, 128, (0.5, 0.5)): (25, 5), (0.7, 128, (0.5, 0.5)): (14, 9),
    (0.8, 128, (0.5, 0.5)): (9, 13), (0.9, 128, (0.5, 0.5)): (5, 25),
    (0.95, 128, (0.5, 0.5)): (3, 42), (0.8, 64, (0.5, 0.5)): (5, 11),
}  # fmt: skip


@pytest.mark.parametrize("given", CHOSEN)
def test_bands_are_those_that_datasketch_chooses(given):
    lsh = MinHashLSH(*given)
    assert (lsh.b, lsh.r) == CHOSEN[given]
    assert MinHashLSH(*given[:2], params=(4, 3)).hashranges == [(0, 3), (3, 6), (6, 9), (9, 12)]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_pairs_meet_as_often_as_the_formula_says(share):
    tries, met = 600, 0
    for seed in range(tries):
        one, other, jaccard = two_sets(share, 800, seed)
        lsh = MinHashLSH(num_perm=48, params=(8, 6))
        lsh.insert("one", made(one, num_perm=48, seed=seed))
        met += lsh.query(made(other, num_perm=48, seed=seed)) == ["one"]
    wanted = 1 - (1 - jaccard**6) ** 8
    assert met / tries == pytest.approx(
        wanted, abs=4 * np.sqrt(wanted * (1 - wanted) / tries) + 0.01
    )


def test_an_index_answers_as_a_set_of_keys():
    sketches = {key: made([f"{key} {at}".encode() for at in range(60)]) for key in "abcd"}
    lsh = MinHashLSH(0.5)
    assert lsh.is_empty()
    with lsh.insertion_session() as session:
        for key in "abc":
            session.insert(key, sketches[key])
    assert "a" in lsh
    assert "d" not in lsh
    assert lsh.query(sketches["a"]) == ["a"]
    assert lsh.query(sketches["d"]) == []
    assert [sum(counts.values()) for counts in lsh.get_counts()] == [3] * lsh.b
    assert [sum(counts.values()) for counts in lsh.get_subset_counts("a", "c")] == [2] * lsh.b
    other = MinHashLSH(0.5)
    other.insert("d", sketches["d"])
    lsh.merge(other, check_overlap=True)
    assert lsh.query(sketches["d"]) == ["d"]
    with pytest.raises(ValueError, match="overlapping"):
        lsh.merge(other, check_overlap=True)
    with lsh.deletion_session() as session:
        session.remove("a")
    assert lsh.query(sketches["a"]) == []
    with pytest.raises(ValueError, match="does not exist"):
        lsh.remove("a")
    for key in "bcd":
        lsh.remove(key)
    assert lsh.is_empty()
    assert not any(lsh.hashtables)
    shorter = MinHashLSH(0.5, hashfunc=lambda band: band[:4])
    shorter.insert("a", sketches["a"])
    assert {len(band) for band in shorter.keys["a"]} == {4}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: made(["text"]), TypeError, "Strings must be encoded before hashing"),
        (lambda: made([3]), TypeError, "bytes-like"),
        (lambda: MinHash(0), ValueError, "num_perm"),
        (lambda: MinHash(permutations=([1], [2])), ValueError, "datasketch's own"),
        (lambda: MinHash(scheme="legacy"), ValueError, "datasketch's own"),
        (lambda: MinHash(gpu_mode="always"), RuntimeError, "for processors"),
        (lambda: MinHash(hashfunc=3), ValueError, "callable"),
        (lambda: MinHash(hashvalues=[1, 2]), ValueError, r"expected uint32\[n\]"),
        (lambda: MinHash().jaccard(MinHash(seed=2)), ValueError, "different seeds"),
        (lambda: MinHash().merge(MinHash(64)), ValueError, "different numbers"),
        (lambda: MinHash().jaccard({1}), TypeError, "got builtins.set"),
        (lambda: MinHash.union(MinHash()), ValueError, "less than 2"),
        (lambda: hash(MinHash()), TypeError, "unhashable"),
        (lambda: MinHashLSH(1.5), ValueError, "threshold"),
        (lambda: MinHashLSH(num_perm=1), ValueError, "Too few"),
        (lambda: MinHashLSH(weights=(0.5, 0.4)), ValueError, "sum to 1"),
        (lambda: MinHashLSH(weights=(1.5, -0.5)), ValueError, r"in \[0.0, 1.0\]"),
        (
            lambda: MinHashLSH(params=(20, 10)),
            ValueError,
            "20 \\* 10 = 200 numbers, of num_perm 128",
        ),
        (lambda: MinHashLSH(params=(1, 10)), ValueError, "too small"),
        (lambda: MinHashLSH(storage_config={"type": "redis"}), ValueError, "'redis' is not here"),
        (lambda: MinHashLSH().insert("a", MinHash(64)), ValueError, "length 128, got 64"),
        (lambda: MinHashLSH().query({1}), TypeError, "got builtins.set"),
        (lambda: MinHashLSH().merge({}), ValueError, "Cannot merge type MinHashLSH and type dict"),
        (lambda: MinHashLSH().merge(MinHashLSH(0.5)), ValueError, "different initialization"),
    ],
)
def test_mistakes_are_refused_as_there(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_key_is_not_taken_twice():
    lsh, sketch = MinHashLSH(0.5), made([b"a"])
    lsh.insert("a", sketch)
    with pytest.raises(ValueError, match="already exists"):
        lsh.insert("a", sketch)
