"""models.embeddings.lists: the best items of all users, and files of them."""

import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import snailps
from snailps.cli.main import app_for
from snailps.dataclass import replace
from snailps.errors import ConfigError, DataError
from snailps.models.embeddings import files
from snailps.models.embeddings.least_squares import KnownLines
from snailps.models.embeddings.lists import ListWriter, best_lists
from snailps.models.embeddings.queries import FactorModel
from snailps.models.embeddings.settings import MfSettings

USERS, ITEMS, DIM = 30, 17, 4


@pytest.fixture(params=["als", "squared"])
def model(request, tmp_path):
    rng = np.random.default_rng(3)
    arrays = {"mean": np.array([2.0]), "solver": np.array([0.1, 0.1])}
    for kind, count in (("users", USERS), ("items", ITEMS)):
        arrays[kind] = files.packed_names(
            [b"%s%d" % (kind[:1].encode(), at) for at in range(count)]
        )
        arrays[files.rows_of(kind)] = rng.normal(size=(count, DIM)).astype(np.float32)
    if request.param == "als":
        pairs = rng.integers(0, [[USERS], [ITEMS]], (2, 60)).astype(np.int32)
        arrays |= KnownLines.of(*pairs, USERS).arrays()
    path = str(tmp_path / "model.npz")
    settings = MfSettings(
        worker_class="snailps.models.embeddings.mf:MatrixFactorization",
        loss=request.param,
        dim=DIM - (request.param == "squared"),
    )
    files.write(path, settings, arrays)
    return FactorModel(path)


def lists_of(model, k, **options):
    """Items and values of each user, by name."""
    found = {}
    for first, items, values in best_lists(model, k, threads=2, **options):
        for user, (own, high) in enumerate(zip(items, values, strict=True), first):
            found[model.users[user]] = [
                (model.items[item], value)
                for item, value in zip(own.tolist(), high.tolist(), strict=True)
                if item >= 0
            ]
    return found


def test_lists_of_all_users_are_those_of_each(model, monkeypatch):
    monkeypatch.setattr("snailps.models.embeddings.ranking.LISTED", 4)
    for k in (1, 5, 1 << 40):  # memory is that of all items
        found = lists_of(model, k)
        assert list(found) == model.users
        for user, best in found.items():
            wanted = model.recommend(user, k)
            assert [name for name, _ in best] == [name for name, _ in wanted]
            np.testing.assert_allclose([v for _, v in best], [v for _, v in wanted], atol=1e-5)


def test_lists_leave_out_known_pairs_and_other_items(model):
    known = np.array([[0, 0], [1, 2]], np.int32)
    only = ["i1", "i2", "i3", "unheard of"]
    found = lists_of(model, 9, known=[known], only=only)
    assert {name for name, _ in found["u0"]} <= {"i3"}
    assert {name for best in found.values() for name, _ in best} == {"i1", "i2", "i3"}
    with pytest.raises(DataError, match="knows none of the 1 items to choose from"):
        lists_of(model, 9, only=["unheard of"])


@pytest.mark.parametrize("format", ["tsv", "parquet"])
def test_files_have_a_row_an_item(model, format):
    file = io.BytesIO()
    writer = ListWriter(model, file, format)
    for lists in best_lists(model, 3, threads=1):
        writer.write(lists)
    wanted = [(u, i, v) for u, best in lists_of(model, 3).items() for i, v in best]
    if format == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        writer.close()
        rows = [
            tuple(row.values())
            for row in parquet.read_table(io.BytesIO(file.getvalue())).to_pylist()
        ]
    else:
        writer.close()
        lines = [line.split("\t") for line in file.getvalue().decode().splitlines()]
        rows = [(user, item, float(value)) for user, item, value in lines]
    assert writer.users == USERS
    assert [row[:2] for row in rows] == [row[:2] for row in wanted]
    np.testing.assert_allclose([row[2] for row in rows], [row[2] for row in wanted], rtol=1e-6)


def test_pairs_of_a_file_are_those_above_0_with_known_names(model, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("u0 i1 1\nu1 i2 0\nu9 i99 1\nu2 i3 2\n")
    assert model.pairs_in(str(path)).tolist() == [[0, 2], [1, 3]]


def test_command_prints_lists_and_counts_unknown_items(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "only.txt").write_text("i1\ni2\nunheard of\n")
    words = ["recommend", "model.npz", "--only", "only.txt", "-k", "2"]
    printed = CliRunner().invoke(app_for(), words)
    assert {line.split("\t")[1] for line in printed.stdout.splitlines()} == {"i1", "i2"}
    assert printed.stderr == (
        "--only only.txt: 1 of 3 names are unknown and left out; the first is 'unheard of'\n"
    )
    dash = CliRunner().invoke(app_for(), [*words, "--output", "-"])
    assert (dash.stdout, (tmp_path / "-").exists()) == (printed.stdout, False)
    (tmp_path / "only.txt").write_text("unheard of\n")
    with pytest.raises(DataError, match=r"knows none of the 1 items .*, the first is 'unheard of'"):
        raise CliRunner().invoke(app_for(), words).exception


def test_user_who_has_all_items_gets_a_dash_and_no_list(model, tmp_path):
    if model.settings.predicts:
        return
    arrays = dict(np.load(tmp_path / "model.npz"))
    del arrays["about"]
    pairs = np.array([[0] * ITEMS, range(ITEMS)], np.int32)
    files.write(
        str(tmp_path / "all.npz"), model.settings, arrays | KnownLines.of(*pairs, USERS).arrays()
    )
    (tmp_path / "q.txt").write_text("u0 ?\nu1 ?\n")
    words = ["predict", str(tmp_path / "all.npz"), str(tmp_path / "q.txt")]
    lines = CliRunner().invoke(app_for(), words).stdout.splitlines()
    assert lines[0] == "1\t-\t-"
    assert [line.split("\t")[0] for line in lines[1:]] == ["2"]
    words = ["recommend", str(tmp_path / "all.npz"), "-k", "1", "--output", str(tmp_path / "l")]
    assert CliRunner().invoke(app_for(), words).stderr == (
        f"wrote {tmp_path / 'l'}: lists of {USERS - 1} users\n"
        "users without a list, as no item is left for them: 1\n"
    )
    assert len((tmp_path / "l").read_text().splitlines()) == USERS - 1


def test_pairs_that_are_given_are_left_out_beside_those_of_the_training(model, tmp_path):
    if model.settings.predicts:
        return
    estimator = snailps.MatrixFactorization.load(tmp_path / "model.npz")
    of_training = estimator.evaluate([("u0", "i0"), *_names_of(model.known_pairs()[0])])["seen"]
    figures = estimator.evaluate(
        [("u0", "i0"), *_names_of(model.known_pairs()[0])], seen=[("u9", "i9")]
    )
    assert figures["seen"] == of_training >= 50


def test_rejected_pairs_that_are_given_are_left_out_where_values_are_weights(model, tmp_path):
    if model.settings.predicts:
        return
    arrays = dict(np.load(tmp_path / "model.npz"))
    del arrays["about"]
    settings = replace(model.settings, weights="values")
    files.write(str(tmp_path / "weighed.npz"), settings, arrays)
    estimator = snailps.MatrixFactorization.load(tmp_path / "weighed.npz")
    (best, _), (second, _) = estimator.recommend("u0", 2)
    assert estimator.recommend("u0", 1, seen=[("u0", best, -1.0)])[0][0] == second
    assert estimator.recommend("u0", 1, seen=[("u0", best, 0.0)])[0][0] == best
    held = [("u0", best), ("u0", second)]
    assert estimator.evaluate(held, seen=[("u0", best, -1.0)])["seen"] == 1


def _names_of(pairs):
    return [(f"u{user}", f"i{item}") for user, item in pairs.T.tolist()]


def test_command_judges_lists_of_the_length_that_is_asked_for(model, tmp_path):
    held = [("u3", "i1"), ("u3", "i4"), ("u9", "i9"), ("u9", "i16"), ("u2", "i0"), ("x", "i3")]
    (tmp_path / "held.txt").write_text("".join(f"{user}\t{item}\t1\n" for user, item in held))
    path = tmp_path / "model.npz"

    def test_of(*options):
        words = ["test", str(path), str(tmp_path / "held.txt"), "--json", *options]
        return CliRunner().invoke(app_for(), words)

    if model.settings.predicts:
        with pytest.raises(ConfigError, match=r"-k is for classifiers of text .* rankings of mf"):
            raise test_of("-k", "3").exception
        return
    for k in (1, 3, 10):
        figures = json.loads(test_of(*(["-k", str(k)] if k != 10 else [])).output)
        known = {*zip(*(names.tolist() for names in model.known_pairs()[0]), strict=True)}
        wanted, hits = {}, []
        for user, item in held[:5]:
            if (int(user[1:]), int(item[1:])) not in known:
                wanted.setdefault(user, set()).add(item)
        for user, items in wanted.items():
            found = {name for name, _ in model.recommend(user, k)} & items
            hits.append(len(found) / min(k, len(items)))
        assert figures[f"recall_at_{k}"] == pytest.approx(np.mean(hits))
        assert (figures["unknown"], figures["users"]) == (1, len(wanted))
    with pytest.raises(ConfigError, match="-k: expected lists of 1 item or more, got -1"):
        raise test_of("-k", "-1").exception
