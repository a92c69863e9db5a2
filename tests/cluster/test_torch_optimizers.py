"""Rows that servers step, beside PyTorch's own optimisers: the same after some steps.

A row that is in no batch stays as it is, with its state, so the reference has a parameter a row: of
those without a gradient, PyTorch's optimisers change nothing, either.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn

import snailps
from snailps.errors import MisuseError
from snailps.torch import Embedding, Optimizer

DIM, ROWS = 4, 30
LIMIT = 1.25  # of norms of gradients: some are above


class RowwiseAdagrad(torch.optim.Optimizer):
    """As FBGEMM's EXACT_ROWWISE_ADAGRAD: one sum of mean squares a row."""

    def __init__(self, parameters, lr, eps=1e-8):
        super().__init__(parameters, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for row in group["params"]:
                if row.grad is not None:
                    state = self.state[row]
                    g = row.grad.double()
                    state["s"] = state.get("s", 0.0) + g.square().mean()
                    row -= (group["lr"] * g / (state["s"].sqrt() + group["eps"])).float()


class Ftrl(torch.optim.Optimizer):
    """FTRL-proximal of McMahan et al. (2013), in NumPy, l2 in the gradient; first weights set z."""

    def __init__(self, parameters, lr, l1, l2, beta=1.0):
        super().__init__(parameters, {"lr": lr, "l1": l1, "l2": l2, "beta": beta})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, l1, l2, beta = (group[name] for name in ("lr", "l1", "l2", "beta"))
            for row in group["params"]:
                if row.grad is None:
                    continue
                g, w = row.grad.double().numpy(), row.double().numpy()
                g, first = g + l2 * w, -w * beta / lr - np.sign(w) * l1
                z, n = self.state[row].get("zn", (first, np.zeros(DIM)))
                sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / lr
                z, n = z + g - sigma * w, n + g * g
                self.state[row]["zn"] = z, n
                step = -(z - np.sign(z) * l1) * lr / (beta + np.sqrt(n))
                row.copy_(torch.from_numpy(np.where(np.abs(z) <= l1, 0.0, step)))


REFERENCES = {
    "sgd": (torch.optim.SGD, 0.5, {}),
    "adagrad": (torch.optim.Adagrad, 0.3, {}),
    "rowwise_adagrad": (RowwiseAdagrad, 0.3, {}),
    "adam": (torch.optim.Adam, 0.05, {}),
    "ftrl": (Ftrl, 0.3, {"l1": 0.02, "l2": 0.1}),
}


class OwnRows(nn.Module):
    """A parameter for every row."""

    def __init__(self, first):
        super().__init__()
        self.rows = nn.ParameterList(nn.Parameter(row.clone()) for row in first)

    def forward(self, ids):
        return torch.stack([self.rows[id] for id in ids.tolist()])


@pytest.fixture(scope="module")
def cluster():
    with snailps.local_cluster(servers=2, workers=0, shard_num=1) as made:
        yield made


def batches(count):
    """Ids of which some come again in a batch, and some in few batches."""
    draw = torch.Generator().manual_seed(8)
    drawn = torch.rand((count, 12), generator=draw).square() * ROWS
    return drawn.long().unbind()


def loss(module, ids):
    goal = torch.linspace(-1, 1, ROWS)[ids].unsqueeze(1)
    return (module(ids) - goal).square().sum(1).mean()


def made(cluster, name, table, **more):
    """Ours and the reference, with the same first rows."""
    reference, lr, options = REFERENCES[name]
    ours = Embedding(DIM, table, optimizer=name, lr=lr, cluster=cluster, **options, **more)
    with torch.no_grad():
        own = OwnRows(ours(torch.arange(ROWS)))
    return ours, own, reference(own.parameters(), lr=lr, **options)


def assert_same_rows(ours, own):
    with torch.no_grad():
        found, first = ours(torch.arange(ROWS)), torch.stack(list(own.rows))
    torch.testing.assert_close(found, first, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("staleness", [0, 1])
def test_each_backward_is_a_step_of_the_reference(cluster, name, staleness):
    ours, own, stepper = made(cluster, name, f"{name}-{staleness}", staleness=staleness)
    before = torch.stack(list(own.rows)).detach().clone()
    for ids in batches(25):
        stepper.zero_grad()
        for module in (ours, own):
            loss(module, ids).backward()
        stepper.step()
    ours.flush()
    assert_same_rows(ours, own)
    moved = (torch.stack(list(own.rows)) - before).abs().amax(1)
    assert (moved > 0.05).sum() > ROWS / 2


@pytest.mark.parametrize("name", REFERENCES)
def test_steps_with_a_schedule_and_clipped_gradients_are_those_of_the_reference(cluster, name):
    ours, own, stepper = made(cluster, name, f"{name}-scheduled")
    steppers = [Optimizer(ours), stepper]
    schedules = []
    if name != "ftrl":  # it has no step to scale
        schedules = [torch.optim.lr_scheduler.StepLR(one, 4, 0.5) for one in steppers]
    clipped = 0
    parts = batches(30)
    for ids in zip(parts[::2], parts[1::2], strict=True):  # two are summed to a step
        stepper.zero_grad()
        for module in (ours, own):
            for part in ids:
                loss(module, part).backward()
        norm = steppers[0].clip_grad_norm_(LIMIT)
        assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(own.parameters(), LIMIT)), 1e-4)
        clipped += norm > LIMIT
        for one in [*steppers, *schedules]:
            one.step()
    assert 0 < clipped < 15
    steppers[0].flush()
    assert_same_rows(ours, own)


def test_step_size_of_ftrl_is_refused_another_value(cluster):
    ours, *_ = made(cluster, "ftrl", "ftrl-refused")
    stepper = Optimizer(ours)
    loss(ours, torch.arange(5)).backward()
    stepper.param_groups[0]["lr"] *= 0.5
    with pytest.raises(MisuseError, match="no step size"):
        stepper.step()


def test_adam_counts_the_steps_of_each_row_where_sparse_adam_counts_all(cluster):
    """What docs/pytorch.md says: the same rows where each batch has all of them."""
    far = []
    for every, table in ((True, "adam-every"), (False, "adam-some")):
        ours, _, _ = made(cluster, "adam", table)
        with torch.no_grad():
            first = ours(torch.arange(ROWS)).clone()
        own = nn.Embedding(ROWS, DIM, sparse=True, _weight=first)
        stepper = torch.optim.SparseAdam(own.parameters(), lr=0.05)
        with torch.sparse.check_sparse_tensor_invariants():
            for ids in batches(20):
                stepper.zero_grad()
                for module in (ours, own):
                    loss(module, torch.arange(ROWS) if every else ids).backward()
                stepper.step()
        ours.flush()
        with torch.no_grad():
            found = ours(torch.arange(ROWS))
            far.append(float((found - own.weight).abs().max()))
    assert far[0] < 1e-4  # eps is added before the correction there
    assert far[1] > 0.01
