"""models.embeddings.least_squares: ranges solved by one worker or several, beside a twin."""

from dataclasses import replace

import numpy as np
import pytest
from attach import attached
from connected import connected, results_of
from twins import least_squares as twin

from snailps.config import RawConfig
from snailps.data.name_columns import NameCounts, Names
from snailps.errors import ConfigError, DataError, ModelFileError
from snailps.master.job.beginning import prepare
from snailps.master.job.job import Job
from snailps.master.job.settings import job_settings
from snailps.master.leases.ranges import RangeSchedule
from snailps.models.embeddings import factor_losses, files, least_squares
from snailps.models.embeddings.least_squares import KnownLines, Weights, bounds_of
from snailps.models.embeddings.mf import ITEM, USER, MatrixFactorization
from snailps.models.embeddings.queries import FactorModel
from snailps.models.embeddings.settings import LOSSES, SMALL_LINES, MfSettings
from snailps.pieces import Piece
from tests.support.blocks import HeldContent, held_block

SETTINGS = MfSettings(loss="als", dim=5, epochs=2, a0=0.5, l2=0.07)
USERS, ITEMS = 40, 25
WORKER_CLASS = f"{MatrixFactorization.__module__}:MatrixFactorization"


def lines_of(seed=1, count=400):
    """Lines of users and items, some of them twice."""
    rng = np.random.default_rng(seed)
    pairs = np.column_stack([rng.integers(0, USERS, count), rng.zipf(1.5, count) % ITEMS])
    return [b"u%d\ti%d\n" % (user, item) for user, item in pairs]


def summary_of(lines, settings=SETTINGS):
    """What the survey of lines gives, with the names of a file that is continued."""
    counts = NameCounts(2)
    for kind in (USER, ITEM):
        counts.add(kind, [line.split()[kind] for line in lines])
    counts.add_values(values_of(lines))
    surveyor = MatrixFactorization.surveyor(settings)
    surveyor.add(counts.dump())
    return surveyor.result()


def values_of(lines):
    return np.array([float(value) for line in lines for value in line.split()[2:]])


@pytest.fixture
def small_ranges(monkeypatch):
    monkeypatch.setattr(least_squares, "RANGE_LINES", 100)


def rows_of(lines, workers=1, blocks=3, again=(), settings=SETTINGS, threads=1):
    """Rows of users and of items; entries `again` are trained twice, by different workers.

    As in a job, the rows of a file that is continued are set before, and `output` is written.
    """
    summary = summary_of(lines, settings)
    parts = [b"".join(part) for part in np.array_split(np.array(lines, object), blocks)]
    pieces = [Piece("text", 100 * at, 100 * at + 50) for at in range(blocks)]
    schedule = RangeSchedule(pieces, MatrixFactorization.range_passes(settings, summary))
    with connected(MatrixFactorization, shards=2) as make:
        models = [make(settings, threads=threads, summary=summary)]
        models += [make(settings, summary=summary, beside=models[0]) for _ in range(workers - 1)]
        names, results = Names(summary), results_of(models[0], summary)
        if loader := MatrixFactorization.loader(settings):
            loader(results)
        step, loss = 0, {}
        while not schedule.over:
            node = step % workers
            entry = schedule.take(node + 1)
            if entry is None:  # another worker's turn
                step += 1
                continue
            for model in [models[node], *models[-1:] * (entry.number in again)]:
                terms, content = entry.terms, HeldContent(b"")
                if not terms.pass_index:
                    content = HeldContent(parts[terms.range_index], lines[0])
                block = held_block(content, entry.number, entry.piece, terms=terms)
                block.prepared = model.prepare(block)
                figures = model.train(block)
                attached(model)[0].flush()  # as a worker before it reports the range
            loss[terms.pass_index] = loss.get(terms.pass_index, 0) + figures.get("loss", 0)
            schedule.done(entry.number, node + 1)
            step += 1
        if settings.output:
            MatrixFactorization.export(results)
        found = [MatrixFactorization.rows_of_kind(results, names, kind) for kind in (USER, ITEM)]
    return (*found, loss)


def entries_of(names, lines, side):
    """Lines of each name, as `ptr` and places of the other side's names."""
    numbers = [names.numbers(kind, [line.split()[kind] for line in lines]) for kind in (0, 1)]
    order = np.argsort(numbers[side], kind="stable")
    counts = np.bincount(numbers[side], minlength=len(names.names[side]))
    return np.concatenate(([0], np.cumsum(counts))), numbers[1 - side][order]


def test_ranges_learn_what_the_twin_learns(small_ranges):
    lines = lines_of()
    names = Names(summary_of(lines))
    weights = Weights.of(SETTINGS, names)
    users, items, loss = rows_of(lines)
    table = least_squares.tables(SETTINGS)[0]
    sides = [None, np.zeros((len(names.names[ITEM]), 5), np.float32)]
    table.fill_first(MatrixFactorization.keys_of_kind(ITEM, len(sides[ITEM])), sides[ITEM])
    losses = []
    for step in range(4):
        side, other = step % 2, sides[1 - step % 2]
        ptr, places = entries_of(names, lines, side)
        penalties = weights.penalties(np.diff(ptr), len(other))
        gram = weights.a0 * other.T @ other
        sides[side], of_pass = twin.solve_rows(other, gram, ptr, places, [], penalties, 5)
        losses.append(of_pass)
    np.testing.assert_allclose(users, sides[USER], atol=2e-4)
    np.testing.assert_allclose(items, sides[ITEM], atol=2e-4)
    np.testing.assert_allclose([loss[at] for at in range(2, 6)], losses, rtol=1e-3)


@pytest.mark.parametrize(
    ("workers", "changed"),
    [(3, {}), (2, {"again": range(40)}), (1, {"threads": 3}), (1, {"blocks": 7})],
)
def test_bits_do_not_depend_on_workers_threads_blocks_or_repetition(small_ranges, workers, changed):
    lines = lines_of()
    alone, shared = rows_of(lines), rows_of(lines, workers, **changed)
    for kind in (USER, ITEM):
        np.testing.assert_array_equal(alone[kind], shared[kind])


def test_bits_do_not_depend_on_the_room_for_pulled_rows(small_ranges, monkeypatch):
    lines = lines_of()
    kept = rows_of(lines)
    monkeypatch.setattr(least_squares, "ROWS_BYTES", 1)  # each range pulls all that it reads
    pulled_again = rows_of(lines)
    for kind in (USER, ITEM):
        np.testing.assert_array_equal(kept[kind], pulled_again[kind])


WEIGHING = replace(SETTINGS, weights="values")


def weighted_lines():
    """Lines with weights, some below 0, and pairs that come twice, with different weights."""
    values = np.random.default_rng(2).choice([-2, 0.5, 1, 3], 400)
    return [line[:-1] + b"\t%g\n" % value for line, value in zip(lines_of(), values, strict=True)]


def test_values_are_weights_and_those_below_0_are_to_be_0(small_ranges):
    lines = weighted_lines()
    names = Names(summary_of(lines))
    users, items, _ = rows_of(lines, settings=WEIGHING)
    ptr, places = entries_of(names, lines, USER)
    order = np.argsort(names.numbers(USER, [line.split()[0] for line in lines]), kind="stable")
    given = values_of(lines)[order]
    weights = Weights.of(WEIGHING, names)
    item_rows = before_last_pass(lines)
    gram = weights.a0 * item_rows.T @ item_rows
    penalties = weights.penalties(np.diff(ptr), len(item_rows))
    expected, _ = twin.solve_rows(item_rows, gram, ptr, places, given, penalties, 5)
    np.testing.assert_allclose(users, expected, atol=3e-3)
    wanted, refused = (np.flatnonzero(sign * given > 0) for sign in (1, -1))
    of = np.repeat(np.arange(len(users)), np.diff(ptr))
    scores = (users[of] * items[places]).sum(1)
    assert scores[wanted].mean() > 1.5 * scores[refused].mean()
    for workers, changed in ((3, {}), (1, {"blocks": 7}), (1, {"threads": 3})):
        again, *_ = rows_of(lines, workers, settings=WEIGHING, **changed)
        np.testing.assert_array_equal(users, again)


def before_last_pass(lines):
    """Rows of items that the last pass over users read: those of an epoch less."""
    return rows_of(lines, settings=replace(WEIGHING, epochs=1))[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [([-1, 0], "none of 2 values is above 0"), ([1e9, 1], r"got a root mean square of 7.07e\+08")],
)
def test_weights_without_meaning_are_refused(values, message):
    counts = NameCounts(2)
    counts.add_values(np.array(values, float))
    surveyor = MatrixFactorization.surveyor(WEIGHING)
    surveyor.add(counts.dump())
    with pytest.raises(DataError, match=message):
        surveyor.result()


def test_weights_far_from_1_are_warned_of(caplog):
    counts = NameCounts(2)
    counts.add_values(np.array([50.0, 40]))
    counts.add(USER, [b"u", b"v"])
    surveyor = MatrixFactorization.surveyor(WEIGHING)
    surveyor.add(counts.dump())
    surveyor.result()
    assert "divide the values by their mean" in caplog.text


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (15_999, r"with dim 4 take 0.0 GB, .*\(MemAvailable\): leave out test.*, lower dim to 3"),
        (3_000, "train on fewer names"),
        (16_000, ""),
        (0, ""),
    ],
)
def test_rows_that_the_master_cannot_test_are_refused_before_the_training(
    monkeypatch, free, message
):
    monkeypatch.setattr(factor_losses, "memory", lambda: (free, "MemAvailable"))
    counts = NameCounts(2)
    for kind, names in ((USER, 600), (ITEM, 400)):
        counts.add(kind, [b"%d" % name for name in range(names)])
    settings = replace(SETTINGS, dim=4)
    surveyor = MatrixFactorization.surveyor(settings)
    surveyor.add(counts.dump())
    assert surveyor.result()  # nothing is tested, and a model is written in pieces
    surveyor = MatrixFactorization.surveyor(replace(settings, test=["lines.txt"]))
    surveyor.add(counts.dump())
    if not message:
        assert surveyor.result()
        return
    with pytest.raises(DataError, match=message):
        surveyor.result()


def test_memory_is_foreseen_for_the_names_of_the_continued_file_too(tmp_path, monkeypatch):
    path, (users, items) = saved(tmp_path, lines_of())
    monkeypatch.setattr(
        factor_losses, "memory", lambda: (20 * (len(users) + len(items)), "MemAvailable")
    )
    known = b"%b\t%b\n" % (users[0].encode(), items[0].encode())
    settings = replace(SETTINGS, continue_from=path, test=("held-out",))
    summary_of([known], settings)
    with pytest.raises(DataError, match=f"rows of {len(users) + 1} users and {len(items)} items"):
        summary_of([known, known.replace(known.split()[0], b"new")], settings)


def test_a_day_of_rejections_alone_goes_on_with_a_model(small_ranges, tmp_path):
    path, (users, items) = saved(tmp_path, weighted_lines(), settings=WEIGHING)
    wanted = FactorModel(path)
    scores = wanted.user_rows @ wanted.item_rows.T
    user, item = np.unravel_index(scores.argmax(), scores.shape)
    rejected = b"%b\t%b\t-5\n" % (users[user].encode(), items[item].encode())
    settings = replace(WEIGHING, continue_from=path, output=str(tmp_path / "after"))
    rows = rows_of([rejected], settings=settings)
    assert rows[USER][user] @ rows[ITEM][item] < 0.75 * scores[user, item]


def test_one_item_a_user_a_user_with_all_items_and_long_names(tmp_path):
    """None of them is an error: what they count as is in docs/matrix_factorisation.md."""
    long = b"x" * 100_000
    lines = [b"all\ti%d\n" % item for item in range(8)] + [b"all\t%b\n" % long]
    lines += [b"u%d\ti%d\n" % (user, user % 3) for user in range(12)]
    model = model_of(tmp_path, lines)
    assert np.isfinite(model.user_rows).all()
    assert np.isfinite(model.item_rows).all()
    assert model.recommend("all") == []
    assert len(model.recommend("u1", 20)) == len(model.items) - 1
    assert model.predict("all", long.decode()) > 0.2


def test_weights_need_values(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"u1 i1\n")
    settings = replace(WEIGHING, input=(str(path),))
    with pytest.raises(DataError, match="takes the weight of a line from its value"):
        MatrixFactorization.check(settings)


def saved(tmp_path, lines, name="before", settings=SETTINGS):
    """The path of a trained model, and its names."""
    rows_of(lines, settings=replace(settings, output=str(tmp_path / name)))
    path = str(tmp_path / f"{name}.npz")
    model = FactorModel(path)
    return path, (model.users, model.items)


def changed(path, names=(), **arrays):
    """A copy of a model's file with other arrays, and without those of `names`."""
    with np.load(path) as before:
        kept = {name: before[name] for name in before.files if name not in names}
    np.savez(path + "-changed.npz", **kept | arrays)
    return path + "-changed.npz"


LISTS = ("known.ptr", "known.items", "known.weights")


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, weights="values")])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_line_of_the_continued_file_counts_as_one_of_the_input(
    small_ranges, tmp_path, settings, workers
):
    """To the bit: a third of the lines is taken out of the file, and given as input."""
    lines = weighted_lines() if settings.weighs else lines_of()
    users, items, _ = rows_of(lines, settings=replace(settings, epochs=3))
    path, _ = saved(tmp_path, lines, settings=settings)
    names = Names(summary_of(lines))
    ids = np.stack([names.numbers(kind, [line.split()[kind] for line in lines]) for kind in (0, 1)])
    weights = values_of(lines).astype(np.float32)
    before = KnownLines.of(*ids[:, 130:].astype(np.int32), len(names.names[USER]), weights[130:])
    settings = replace(settings, continue_from=changed(path, LISTS, **before.arrays()), epochs=1)
    settings = replace(settings, output=str(tmp_path / "after"))
    again = rows_of(lines[:130], workers, settings=settings)
    np.testing.assert_array_equal(users, again[USER])
    np.testing.assert_array_equal(items, again[ITEM])
    with np.load(path) as of_all, np.load(tmp_path / "after.npz") as after:
        for name in {*LISTS} & {*of_all.files}:  # all lines, as in a file that had them at once
            np.testing.assert_array_equal(of_all[name], after[name])


def test_new_lines_of_known_names_and_new_names_move_all_rows(small_ranges, tmp_path):
    """The example of a user with one new line, who keeps what the others say."""
    lines = lines_of()
    path, (users, items) = saved(tmp_path, lines)
    new = [b"u3\tnew\n", b"fresh\ti1\n", b"fresh\tnew\n"]
    settings = replace(SETTINGS, continue_from=path, output=str(tmp_path / "after"))
    rows_of(new, settings=settings)
    before, after = FactorModel(path), FactorModel(tmp_path / "after.npz")
    assert (after.users, after.items) == ([*users, "fresh"], [*items, "new"])
    (pairs,) = before.known_pairs()
    known = after.known_pairs()[0]
    assert known.shape[1] == pairs.shape[1] + 3 == len(lines) + 3
    own = [item for user, item in pairs.T.tolist() if users[user] == "u3"]
    places = np.array([*own, len(items)])
    np.testing.assert_allclose(
        after.user_rows[users.index("u3")],
        after.solved("users", [after.items[at] for at in places]),
        atol=0.1,
    )
    moved = np.abs(after.user_rows[:-1] - before.user_rows).max(1)
    assert (moved > 0).all()  # whoever has no new line, too
    kept = [before.scores(np.array([[users.index("u3")] * len(own), own])).mean()]
    kept.append(after.scores(np.array([[users.index("u3")] * len(own), own])).mean())
    assert kept[1] > 0.8 * kept[0]


def test_training_on_gives_about_the_rows_of_training_anew(small_ranges, tmp_path):
    """After enough epochs; compared by scores, as rows may be turned."""
    lines = sorted(set(lines_of(count=1200)))
    first, later = lines[::2], lines[1::2]
    path, _ = saved(tmp_path, first, settings=replace(SETTINGS, epochs=40))
    settings = replace(SETTINGS, epochs=40)
    saved(tmp_path, later, "after", replace(settings, continue_from=path))
    saved(tmp_path, lines, "anew", settings)
    scores = []
    for name in ("after", "anew"):
        model = FactorModel(tmp_path / f"{name}.npz")
        orders = np.argsort(model.users), np.argsort(model.items)
        scores.append(model.user_rows[orders[0]] @ model.item_rows[orders[1]].T)
    np.testing.assert_allclose(*scores, atol=0.02)


def test_names_keep_their_rows_where_the_file_lacks_their_lines(small_ranges, tmp_path, caplog):
    """As files of an earlier version do; they count in the Gram matrix."""
    lines = lines_of()
    path, (users, items) = saved(tmp_path, lines)
    old = changed(path, LISTS)
    settings = replace(SETTINGS, continue_from=old, output=str(tmp_path / "after"))
    after = rows_of([b"u3\tnew\n", b"fresh\ti1\n"], settings=settings)
    before = FactorModel(path)
    still = [user != "u3" for user in users]
    np.testing.assert_array_equal(after[USER][:-1][still], before.user_rows[still])
    still = [item != "i1" for item in items]
    np.testing.assert_array_equal(after[ITEM][:-1][still], before.item_rows[still])
    assert "the file lacks the lines of its training" in caplog.text
    assert "1 of its users and 1 of its items are solved from the lines of this" in caplog.text
    assert "has no list of the 2 lines of its training (and " in caplog.text
    with np.load(tmp_path / "after.npz") as written:
        assert not {*LISTS} & {*written.files}  # or the next training would take it for complete


def test_a_training_that_goes_on_has_fewer_epochs():
    assert MatrixFactorization.passes(SETTINGS, None).most == 6
    assert MatrixFactorization.passes(replace(SETTINGS, continue_from="x"), None).most == 2


def test_earlier_lines_given_again_are_warned_of(small_ranges, tmp_path, caplog):
    lines = sorted(set(lines_of()))
    path, _ = saved(tmp_path, lines)
    rows = {}
    for more in (lines[:20], lines):
        caplog.clear()
        settings = replace(SETTINGS, continue_from=path, output=str(tmp_path / "after"))
        rows[len(more)] = rows_of(more, settings=settings)
        assert ("come again in this input" in caplog.text) == (more is lines)


@pytest.mark.parametrize(
    "arrays",
    [
        {"known.ptr": np.array([0, 3])},
        {"known.items": np.array([7])},
        {"known.items": np.full(400, 99)},
        {"known.items": np.full(400, -1)},
        {"known.items": np.full(400, 1 << 32)},  # 0 in the lower half
        {"known.items": np.full(400, 1 << 63, np.uint64)},
        {"known.items": np.full(400, 1.5)},
        {"known.weights": np.ones(3)},
    ],
)
def test_lists_of_lines_that_do_not_fit_the_names_are_refused(tmp_path, arrays):
    path, _ = saved(tmp_path, lines_of())
    damaged = changed(path, arrays, **arrays)
    with pytest.raises(ModelFileError, match=r"changed.npz: expected lines of \d+ users"):
        FactorModel(damaged)
    with pytest.raises(ModelFileError, match=r"changed.npz: expected lines of \d+ users"):
        summary_of(lines_of(), replace(SETTINGS, continue_from=damaged))


def test_a_training_that_ended_while_it_read_its_input_keeps_the_lines_of_the_file(
    tmp_path, caplog
):
    path, _ = saved(tmp_path, lines_of())
    settings = replace(SETTINGS, continue_from=path, output=str(tmp_path / "after"))
    summary = summary_of([b"u3\tnew\n"], settings)
    with connected(MatrixFactorization, shards=2) as make:
        results = results_of(make(settings, summary=summary), summary)
        MatrixFactorization.loader(settings)(results)
        figures = MatrixFactorization.export(results)
    assert figures["chosen"] == {"dim": 5, "a0": 0.5, "l2": 0.07, "epochs": 2}
    assert figures["repeated"] == 400 - len({*lines_of()})
    assert "ended before it had read all lines" in caplog.text
    (before,) = FactorModel(path).known_pairs()
    np.testing.assert_array_equal(FactorModel(tmp_path / "after.npz").known_pairs()[0], before)


def test_rule_for_weights_follows_the_share_of_pairs_with_a_line():
    names = Names(summary_of(lines_of()))
    density = 400 / (len(names.names[USER]) * len(names.names[ITEM]))
    weights = Weights.of(replace(SETTINGS, a0=0.0, l2=-1), names)
    assert weights.a0 == pytest.approx(min(1, least_squares.UNOBSERVED * density))
    assert weights.l2 == LOSSES["als"].l2
    chosen = Weights.of(replace(SETTINGS, a0=0.5, l2=0.0), names)
    assert (chosen.a0, chosen.l2) == (0.5, 0.0)
    every = np.concatenate(names.counts)
    others = np.repeat(
        [len(names.names[ITEM]), len(names.names[USER])], list(map(len, names.counts))
    )
    frequencies = every + weights.a0 * others
    whole = weights.l2 * frequencies.sum()  # the sum of penalties with an exponent of 1
    assert weights.l2 * weights.scale * (frequencies**0.5).sum() == pytest.approx(whole)


@pytest.mark.parametrize("ranges", [1, 2, 7])
def test_ranges_are_of_all_names_and_take_about_equally_long(ranges):
    counts = np.sort(np.random.default_rng(ranges).zipf(1.5, 300) % 50)[::-1]
    bounds = bounds_of(counts, ranges, 64)
    assert len(bounds) == ranges + 1
    assert (bounds[0], bounds[-1]) == (0, 300)
    costs = counts + 12
    sizes = np.add.reduceat(costs, bounds[:-1])
    assert sizes.max() <= costs.sum() / ranges + costs.max()
    assert (np.diff(bounds) > 0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"consistency": "bsp"}, "consistency: expected async with loss als, got bsp"),
        ({"assign": "own"}, "assign: expected auto"),
        ({"max_steps": 3}, "max_steps: expected 0.* Leave it out, or set loss: softmax"),
        ({"optimizer": "adagrad"}, "optimizer: expected auto with loss als, got adagrad"),
    ],
)
def test_schedules_that_passes_do_not_have_are_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        least_squares.check(replace(SETTINGS, **changed))


def model_of(tmp_path, lines, **changed):
    """The model of a file as the job writes it, and its rows."""
    users, items, _ = rows_of(lines)
    names = Names(summary_of(lines))
    pairs = [names.numbers(kind, [line.split()[kind] for line in lines]) for kind in (0, 1)]
    arrays = {"mean": np.zeros(1)}
    if changed.get("loss", "als") == "als":
        arrays["solver"] = least_squares.solver_of(SETTINGS, names)
    arrays |= KnownLines.of(*[column.astype(np.int32) for column in pairs], len(users)).arrays()
    for kind, rows in enumerate((users, items)):
        name = MatrixFactorization.kinds[kind]
        arrays |= {name: files.packed_names(names.names[kind]), files.rows_of(name): rows}
    path = files.write(str(tmp_path / "choices.npz"), replace(SETTINGS, **changed), arrays)
    return FactorModel(path)


def test_a_user_is_solved_from_a_list_of_items_as_in_training(tmp_path):
    lines = sorted(set(lines_of()))
    model = model_of(tmp_path, lines)
    user, chosen = "u3", [line.split()[1].decode() for line in lines if line.startswith(b"u3\t")]
    names = Names(summary_of(lines))
    weights = Weights.of(SETTINGS, names)
    rows = model.item_rows
    penalties = weights.penalties(np.array([len(chosen)]), len(rows))
    places = np.array([model.items.index(item) for item in chosen])
    gram = weights.a0 * rows.T @ rows
    (row,), _ = twin.solve_rows(rows, gram, [0, len(chosen)], places, [], penalties, 5)
    np.testing.assert_allclose(model.solved("users", chosen), row, atol=3e-4)
    assert not {item for item, _ in model.recommend(user, 20)} & {*chosen}
    assert not {item for item, _ in model.recommend(items=chosen, k=20)} & {*chosen}
    assert {item for item, _ in model.recommend(user, 25, known=True)} > {*chosen}
    assert len(model.recommend(items=chosen, k=25, known=True)) == len(model.items)


def test_an_item_is_solved_from_a_list_of_users_as_in_training(tmp_path):
    lines = sorted(set(lines_of()))
    model = model_of(tmp_path, lines)
    item, owners = "i3", [line.split()[0].decode() for line in lines if line.split()[1] == b"i3"]
    weights = Weights.of(SETTINGS, Names(summary_of(lines)))
    rows = model.user_rows
    penalties = weights.penalties(np.array([len(owners)]), len(rows))
    places = np.array([model.users.index(user) for user in owners])
    gram = weights.a0 * rows.T @ rows
    (row,), _ = twin.solve_rows(rows, gram, [0, len(owners)], places, [], penalties, 5)
    np.testing.assert_allclose(model.solved("items", owners), row, atol=1e-4)
    everyone = model.audience(item, len(model.users), known=True)
    assert {user for user, _ in everyone} == {*model.users}
    others = [(user, value) for user, value in everyone if user not in owners]
    assert model.audience(item, len(model.users)) == others
    seen = [("u0", "i3"), (others[0][0], "i3"), (others[1][0], "i4")]
    assert model.audience(item, 1, seen=seen) == others[1:2]
    assert list(model.answers([b"?\ti3\n"], 2)) == [others[:2]]
    of_new = dict(model.audience(users=owners, k=len(model.users)))
    assert not {*owners} & of_new.keys()
    for user, value in of_new.items():
        assert value == pytest.approx(row @ rows[model.users.index(user)], abs=1e-4)
    cosines = model.item_rows @ row / np.linalg.norm(model.item_rows, axis=1)
    alike = model.neighbours(users=owners, k=3)
    assert [name for name, _ in alike] == [model.items[at] for at in np.argsort(-cosines)[:3]]
    assert len(model.neighbours(items=["i3", "i4"], k=4)) == 4


def test_audience_of_ratings_has_predicted_values(tmp_path):
    model = model_of(tmp_path, lines_of(), loss="squared", dim=SETTINGS.dim - 1)
    for user, value in model.audience("i3", 4, known=True):
        assert value == pytest.approx(model.predict(user, "i3"))
    with pytest.raises(DataError, match="an item that the training did not have needs a model of"):
        model.audience(users=["u3"])


def test_recommend_refuses_what_it_cannot_answer(tmp_path):
    model = model_of(tmp_path, lines_of())
    with pytest.raises(DataError, match="expected an item, or its users"):
        model.audience("i1", users=["u1"])
    with pytest.raises(DataError, match="only one of these"):
        model.neighbours("i1", users=["u1"])
    with pytest.raises(DataError, match="users: expected the users of an item, got none"):
        model.neighbours(users=[])
    with pytest.raises(DataError, match="expected a user, or the items of one"):
        model.recommend()
    with pytest.raises(DataError, match="expected a list of names, got 'i1'"):
        model.recommend(items="i1")
    with pytest.raises(DataError, match="items: expected the items of a user, got none"):
        model.recommend(items=[])
    with pytest.raises(DataError, match="'i99' is none of its"):
        model.recommend(items=["i99"])
    model.save(tmp_path / "again.npz")
    again = FactorModel(tmp_path / "again.npz")
    assert again.recommend("u3") == model.recommend("u3")
    assert again.recommend(items=["i1"]) == model.recommend(items=["i1"])


def test_known_lines_are_sorted_by_user_item_and_weight():
    users, items = np.array([1, 0, 1, 1], np.int32), np.array([5, 2, 5, 3], np.int32)
    known = KnownLines.of(users, items, 3)
    assert known.ptr.tolist() == [0, 1, 4, 4]
    assert known.items.tolist() == [2, 3, 5, 5]
    assert [counts.tolist() for counts in known.counts(6)] == [[1, 3, 0], [0, 0, 1, 1, 0, 2]]
    weighted = KnownLines.of(users, items, 3, np.array([4, 3, -2, 1], np.float32))
    assert weighted.weights.tolist() == [3, 1, -2, 4]


def test_pairs_of_the_model_that_goes_on_are_not_judged(tmp_path):
    lines, new = sorted(set(lines_of())), [b"u3\tnew\n"]
    path = model_of(tmp_path, lines).path
    settings = replace(SETTINGS, continue_from=path, input=(str(tmp_path / "new.txt"),))
    settings = replace(settings, test=(str(tmp_path / "test.txt"),))
    (tmp_path / "new.txt").write_bytes(b"".join(new))
    (tmp_path / "test.txt").write_bytes(b"".join(lines[:5]))
    summary = summary_of(new, settings)
    with connected(MatrixFactorization, shards=2) as make:
        results = results_of(make(settings, summary=summary), summary)
        judged = MatrixFactorization.judge(results)
    assert judged == {"test": {"seen": 5, "unknown": 0}}


@pytest.mark.parametrize(
    ("data", "loss"),
    [
        (b"u1 i1\nu2 i1\n", "als"),
        (b"u1 i1 4\n", "squared"),
        (None, "squared"),
        (b"u" * 200_000 + b" i1\nu2 i1\n", "als"),
    ],
)
def test_loss_is_chosen_by_whether_lines_have_values(tmp_path, data, loss):
    path = tmp_path / "lines.txt"
    if data is not None:
        path.write_bytes(data)
    settings = MfSettings(input=(str(path),))
    assert MatrixFactorization.adopt(settings, lambda name: None).loss == loss
    weighing = replace(settings, weights="values")
    assert MatrixFactorization.adopt(weighing, lambda name: None).loss == "als"
    softmax = replace(settings, loss="softmax")
    assert MatrixFactorization.adopt(softmax, lambda name: None).loss == "softmax"


@pytest.mark.parametrize(
    ("given", "lines", "dim", "printed"),
    [
        ({}, SMALL_LINES, 128, ["dim 128"]),
        ({"dim": "auto", "held_out": "0.1"}, SMALL_LINES + 1, 64, ["dim 64"]),
        ({"dim": "7"}, 3, 7, []),
        ({"loss": "softmax"}, 3, 64, []),
    ],
)
def test_dim_is_chosen_by_the_number_of_lines(tmp_path, given, lines, dim, printed):
    """What the job is trained with, workers get and the file has; the doctor foresees the most."""
    (tmp_path / "lines.txt").write_text("u i\n" * lines)
    settings = {"input": tmp_path / "lines.txt", "output": tmp_path / "out", **given}
    settings["worker_class"] = WORKER_CLASS
    job = Job(RawConfig.from_mapping(settings, "here"), now=100.0)
    foreseen = MatrixFactorization(job.settings).tables()[0].dim
    try:
        prepare(job, 1)
    finally:
        job.input.close()
    assert (job.settings.dim, job.model.by_input.measured) == (dim, tuple(printed))
    assert MatrixFactorization(job.settings).tables()[0].dim == dim <= foreseen
    assert job.start_message(1).settings["dim"] == str(dim)


def test_lines_of_a_pair_that_comes_again_are_counted():
    """Also where users have no lines, and where one's first item is the last one's of another."""
    rng = np.random.default_rng(1)
    for count in range(40):
        users, items = rng.integers(0, [[9], [4]], (2, count))
        wanted = count - len({*zip(users.tolist(), items.tolist(), strict=True)})
        assert KnownLines.of(users, items, 9).repeated() == wanted


def test_dim_of_a_continued_model_is_its_own(tmp_path):
    lines, output = lines_of(), str(tmp_path / "before")
    rows_of(lines, settings=replace(SETTINGS, output=output, worker_class=WORKER_CLASS))
    (tmp_path / "lines.txt").write_bytes(b"".join(lines))
    given = {"input": tmp_path / "lines.txt", "continue_from": f"{output}.npz"}
    given["worker_class"] = WORKER_CLASS
    for more in ({}, {"dim": "auto"}):
        raw = RawConfig.from_mapping({**given, **more}, "here")
        assert job_settings(MatrixFactorization, raw).dim == 5
    with pytest.raises(ConfigError, match="dim: expected 5, as in"):
        job_settings(MatrixFactorization, RawConfig.from_mapping({**given, "dim": 64}, "here"))
