"""models.embeddings: settings, and blocks of triples and ratings at one worker."""

from dataclasses import replace

import numpy as np
import pytest
from connected import block_of, connected, flush, in_order, train

from snailps.config import RawConfig
from snailps.data.encoding import Encoding
from snailps.data.name_columns import NameCounts, Names
from snailps.errors import ConfigError, DataError, NotFinite
from snailps.models.embeddings.factor_losses import encoding_of, in_units, ratings
from snailps.models.embeddings.kge import KnowledgeGraph, queries
from snailps.models.embeddings.mf import MatrixFactorization
from snailps.models.embeddings.settings import KgeSettings, MfSettings
from snailps.models.embeddings.worker import KIND_KEY, TABLE, LineBatch
from snailps.models.rows import distinct

TRIPLES = b"".join(b"e%d\tr%d\te%d\n" % (i % 7, i % 2, (i * 3 + 1) % 7) for i in range(40))
RATINGS = b"".join(b"u%d,i%d,%d\n" % (i % 5, i * i % 6, 1 + i % 5) for i in range(60))


def settings_of(cls, **values):
    return RawConfig.from_mapping(values, "--{key}").build(cls)


@pytest.mark.parametrize("model", ["complex", "rotate"])
def test_kge_settings_of_complex_numbers_refuse_odd_dim(model):
    with pytest.raises(ConfigError, match="dim: expected an even number"):
        settings_of(KgeSettings, model=model, dim="7")
    settings_of(KgeSettings, model="transe", dim="7")


@pytest.mark.parametrize(("cls", "settings"), [
    (KnowledgeGraph, KgeSettings()), (MatrixFactorization, MfSettings()),
])  # fmt: skip
def test_check_refuses_optimizers_whose_deltas_do_not_add_up(cls, settings):
    with pytest.raises(ConfigError, match="optimizer: adam does not fit"):
        cls.check(replace(settings, optimizer="adam"))


NO_TRIPLES = "pairs.txt: expected lines of head relation tail"


@pytest.mark.parametrize(
    ("cls", "settings", "data", "said"),
    [
        (KnowledgeGraph, KgeSettings(), b"u1 i1\nu2 i2\n", f"^input: .*{NO_TRIPLES}"),
        (KnowledgeGraph, KgeSettings(), b"\0\1\2\xff" * 99, "txt is no text, but binary data"),
        (KnowledgeGraph, KgeSettings(), None, "^input: not found: .*pairs.txt does not exist"),
        (KnowledgeGraph, KgeSettings(valid=("pairs.txt",)), b"u1 i1\n", f"valid: .*{NO_TRIPLES}"),
        (
            MatrixFactorization,
            MfSettings(loss="squared"),
            b"u1 i1\nu2 i2\n",
            "without values",
        ),
    ],
)  # fmt: skip
def test_check_refuses_input_of_another_kind(tmp_path, monkeypatch, cls, settings, data, said):
    monkeypatch.chdir(tmp_path)
    if data is not None:
        (tmp_path / "pairs.txt").write_bytes(data)
    given = settings if getattr(settings, "valid", ()) else replace(settings, input=("pairs.txt",))
    with pytest.raises(DataError, match=said):
        cls.check(given)
    if cls is MatrixFactorization:
        cls.check(replace(given, loss="softmax"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loss": "squared"}, "Set loss: als"),
        ({"loss": "als", "weights": "values"}, "third column"),
    ],
)
def test_a_file_without_values_is_refused_while_the_survey_reads_it(given, said):
    """`check` looks at the first files only."""
    part = MatrixFactorization(MfSettings(dim=4, **given)).survey_part()
    part.add(block_of(b"u1 i1 3\nu2 i2 1\n"))
    with pytest.raises(DataError, match=f"lines of users and items without values: .*{said}"):
        part.add(block_of(b"u1 i1\nu2 i2\n"))


@pytest.mark.parametrize(
    ("cls", "settings", "data"),
    [(KnowledgeGraph, KgeSettings, TRIPLES), (MatrixFactorization, MfSettings, RATINGS)],
)
def test_step_size_falls_to_lr_end_of_it(cls, settings, data):
    for end in (0.0, 0.4, 1.0):
        chosen = settings(lr=0.1, lr_end=end)
        with connected(cls) as make:
            told = train(make(chosen, summary=surveyed(cls, chosen, data)), data)
        assert told["lr"] == pytest.approx(0.1 * (1 - (1 - end) / 2))  # half of the job is over


@pytest.mark.parametrize("bound", [10, 1 << 25])
def test_distinct_numbers_of_arrays_are_ascending_and_each_has_its_place(bound):
    parts = [np.array([5, 2, 5], np.int32), np.array([9, 2], np.int32)]
    used, places = distinct(parts, bound)
    assert used.tolist() == [2, 5, 9]
    assert [place.tolist() for place in places] == [[1, 0, 1], [2, 0]]


def surveyed(cls, settings, data):
    part = cls(settings).survey_part()
    part.add(block_of(data))
    surveyor = cls.surveyor(settings)
    surveyor.add(part.take())
    return surveyor.result()


@pytest.mark.parametrize("method", ["sgd", "adagrad"])
@pytest.mark.parametrize("consistency", ["async", "ssp"])
def test_kge_block_changes_rows_as_the_kernel_does(method, consistency):
    settings = KgeSettings(
        dim=6, shared=4, negatives=3, lr=0.05, optimizer=method, consistency=consistency
    )
    summary = surveyed(KnowledgeGraph, settings, TRIPLES)
    names = Names(summary)
    keys = np.concatenate([KnowledgeGraph.keys_of_kind(kind, n) for kind, n in enumerate((7, 2))])
    with connected(KnowledgeGraph) as make:
        model = make(settings, summary=summary)
        before = model.pull(TABLE, keys, state=True)
        told = train(model, TRIPLES)
        assert model.unpushed == (consistency == "async")
        model.finish()
        assert not model.unpushed
        after = model.pull(TABLE, keys, state=True)

        # The same block by hand: rows in the order of keys, the order of lines drawn from its seed.
        columns = model.read(block_of(TRIPLES))
        ids = [
            names.numbers(kind, column)
            for kind, column in zip((0, 1, 0), columns.names, strict=True)
        ]
        order = np.random.default_rng(7).permutation(40)
        h, r, t = (some[order].astype(np.int32) for some in ids)
        layout = model.sgd.layout
        rows = layout.make(9)
        layout.load(before, rows)
        places, noise = np.array([h, r + np.int32(7), t]), np.arange(7, dtype=np.int32)
        batch = LineBatch(places, np.zeros(0, np.float32), noise)
        loss = model.train_part(batch, rows, (0, 40), (0.05, 0.025), 7)
        layout.subtract(before.copy(), rows)
        wanted = np.concatenate([rows[:, :6], rows[:, 16:22]][: layout.parts], axis=1)
    np.testing.assert_allclose(after, wanted, atol=1e-5)
    assert told == {
        "units": 40.0, "lr": pytest.approx(0.025), "loss": pytest.approx(loss), "examples": 40.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "falls_to"),
    [
        (MfSettings(dim=4, lr=0.05), 0.6),
        (MfSettings(dim=4, lr=0.1, optimizer="adagrad"), 0.6),
        (MfSettings(dim=4, loss="softmax", negatives=4, shared=4), 0.95),
        (MfSettings(dim=4, loss="pairwise", negatives=4, shared=4), 0.95),
    ],
)
def test_mf_learns_by_blocks_and_numbers_lines_once(settings, falls_to):
    summary = surveyed(MatrixFactorization, settings, RATINGS)
    with connected(MatrixFactorization) as make:
        for workers in (1, 3):  # alone, and with exchanges as beside two others
            model = in_order(make(settings, workers=workers, summary=summary))
            losses = [train(model, RATINGS, progress=(0, 0.1))["loss"] for _ in range(40)]
            assert np.mean(losses[-5:]) < falls_to * losses[0]
            assert len(model._seen.blocks) == 1


def test_mf_learns_ratings_of_any_unit_alike():
    found = []
    units = ((1, 0), (20, 0), (0.01, 0), (0.25, -0.25), (4, 1000), (1, 1.7e9), (2**-10, 2e9))
    for factor, offset in units:
        data = b"".join(
            b"u%d,i%d,%r\n" % (i % 5, i * i % 6, (1 + i % 5) * factor + offset) for i in range(60)
        )
        summary = surveyed(MatrixFactorization, MfSettings(dim=4), data)
        encoding = encoding_of(Names(summary), MfSettings())
        assert encoding.centre - offset == pytest.approx(3 * factor, rel=1e-5)
        assert encoding.deviation == pytest.approx(2**0.5 * factor, rel=1e-5)
        with connected(MatrixFactorization) as make:
            model = make(MfSettings(dim=4), summary=summary)
            losses = [train(model, data)["loss"] for _ in range(3)]
            flush(model)
            keys = np.concatenate([np.arange(5), KIND_KEY + np.arange(6)]).astype(np.uint64)
            rows = in_units(model.pull(TABLE, keys), encoding)
        pairs = np.array([[0, 1, -1], [2, -1, 3]])
        predicted = ratings(encoding.centre, rows[:5], rows[5:], pairs)
        found.append([*np.array(losses) / factor**2, *(predicted - offset) / factor])
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=2e-3)


def test_encoding_of_equal_ratings_keeps_their_unit():
    counts = NameCounts(2)
    assert encoding_of(Names(counts.dump()), MfSettings()) == Encoding()
    counts.add_values(np.full(7, 0.1))
    assert encoding_of(Names(counts.dump()), MfSettings()) == Encoding(centre=0.1)


def test_rankings_survey_and_train_choices_only(caplog):
    settings = MfSettings(dim=4, loss="softmax", negatives=2, shared=2)
    data = b"u,a,1\nu,b,0\nv,a,-2\nv,c,1\nw,b,0\n" * 4
    summary = surveyed(MatrixFactorization, settings, data)
    assert caplog.messages[-1].startswith("4 entries of values below 0 are left out: a ranking")
    assert sorted(map(sorted, Names(summary).names)) == [[b"a", b"c"], [b"u", b"v"]]
    with connected(MatrixFactorization) as make:
        assert train(make(settings, summary=summary), data)["examples"] == 8


def test_ranking_of_values_that_are_all_0_or_less_is_refused():
    settings = MfSettings(dim=4, loss="pairwise", negatives=2)
    with pytest.raises(DataError, match="none of its 3 values is above 0: a ranking learns what"):
        surveyed(MatrixFactorization, settings, b"u,a,0\nv,b,-1\nw,a,0\n")


def train_diverging(losses):
    settings = KgeSettings(dim=4, shared=2, negatives=2, lr=100.0, optimizer="sgd", l2=1e3)
    with connected(KnowledgeGraph) as make:
        model = make(settings, summary=surveyed(KnowledgeGraph, settings, TRIPLES))
        losses += [train(model, TRIPLES)["loss"] for _ in range(8)]


def test_kge_of_rows_that_diverge_tells_a_loss_that_is_no_number_and_pushes_none():
    losses = []
    with pytest.raises(NotFinite, match=r"^table 'rows': .* has diverged: lower its lr"):
        train_diverging(losses)  # at the end, when kept rows are pushed
    assert np.isnan(losses[-1])


def test_kge_block_with_names_that_the_survey_lacks_is_refused():
    settings = KgeSettings(dim=4)
    with connected(KnowledgeGraph) as make:
        model = make(settings, summary=surveyed(KnowledgeGraph, settings, TRIPLES))
        with pytest.raises(DataError, match="survey has not seen"):
            train(model, b"e1\tr1\tnew\n")
        assert train(model, b"\n\n")["units"] == 0


@pytest.mark.parametrize("model", ["transe", "distmult", "complex", "rotate"])
def test_queries_of_both_sides_score_a_triple_alike(model):
    """|h + r - t|, <h, r, t>: the score does not depend on which end is asked for."""
    settings = KgeSettings(model=model, dim=8)
    rng = np.random.default_rng(3)
    h, r, t = (rng.normal(0, 1, (5, 8)).astype(np.float32) for _ in range(3))
    forth, back = queries(settings, h, r, tails=True), queries(settings, t, r, tails=False)
    if model == "transe":
        np.testing.assert_allclose(np.abs(forth - t), np.abs(back - h), rtol=1e-4, atol=1e-5)
    elif model == "rotate":

        def moduli(d):
            return np.hypot(d[:, :4], d[:, 4:])

        np.testing.assert_allclose(moduli(forth - t), moduli(back - h), rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose((forth * t).sum(1), (back * h).sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        (KgeSettings(model="complex"), 0.1),
        (KgeSettings(model="rotate"), 0.2),
        (KgeSettings(model="rotate", optimizer="sgd"), 0.1),
        (KgeSettings(model="rotate", lr=0.5), 0.5),
        (MfSettings(), 0.08),
        (MfSettings(loss="softmax"), 0.3),
        (MfSettings(loss="pairwise"), 0.3),
        (MfSettings(loss="softmax", optimizer="sgd"), 0.05),
        (MfSettings(optimizer="adagrad"), 0.05),
        (MfSettings(loss="softmax", lr=0.2), 0.2),
        (KgeSettings(model="transe", lr=0.2), 0.2),
    ],
)
def test_rate_is_the_setting_or_the_choice_of_the_model(settings, rate):
    assert settings.rate == rate


@pytest.mark.parametrize(
    ("settings", "l2"),
    [
        (MfSettings(), 0.1),
        (MfSettings(loss="squared"), 0.1),
        (MfSettings(loss="softmax"), 0.06),
        (MfSettings(loss="pairwise"), 0.06),
        (MfSettings(l2=0.0), 0.0),
    ],
)
def test_penalty_is_the_setting_or_the_choice_of_the_loss(settings, l2):
    assert settings.decay == l2
