"""kernels.train_linear, linear_scores, ftrl_weights against their NumPy twins, in every build."""

import itertools

import numpy as np
import pytest
from twins import linear as twin
from twins.linear import ADAGRAD, FTRL, LOGISTIC, MULTINOMIAL, POISSON, SGD, SQUARED
from workers_in_order import ORDERS, train_pieces

from snailps import kernels
from snailps.data._shuffling import drawn_order, entries_in_order, pointers_in_order

builds = pytest.mark.parametrize("build", kernels.builds_available())
methods = pytest.mark.parametrize("method", [SGD, ADAGRAD, FTRL])
STATES = {SGD: 0, ADAGRAD: 1, FTRL: 2}
SETTINGS = {"lr_start": 0.2, "lr_stop": 0.2, "eps": 1e-8, "l1": 0.0, "l2": 0.0, "beta": 1.0}
NONE = np.zeros(0, np.float32)


class Toy:
    """Random examples, some without features, some with a feature twice."""

    def __init__(
        self, n=200, features=30, method=FTRL, loss=LOGISTIC, classes=1, seed=3, longest=8
    ):
        rng = np.random.default_rng(seed)
        self.features = features
        sizes = rng.integers(0, longest + 1, n)
        self.ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.places = rng.integers(0, features, sizes.sum()).astype(np.int32)
        self.values = rng.normal(0, 1, sizes.sum()).astype(np.float32)
        draws = {
            LOGISTIC: rng.choice([-1.0, 1.0], n),
            SQUARED: rng.normal(0, 1, n),
            MULTINOMIAL: rng.integers(0, classes, n),
            POISSON: rng.poisson(1.0, n),
        }
        self.labels = draws[loss].astype(np.float32)
        self.weights = rng.uniform(0, 2, n).astype(np.float32)
        width = classes * (1 + STATES[method])
        self.rows = np.zeros((features + 1, width), np.float32)
        self.rows[:, :classes] = rng.normal(0, 0.1, (features + 1, classes))
        if method == FTRL:
            self.rows[:, classes : 2 * classes] = -5 * self.rows[:, :classes]  # beta / lr
        self.kind = {"outputs": classes, "loss": loss, "method": method, "bias": features}
        self.all = {"first": 0, "last": n, "hot": 0}

    def train(self, build=kernels.BUILD, weights=NONE, **changed):
        rows = self.rows.copy()
        done = kernels.load(build).train_linear(
            rows, *self.examples(weights), **SETTINGS | self.kind | self.all | changed
        )
        return rows, *done

    def twin(self, weights=NONE, **changed):
        return twin.train_linear(
            self.rows, *self.examples(weights), **SETTINGS | self.kind | self.all | changed
        )

    def examples(self, weights):
        return self.ptr, self.places, self.values, self.labels, weights


def assert_close(got, want):
    np.testing.assert_allclose(got[0], want[0], atol=2e-4, rtol=2e-4)
    assert got[1] == pytest.approx(want[1], rel=1e-4)
    assert got[2] == pytest.approx(want[2], rel=1e-6)


LOSSES = ((LOGISTIC, 1), (SQUARED, 1), (MULTINOMIAL, 4), (POISSON, 1))
# Steps have vector code in each build, losses and outputs have none.
KINDS = [(kernels.BUILD, method, *loss) for method in (SGD, ADAGRAD, FTRL) for loss in LOSSES] + [
    (build, method, *loss)
    for build in kernels.builds_available()
    for method, loss in ((FTRL, LOSSES[0]), (ADAGRAD, LOSSES[0]), (FTRL, LOSSES[2]))
    if build != kernels.BUILD
]


@pytest.mark.parametrize(("build", "method", "loss", "classes"), KINDS)
def test_train_linear_with_every_method_and_loss_equals_twin(build, method, loss, classes):
    toy = Toy(method=method, loss=loss, classes=classes)
    changes = {"l2": 0.01, "lr_start": 0.1, "lr_stop": 0.1}
    if method == FTRL:
        changes |= {"l1": 0.3, "lr_start": 0.2, "lr_stop": 0.2}
    assert_close(toy.train(build, **changes), toy.twin(**changes))


@pytest.mark.parametrize("build", kernels.builds_available())
@pytest.mark.parametrize("method", [ADAGRAD, FTRL])
@pytest.mark.parametrize("longest", [100, 1400])
def test_train_linear_with_long_examples_equals_twin(build, method, longest):
    """Fewer are trained together, down to one, which is stepped piece by piece."""
    toy = Toy(n=40, features=5000, method=method, longest=longest)
    toy.values /= 10
    assert_close(toy.train(build), toy.twin())


@methods
def test_train_linear_with_weights_and_without_bias_equals_twin(method):
    toy = Toy(method=method)
    assert_close(toy.train(weights=toy.weights, bias=-1), toy.twin(toy.weights, bias=-1))


@pytest.mark.parametrize("build", kernels.builds_available())
@pytest.mark.parametrize(("method", "loss", "classes"), [kind[1:] for kind in KINDS[:8]])
def test_l2_counts_as_often_as_its_example(build, method, loss, classes):
    toy = Toy(method=method, loss=loss, classes=classes)
    changes = {"l2": 0.1, "lr_start": 0.1, "lr_stop": 0.1} if method != FTRL else {"l2": 0.1}
    assert_close(toy.train(build, toy.weights, **changes), toy.twin(toy.weights, **changes))
    nothing, loss_sum, weight_sum = toy.train(build, np.zeros_like(toy.weights), **changes)
    np.testing.assert_allclose(nothing, toy.rows, rtol=1e-6)
    assert (loss_sum, weight_sum) == (0, 0)
    # All of weight 2: the same steps of an optimiser whose own scale is twice as large.
    scaled = {SGD: {"lr_start": 0.05, "lr_stop": 0.05}, ADAGRAD: {"eps": 2e-8}, FTRL: {"beta": 2.0}}
    twice = Toy(method=method, loss=loss, classes=classes)
    state = twice.rows[:, classes:]
    state *= 2 if method == FTRL else 1
    rows, *_ = twice.train(build, np.full_like(toy.weights, 2), **changes | scaled[method])
    once, *_ = toy.train(build, **changes)
    np.testing.assert_array_equal(rows[:, :classes], once[:, :classes])


def test_train_linear_with_falling_rate_equals_twin():
    toy = Toy(method=SGD)
    changes = {"lr_start": 0.3, "lr_stop": 0.001}
    assert_close(toy.train(**changes), toy.twin(**changes))


@methods
def test_train_linear_of_part_leaves_rows_of_others_alone(method):
    toy = Toy(method=method)
    got = toy.train(first=50, last=60)
    assert_close(got, toy.twin(first=50, last=60))
    used = np.append(toy.places[toy.ptr[50] : toy.ptr[60]], toy.features)
    others = np.setdiff1d(np.arange(toy.features + 1), used)
    np.testing.assert_array_equal(got[0][others], toy.rows[others])


@methods
@pytest.mark.parametrize("hot", [1, 7, 31])
def test_train_linear_with_hot_rows_alone_equals_training_without(method, hot):
    toy = Toy(n=600, method=method)  # more than one exchange
    alone, copied = toy.train(), toy.train(hot=hot)
    assert copied[1] == pytest.approx(alone[1], rel=1e-4)
    np.testing.assert_allclose(copied[0], alone[0], atol=2e-4, rtol=2e-4)


@methods
@pytest.mark.parametrize("order", ORDERS)
def test_train_linear_of_two_workers_comes_near_one(method, order):
    toy = Toy(n=4000, method=method)
    planted = np.random.default_rng(9).normal(size=(toy.features + 1, 1)).astype(np.float32)
    scores = kernels.linear_scores(planted, *toy.examples(NONE)[:3], outputs=1, bias=toy.features)
    toy.labels[:] = np.sign(scores[:, 0])
    rows = toy.rows.copy()
    rates = {"lr_start": 0.02, "lr_stop": 0.02}  # well below where steps overshoot
    args = SETTINGS | toy.kind | rates

    def train(_, first, last):
        kernels.train_linear(rows, *toy.examples(NONE), **args, first=first, last=last, hot=8)

    def weigh():  # as shards do it
        if method == FTRL:
            kernels.ftrl_weights(rows, outputs=1, lr=0.02, l1=args["l1"], beta=args["beta"])

    train_pieces(train, [rows], ((0, 2000), (2000, 4000)), 20, ORDERS[order], weigh)
    alone, _, _ = toy.train(**rates)
    assert np.isfinite(rows).all()
    assert np.corrcoef(rows[:, 0], alone[:, 0])[0, 1] > 0.95
    if method == FTRL:  # sums of squared gradients are the same for any number of workers
        assert rows[:, 2].sum() == pytest.approx(alone[:, 2].sum(), rel=0.1)


def test_train_linear_with_huge_scores_stays_finite():
    toy = Toy(method=SGD)
    toy.rows[:, 0] = 1e6
    rows, loss, _ = toy.train()
    assert np.isfinite(rows).all()
    assert np.isfinite(loss)


@builds
@pytest.mark.parametrize("outputs", [1, 5])
def test_linear_scores_of_wide_rows_equal_twin(build, outputs):
    toy = Toy(loss=MULTINOMIAL, classes=5)
    got = kernels.load(build).linear_scores(
        toy.rows, toy.ptr, toy.places, toy.values, outputs=outputs, bias=toy.features
    )
    want = twin.scores(toy.rows, outputs, toy.ptr, toy.places, toy.values, toy.features)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_ftrl_weights_of_trained_rows_are_those_it_has():
    toy = Toy()
    trained, _, _ = toy.train(l1=0.2, l2=0.5)
    rows = trained.copy()
    rows[:, 0] = 99
    kernels.ftrl_weights(rows, outputs=1, lr=0.2, l1=0.2, beta=1.0)
    used = np.unique(np.append(toy.places, toy.features))
    np.testing.assert_allclose(rows[used], trained[used], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"method": 3}, "method must be"),
        ({"loss": 5}, "loss must be"),
        ({"outputs": 2}, "outputs must be 1"),
        ({"bias": 31}, "bias must be"),
        ({"first": 5, "last": 500}, "examples 5..499"),
        ({"hot": 32}, "hot must be"),
        ({"lr_start": 0.0}, "rates must be above 0"),
        ({"l1": -1.0}, "at least 0"),
        ({"method": SGD}, "columns"),
    ],
)
def test_train_linear_with_wrong_argument_refuses(changed, said):
    with pytest.raises(ValueError, match=said):
        Toy().train(**changed)


def test_train_linear_with_place_outside_of_rows_refuses():
    toy = Toy()
    toy.places[3] = toy.features + 1
    with pytest.raises(ValueError, match="places must lie in"):
        toy.train()


def test_train_linear_of_part_checks_no_other_examples():
    """A block is trained in spans: each would cost as much as a look at all of the block."""
    toy = Toy()
    toy.places[: toy.ptr[50]] = toy.places[toy.ptr[60] :] = toy.features + 1
    toy.train(first=50, last=60)
    for part in ((49, 60), (50, 61)):
        with pytest.raises(ValueError, match="places must lie in"):
            toy.train(first=part[0], last=part[1])


@pytest.mark.parametrize(("at", "to"), [(50, -1), (55, 1), (60, 10**6)])
def test_train_linear_of_part_with_wrong_ends_of_examples_refuses(at, to):
    toy = Toy()
    toy.ptr[at] = to
    with pytest.raises(ValueError, match="ptr must"):
        toy.train(first=50, last=60)


def test_train_linear_with_label_that_is_no_class_refuses():
    toy = Toy(loss=MULTINOMIAL, classes=3)
    toy.labels[7] = 3
    with pytest.raises(ValueError, match="class numbers 0 to 2"):
        toy.train()
    toy.labels[7] = np.nan
    with pytest.raises(ValueError, match="class numbers"):
        toy.train()


def test_ftrl_weights_of_rows_of_other_width_refuses():
    with pytest.raises(ValueError, match="6 columns"):
        kernels.ftrl_weights(np.zeros((2, 3), np.float32), outputs=2, lr=1, l1=0, beta=1)


@builds
@pytest.mark.parametrize(("score", "label"), [(-200, 3), (6, 0), (9, 0), (50, 4), (1e30, 1e4)])
def test_loss_of_counts_is_a_straight_line_where_steps_have_gone_wild(build, score, label):
    rows = np.array([[score]], np.float32)
    loss, _ = kernels.load(build).train_linear(
        rows, np.array([0, 0]), np.zeros(0, np.int32), NONE, np.array([label], np.float32), NONE,
        **SETTINGS | {"lr_start": 1e-9, "lr_stop": 1e-9}, outputs=1, loss=POISSON, method=SGD,
        bias=0, hot=0, first=0, last=1,
    )  # fmt: skip
    wanted, _ = twin.loss_and_gradient(POISSON, np.array([score], np.float64), label)
    assert loss == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("method", [SGD, ADAGRAD, FTRL])
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("longest", [9, 70_000])
def test_examples_in_an_order_are_trained_as_if_they_lay_so(method, loss, classes, longest):
    """Those of some tiles, and one that is longer than a tile."""
    rng = np.random.default_rng(7)
    n, features = (2500, 40) if longest == 9 else (30, 90_000)
    sizes = rng.integers(longest > 9, 9, n)  # a tile's end is that of a group trained together
    sizes[n // 2] = longest
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    places = rng.integers(0, features, ptr[-1]).astype(np.int32)
    values = rng.normal(0, 0.3, len(places)).astype(np.float32)
    labels = rng.integers(0, max(2, classes), n).astype(np.float32)
    weights = rng.uniform(0.5, 2, n).astype(np.float32)
    order = drawn_order(3, n)
    kind = {"outputs": classes, "loss": loss, "method": method, "bias": features}
    options = SETTINGS | kind | {"hot": 0, "first": 0, "last": n}
    options["lr_stop"] = options["lr_start"]
    given = ptr, places, values, labels, weights
    lying = (
        pointers_in_order(ptr, order), entries_in_order(places, ptr, order),
        entries_in_order(values, ptr, order), labels[order], weights[order],
    )  # fmt: skip
    width = classes * {SGD: 1, ADAGRAD: 2, FTRL: 3}[method]
    got, want = np.zeros((2, features + 1, width), np.float32)
    of_got = [
        kernels.train_linear(got, *given, **options | {"first": first, "last": last}, order=order)
        for first, last in itertools.pairwise((0, 1040, n) if longest == 9 else (0, n))
    ]
    of_want = kernels.train_linear(want, *lying, **options)
    assert np.array_equal(got, want)
    assert np.sum(of_got, axis=0) == pytest.approx(of_want)
    assert np.abs(got).sum() > 0


@pytest.mark.parametrize(
    ("ptr", "places", "order", "message"),
    [
        ([0, 1, 3], [0, 1, 1], [0, 2], "order must have"),
        ([0, 1, 3], [0, 1, 1], [0], "order .1."),
        ([0, 1, 3], [0, 5, 1], [1, 0], "order must have"),
        ([0, 1, 4], [0, 1, 1], [0, 1], "ptr must rise within places .3 entries."),
        ([0, 2, 1], [0, 1, 1], [0, 1], "ptr must rise within places .3 entries."),
        ([-1, 1, 3], [0, 1, 1], [1, 0], "ptr must rise within places .3 entries."),
    ],
)
def test_orders_places_and_pointers_out_of_range_are_refused(ptr, places, order, message):
    rows, ones = np.zeros((2, 3), np.float32), np.ones(3, np.float32)
    with pytest.raises(ValueError, match=message):
        kernels.train_linear(
            rows, np.array(ptr), np.array(places, np.int32), ones, ones[:2], NONE,
            **SETTINGS, outputs=1, loss=0, method=FTRL, bias=-1, hot=0, first=0, last=2,
            order=np.array(order, np.uint32),
        )  # fmt: skip
    assert not rows.any()
