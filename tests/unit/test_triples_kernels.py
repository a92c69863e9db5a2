"""kernels.train_triples, pair_scores and train_ratings against their NumPy twin, in every build."""

import numpy as np
import pytest
from twins import triples as twin
from workers_in_order import ORDERS, train_pieces

from snailps import kernels

builds = pytest.mark.parametrize("build", kernels.builds_available())
MODELS = {
    "pairs": (0, 0), "transe_l1": (1, 1), "transe_l2": (1, 2), "distmult": (2, 0),
    "complex": (3, 0), "rotate": (4, 3),
}  # fmt: skip
SETTINGS = {
    "loss": 0, "method": 2, "shared": 4, "negatives": 5, "side": 0, "normalize": False,
    "margin": 1.0, "temperature": 1.0, "l2": 0.0, "eps": 0.1, "lr_start": 0.1, "lr_stop": 0.05,
    "seed": 7,
}  # fmt: skip


class Graph:
    """Random triples among rows, of which the last three are relations."""

    def __init__(self, model, dim=6, entities=30, triples=22, method=2, seed=5):
        rng = np.random.default_rng(seed)
        relation, metric = MODELS[model]
        self.dim, self.stride = dim, -(-dim // 16) * 16
        rows = entities + 3
        self.rows = kernels.padded(rows, self.stride * method)
        self.rows[:, :dim] = rng.normal(0, 0.6, (rows, dim))
        pick = [rng.integers(0, entities, triples).astype(np.int32) for _ in range(2)]
        relations = rng.integers(entities, rows, triples if relation else 0).astype(np.int32)
        noise = rng.permutation(entities)[:20].astype(np.int32)
        self.data = [pick[0], relations, pick[1], noise]
        self.settings = SETTINGS | {"relation": relation, "metric": metric, "method": method}
        self.settings |= {"first": 0, "last": triples}

    def train(self, build=kernels.BUILD, rows=None, **changed):
        if rows is None:
            rows = kernels.padded(*self.rows.shape)
            rows[:] = self.rows
        settings = self.settings | changed
        return rows, kernels.load(build).train_triples(rows, self.dim, *self.data, **settings)

    def twin(self, **changed):
        return twin.train_triples(self.rows, self.dim, *self.data, **self.settings | changed)

    def check(self, build=kernels.BUILD, **changed):
        (rows, loss), (wanted, total) = self.train(build, **changed), self.twin(**changed)
        np.testing.assert_allclose(rows[:, : self.dim], wanted.w, atol=2e-4, rtol=2e-4)
        if wanted.s is not None:
            state = rows[:, self.stride : self.stride + self.dim]
            np.testing.assert_allclose(state, wanted.s, atol=2e-4, rtol=2e-3)
        assert loss == pytest.approx(total, rel=1e-4)
        parts = rows.reshape(len(rows), -1, self.stride)
        assert not parts[:, :, self.dim :].any()


@builds
@pytest.mark.parametrize("model", MODELS)
def test_train_triples_equals_twin(build, model):
    Graph(model).check(build)


@pytest.mark.parametrize("loss", [0, 1, 2, 3])
@pytest.mark.parametrize("model", ["transe_l2", "complex"])
def test_train_triples_of_each_loss_with_plain_steps_equals_twin(model, loss):
    Graph(model, method=1).check(loss=loss, l2=0.01, temperature=0.0)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("model", ["distmult", "rotate"])
def test_train_triples_of_one_side_of_a_range_equals_twin(model, side):
    Graph(model, dim=18, triples=12).check(side=side, first=3, last=9, l2=0.02)


def test_train_triples_with_phases_of_another_unit_equals_twin():
    Graph("rotate").check(turn=7.5)


def test_train_triples_makes_entities_unit_vectors_and_equals_twin():
    graph = Graph("transe_l1")
    graph.check(normalize=True, shared=1, loss=1)
    rows, _ = graph.train(normalize=True)
    met = np.unique(np.concatenate([graph.data[0], graph.data[2]]))
    np.testing.assert_allclose(np.linalg.norm(rows[met, : graph.dim], axis=1), 1, rtol=1e-5)


@builds
@pytest.mark.parametrize("model", MODELS)
def test_pair_scores_equals_twin(build, model):
    graph = Graph(model, dim=18)
    _, metric = MODELS[model]
    queries = np.ascontiguousarray(graph.rows[:5, : graph.stride])
    rows = np.ascontiguousarray(graph.rows[5:, : graph.stride])
    got = kernels.load(build).pair_scores(queries, rows, metric=metric, dim=18)
    wanted = [[twin.compared(metric, q[:18], e[:18]) for e in rows] for q in queries.astype(float)]
    np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_train_triples_of_two_workers_learns_as_one(order):
    graph = Graph("complex", dim=32, triples=4000, entities=200, seed=11)
    whole, _ = graph.train(negatives=16, shared=16)
    for _ in range(2):
        _, before = graph.train(rows=whole, negatives=16, shared=16)
    rows = kernels.padded(*graph.rows.shape)
    rows[:] = graph.rows

    def train(_, first, last):
        settings = {"first": first, "last": last, "seed": first}
        return graph.train(rows=rows, negatives=16, shared=16, **settings)[1]

    for _ in range(3):
        losses = train_pieces(train, [rows], ((0, 2000), (2000, 4000)), 20, ORDERS[order])
    assert sum(losses) == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"relation": 5}, "relation 0 to 4"),
        ({"metric": 4}, "metric 0 to 3"),
        ({"loss": 4}, "loss 0 to"),
        ({"side": 2}, "side -1 to 1"),
        ({"method": 4}, "method must be"),
        ({"shared": 65}, "shared must be 1 to 64"),
        ({"negatives": 0}, "negatives 1 to 4096"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"margin": float("nan")}, "margin and turn numbers"),
        ({"lr_start": 0.0}, "rates and eps"),
        ({"l2": -1.0}, "l2 at least 0"),
        ({"last": 23}, "must be among"),
    ],
)
def test_train_triples_refuses_wrong_settings(changed, message):
    with pytest.raises(ValueError, match=message):
        Graph("complex").train(**changed)


def test_train_triples_refuses_wrong_arrays():
    for number, name in enumerate(("heads", "relations", "tails", "noise")):
        for value in (-1, 33):
            graph = Graph("complex")
            graph.data[number][3] = value
            with pytest.raises(ValueError, match=f"{name} must be places"):
                graph.train()
    graph = Graph("complex")
    graph.data[1] = graph.data[1][1:]
    with pytest.raises(ValueError, match="relations must have 22"):
        graph.train()
    graph = Graph("complex")
    graph.data[3] = np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="noise must have"):
        graph.train()
    with pytest.raises(ValueError, match="even"):
        Graph("rotate", dim=7).train()
    graph = Graph("complex")
    graph.rows = kernels.padded(33, 16)
    with pytest.raises(ValueError, match="twice as many"):
        graph.train()


class Ratings:
    """Random ratings of 12 users, whose rows come first, and 9 items."""

    def __init__(self, method, dim=7, count=80, seed=3):
        rng = np.random.default_rng(seed)
        self.dim, self.stride = dim, -(-dim // 16) * 16
        self.rows = kernels.padded(21, self.stride * method)
        self.rows[:, :dim] = rng.normal(0, 0.4, (21, dim))
        self.data = [
            rng.integers(0, 12, count).astype(np.int32),
            rng.integers(12, 21, count).astype(np.int32),
            rng.uniform(1, 5, count).astype(np.float32),
        ]
        self.settings = {
            "method": method, "l2": 0.02, "eps": 0.1, "lr_start": 0.05,
            "lr_stop": 0.02, "first": 0, "last": count,
        }  # fmt: skip


@builds
@pytest.mark.parametrize("method", [1, 2], ids=["sgd", "adagrad"])
def test_train_ratings_equals_twin(build, method):
    toy = Ratings(method, dim=20)
    toy.data[2][5:9] = [99, -99, 50, 0]  # far away: plain steps to these are cut
    rows = kernels.padded(*toy.rows.shape)
    rows[:] = toy.rows
    loss = kernels.load(build).train_ratings(rows, toy.dim, *toy.data, **toy.settings)
    wanted, total = twin.train_ratings(toy.rows, toy.dim, *toy.data, **toy.settings)
    np.testing.assert_allclose(rows[:, : toy.dim], wanted.w, atol=1e-4, rtol=1e-4)
    if method == 2:
        state = rows[:, toy.stride : toy.stride + toy.dim]
        np.testing.assert_allclose(state, wanted.s, atol=1e-4, rtol=1e-3)
    assert loss == pytest.approx(total, rel=1e-5)
    assert not rows.reshape(21, -1, toy.stride)[:, :, toy.dim :].any()


def test_train_ratings_refuses_wrong_arguments():
    toy = Ratings(1)
    train = kernels.load(kernels.BUILD).train_ratings
    users, items, ratings = toy.data
    for wrong, message in [
        ([users[1:], items, ratings], "users must have 80"),
        ([users, items + 9, ratings], "items must be places"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(toy.rows, toy.dim, *wrong, **toy.settings)
    with pytest.raises(ValueError, match="must be among"):
        train(toy.rows, toy.dim, *toy.data, **toy.settings | {"last": 81})
    with pytest.raises(ValueError, match="method must be"):
        train(toy.rows, toy.dim, *toy.data, **toy.settings | {"method": 4})
