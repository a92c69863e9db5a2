"""Modules in ways of PyTorch: frozen, copied, averaged, pickled, scaled, in threads, failing."""

import copy
import gc
import io
import threading
import warnings
import weakref

import numpy as np
import pytest
from waiting import LIMIT_S, run_all

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch_rows import StoredRows

from snailps import Table
from snailps.errors import MisuseError, NotFinite
from snailps.torch import Embedding, EmbeddingBag, Optimizer, backward
from snailps.torch.rows import ClusterRows, bound, current
from snailps.torch.serving import served

DIM, LR = 3, 0.5
IDS = torch.tensor([1, 2])


@pytest.fixture
def store():
    made = StoredRows()
    with bound(made):
        yield made


def users(name="users", **options):
    return Embedding(DIM, name, optimizer="sgd", lr=LR, **options)


def rows_of(store, name="users", keys=(1, 2)):
    return np.stack([store.row(name, key) for key in keys])


# --- frozen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["model", "module", "parameters"])
def test_frozen_module_stays_so_in_train_and_thaws(store, by):
    model = nn.Sequential(users(), nn.Linear(DIM, 1))

    def set_to(flag):
        if by == "parameters":
            for one in model[0].parameters():
                one.requires_grad = flag
        else:
            (model if by == "model" else model[0]).requires_grad_(flag)

    set_to(False)
    model[1].requires_grad_(True)
    model.train()(IDS).sum().backward()
    assert store.pushes == []
    assert model[1].weight.grad is not None
    set_to(True)
    model(IDS).sum().backward()
    assert [keys.tolist() for _, keys, _, _ in store.pushes] == [[1, 2]]


class Biased(EmbeddingBag):
    def __init__(self):
        super().__init__(DIM, "biased")
        self.bias = nn.Parameter(torch.ones(DIM))


def test_state_dict_has_what_a_subclass_adds_and_loads_strictly(store):
    first, second = Biased(), Biased()
    assert list(first.state_dict()) == ["bias"]
    second.bias.data.zero_()
    second.load_state_dict(first.state_dict())
    assert second.bias.tolist() == [1.0] * DIM
    with pytest.raises(RuntimeError, match=r"Missing key.*bias"):
        first.load_state_dict({})


# --- copies ---------------------------------------------------------------------------------------


def test_copy_reads_the_same_rows_and_pushes_nothing(store):
    model = nn.Sequential(users(), nn.Linear(DIM, 1))
    copied = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied.eval()(IDS).sum().backward()
        with torch.no_grad():
            copied.train()(IDS)
    assert store.pushes == []
    model(IDS).sum().backward()
    assert torch.equal(copied.eval()[0](IDS), model[0](IDS).detach())
    assert not torch.equal(copied[1].weight.grad, torch.zeros(1, DIM))


def test_copy_that_is_trained_says_that_its_rows_are_not(store):
    copied = copy.deepcopy(users())
    with pytest.warns(UserWarning, match=r"'users' and does not train them: call requires_grad_"):
        copied(IDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied(IDS)
        copied.requires_grad_(True)(IDS).sum().backward()
    assert len(store.pushes) == 1


def test_averaged_model_averages_the_dense_part_and_reads_the_rows(store):
    model = nn.Sequential(users(), nn.Linear(DIM, 1))
    averaged = AveragedModel(model)
    weights = []
    for step in (1.0, 3.0):
        model[1].weight.data.fill_(step)
        averaged.update_parameters(model)
        weights.append(averaged.module[1].weight[0, 0].item())
    assert weights == [1.0, 2.0]
    expected = nn.functional.linear(model[0](IDS), averaged.module[1].weight, model[1].bias)
    torch.testing.assert_close(averaged.eval()(IDS), expected)


def test_copy_has_traffic_of_its_own(store):
    first = users(staleness=0)
    Optimizer(first)
    first.prefetch(IDS)
    first(IDS).sum().backward()
    copied = copy.deepcopy(first)
    assert copied.exchange.held is None
    assert not copied.exchange._ahead
    assert copied.exchange.rows is store
    assert len(first.exchange.held) == 1


def test_pickle_is_of_the_same_rows_where_it_is_loaded(store):
    file = io.BytesIO()
    torch.save(nn.Sequential(users(), nn.Linear(DIM, 1)), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded(IDS).sum().backward()
    assert [table for table, *_ in store.pushes] == ["users"]


def test_pickle_that_is_loaded_without_a_cluster_is_refused():
    file = io.BytesIO()
    with bound(StoredRows()):
        torch.save(Embedding(DIM, "users"), file)
    file.seek(0)
    with pytest.raises(MisuseError, match="load it in the `with` block of a cluster"):
        torch.load(file, weights_only=False)


class Rows:
    table = Table("w", DIM)

    def pull(self, keys, out=None):
        out[:] = keys.astype(np.float32)[:, None]
        return out


def test_module_that_is_read_only_is_copied_and_not_pickled():
    module = served(Embedding, [Rows()])
    assert torch.equal(copy.deepcopy(module)(IDS), module(IDS))
    with pytest.raises(MisuseError, match="read only is not pickled"):
        torch.save(module, io.BytesIO())
    weights = torch.ones(2, 1, requires_grad=True)
    bag = served(EmbeddingBag, [Rows()], mode="sum")
    bag(IDS.view(2, 1), per_sample_weights=weights).sum().backward()
    assert weights.grad.tolist() == [[DIM], [2 * DIM]]


# --- clusters -------------------------------------------------------------------------------------


class Cluster:
    def table(self, name, **options):
        return None


def test_cluster_ends_with_the_last_reference_to_it_and_its_modules():
    cluster = Cluster()
    seen = weakref.ref(cluster)
    names = [current(cluster).name("embedding") for _ in range(2)]
    assert names == ["embedding0", "embedding1"]
    module = Embedding(DIM, cluster=cluster)
    assert module.tables[0].name == "embedding2"
    assert current(cluster) is module.exchange.rows
    del cluster
    gc.collect()
    assert seen() is not None
    del module
    gc.collect()
    assert seen() is None


# --- backward passes ------------------------------------------------------------------------------


def test_backward_in_another_thread_pushes(store):
    ours = users()
    loss = ours(IDS).sum()
    run_all(loss.backward)
    assert len(store.pushes) == 1


def test_pass_that_another_thread_ends_pushes(store, monkeypatch):
    """As the engine does where a device's thread ends last."""
    end = backward.BackwardPass.end
    ended = []

    def elsewhere(self):
        run_all(lambda: (ended.append(threading.get_ident()), end(self)))

    monkeypatch.setattr(backward.BackwardPass, "end", elsewhere)
    ours = users()
    ours(IDS).sum().backward()
    assert len(store.pushes) == len(ended) == 1
    assert ended[0] != threading.get_ident()


class Meeting(torch.autograd.Function):
    """In backward waits for the other thread, in the middle of its pass."""

    @staticmethod
    def forward(ctx, x, barrier):
        ctx.barrier = barrier
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.barrier.wait(LIMIT_S)
        return gradient, None


def test_two_passes_at_once_push_each_its_own(store):
    barrier = threading.Barrier(2)
    modules = [users("a"), users("bb")]
    x = torch.ones(1, requires_grad=True)
    losses = [  # the rows' gradients come first, then both passes wait
        module(IDS).sum() * Meeting.apply(x * factor, barrier).sum()
        for module, factor in zip(modules, (2.0, 5.0), strict=True)
    ]
    run_all(*(loss.backward for loss in losses))
    found = {table: values for table, _, values, _ in store.pushes}
    assert len(store.pushes) == 2
    np.testing.assert_allclose(found["a"], 2.0)
    np.testing.assert_allclose(found["bb"], 5.0)


# --- values that are not finite -------------------------------------------------------------------


def test_step_with_a_gradient_that_is_not_finite_pushes_nothing_and_the_next_all(store):
    modules = [users("a"), users("bb")]
    before = rows_of(store, "a")
    loss = modules[0](IDS).sum() + modules[1](IDS).sum() * float("inf")
    with pytest.raises(NotFinite, match=r"table 'bb': .* got inf for key 1, column 0: nothing of"):
        loss.backward()
    assert store.pushes == []
    (modules[0](IDS).sum() + modules[1](IDS).sum()).backward()
    assert sorted(table for table, *_ in store.pushes) == ["a", "bb"]
    np.testing.assert_allclose(rows_of(store, "a"), before - LR)


def test_optimizer_step_that_is_not_finite_is_refused_and_forgotten(store):
    ours = users()
    stepper = Optimizer(ours)
    (ours(IDS).sum() * float("nan")).backward()
    with pytest.raises(NotFinite):
        stepper.step()
    ours(IDS).sum().backward()
    stepper.step()
    np.testing.assert_allclose(store.pushes[0][2], 1.0)


# --- a scaled loss --------------------------------------------------------------------------------


@pytest.fixture
def scaler():
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)


@pytest.mark.parametrize("several", [False, True])
def test_scaled_loss_without_an_optimizer_is_refused(store, scaler, several):
    ours = users()
    scaled = scaler.scale([ours(IDS).sum()])[0] if several else scaler.scale(ours(IDS).sum())
    with pytest.raises(MisuseError, match=r"make snailps\.torch\.Optimizer\(model\) and call"):
        scaled.backward()
    assert store.pushes == []
    ours(IDS).sum().backward()  # and others are pushed
    assert len(store.pushes) == 1


def test_scaler_that_is_off_changes_nothing(store):
    ours = users()
    torch.amp.GradScaler("cpu", enabled=False).scale(ours(IDS).sum()).backward()
    np.testing.assert_allclose(store.pushes[0][2], 1.0)


@pytest.mark.parametrize("clip", [False, True])
def test_optimizer_steps_with_what_a_scaler_has_unscaled(store, scaler, clip):
    ours = users()
    stepper = Optimizer(ours)
    for _ in range(2):
        for part in (IDS, torch.tensor([2, 3])):  # two passes to a step
            scaler.scale(ours(part).sum()).backward()
        if clip:
            scaler.unscale_(stepper)
            norm = stepper.clip_grad_norm_(1.0)
            assert norm == pytest.approx((DIM * (1 + 4 + 1)) ** 0.5)
        scaler.step(stepper)
        scaler.update()
        stepper.zero_grad()
    share = 1 / (DIM * 6) ** 0.5 if clip else 1.0
    assert len(store.pushes) == 2
    for _, keys, values, _ in store.pushes:
        found = dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))
        assert found == pytest.approx({1: share, 2: 2 * share, 3: share})


def test_scaler_skips_a_step_that_overflows_and_halves_its_scale(store, scaler):
    ours = users()
    stepper = Optimizer(ours)
    scaler.scale(ours(IDS).sum() * 1e38).backward()
    scaler.step(stepper)
    scaler.update()
    stepper.zero_grad()
    assert store.pushes == []
    assert scaler.get_scale() == 512.0
    scaler.scale(ours(IDS).sum()).backward()
    scaler.step(stepper)
    np.testing.assert_allclose(store.pushes[0][2], 1.0)


def test_groups_of_an_optimizer_have_the_gradients_that_wait(store):
    ours = users()
    stepper = Optimizer(ours)
    (ours(IDS).sum() * 3).backward()
    parameters = [one for group in stepper.param_groups for one in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, 0.0, error_if_nonfinite=True)
    assert norm.item() == pytest.approx(3 * (2 * DIM) ** 0.5)
    stepper.step()
    np.testing.assert_allclose(store.pushes[0][2], 0.0, atol=1e-6)
    state = stepper.state_dict()
    assert [group["lr"] for group in state["param_groups"]] == [LR]
    state["param_groups"][0]["lr"] = 0.25
    stepper.load_state_dict(state)
    ours(IDS).sum().backward()
    stepper.step()
    assert store.pushes[-1][3] == 0.5


def test_rows_of_a_cluster_are_shared_by_its_modules():
    cluster = Cluster()
    assert isinstance(current(cluster), ClusterRows)
    first, second = (Embedding(DIM, name, cluster=cluster) for name in "ab")
    assert first.exchange.rows is second.exchange.rows
