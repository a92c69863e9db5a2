"""Rows of 64-bit integers: pushes may repeat, in any order; what rounds or forgets is refused."""

import itertools

import numpy as np
import pytest
from attach import attach
from probes import probes_of
from replicas import Replicas, assert_equal, dump
from shards import Shards

from snailps import Table, Worker, kernels
from snailps.api.results import Results, write_tables
from snailps.api.wire_choice import WireChoice
from snailps.config import JobSettings
from snailps.errors import ConfigError, MisuseError, RemoteError
from snailps.local.table_export import export_tables
from snailps.node.checks import row_bytes
from snailps.serving.row_reader import RowReader

U64, I64 = np.uint64, np.int64
LOW, HIGH = -(1 << 63), (1 << 63) - 1
ONES = (1 << 64) - 1
METHODS = {
    ("min", "uint64"): (np.minimum, ONES), ("max", "uint64"): (np.maximum, 0),
    ("min", "int64"): (np.minimum, HIGH), ("max", "int64"): (np.maximum, LOW),
    ("or", "uint64"): (np.bitwise_or, 0), ("or", "int64"): (np.bitwise_or, 0),
}  # fmt: skip
every_method = pytest.mark.parametrize(("access", "dtype"), METHODS)
# As floats: NaN that signals and that does not, of both signs, infinity, -0, the smallest; a copy
# that takes one for a number, or a check that finds it, changes or refuses these.
WORDS = (0x7F800001, 0xFFC00000, 0x7F800000, 0x80000000, 1)
ENDS = [0, 1, (1 << 63) - 1, 1 << 63, ONES]
BITS = [high << 32 | low for high, low in itertools.product(WORDS, repeat=2)]


def table(access="min", dtype="uint64", dim=1, **options):
    return Table("t", dim, access=access, dtype=dtype, **options)


def worker_of(cluster, declared, incarnation=1):
    """A model that has declared the table, as a worker process makes it."""
    model, client = Worker(JobSettings()), cluster.client(incarnation)
    attach(model, client, WireChoice(client, cluster.route), {"t": (1, declared)})
    return model


@pytest.fixture
def shards():
    with Shards(2) as cluster:
        yield cluster


def results_of(cluster, client, declared):
    return Results(JobSettings(), b"", {}, client, {"t": 1}, {"t": declared}, cluster.frag_num)


def pushes_of(seed, dtype, dim, keys=60, n=400):
    """Pushes with repeated keys, values of all sizes, the ends of the type among them."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, keys, n, dtype=U64)
    values = rng.integers(0, ONES, (n, dim), dtype=U64, endpoint=True)
    values >>= rng.integers(0, 64, (n, 1), U64)
    values[:3] = [[0], [ONES], [1 << 63]]
    edges = [50, 51, 200, 300, 390]
    return [*zip(np.split(numbers, edges), np.split(values.view(dtype), edges), strict=True)]


def expected_of(pushes, access, dtype, dim, keys):
    combine, identity = METHODS[access, dtype]
    rows = np.full((keys, dim), identity, dtype)
    for numbers, values in pushes:
        combine.at(rows, numbers.astype(int), values)
    return rows


def again_of(pushes, dim, keys):
    """Of each key, the bits of the first halves that one value has, and those of several."""
    half, rows = dim // 2, np.zeros((keys, dim), U64)
    bits = np.arange(64, dtype=U64)
    for key in range(keys):
        values = np.concatenate([values[numbers == key] for numbers, values in pushes])
        counts = (values[:, :half, None] >> bits & U64(1)).sum(0)
        for part, chosen in ((slice(half), counts > 0), (slice(half, dim), counts > 1)):
            rows[key, part] = (chosen.astype(U64) << bits).sum(1)
        rows[key, half:] |= np.bitwise_or.reduce(values[:, half:], axis=0)
    return rows


# --- what a push does ----------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("dim", [1, 3])
def test_rows_depend_on_the_values_alone_however_often_and_in_which_order_they_are_pushed(
    access, dtype, dim
):
    declared, keys = table(access, dtype, dim), 70  # ten of them never pushed
    pushes = pushes_of(dim, dtype, dim)
    expected = expected_of(pushes, access, dtype, dim, keys)
    dumps = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        with Shards(2) as cluster:
            cluster.declare(declared)
            workers = [worker_of(cluster, declared, incarnation) for incarnation in (1, 2, 3)]
            order = [*pushes] if seed == 0 else [*pushes, *pushes]
            for place in rng.permutation(len(order)):
                numbers, values = order[place]
                shuffled = rng.permutation(len(numbers))
                workers[rng.integers(3)].push("t", numbers[shuffled], values[shuffled])
            rows = workers[0].pull("t", np.arange(keys))
            assert rows.dtype == np.dtype(dtype)
            assert np.array_equal(rows, expected)
            assert cluster.stats("rows") == len(np.unique(np.concatenate([k for k, _ in pushes])))
            dumps.append({
                key: row
                for thread in cluster.threads
                for _, tables in dump(thread)[0].values()
                for part in tables.values()
                for key, row in part[3].items()
            })  # fmt: skip
    assert dumps[0] == dumps[1] == dumps[2]


@pytest.mark.parametrize(("access", "values", "expected"), [
    ("min", [5, 3, 9], 3), ("max", [5, 3, 9], 9), ("or", [5, 3, 8], 15),
])  # fmt: skip
def test_known_answers(shards, access, values, expected):
    shards.declare(table(access))
    model = worker_of(shards, table(access))
    model.push("t", [7, 7, 7], [[value] for value in values])
    assert model.pull("t", [7]).tolist() == [[expected]]


@pytest.mark.parametrize("build", kernels.builds_available())
@every_method
def test_every_build_steps_the_same_at_any_address(access, dtype, build):
    """Of lengths that leave each rest of a vector, from words that no integer is aligned to."""
    rng, combine = np.random.default_rng(3), METHODS[access, dtype][0]
    number, words = table(access, dtype).store_arguments()[1], np.zeros((2, 41), np.float32)
    for dim in range(1, 21):
        row, value = words[0, 1 : 1 + 2 * dim], words[1, 1 : 1 + 2 * dim]
        row.view(dtype)[:], value.view(dtype)[:] = rng.choice(
            np.array(BITS + ENDS, U64), (2, dim)
        ).view(dtype)
        expected = combine(row.view(dtype), value.view(dtype))
        probes_of(build).apply_row(number, np.zeros(8, np.float32), row, value)
        assert np.array_equal(row.view(dtype), expected)


@pytest.mark.parametrize("build", kernels.builds_available())
@pytest.mark.parametrize("dtype", ["uint64", "int64"])
def test_every_build_says_which_bits_came_again(build, dtype):
    rng, words = np.random.default_rng(4), np.zeros((2, 41), np.float32)
    for dim in range(2, 21, 2):
        row, value = words[0, 1 : 1 + 2 * dim], words[1, 1 : 1 + 2 * dim]
        both = rng.integers(0, ONES, (2, dim), U64, endpoint=True)
        row.view(U64)[:], value.view(U64)[:] = both
        expected = again_of([(np.zeros(2, int), both)], dim, 1)[0]
        number = table("again", dtype, dim).store_arguments()[1]
        probes_of(build).apply_row(number, np.zeros(8, np.float32), row, value)
        assert np.array_equal(row.view(U64), expected)


def test_known_answers_of_again(shards):
    declared = table("again", dim=2)
    shards.declare(declared)
    model = worker_of(shards, declared)
    model.push("t", [7, 7, 8], [[0b0011, 0], [0b0110, 0], [0b1000, 0]])
    assert model.pull("t", [7, 8, 9]).tolist() == [[0b0111, 0b0010], [0b1000, 0], [0, 0]]
    model.push("t", [8], [[0b1000, 0b0100]])  # a push that comes twice counts twice
    assert model.pull("t", [8]).tolist() == [[0b1000, 0b1100]]
    with pytest.raises(ConfigError, match="dim: expected an even number for access 'again'"):
        table("again", dim=3)


@pytest.mark.parametrize("clocked", [False, True])
def test_bits_that_came_again_do_not_depend_on_the_order(shards, clocked):
    """Nor on whether values were combined on their way, as contributions to a clock are."""
    declared, keys = table("again", dim=4), 60
    shards.declare(declared)
    pushes = [(k, v & v[::-1]) for k, v in pushes_of(6, "uint64", 4)]
    clients = [shards.client(incarnation) for incarnation in (1, 2)]
    for place in np.random.default_rng(2).permutation(len(pushes)):
        options = {"clock": 0, "slot": place % 2} if clocked else {}
        clients[place % 2].push(1, *pushes[place], **options)
    for slot in (1, 0) if clocked else ():
        clients[slot].seal_async(0, slot, 2).wait()
    asked = {"clock": 1} if clocked else {}
    rows = clients[0].pull(1, np.arange(keys, dtype=U64), declared.empty(keys), **asked)
    assert np.array_equal(rows, again_of(pushes, 4, keys))


def test_memory_of_a_row_is_foreseen():
    (floats, integers) = row_bytes([Table("f", 6), table(dim=3, dtype="int64")]).values()
    assert integers == floats


def test_signs_count_for_int64_and_not_for_uint64(shards):
    for number, dtype in enumerate(("int64", "uint64"), 1):
        shards.declare(table("min", dtype), number)
    client = shards.client()
    for number, (low, high) in {1: (-1, 1), 2: (ONES, 1)}.items():
        dtype = I64 if number == 1 else U64
        client.push(number, np.array([1, 1], U64), np.array([[high], [low]], dtype))
        row = client.pull(number, np.array([1], U64), np.empty((1, 1), dtype))
        assert row.tolist() == [[min(low, high)]]


@every_method
def test_key_without_a_row_reads_as_the_value_that_changes_no_other_one(shards, access, dtype):
    declared = table(access, dtype, 2)
    shards.declare(declared)
    model = worker_of(shards, declared)
    first = model.pull("t", [1, ONES])
    assert first.tolist() == [[METHODS[access, dtype][1]] * 2] * 2
    assert shards.stats("rows") == 0
    model.push("t", [1], first[:1])
    assert model.pull("t", [1]).tolist() == first[:1].tolist()
    model.push("t", [1], [[77, 77]])
    assert model.pull("t", [1]).tolist() == [[77, 77]]


def test_all_bits_arrive_by_every_door(shards, tmp_path):
    declared, keys = table("or", dim=2), np.arange(len(BITS), dtype=U64)
    bits = np.array(BITS, U64)[:, None] ^ np.array([[0, 1 << 40]], U64)
    shards.declare(declared)
    model = worker_of(shards, declared)
    model.push("t", keys, bits)
    assert np.array_equal(model.pull("t", keys), bits)
    assert np.array_equal(model.pull_async("t", keys, state=True).wait(), bits)
    wide = np.zeros((len(keys), 5), U64)
    assert model.pull("t", keys, wide[:, 1:3]).base is wide
    assert np.array_equal(wide[:, 1:3], bits)
    model.assign("t", keys, bits[::-1].copy())
    assert np.array_equal(model.pull("t", keys[::-1]), bits)
    model.push_async("t", keys + 1000, np.asfortranarray(bits).copy("C")).wait()
    results = results_of(shards, shards.client(5), declared)
    assert np.array_equal(results.pull("t", keys + 1000), bits)
    assert np.array_equal([*results.pulls("t", [keys])], [bits[::-1]])
    results.put_packed("t", [(keys, rows) for _, rows in results.packed("t", [keys + 1000])])
    assert np.array_equal(results.pull("t", keys), bits)
    (found, rows), twice = *results.scan("t"), np.concatenate([bits, bits])
    assert np.array_equal(rows[np.argsort(found)], twice)
    write_tables(tmp_path / "out.npz", results)
    with np.load(tmp_path / "out.npz") as file:
        assert file["t.rows"].dtype == U64
        assert np.array_equal(file["t.rows"], twice)


def test_integers_of_any_type_that_the_table_holds_are_taken():
    for dtype in ("uint64", "int64"):
        declared = table("min", dtype)
        for given in (
            [[3]],
            np.array([[3]], np.int8),
            np.array([[3]], ">u4"),
            np.array([[3]], I64),
        ):
            assert declared.values(given).dtype == np.dtype(dtype)
            assert declared.values(given).tolist() == [[3]]
    assert table("min").values([[ONES, 1]]).tolist() == [[ONES, 1]]
    assert table("min", "int64").values([[LOW], [HIGH]]).tolist() == [[LOW], [HIGH]]


@pytest.mark.parametrize(("dtype", "given", "words"), [
    ("uint64", [[1.0]], "integers from 0 to 2^64 - 1; got float64 of shape (1, 1), [[1.]]"),
    ("uint64", np.ones((2, 1), np.float32), "got float32 of shape (2, 1)"),
    ("uint64", [[3], [-1]], "got int64 of shape (2, 1), -1 at place [1, 0]"),
    ("uint64", [[3], [1 << 64]], "18446744073709551616 at place [1, 0]"),
    ("int64", [[1 << 63]], "integers from -2^63 to 2^63 - 1; got uint64"),
    ("int64", [[0, LOW - 1]], f"{LOW - 1} at place [0, 1]"),
    ("int64", [[True]], "got bool"),
    ("int64", [["1"]], "got <U1"),
])  # fmt: skip
def test_other_values_are_refused_by_name(dtype, given, words):
    with pytest.raises(MisuseError) as caught:
        table("min", dtype).values(given)
    assert str(caught.value).startswith("table 't': values: expected integers from ")
    assert words in str(caught.value)


def test_array_of_another_type_to_pull_into_is_refused(shards):
    model = worker_of(shards, table())
    for wrong in (
        np.empty((1, 1), np.float32),
        np.empty((1, 1), I64),
        np.empty((1, 2), np.float32),
    ):
        with pytest.raises(MisuseError, match=r"expected uint64|rows of 1 values"):
            model.pull("t", [1], wrong)


# --- the table of its pairs ----------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("options", [
    {"wire": "float16"}, {"wire": "int8"}, {"wire": "auto"}, {"track": "touch"}, {"admit_after": 2},
    {"rows_max": 10}, {"age_max": 10}, {"init": "zeros"}, {"init": "uniform"}, {"dim": 32_769},
])  # fmt: skip
def test_option_that_would_round_or_forget_is_refused_by_name(access, dtype, options):
    with pytest.raises(ConfigError, match=f"table 't': {next(iter(options))}: expected .*, got "):
        table(access, dtype, **options)


@pytest.mark.parametrize("options", [
    {"finite": False}, {"finite": True}, {"admit_after": 1}, {"init": "identity"}, {"dim": 32_768},
    {"seed": 9}, {"lr": 0.5},
])  # fmt: skip
def test_option_without_a_meaning_for_integers_changes_nothing(options):
    declared = table(**options)
    assert Table.from_dict(declared.to_dict()) == declared
    assert declared.store_arguments()[1:5] == (8, 4, 0.0, ONES)
    assert declared.store_arguments()[0] == 2 * declared.dim


@pytest.mark.parametrize("access", [
    "add", "sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "ftrl", "average", "a.b:C", 5,
])  # fmt: skip
def test_optimizer_is_refused_for_integers_and_the_least_for_floats(access):
    with pytest.raises(ConfigError, match="access: expected min, max, or, again for rows of"):
        Table("t", 1, access=access, dtype="int64", lr=0.1)
    for name in ("min", "max", "or", "again"):
        with pytest.raises(ConfigError, match=r"dtype: expected uint64 or int64 for access"):
            Table("t", 2, access=name)
    with pytest.raises(
        ConfigError, match="dtype: expected float32 or int64 or uint64, got 'int32'"
    ):
        Table("t", 1, access="min", dtype="int32")


def test_calls_that_compute_with_floats_are_refused_before_anything_is_sent(shards):
    declared, keys = table(), np.array([1], U64)
    shards.declare(declared)
    model = worker_of(shards, declared)
    results, client = results_of(shards, shards.client(2), declared), shards.client(3)
    one, ptr = np.ones((1, 1), U64), np.array([0, 1])
    calls = {
        "has no step size": lambda: model.push("t", keys, one, lr_scale=0.5),
        r"push\(state=True\) needs rows of float32, this table has uint64": (
            lambda: model.push("t", keys, one, state=True)
        ),
        r"forward\(\) needs rows of float32": lambda: model.forward("t", ptr, keys),
        r"'t': forward\(\) needs rows": lambda: results.forward("t", ptr, keys),
        r"put\(\) needs access 'add' or 'adagrad'": lambda: results.put("t", keys, one),
        "same table of floats": lambda: model.correct(
            model.pull_async("t", keys), model.push_async("t", keys, one)
        ),
        "travel as they are": lambda: client.push(1, keys, one, wire=1),
        "not summed": lambda: client.push(1, keys, one, merge=True),
        "or int64 or uint64": lambda: client.push(1, keys, one.astype(np.int32)),
    }
    for words, call in calls.items():
        with pytest.raises(MisuseError, match=words):
            call()


def test_shard_refuses_what_no_client_of_ours_sends(shards):
    shards.declare(table())
    client, keys = shards.client(), np.array([1], U64)
    floats = np.ones((1, 2), np.float32)
    for call, code in (
        (lambda: client.pull(1, keys, floats, wire=1), "option"),
        (lambda: client.push(1, keys, floats, wire=3), "option"),
        (lambda: client.push(1, keys, floats, state=True), "state"),
        (lambda: client.push(1, keys, floats, lr_scale=0.5), "access"),
        (lambda: client.forward_async(1, np.array([0, 1]), keys, None, 2).wait(), "access"),
    ):
        with pytest.raises(RemoteError) as caught:
            call()
        assert caught.value.code == code
    assert shards.stats("rows") == 0


@every_method
def test_contributions_to_a_clock_are_combined_not_added(shards, access, dtype):
    declared, keys = table(access, dtype, 2), 60
    shards.declare(declared)
    pushes = pushes_of(4, dtype, 2)
    clients = [shards.client(incarnation) for incarnation in (1, 2)]
    for place in np.random.default_rng(1).permutation(len(pushes)):
        clients[place % 2].push(1, *pushes[place], clock=0, slot=place % 2)
    for slot in (1, 0):
        clients[slot].seal_async(0, slot, 2).wait()
    rows = clients[0].pull(1, np.arange(keys, dtype=U64), declared.empty(keys), clock=1)
    assert np.array_equal(rows, expected_of(pushes, access, dtype, 2, keys))


def test_standby_has_the_same_bits_and_serves_them():
    declared, keys = table("or", dim=2), np.arange(len(BITS), dtype=U64)
    bits = np.array(BITS, U64)[:, None] ^ np.array([[0, 1 << 40]], U64)
    with Replicas() as cluster:
        cluster.declare(declared)
        client = cluster.client()
        client.push(1, keys[::2].copy(), bits[::2].copy())  # before the standby: as rows
        standby = cluster.back_up()
        client.push(1, keys[1::2].copy(), bits[1::2].copy())  # as pushes
        client.push(1, keys + 100, bits, clock=0)  # as what is staged
        cluster.settle()
        assert_equal(dump(cluster.threads[0]), dump(standby[0]))
        cluster.promote(standby)
        assert np.array_equal(client.pull(1, keys, declared.empty(len(keys))), bits)


class Source:
    """Rows as words, in pieces, as the readers of checkpoints and clusters keep them."""

    def __init__(self, declared, keys, rows):
        self.table, self.tables = declared, {"t": declared}
        self.keys, self.rows = keys, rows

    def pieces(self, name, state, progress):
        progress.begin("reading", 2, "pieces")
        for some in np.array_split(np.arange(len(self.keys))[::-1], 2):
            yield self.keys[some], self.rows[some]

    def find(self, keys, rows):
        rows[:] = self.rows.view(np.float32)[keys.astype(int)]


@pytest.mark.parametrize("format", ["npz", "safetensors", "parquet"])
def test_files_of_other_programs_have_integers(tmp_path, format):
    keys = np.arange(len(BITS), dtype=U64)
    bits = np.array(BITS, U64)[:, None] ^ np.array([[0, 1 << 40]], U64)
    for dtype in ("uint64", "int64"):
        rows = bits.view(dtype)
        source = Source(table("or", dtype, 2), keys, rows)
        (path,) = export_tables(source, str(tmp_path / "out"), format, state=True, overwrite=True)
        if format == "npz":
            with np.load(path) as file:
                found = file["t.rows"]
        elif format == "safetensors":
            found = pytest.importorskip("safetensors.numpy").load_file(path)["t.rows"]
        else:
            parquet = pytest.importorskip("pyarrow.parquet").read_table(path)
            found = parquet["row"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
        assert found.dtype == np.dtype(dtype)
        assert np.array_equal(found, rows)
        assert np.array_equal(RowReader(source).pull(keys[::-1]), rows[::-1])
