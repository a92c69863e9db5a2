"""models.embeddings.held_out: which lines are held out, and that they are never trained."""

from collections import Counter
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
from emulated import trained

from snailps.data.name_columns import NameColumns, Names, times_of
from snailps.errors import ConfigError, DataError
from snailps.models.embeddings.files import LineIds
from snailps.models.embeddings.held_out import HeldOutRule, HeldOutSplit, LineKeys, pairs_held_out
from snailps.models.embeddings.lines_tested import LinesTested
from snailps.models.embeddings.mf import MatrixFactorization
from snailps.models.embeddings.settings import MfSettings
from snailps.node.phrases import untested
from snailps.pieces import Piece
from tests.support.blocks import HeldContent, held_block

RATED = MfSettings(loss="squared", dim=4, seed=3)
SPLITS = [
    {"held_out": 0.2},
    {"held_out": 0.2, "held_out_by": "user"},
    {"held_out": 0.2, "held_out_by": "user_time"},
    {"held_out": 0.2, "held_out_by": "user_order"},
    {"held_out": 0.2, "held_out_by": "time"},
    {"held_out": 1, "held_out_by": "user"},
    {"held_out": 1, "held_out_by": "user_time"},
    {"held_out": 2, "held_out_by": "user_order"},
    {"held_out_from": "700"},
]


def lines_of(count=600, seed=1):
    """Lines of users, items, values above 0, times; many pairs come twice."""
    rng = np.random.default_rng(seed)
    columns = (rng.zipf(1.4, count) % 40, rng.integers(0, 15, count), rng.integers(1, 6, count),
               rng.integers(0, 1000, count))  # fmt: skip
    return [b"u%d,i%d,%d,%d\n" % row for row in zip(*columns, strict=True)]


def blocks_of(lines, count):
    parts = [b"".join(part) for part in np.array_split(np.array(lines, object), count)]
    for number, part in enumerate(parts):
        piece = Piece("text", 1000 * number, 1000 * number + len(part))
        yield held_block(HeldContent(part, lines[0]), number, piece)


def surveyed(settings, lines, blocks=5, workers=2):
    """The summary of a survey by some workers, whose parts come in any order."""
    models = [MatrixFactorization(settings, 1) for _ in range(workers)]
    parts = [model.survey_part() for model in models]
    for block in blocks_of(lines, blocks):
        parts[block.number % workers].add(block)
    surveyor = MatrixFactorization.surveyor(settings)
    for part in reversed(parts):
        surveyor.add(part.take())
    return surveyor.result()


def divided(settings, lines, summary, blocks=3):
    """What a worker trains and what it holds out, as lines, once each."""
    split = HeldOutSplit.of(MatrixFactorization.held_out(settings), Names(summary).rest)
    trained_lines, held_lines = [], []
    columns = MatrixFactorization.columns_of(settings)
    for block in blocks_of(lines, blocks):
        read = columns.read(block.data, "text", 0, lines[0])
        texts = [line for line in block.data.splitlines(keepends=True) if line]
        for text, held in zip(texts, split.held(read).tolist(), strict=True):
            (held_lines if held else trained_lines).append(text)
    return trained_lines, held_lines


@pytest.mark.parametrize("settings", SPLITS)
@pytest.mark.parametrize("loss", ["squared", "als", "softmax"])
def test_lines_are_trained_or_held_out_and_names_are_of_the_trained_ones(settings, loss):
    settings = replace(RATED, loss=loss, **settings)
    lines = lines_of()
    summary = surveyed(settings, lines)
    kept, held = divided(settings, lines, summary)
    assert Counter(kept) + Counter(held) == Counter(lines)
    assert 20 < len(held) < 300
    names, alone = Names(summary), Names(surveyed(replace(RATED, loss=loss), kept))
    assert names.names == alone.names
    np.testing.assert_array_equal(np.concatenate(names.counts), np.concatenate(alone.counts))
    if loss == "squared":
        assert names.values.mean == pytest.approx(alone.values.mean)
        assert names.values.deviation == pytest.approx(alone.values.deviation)


@pytest.mark.parametrize("settings", SPLITS)
def test_split_depends_on_the_lines_alone(settings):
    settings, lines = replace(RATED, **settings), lines_of()
    summary = surveyed(settings, lines, 1, 1)
    expected = divided(settings, lines, summary, 1)
    for blocks, workers in ((5, 1), (7, 3), (60, 2)):
        other = surveyed(settings, lines, blocks, workers)
        assert Names(other).names == Names(summary).names
        assert divided(settings, lines, other, blocks) == expected


@pytest.mark.parametrize("settings", SPLITS)
@pytest.mark.parametrize("loss", ["squared", "als", "pairwise"])
def test_order_of_the_input_and_the_number_of_workers_decide_nothing(settings, loss):
    settings, lines = replace(RATED, loss=loss, **settings), lines_of(400)
    _, held = divided(settings, lines, surveyed(settings, lines))
    ordered = settings.held_out_by == "user_order"
    for seed, workers in ((1, 1), (2, 2), (3, 8)):
        drawn = np.random.default_rng(seed).permutation(len(lines))
        if ordered:  # of a user the last lines count, and users may come in any order
            users = [crc32(line.split(b",")[0], seed) for line in lines]
            drawn = sorted(range(len(lines)), key=lambda place: (users[place], place))
        others = [lines[place] for place in drawn]
        _, held_too = divided(settings, others, surveyed(settings, others, 9, workers), 7)
        assert Counter(held_too) == Counter(held)


def pair_of(line):
    return tuple(line.split(b",")[:2])


@pytest.mark.parametrize("settings", [*SPLITS[:4], *SPLITS[5:8]])
def test_pair_that_comes_twice_is_held_out_whole(settings):
    settings, lines = replace(RATED, **settings), lines_of()
    kept, held = divided(settings, lines, surveyed(settings, lines))
    assert not {*map(pair_of, kept)} & {*map(pair_of, held)}


@pytest.mark.parametrize("amount", [0.2, 0.5, 1, 3])
@pytest.mark.parametrize("by", ["user", "user_time", "user_order"])
def test_each_user_has_its_share_held_out_and_something_to_train(by, amount):
    settings, lines = replace(RATED, held_out=amount, held_out_by=by), lines_of()
    kept, held = divided(settings, lines, surveyed(settings, lines))
    of_kept, of_held = ({*map(pair_of, some)} for some in (kept, held))
    users = Counter(user for user, _ in of_kept | of_held)
    trained_pairs, tested = (Counter(user for user, _ in some) for some in (of_kept, of_held))
    for user, number in users.items():
        wanted = max(1, int(amount * number + 1e-9)) if amount < 1 else amount
        assert tested[user] == min(wanted, number - 1), user
        assert trained_pairs[user] >= 1
    last = {}
    for place, line in enumerate(lines):
        time = int(line.split(b",")[3])
        at = {"user": 0, "user_time": time, "user_order": place}[by]
        last[pair_of(line)] = max(at, last.get(pair_of(line), 0))
    for user in users:
        early = [last[pair] for pair in of_kept if pair[0] == user]
        late = [last[pair] for pair in of_held if pair[0] == user]
        assert not late or max(early) <= min(late)


def test_time_holds_out_the_latest_lines_and_a_date_those_from_it_on():
    lines = lines_of()
    settings = replace(RATED, held_out=0.25, held_out_by="time")
    kept, held = divided(settings, lines, surveyed(settings, lines))
    early, late = ([int(line.split(b",")[3]) for line in some] for some in (kept, held))
    assert max(early) < min(late)
    assert 0.25 <= len(held) / len(lines) < 0.27
    settings = replace(RATED, held_out_from="1970-01-01T00:10:00")
    kept, held = divided(settings, lines, surveyed(settings, lines))
    assert {int(line.split(b",")[3]) >= 600 for line in held} == {True}
    assert {int(line.split(b",")[3]) >= 600 for line in kept} == {False}


def test_line_holds_out_about_its_share_and_other_lines_with_another_seed():
    lines = [b"u%d,i%d,1\n" % (n % 97, n) for n in range(20_000)]
    settings = replace(RATED, held_out=0.1)
    _, held = divided(settings, lines, surveyed(settings, lines))
    assert len(held) == pytest.approx(2000, rel=0.1)
    settings = replace(settings, seed=4)
    _, others = divided(settings, lines, surveyed(settings, lines))
    assert len({*held} & {*others}) == pytest.approx(200, rel=0.3)
    more = replace(settings, held_out=0.2)  # a larger share has the lines of a smaller one
    assert {*others} < {*divided(more, lines, surveyed(more, lines))[1]}


def test_pairs_of_a_small_example():
    users = np.array([0, 0, 0, 1, 2, 2], np.int32)
    draws = np.array([5, 3, 9, 7, 8, 8], np.uint64)
    times = np.array([1.0, 9.0, 2.0, 4.0, 1.0, 2.0])
    assert pairs_held_out(users, draws, np.zeros(0), 1).tolist() == [9]
    assert pairs_held_out(users, draws, times, 1).tolist() == [3]
    assert pairs_held_out(users, draws, times, 5).tolist() == [3, 9]
    assert pairs_held_out(users[:0], draws[:0], times[:0], 0.5).tolist() == []


def files_of_training(folder, settings, lines, workers):
    """Arrays of a model that some workers have trained, and what `judge` says of it."""
    (folder / "in.csv").write_bytes(b"".join(lines))
    words = {
        "worker_class": "snailps.models.embeddings.mf:MatrixFactorization", "loss": "als",
        "input": str(folder / "in.csv"), "output": str(folder / "out"), "dim": 4, "epochs": 2,
        "block_bytes": 700, **settings,
    }  # fmt: skip
    with trained({name: str(value) for name, value in words.items()}, workers) as (cls, results):
        figures = cls.judge(results)
        cls.export(results)
    with np.load(folder / "out.npz") as arrays:
        names = {*arrays.files} - {"about", "mean"}
        return {name: arrays[name] for name in names}, figures


@pytest.mark.parametrize("settings", [SPLITS[0], SPLITS[1], SPLITS[4], SPLITS[7]])
def test_model_is_bit_for_bit_that_of_a_file_without_the_held_out_lines(tmp_path, settings):
    lines = lines_of()
    rule = replace(RATED, seed=1, loss="als", **settings)
    kept, held = divided(rule, lines, surveyed(rule, lines))
    model, figures = files_of_training(tmp_path, settings, lines, 2)
    alone, _ = files_of_training(tmp_path, {}, kept, 1)
    assert model.keys() == alone.keys()
    for name, array in alone.items():
        np.testing.assert_array_equal(model[name], array)
    assert figures["test"]["held_out"] == len(held)
    (tmp_path / "test.csv").write_bytes(b"".join(held))
    _, beside = files_of_training(tmp_path, {"test": tmp_path / "test.csv"}, kept, 1)
    assert beside["test"] == {k: v for k, v in figures["test"].items() if k != "held_out"}


def test_sample_has_some_users_with_all_their_lines_and_what_they_have_seen():
    ids = np.array([[0, 0, 1, 3, 3, 4, -1, 5], [1, 2, 0, 4, 5, -1, 1, 1]], np.int32)
    seen = np.array([[0, 1, 2, 3, 5], [3, 1, 1, 0, 2]], np.int32)
    lines = LinesTested(LineIds(ids, np.arange(8.0), 2), seen)
    for users_max, lines_max in ((2, 100), (100, 4), (100, 100), (1, 1)):
        users, sample = lines.sample(users_max, lines_max, 1).of_users()
        assert 1 <= len(users) <= min(users_max, 5)
        assert sample.lines.ids.shape[1] <= max(lines_max, 2)
        whole = [(user, item) for user, item in ids.T.tolist() if user in users]
        assert [(users[user], item) for user, item in sample.lines.ids.T.tolist()] == whole
        assert sample.lines.values.tolist() == [
            place for place, user in enumerate(ids[0].tolist()) if user in users
        ]
        assert [users[user] for user in sample.seen[0]] == [u for u in seen[0] if u in users]
    assert not len(LinesTested(LineIds(ids[:, 6:7], np.zeros(0), 1), seen).sample(3, 3, 1).lines)


@pytest.mark.parametrize("loss", ["als", "squared", "softmax"])
def test_test_during_the_training_has_the_figures_of_its_end_where_all_users_are_drawn(
    tmp_path, loss
):
    (tmp_path / "in.csv").write_bytes(b"".join(lines_of()))
    settings = {
        "worker_class": "snailps.models.embeddings.mf:MatrixFactorization", "loss": loss,
        "input": tmp_path / "in.csv", "dim": 4, "epochs": 2, "held_out": 0.2, "held_out_by": "user",
    }  # fmt: skip
    texts = {name: str(value) for name, value in settings.items()}
    with trained(texts, 1) as (cls, results):
        test = cls.tester(results.settings)
        during, again = test(results), test(results)
        assert during == again
        end = cls.judge(results)["test"]
        for name, value in during.items():
            assert value == pytest.approx(end[name], abs=1e-5)
        assert [*during] == (["rmse"] if loss == "squared" else ["ndcg_at_10", "recall_at_10"])
        without = replace(results.settings, held_out=0.0)
        assert cls.tester(without) is None


@pytest.mark.parametrize("loss", ["als", "squared", "softmax"])
def test_early_stop_on_lines_of_users_that_were_not_trained_is_refused(tmp_path, loss):
    text = b"".join(lines_of(200))
    (tmp_path / "in.csv").write_bytes(text)
    (tmp_path / "test.csv").write_bytes(b"nobody,i1,3,4\n")
    settings = {
        "worker_class": "snailps.models.embeddings.mf:MatrixFactorization", "loss": loss,
        "input": tmp_path / "in.csv", "dim": 4, "epochs": 2, "test": tmp_path / "test.csv",
        "stop_after": 1,
    }  # fmt: skip
    texts = {name: str(value) for name, value in settings.items()}
    with trained(texts, 1) as (cls, results):
        with pytest.raises(DataError, match="none of the lines to test on has a figure"):
            cls.validation(results.settings).test(results)
        new = next(f"u7,i{item}" for item in range(15) if f"u7,i{item},".encode() not in text)
        (tmp_path / "test.csv").write_bytes(f"nobody,i1,3,4\n{new},3,4\n".encode())
        results.memo.clear()
        assert cls.validation(results.settings).test(results)


def test_continued_training_holds_out_what_the_first_one_did(tmp_path):
    lines = lines_of()
    rule = replace(RATED, seed=1, loss="als", held_out=0.2)
    kept, held = divided(rule, lines, surveyed(rule, lines))
    files_of_training(tmp_path, {"held_out": 0.2}, lines[:300], 1)
    (tmp_path / "out.npz").rename(tmp_path / "first.npz")
    goes_on = {"continue_from": tmp_path / "first.npz"}
    model, figures = files_of_training(tmp_path, goes_on, lines, 2)
    assert figures["test"]["held_out"] == len(held)
    alone, _ = files_of_training(tmp_path, {**goes_on, "held_out": 0}, kept, 1)
    for name, array in alone.items():
        np.testing.assert_array_equal(model[name], array)


def test_continued_ratings_hold_out_the_lines_of_their_file_or_are_refused(tmp_path):
    path, lines = tmp_path / "first.npz", lines_of()
    files_of_training(tmp_path, {"held_out": 0.2, "loss": "squared", "epochs": 1}, lines, 1)
    (tmp_path / "out.npz").rename(path)

    def adopted(**settings):
        made = replace(RATED, continue_from=str(path), **settings)
        origins = {name: f"--{name}".replace("_", "-") for name in settings}
        return MatrixFactorization.adopt(made, origins.get)

    first = adopted()
    assert (first.held_out, first.held_out_by, first.seed) == (0.2, "line", 1)
    assert adopted(seed=2, held_out=0.0).seed == 2
    for name, value in {"seed": 2, "held_out_by": "user"}.items():
        origin = f"--{name}".replace("_", "-")
        with pytest.raises(ConfigError, match=f"^{origin}: expected .*, by which lines were held"):
            adopted(**{name: value})


def test_ratings_are_tested_on_the_held_out_lines_as_on_a_file_of_them(tmp_path):
    lines = lines_of()
    settings = {"held_out": 0.2, "held_out_by": "user", "loss": "squared", "epochs": 3}
    rule = replace(RATED, seed=1, held_out=0.2, held_out_by="user")
    _, held = divided(rule, lines, surveyed(rule, lines))
    _, figures = files_of_training(tmp_path, settings, lines, 2)
    assert figures["test"]["held_out"] == len(held)
    assert 0.5 < figures["test"]["rmse"] < 2.5


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"held_out": 0.1, "test": ("x",)}, "held_out: expected none beside test, got both"),
        ({"held_out": 0.1, "held_out_from": "3"}, "held_out_from: expected none beside held_out"),
        ({"held_out": 1}, "held_out: expected a share below 1, .* got 1 with held_out_by line"),
        ({"held_out": 1.5, "held_out_by": "user"}, "expected a share below 1.* got 1.5"),
        ({"held_out_from": "May"}, "held_out_from: expected a time, .* got 'May'"),
        ({"held_out_by": "user", "held_out_from": "3"}, "expected no held_out_by beside it, got u"),
        (
            {"held_out": 0.1, "test": ("x",), "continue_from": "m.npz"},
            r"Leave one of them out\. m\.npz has its own: held_out: 0 and an empty held_out_from",
        ),
    ],
)
def test_contradictions_are_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        HeldOutRule.of(replace(RATED, **settings))


def test_split_without_lines_on_one_side_is_refused():
    single = [b"u%d,i%d,1,5\n" % (n, n) for n in range(20)]
    with pytest.raises(DataError, match=r"held_out: none of 20 lines .* hold out by line or time"):
        surveyed(replace(RATED, held_out=1, held_out_by="user"), single)
    with pytest.raises(DataError, match=r"held_out: all of 20 lines .* hold out by user_time"):
        surveyed(replace(RATED, held_out=0.1, held_out_by="time"), single)


@pytest.mark.parametrize("loss", ["als", "squared"])
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"held_out": 1 - 1e-12}, "held_out: 1 left no line to train: hold out fewer"),
        ({"held_out_from": "5"}, r"no line has a time before 5, .* 2024-01-01 a date"),
    ],
)
def test_rule_that_holds_all_lines_out_is_refused(settings, text, loss):
    with pytest.raises(DataError, match=text):
        surveyed(replace(RATED, loss=loss, **settings), [b"u,i,1,5\n", b"v,j,2,6\n"])


def test_input_that_has_only_names_of_columns_is_refused():
    with pytest.raises(DataError, match="expected lines of names, got none: a first line that"):
        surveyed(RATED, [b"user,item,rating\n"], 1, 1)


def test_way_to_hold_out_without_a_number_of_lines_is_warned_of(tmp_path, caplog):
    (tmp_path / "in.csv").write_bytes(b"".join(lines_of(5)))
    settings = replace(RATED, held_out_by="user", input=(str(tmp_path / "in.csv"),))
    MatrixFactorization.check(replace(settings, held_out=0.1))
    MatrixFactorization.check(replace(settings, continue_from="m.npz"))
    assert not caplog.text
    MatrixFactorization.check(settings)
    assert "held_out_by: user has no effect with held_out: 0" in caplog.text


def test_test_without_figures_has_its_reason():
    assert untested({"unknown": 0, "held_out": 0}) == "no line was held out"
    assert untested({"unknown": 3, "held_out": 3}) == (
        "nothing is left: 3 of its lines have unknown names"
    )


def test_part_of_another_process_is_refused_if_malformed():
    part = MatrixFactorization(replace(RATED, held_out=1, held_out_by="user"), 1).survey_part()
    part.add(next(blocks_of(lines_of(), 1)))
    names = Names(part.take())
    assert len(LineKeys.load(names.rest, names).users) == 600
    for cut in (0, 5, 100, len(names.rest) - 1):
        with pytest.raises(DataError, match="malformed lines"):
            LineKeys.load(names.rest[:cut], names)
    with pytest.raises(DataError, match="malformed lines"):
        LineKeys.load(names.rest.replace(b"\0\0\0", b"\xff\xff\xff", 40), names)
    with pytest.raises(DataError, match="lacks the held-out lines"):
        HeldOutSplit.of(HeldOutRule(1, "user", np.inf, 1), b"12345")


TIMED = NameColumns(("user", "item"), valued=True, time=4)


@pytest.mark.parametrize(
    ("data", "times", "values"),
    [
        (b"u,i,3,978300760\nv,j,4,978300761.5\n", [978300760, 978300761.5], [3, 4]),
        (b"user,item,rating,time\nu,i,3,2024-05-31\n", [1717113600], [3]),
        (b"u::i::3::978300760\n", [978300760], [3]),
        (b"u\ti\t3\t2024-05-31T00:00:01Z\tmore\n", [1717113601], [3]),
        (b"u,i,3,12.5\nu,j,3,2024-05-31\nu,k,3,2024\n", [12.5, 1717113600, 2024], [3, 3, 3]),
    ],
)
def test_times_are_numbers_or_dates(data, times, values):
    read = TIMED.read(data, "x", 0, data)
    assert (read.times.tolist(), read.values.tolist()) == (times, values)
    assert TIMED.read(data, "x", 0, data).take(np.zeros(len(read), bool)).times.tolist() == []


def test_third_column_may_have_the_time_in_the_place_of_a_value():
    columns = replace(TIMED, time=3)
    for head in (b"", b"user,item,time\n"):
        read = columns.read(head + b"u,i,2024-05-31\nv,j,2024-06-01\n", "x", 0, head or b"u,i,7\n")
        assert (len(read.values), np.diff(read.times).tolist()) == (0, [86400])


@pytest.mark.parametrize("between", [b"T", b" "])
@pytest.mark.parametrize(
    ("zone", "seconds"),
    [
        (b"", 1717156800), (b"Z", 1717156800), (b"+00:00", 1717156800),
        (b"+05:30", 1717137000), (b"+0530", 1717137000), (b" +0530", 1717137000),
        (b"-05:00", 1717174800), (b"-05", 1717174800),
    ],
)  # fmt: skip
def test_zone_of_a_time_counts_alike_after_t_and_after_a_blank(between, zone, seconds):
    """By hand: 2024-05-31 12:00 in UTC, less the zone's hours."""
    for text in (b"12:00:00", b"12:00"):
        assert times_of([b"2024-05-31" + between + text + zone]).tolist() == [seconds]
    fraction = times_of([b"2024-05-31" + between + b"12:00:00.25" + zone, b"1970"])
    assert fraction.tolist() == [seconds + 0.25, 1970]


@pytest.mark.parametrize(
    "cell",
    [b"2024-05-31+05:00", b"2024-05-31T+05", b"2024-05-31T12:00+5", b"2024-05-31T12:00+05:60",
     b"2024-13-31T12:00", b"2024-05-31T12:00Z+01", b"2024-05-31T25:00"],
)  # fmt: skip
def test_malformed_date_or_zone_is_no_time(cell):
    assert not len(times_of([cell]))


@pytest.mark.parametrize("cell", [b"", b"soon", b"nan", b"inf", b"2024-05-31T00:00:00+24:00"])
def test_cell_that_is_no_time_is_refused_with_its_line(cell):
    assert not len(times_of([b"1", cell]))
    data = b"u,i,3,5\nv,j,4," + cell + b"\n"
    with pytest.raises(DataError, match="line 2: expected a time in column 4, a number or a date"):
        TIMED.read(data, "x", 0, data)
    with pytest.raises(DataError, match="with a time in column 4"):
        TIMED.read(b"u,i,3\n", "x", 0, b"u,i,3\n")


@pytest.mark.parametrize(
    "split",
    [{}, {"held_out": 0.2, "held_out_by": "user"}, {"held_out": 0.2, "held_out_by": "time"}],
)
def test_column_of_times_is_no_value_whatever_is_held_out(tmp_path, split):
    path = tmp_path / "log.csv"
    path.write_text("".join(f"u{n % 9},i{n % 7},{1_700_000_000 + n}\n" for n in range(200)))
    settings = MfSettings(input=(str(path),), time_column=3, **split)
    adopted = MatrixFactorization.adopt(settings, lambda name: None)
    assert adopted.loss == "als"
    lines = path.read_bytes().splitlines(keepends=True)
    assert not len(MatrixFactorization(adopted, 1).read(next(blocks_of(lines, 1))).values)
    (tmp_path / "test.csv").write_text("u1,i1,-5\nu2,i2,-6\n")  # times before 1970
    texts = {"loss": "als", "time_column": 3, "test": tmp_path / "test.csv"}
    _, figures = files_of_training(tmp_path, texts, lines, 1)
    assert figures["test"]["seen"] + figures["test"].get("users", 0) == 2


def rated_file(folder, values):
    path = folder / "rated.csv"
    path.write_text("".join(f"u{n % 9},i{n},{value}\n" for n, value in enumerate(values)))
    return str(path)


@pytest.mark.parametrize(
    ("values", "loss"),
    [
        ([1] * 50, "als"),
        ([5] * 50, "als"),
        ([1, 2] * 25, "squared"),
        ([1] * 30_000 + [2], "squared"),  # not among the first lines
        ([0] * 50, "squared"),
        ([4], "squared"),  # a single one says nothing
        ([-1] * 50, "squared"),
    ],
)
def test_values_that_are_all_equal_are_choices(tmp_path, values, loss):
    settings = MfSettings(input=(rated_file(tmp_path, values),))
    assert MatrixFactorization.adopt(settings, lambda name: None).loss == loss


def test_ratings_that_are_all_equal_are_warned_of(tmp_path, caplog):
    lines = [b"u%d,i%d,3\n" % (n % 9, n) for n in range(50)]
    surveyed(RATED, lines)
    assert "all 50 values are 3, so that all predictions are, too: if lines are choices" in (
        caplog.text
    )
    caplog.clear()
    surveyed(RATED, [*lines, b"u1,i1,4\n"])
    assert not caplog.text
