"""models.sparse.delta_shares: what workers that start from the same rows learn together."""

import numpy as np
import pytest

from snailps import kernels
from snailps.models.sparse.batch import Batch
from snailps.models.sparse.delta_shares import Shares
from snailps.models.sparse.fm import PARTS, FmSettings
from snailps.models.sparse.linear import LinearSettings
from snailps.models.sparse.settings import METHODS

FIELDS, VALUES = 30, 60
BIAS = FIELDS * VALUES
EXAMPLES, BLOCK = 16_000, 200
RATES = {"sgd": 0.02, "adagrad": 0.1, "ftrl": 0.1}
NO_FIELDS, NO_WEIGHTS = np.zeros(0, np.int32), np.zeros(0, np.float32)


def clicks(n, seed):
    """Examples with a value in each field, some values frequent; labels by planted weights."""
    weights = np.random.default_rng(0).normal(0, 0.4, BIAS)
    rng = np.random.default_rng(seed)
    values = np.minimum(VALUES ** rng.random((n, FIELDS)), VALUES).astype(np.int32) - 1
    places = values + np.arange(FIELDS, dtype=np.int32) * VALUES
    likely = 1 / (1 + np.exp(1.5 - weights[places].sum(1)))
    return places, np.where(rng.random(n) < likely, 1, -1).astype(np.float32)


def batch_of(places, labels):
    return Batch(
        labels=labels,
        ptr=np.arange(len(places) + 1, dtype=np.int64) * FIELDS,
        places=places.ravel(),
        values=np.ones(places.size, np.float32),
        fields=NO_FIELDS,
        keys=np.arange(BIAS + 1, dtype=np.uint64),
        bias=BIAS,
        weights=NO_WEIGHTS,
        bad=0,
    )


class LinearRows:
    """Rows of a linear model, as `Shares` and its kernels want them."""

    def __init__(self, method):
        self.settings = LinearSettings(optimizer=method, lr=RATES[method])
        self.dim = self.stride = self.outputs = 1
        self.eps = 1e-8
        self.start = np.zeros((BIAS + 1, PARTS[method]), np.float32)
        self.packed = slice(None)

    def train(self, rows, batch):
        s = self.settings
        kernels.train_linear(
            rows, batch.ptr, batch.places, batch.values, batch.labels, batch.weights, outputs=1,
            loss=0, method=METHODS[s.method], bias=BIAS, hot=0, lr_start=s.lr, lr_stop=s.lr,
            eps=self.eps, l1=s.l1, l2=s.l2, beta=s.beta, first=0, last=len(batch),
        )  # fmt: skip

    def scores(self, rows, batch):
        return kernels.linear_scores(
            rows, batch.ptr, batch.places, batch.values, outputs=1, bias=BIAS
        )[:, 0]


class FmRows:
    """Rows of a factorization machine: padded."""

    def __init__(self, method):
        s = self.settings = FmSettings(optimizer=method, factors=4, lr=RATES[method])
        self.dim, self.stride, self.outputs, self.eps = s.dim, s.stride, 1, s.eps
        self.start = kernels.padded(BIAS + 1, PARTS[method] * s.stride)
        factors = np.random.default_rng(1).normal(0, s.scale, (BIAS + 1, s.factors))
        self.start[:, 1 : s.dim] = factors
        columns = np.arange(PARTS[method] * s.stride)
        self.packed = columns[columns % s.stride < s.dim]

    def train(self, rows, batch):
        s = self.settings
        kernels.train_fm(
            rows, batch.ptr, batch.places, batch.values, NO_FIELDS, batch.labels, batch.weights,
            factors=s.factors, field_num=1, loss=0, method=METHODS[s.method], bias=BIAS, hot=0,
            lr_start=s.lr, lr_stop=s.lr, eps=s.eps, l1=s.l1, l2=s.l2,
            factor_l2=s.factor_l2, beta=s.beta, first=0, last=len(batch),
        )  # fmt: skip

    def scores(self, rows, batch):
        return kernels.fm_scores(
            rows, batch.ptr, batch.places, batch.values, NO_FIELDS, factors=self.settings.factors,
            field_num=1, bias=BIAS,
        )  # fmt: skip


def copy_of(model, rows):
    copy = kernels.padded(*model.start.shape) if model.stride > 1 else np.empty_like(rows)
    copy[:] = rows
    return copy


def shares_of(model):
    return Shares(model.settings, model.dim, outputs=model.outputs, eps=model.eps)


def scale(model, shares, batch, others, rows, delta):
    """What `SparseWorker` does with the deltas of copied rows."""
    seen = shares.shows_steps(rows[BIAS, -model.stride :])
    shares.measure([batch], delta[BIAS] if seen else None, model.settings.lr)
    shares.estimate.scale(others, rows, delta, batch.counts(len(rows)))


def loss_after(model, workers, share=True):
    """Log loss of held-out examples, after workers trained on blocks of their own, all at once."""
    places, labels = clicks(EXAMPLES, 1)
    shares = shares_of(model)
    now, s = copy_of(model, model.start), model.settings
    for first in range(0, EXAMPLES, workers * BLOCK):
        total = np.zeros_like(now[:, model.packed])
        for worker in range(workers):
            mine = slice(first + worker * BLOCK, first + (worker + 1) * BLOCK)
            batch = batch_of(places[mine], labels[mine])
            rows = copy_of(model, now)
            model.train(rows, batch)
            delta = np.ascontiguousarray((rows - now)[:, model.packed])
            if share and workers > 1:
                scale(model, shares, batch, workers - 1, rows, delta)
            total += delta
        now[:, model.packed] += total
        if s.method == "ftrl":  # as the shards do it
            packed = np.ascontiguousarray(now[:, model.packed])
            kernels.ftrl_weights(packed, outputs=model.dim, lr=s.lr, l1=s.l1, beta=s.beta)
            now[:, model.packed] = packed
    batch = batch_of(*clicks(4000, 2))
    return np.logaddexp(0, -batch.labels * model.scores(now, batch)).mean()


@pytest.mark.parametrize("method", ["sgd", "adagrad", "ftrl"])
@pytest.mark.parametrize("rows", [LinearRows, FmRows])
def test_workers_at_once_with_shares_come_near_one(rows, method):
    """20 rounds of 4: twice as far apart as the blocks of a job are."""
    assert loss_after(rows(method), 4) < loss_after(rows(method), 1) + 0.025


@pytest.mark.parametrize(
    ("rows", "method"), [(LinearRows, "sgd"), (FmRows, "sgd"), (FmRows, "adagrad")]
)
def test_workers_at_once_without_shares_go_too_far(rows, method):
    shared = loss_after(rows(method), 4)
    assert not loss_after(rows(method), 4, share=False) < shared + 0.3


@pytest.mark.parametrize("method", ["adagrad", "ftrl"])
def test_step_is_known_where_sums_of_squares_are_too_large_to_grow(method):
    model = LinearRows(method)
    shares = shares_of(model)
    batch = batch_of(*clicks(200, 3))
    steps = []
    for squares in (1, 1 << 25):
        model.start[:, -1] = squares
        rows = model.start.copy()
        model.train(rows, batch)
        scale(model, shares, batch, 3, rows, rows - model.start)
        steps.append(shares.estimate.a_step)
    assert steps[1] == pytest.approx(steps[0], rel=0.5)


def test_row_that_one_example_has_is_pushed_whole():
    model = LinearRows("adagrad")
    batch = batch_of(*clicks(200, 3))
    count = batch.counts(BIAS + 1)
    rows = model.start.copy()
    model.train(rows, batch)
    delta = rows - model.start
    pushed = delta.copy()
    scale(model, shares_of(model), batch, 3, rows, pushed)
    assert (count == 1).sum() > 100
    np.testing.assert_array_equal(pushed[count == 1], delta[count == 1])
    np.testing.assert_array_equal(pushed[:, 1], delta[:, 1])  # state adds up
    assert pushed[BIAS, 0] == pytest.approx(delta[BIAS, 0] / 4, rel=0.01)
