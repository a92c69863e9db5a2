"""kernels.train_fm and fm_scores against their NumPy twin, in every build."""

import itertools

import numpy as np
import pytest
from twins import fm as twin
from workers_in_order import ORDERS, train_pieces

from snailps import kernels
from snailps.data._shuffling import drawn_order, entries_in_order, pointers_in_order

builds = pytest.mark.parametrize("build", kernels.builds_available())
methods = pytest.mark.parametrize("method", [1, 2, 4], ids=["sgd", "adagrad", "ftrl"])
losses = pytest.mark.parametrize("loss", [0, 1], ids=["logistic", "squared"])
PARTS = {1: 1, 2: 2, 4: 3}
STEPS = {
    "lr_start": 0.1, "lr_stop": 0.1, "eps": 0.5, "l1": 0.0, "l2": 0.0,
    "factor_l2": 0.0, "beta": 1.0,
}  # fmt: skip
NONE = np.zeros(0, np.float32)


def stride_of(factors, field_num):
    return -(-(1 + factors * field_num) // 16) * 16


class Toy:
    """Small random examples, some empty, no feature twice in one; a bias in the last row."""

    def __init__(self, examples=120, row_num=40, factors=5, field_num=1, method=2, seed=3):
        rng = np.random.default_rng(seed)
        self.factors, self.field_num, self.method = factors, field_num, method
        self.dim, self.stride = 1 + factors * field_num, stride_of(factors, field_num)
        self.parts = PARTS[method]
        self.rows = kernels.padded(row_num, self.parts * self.stride)
        weights = rng.normal(0, 0.3, (row_num, self.dim)).astype(np.float32)
        self.rows[:, : self.dim] = weights
        if method == 4:  # z that gives these weights at n = 0
            self.rows[:, self.stride : self.stride + self.dim] = -weights / np.float32(0.1)
        sizes = rng.integers(0, 9, examples)
        self.ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        own = [rng.choice(row_num - 1, n, replace=False) for n in sizes]
        self.places = np.concatenate(own).astype(np.int32)
        self.values = rng.normal(0, 1, len(self.places)).astype(np.float32)
        self.fields = rng.integers(0, field_num, len(self.places)).astype(np.int32)
        self.labels = rng.choice([-1, 1], examples).astype(np.float32)
        self.weights = rng.uniform(0.5, 2, examples).astype(np.float32)
        self.data = [self.ptr, self.places, self.values, self.fields, self.labels, self.weights]
        self.shape = {"factors": factors, "field_num": field_num, "bias": row_num - 1}
        self.all = {"hot": 0, "first": 0, "last": examples, "loss": 0, "method": method}

    def train(self, build=kernels.BUILD, rows=None, **changed):
        if rows is None:
            rows = kernels.padded(*self.rows.shape)
            rows[:] = self.rows
        settings = STEPS | self.shape | self.all | changed
        return rows, *kernels.load(build).train_fm(rows, *self.data, **settings)

    def twin(self, **changed):
        return twin.train_fm(self.rows, *self.data, **STEPS | self.shape | self.all | changed)


def assert_close(got, want):
    np.testing.assert_allclose(got[0], want[0], atol=1e-4, rtol=1e-4)
    assert got[1] == pytest.approx(want[1], rel=1e-4)
    assert got[2] == pytest.approx(want[2], rel=1e-6)


@builds
@methods
@pytest.mark.parametrize(("factors", "field_num", "loss"), [(20, 1, 0), (3, 11, 0), (8, 1, 1)])
def test_train_fm_equals_twin(build, method, loss, factors, field_num):
    toy = Toy(factors=factors, field_num=field_num, method=method)
    changed = {"loss": loss, "lr_start": 0.05, "lr_stop": 0.05}
    if method == 4:
        changed = {"loss": loss, "l1": 0.01}
    changed |= {"l2": 0.01, "factor_l2": 0.03}
    got = toy.train(build, **changed)
    assert_close(got, toy.twin(**changed))
    pads = got[0].reshape(len(got[0]), toy.parts, toy.stride)[:, :, toy.dim :]
    assert not pads.any()


@builds
@methods
def test_l2_of_an_example_of_no_weight_changes_nothing(build, method):
    toy = Toy(method=method)
    toy.data[-1] = np.zeros_like(toy.weights)
    rows, loss, weight = toy.train(build, l2=0.1, factor_l2=0.2)
    np.testing.assert_allclose(rows, toy.rows, rtol=1e-6)
    assert (loss, weight) == (0, 0)


@methods
@pytest.mark.parametrize("field_num", [1, 4])
def test_train_fm_alone_with_copies_of_hot_rows_is_the_same(method, field_num):
    build = kernels.BUILD
    toy = Toy(examples=700, field_num=field_num, method=method)
    for hot in (1, 17, 40):
        np.testing.assert_allclose(
            toy.train(build, hot=hot)[0], toy.train(build)[0], atol=2e-4, rtol=2e-4
        )


@methods
def test_train_fm_without_bias_and_weights_equals_twin(method):
    toy = Toy(method=method)
    toy.data[-1] = NONE
    toy.shape["bias"] = -1
    assert_close(toy.train(), toy.twin())


@pytest.mark.parametrize(
    ("method", "changed"),
    [(2, {"first": 20, "last": 77}), (1, {"lr_start": 0.02, "lr_stop": 0.002})],
)
def test_train_fm_of_a_range_and_with_a_falling_rate_equals_twin(method, changed):
    toy = Toy(examples=600, method=method)
    assert_close(toy.train(**changed), toy.twin(**changed))


@methods
@pytest.mark.parametrize("field_num", [1, 4])
def test_train_fm_in_an_order_is_as_if_examples_lay_so(method, field_num):
    toy = Toy(examples=1500, field_num=field_num, method=method)
    order = drawn_order(5, 1500)
    got = toy.train(order=order)
    data, ptr = toy.data, toy.ptr
    toy.data = [pointers_in_order(ptr, order)]
    toy.data += [entries_in_order(array, ptr, order) for array in data[1:4]]
    toy.data += [array[order] for array in data[4:]]
    want = toy.train()
    assert np.array_equal(got[0], want[0])
    assert got[1:] == pytest.approx(want[1:])


def test_fields_out_of_range_in_an_order_are_refused():
    toy = Toy(field_num=4)
    toy.fields[30] = 4
    with pytest.raises(ValueError, match="fields below 4"):
        toy.train(order=drawn_order(5, 120))


@pytest.mark.parametrize("ptr", [[0, 2, 1, 3], [0, 2, 9, 9], [-2, 1, 2, 3], [0, 1, 3, 1 << 61]])
def test_pointers_in_an_order_are_refused_where_they_are_reached(ptr):
    rows, ones = kernels.padded(4, 2 * kernels.PAD), np.ones(3, np.float32)

    def train(last):
        return kernels.train_fm(
            rows, np.array(ptr), np.array([0, 1, 2], np.int32), ones, np.zeros(0, np.int32), ones,
            ones[:0], factors=4, field_num=1, loss=0, method=2, bias=-1, hot=0, lr_start=0.1,
            lr_stop=0.1, eps=1e-8, l1=0, l2=0, factor_l2=0, beta=1, first=0, last=last,
            order=np.arange(3, dtype=np.uint32),
        )  # fmt: skip

    with pytest.raises(ValueError, match="ptr must rise within places"):
        train(3)
    if ptr[-1] > 3 and ptr[1] == 1:  # none that this call reaches
        assert train(2)[1] == 2


@builds
@pytest.mark.parametrize(("factors", "field_num"), [(8, 1), (4, 5)])
@pytest.mark.parametrize("parts", [1, 3])
def test_fm_scores_equals_twin(build, factors, field_num, parts):
    toy = Toy(factors=factors, field_num=field_num, method={1: 1, 3: 4}[parts])
    got = kernels.load(build).fm_scores(toy.rows, *toy.data[:4], **toy.shape)
    want = twin.fm_scores(toy.rows, *toy.data[:4], **toy.shape, parts=parts)
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


def test_fm_scores_of_a_known_pair():
    """Bias 1, w (2, 3), values (1, 2), <v1, v2> = 0.5: 1 + 2 + 6 + 2 * 0.5."""
    rows = kernels.padded(3, 3)
    rows[:, :3] = [[2, 1, 0], [3, 0.5, 7], [1, 9, 9]]
    got = kernels.fm_scores(
        rows, np.array([0, 2, 2]), np.array([0, 1], np.int32), np.array([1, 2], np.float32),
        np.zeros(0, np.int32), factors=2, field_num=1, bias=2,
    )  # fmt: skip
    np.testing.assert_allclose(got, [10, 1], rtol=1e-6)


@losses
@pytest.mark.parametrize(("factors", "field_num"), [(8, 1), (4, 5)])
def test_train_fm_sgd_step_is_the_gradient_of_the_loss(loss, factors, field_num):
    """Every column's step against central differences of the loss, computed in float64."""
    toy = Toy(examples=1, factors=factors, field_num=field_num, method=1, seed=8)
    toy.data[-1] = NONE
    rate = 2.0**-4
    got = toy.train(loss=loss, lr_start=rate, lr_stop=rate)[0]
    gradient = (toy.rows.astype(np.float64) - got) / rate

    def value(rows):
        shape = {**toy.shape, "parts": 1}
        score = twin.fm_scores(rows, *toy.data[:4], **shape)[0]
        return twin.loss_of(score, toy.labels[0], loss)[0]

    touched = {*toy.places.tolist(), toy.shape["bias"]}
    assert len(touched) > 3
    for row in range(len(toy.rows)):
        for column in range(toy.dim):
            if row == toy.shape["bias"] and column:
                continue
            moved = [toy.rows.astype(np.float64) for _ in range(2)]
            moved[0][row, column] += 1e-4
            moved[1][row, column] -= 1e-4
            slope = (value(moved[0]) - value(moved[1])) / 2e-4
            assert gradient[row, column] == pytest.approx(slope, rel=1e-4, abs=2e-5)
    assert {*np.flatnonzero(gradient.any(1)).tolist()} == touched


def test_train_fm_decay_spares_factors_of_absent_fields():
    toy = Toy(examples=1, factors=2, field_num=6, method=2, seed=5)
    toy.fields[:] = toy.fields % 3
    got = toy.train(factor_l2=0.5, l2=0.5)[0]
    columns = slice(1 + 3 * 2, toy.dim)  # of fields 3 to 5, which no feature is in
    np.testing.assert_array_equal(got[:, columns], toy.rows[:, columns])
    assert (got[toy.places, 0] != toy.rows[toy.places, 0]).all()


@methods
@pytest.mark.parametrize("hot", [8, 40])
@pytest.mark.parametrize("order", ORDERS)
def test_train_fm_of_workers_that_share_rows_loses_no_examples_and_learns(method, hot, order):
    """Threads at once: test_hot_rows."""
    toy = Toy(examples=8000, method=method, seed=2)
    planted = kernels.fm_scores(Toy(seed=9, method=1).rows, *toy.data[:4], **toy.shape)
    toy.labels[:] = np.sign(planted)
    rates = {"lr_start": 0.02, "lr_stop": 0.02}  # well below where steps overshoot
    rows = toy.train(first=0, last=0)[0]
    alone = toy.train(**rates)

    def train(_, first, last):
        return toy.train(rows=rows, first=first, last=last, hot=hot, **rates)[1:]

    def weigh():  # as shards do it
        if method == 4:
            kernels.ftrl_weights(rows, outputs=toy.stride, lr=0.02, l1=0.0, beta=STEPS["beta"])

    spans = list(itertools.pairwise(range(0, 8001, 2000)))
    done = train_pieces(train, [rows], spans, 20, ORDERS[order], weigh)
    assert sum(weight for _, weight in done) == pytest.approx(alone[2])
    assert sum(loss for loss, _ in done) == pytest.approx(alone[1], rel=0.1)
    again = toy.train(rows=rows, **rates)[1]
    assert again < 0.95 * alone[1]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_unpack_and_subtract_parts_are_inverse(parts):
    rng = np.random.default_rng(1)
    packed = rng.normal(size=(7, 9 * parts)).astype(np.float32)
    rows = kernels.padded(7, 16 * parts)
    rows[:] = 5
    kernels.unpack_parts(packed, rows, 9, parts)
    want = np.zeros((7, parts, 16), np.float32)
    want[:, :, :9] = packed.reshape(7, parts, 9)
    np.testing.assert_array_equal(rows, want.reshape(7, -1))
    rows += np.float32(0.25)
    kernels.subtract_parts(rows, packed, 9, parts)
    np.testing.assert_allclose(packed, 0.25, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"loss": 2}, "loss must be"),
        ({"method": 3}, "method must be"),
        ({"method": 4}, "columns"),
        ({"factors": 20}, "columns"),
        ({"factors": 0}, "factors"),
        ({"field_num": 0}, "field_num"),
        ({"field_num": 65536}, "factors and field_num"),
        ({"first": 5, "last": 4}, "examples"),
        ({"last": 121}, "examples"),
        ({"hot": 41}, "hot"),
        ({"bias": 40}, "bias"),
        ({"lr_start": 0.0}, "rates"),
        ({"eps": 0.0}, "eps"),
    ],
)
def test_train_fm_with_bad_number_refuses(changed, what):
    with pytest.raises(ValueError, match=what):
        Toy().train(**changed)


def test_train_fm_ftrl_with_a_second_step_size_refuses():
    with pytest.raises(ValueError, match="one step size"):
        Toy(method=4).train(lr_stop=0.01)


@pytest.mark.parametrize(
    ("place", "change", "what"),
    [
        (1, lambda x: x + 1, "places"),
        (2, lambda x: x[1:].copy(), "values"),
        (3, lambda x: x[1:].copy(), "fields"),
        (3, lambda x: x + 1, "fields must lie"),
        (3, lambda x: x - 1, "fields must lie"),
        (4, lambda x: x[1:].copy(), "labels"),
        (5, lambda x: x[1:].copy(), "labels"),
        (0, lambda x: x[::-1].copy(), "ptr"),
    ],
)
def test_train_fm_with_bad_array_refuses(place, change, what):
    toy = Toy(field_num=3)
    toy.places[0] = 39
    toy.data[place] = change(toy.data[place])
    with pytest.raises(ValueError, match=what):
        toy.train()


def test_train_fm_with_unaligned_rows_refuses():
    rows = kernels.padded(83, 16).reshape(-1)[8 : 8 + 40 * 32].reshape(40, 32)
    with pytest.raises(ValueError, match="alignment"):
        Toy().train(rows=rows)
