"""Modules in ways of PyTorch: frozen, copied, averaged, pickled, scaled, in threads, failing."""

import copy
import gc
import io
import multiprocessing
import threading
import warnings
import weakref

import numpy as np
import pytest
from waiting import LIMIT_S, run_all

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch_rows import StoredRows

from snailps import Table
from snailps.errors import ConfigError, MisuseError, NotFinite
from snailps.torch import (
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    Optimizer,
    backward,
    sync,
)
from snailps.torch.embedding import served
from snailps.torch.rows import ClusterRows, bound, current

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
    stepper = Optimizer(first)
    first.prefetch(IDS)
    first(IDS).sum().backward()
    copied = copy.deepcopy(first)
    assert copied.exchange.held is None
    assert not copied.exchange._ahead
    assert copied.exchange.rows is store
    assert len(first.exchange.held) == 1
    stepper.step()


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


def pickled(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return file


def test_pickle_of_trained_rows_is_refused_where_they_are_not(store):
    ours = users()
    untrained = pickled(ours)
    ours(IDS).sum().backward()
    trained = pickled(ours)
    torch.load(trained, weights_only=False)
    with bound(StoredRows()):
        again = torch.load(untrained, weights_only=False)
        trained.seek(0)
        with pytest.raises(MisuseError, match=r"rows of table 'users' were trained, and this clu"):
            torch.load(trained, weights_only=False)
    assert torch.equal(again.eval()(IDS), torch.from_numpy(np.stack([
        store.first("users", key) for key in (1, 2)
    ])))  # fmt: skip


@pytest.mark.parametrize("how", ["pickle", "state"])
def test_table_without_a_row_lacks_none_that_were_trained(store, how):
    """A feature that was padding so far, and rows that come too seldom to be admitted."""
    ours = EmbeddingBagCollection(DIM, ["users", "tags"], padding_idx=0)
    ours(torch.tensor([[1, 0]])).sum().backward()
    seldom = users("seldom", admit_after=2)
    seldom(IDS).sum().backward()
    for key in [key for key in store.rows if key[0] == "seldom"]:
        del store.rows[key]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for module in (ours, seldom):
            if how == "pickle":
                torch.load(pickled(module), weights_only=False)
            else:
                module.load_state_dict(copy.deepcopy(module.state_dict()))
    if how == "pickle":
        trained = pickled(ours)
        with bound(StoredRows()), pytest.raises(MisuseError, match="rows of table 'users' were"):
            torch.load(trained, weights_only=False)


def test_state_of_trained_rows_says_so_where_they_are_not(store):
    ours = nn.Sequential(users(), nn.Linear(DIM, 1))
    ours(IDS).sum().backward()
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    nn.Sequential(users(), nn.Linear(DIM, 1)).load_state_dict(state)  # here they are
    with bound(StoredRows()):
        other = nn.Sequential(users(), nn.Linear(DIM, 1))
        with pytest.warns(UserWarning, match="the state has no rows, and this cluster has none of"):
            other.load_state_dict(state)


def test_rows_of_another_width_or_optimizer_are_not_taken_for_these(store):
    """A row of dim 2 is as wide as one of dim 1 with Adagrad's sum, or with that of all columns."""
    assigned = []
    store.stored = lambda table: iter([(np.array([7], np.uint64), np.ones((1, 2), np.float32))])
    store.assign = lambda table, keys, values: assigned.append(values.shape)
    state = Embedding(2, "wide", optimizer="sgd").state_dict(rows=True)
    with pytest.raises(MisuseError, match=r"expected rows of dim 1, .*, got rows of dim 2"):
        Embedding(1, "narrow", optimizer="adagrad").load_state_dict(state)
    state = Embedding(1, "rowwise", optimizer="rowwise_adagrad").state_dict(rows=True)
    with pytest.warns(UserWarning, match="the state of another optimizer than 'adagrad'"):
        Embedding(1, "narrow", optimizer="adagrad").load_state_dict(state)
    assert assigned == [(1, 1)]


@pytest.mark.parametrize("keys", [torch.tensor([[7]]), torch.tensor([7.5]), torch.tensor([True])])
def test_keys_of_loaded_rows_are_checked(store, keys):
    state = {"rows.0.keys": keys, "rows.0.values": torch.ones(1, DIM)}
    with pytest.raises(MisuseError, match=r"rows\.0\.keys: expected keys, int64 \(n,\), got"):
        users().load_state_dict(state)
    del state["rows.0.values"]
    with pytest.raises(RuntimeError, match=r"Missing key.* \"rows\.0\.values\""):
        users().load_state_dict(state)


@pytest.mark.parametrize("before", [0, 2])
def test_state_that_is_loaded_after_more_steps_says_that_rows_stay(store, before):
    """As Lightning's lr_find does, and who takes the best state so far."""
    ours = nn.Sequential(users(), nn.Linear(DIM, 1))
    for _ in range(before):
        ours(IDS).sum().backward()
    state = copy.deepcopy(ours.state_dict())
    ours.load_state_dict(state)
    for _ in range(3):
        ours(IDS).sum().backward()
    with pytest.warns(UserWarning, match=r"the rows of 'users' as they are .* 3 steps after"):
        ours.load_state_dict(state)


def test_module_in_a_spawned_process_says_what_to_do_there(monkeypatch):
    with bound(StoredRows()):
        file = pickled(users())
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    with pytest.raises(MisuseError, match=r"DataLoader .* return ids, and call the module in the"):
        torch.load(file, weights_only=False)


# --- recorded -------------------------------------------------------------------------------------


class Looks(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.rows, self.top = rows, nn.Linear(DIM, 1)

    def forward(self, ids):
        return self.top(self.rows(ids))


MADE = [users, lambda: EmbeddingBag(DIM, "bags"), lambda: EmbeddingBagCollection(DIM, 2)]
RECORD = {
    "trace": lambda model, ids: torch.jit.trace(model, (ids,), check_trace=False),
    "script": lambda model, ids: torch.jit.script(model),
    "export": lambda model, ids: torch.export.export(model, (ids,), strict=False),
    "fx": lambda model, ids: torch.fx.symbolic_trace(model),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")  # FutureWarning since 2.14
@pytest.mark.parametrize("how", RECORD)
@pytest.mark.parametrize("made", MADE, ids=["embedding", "bag", "collection"])
def test_recorded_call_is_refused_with_what_to_export_instead(store, made, how):
    with pytest.raises(MisuseError, match=r"cannot be traced, scripted or exported: its rows are"):
        RECORD[how](Looks(made()).eval(), IDS.view(1, 2))
    assert store.pulls == []


# --- clusters -------------------------------------------------------------------------------------


class Cluster:
    is_local = True

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


def test_pass_within_a_pass_makes_one_step_with_it(store):
    """As of a re-entrant checkpoint, which computes again within backward."""
    ours, x = users(), torch.ones(1, requires_grad=True)

    def again(x):
        return ours(IDS).sum() * x

    before = rows_of(store)
    (checkpoint(again, x, use_reentrant=True) + 2 * ours(IDS).sum()).sum().backward()
    assert [(table, keys.tolist()) for table, keys, *_ in store.pushes] == [("users", [1, 2])]
    np.testing.assert_allclose(rows_of(store), before - 3 * LR, rtol=1e-6)
    checkpoint(again, x, use_reentrant=True).backward()  # and alone
    np.testing.assert_allclose(rows_of(store), before - 4 * LR, rtol=1e-6)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(MisuseError, match="scaled by a GradScaler"):
        scaler.scale(checkpoint(again, x, use_reentrant=True)).backward()


def test_gradient_that_is_to_be_differentiated_again_is_refused(store):
    ours, x = users(), torch.ones(2, DIM, requires_grad=True)
    with pytest.raises(MisuseError, match=r"create_graph=True\): the gradient of the rows of 'us"):
        ours(IDS).square().sum().backward(create_graph=True)
    assert store.pushes == []
    (gradient,) = torch.autograd.grad((ours(IDS) * x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()  # of others it goes through the rows
    assert len(store.pushes) == 1


# --- several modules of a table -------------------------------------------------------------------


def one_of(kind):
    if kind == "collection":
        return EmbeddingBagCollection(DIM, ["users", "other"], optimizer="sgd", lr=LR)
    return users()


@pytest.mark.parametrize("kind", ["module", "collection"])
@pytest.mark.parametrize("by", ["backward", "optimizer"])
def test_modules_of_one_table_make_one_step_of_the_sum(store, kind, by):
    first, second = users(staleness=0), one_of(kind)
    model, before = nn.ModuleList([first, second]), rows_of(store, keys=(1, 2, 3))
    stepper = Optimizer(model) if by == "optimizer" else None
    ids = torch.tensor([[2, 5], [3, 6]]) if kind == "collection" else torch.tensor([2, 3])
    (first(IDS).sum() + second(ids).sum()).backward()
    if stepper is not None:
        assert store.pushes == []
        stepper.step()
    pushed = [sorted(keys.tolist()) for table, keys, *_ in store.pushes if table == "users"]
    assert pushed == [[1, 2, 3]]
    steps = np.array([[1.0], [2.0], [1.0]], np.float32)
    np.testing.assert_allclose(rows_of(store, keys=(1, 2, 3)), before - LR * steps, rtol=1e-6)
    assert second.exchange.pushed == first.exchange.pushed == 1


def test_norm_of_modules_of_one_table_is_that_of_the_sum(store):
    model = nn.ModuleList([users(), users()])
    stepper = Optimizer(model)
    (model[0](IDS).sum() + model[1](IDS).sum()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    assert norm.item() == pytest.approx((2 * DIM * 4) ** 0.5)
    assert stepper.clip_grad_norm_(1e9) == pytest.approx(norm.item())
    model.zero_grad()
    stepper.step()
    assert store.pushes == []


@pytest.mark.parametrize("by", ["backward", "optimizer"])
def test_modules_of_one_table_with_unequal_step_sizes_are_refused(store, by):
    model = nn.ModuleList([users(), users()])
    stepper = Optimizer(model) if by == "optimizer" else None
    model[1].lr = 2 * LR
    step = (model[0](IDS).sum() + model[1](IDS).sum()).backward
    if stepper is not None:
        stepper.param_groups[1]["lr"] = 2 * LR
        step()
        step = stepper.step
    with pytest.raises(MisuseError, match="modules of one table, 'users' and 'users', have step"):
        step()
    assert store.pushes == []


# --- zeroed and clipped ---------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["model", "optimizer"])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_zeroed_are_void(store, who, to_none):
    ours = Looks(users())
    stepper, before = Optimizer(ours), rows_of(store)
    zero_grad = (ours if who == "model" else stepper).zero_grad
    (ours(IDS) * float("inf")).sum().backward()  # a batch that a guard leaves out
    ours.rows.rows.grad.nan_to_num_(1.0, 1.0, 1.0)  # else zeros in place stay NaN: inf * 0
    zero_grad(set_to_none=to_none)
    stepper.step()
    np.testing.assert_array_equal(rows_of(store), before)
    ours.rows(IDS).sum().backward()
    stepper.step()
    np.testing.assert_allclose(rows_of(store), before - LR, rtol=1e-6)


def test_scaler_trains_where_the_model_zeroes_gradients(store):
    ours = users()
    stepper, before = Optimizer(ours), rows_of(store)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    for _ in range(4):  # of which the first overflows
        ours.zero_grad()
        scaler.scale(ours(IDS).sum() * 4).backward()
        scaler.step(stepper)
        scaler.update()
    assert scaler.get_scale() == 2.0**125
    np.testing.assert_allclose(rows_of(store), before - 2 * 4 * LR, rtol=1e-5)


def test_gradients_of_parameters_are_clipped_with_their_rows(store):
    ours, own = Looks(users()), Looks(nn.Embedding(3, DIM))
    own.load_state_dict({**ours.state_dict(), "rows.weight": torch.from_numpy(
        rows_of(store, keys=(0, 1, 2)))})  # fmt: skip
    stepper, before = Optimizer(ours), rows_of(store)
    norms = []
    for model in (ours, own):
        (100 * model(IDS)).sum().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    torch.testing.assert_close(*norms)
    stepper.step()
    step = LR * own.rows.weight.grad[1:].numpy()
    np.testing.assert_allclose(rows_of(store), before - step, rtol=1e-4, atol=1e-6)
    nn.utils.clip_grad_value_(ours.parameters(), 1.0)  # of nothing
    (100 * ours(IDS)).sum().backward()
    nn.utils.clip_grad_value_(ours.parameters(), 0.25)
    assert float(ours.rows.rows.grad.abs().max()) == 0.25


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_clipping_what_backward_has_pushed_is_told(store, clip):
    ours = Looks(users())
    ours(IDS).sum().backward()
    with pytest.warns(UserWarning, match=r"those of the rows of 'users' are not among them: back"):
        clip(ours.parameters(), 1.0)
    ours.zero_grad()  # which asks for gradients, too


def test_optimizer_of_torch_is_refused_rows_that_wait(store):
    ours = Looks(users())
    dense = torch.optim.Adam(ours.parameters())
    ours(IDS).sum().backward()
    dense.step()  # as long as backward pushes
    stepper = Optimizer(ours)
    ours(IDS).sum().backward()
    with pytest.raises(MisuseError, match=r"Adam cannot step the rows of 'users'.* if p.numel"):
        dense.step()
    dense = torch.optim.Adam(p for p in ours.parameters() if p.numel())
    dense.step()
    stepper.step()
    assert len(store.pushes) == 2


def test_frozen_rows_are_nothing_to_step_for_an_optimizer_of_torch(store):
    ours = Looks(users())
    stepper = Optimizer(ours)
    ours(IDS).sum().backward()
    stepper.step()
    ours.rows.requires_grad_(False)  # and the rest is trained on
    dense = torch.optim.Adam(ours.parameters())
    ours(IDS).sum().backward()
    dense.step()
    assert len(store.pushes) == 1


def test_gradients_of_no_values_may_be_set_to_zeros(store):
    """As is done before gradients are averaged over processes by hand."""
    model = nn.ModuleList([users(), users()])

    def fill(every):
        for one in model.parameters():
            if every or one.grad is None:
                one.grad = torch.zeros_like(one)

    fill(every=True)  # without an optimizer of rows
    stepper = Optimizer(model)
    for every, pushes in ((False, 1), (True, 1), (False, 2)):
        (model[0](IDS).sum() + model[1](IDS).sum()).backward()
        fill(every)
        stepper.step()
        assert len(store.pushes) == pushes
    np.testing.assert_allclose(store.pushes[1][2], 2.0)


def test_optimizer_of_a_part_leaves_the_rest_to_the_one_before(store):
    model = nn.ModuleList([users(), users()])
    steppers = Optimizer(model), Optimizer(model[0])
    (model[0](IDS).sum() + 2 * model[1](IDS).sum()).backward()
    for stepper in reversed(steppers):
        stepper.step()
    assert [float(values[0, 0]) for _, _, values, _ in store.pushes] == [1.0, 2.0]


def test_rows_that_wait_for_an_optimizer_that_is_gone_are_refused(store):
    ours = users()
    stepper = Optimizer(ours)
    ours(IDS).sum().backward()
    del stepper
    gc.collect()
    with pytest.raises(MisuseError, match=r"'users' wait for a snailps\.torch\.Optimizer that is"):
        ours(IDS).sum().backward()
    stepper = Optimizer(ours)
    ours(IDS).sum().backward()
    stepper.step()
    np.testing.assert_allclose(store.pushes[0][2], 1.0)


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


class Both(nn.Module):
    """Rows and a dense parameter, one of which gets an infinite gradient: of the root of 0."""

    def __init__(self, infinite):
        super().__init__()
        self.users, self.infinite = users(init="zeros"), infinite
        self.dense = nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        rows, dense = self.users(ids), self.dense
        if self.infinite == "rows":
            return rows.sqrt().sum() + dense.sum()
        return rows.sum() + (dense.sqrt() if self.infinite == "dense" else dense).sum()


@pytest.mark.parametrize("mode", ["async", "ssp"])
@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("infinite", ["rows", "dense"])
def test_rows_and_dense_part_are_stepped_together_or_not_at_all(store, infinite, holds, mode):
    model = Both(infinite)
    synced = sync(model, "net", mode=mode, optimizer="sgd", lr=LR)
    stepper = Optimizer(model) if holds else None

    def step():
        model(IDS).backward()
        if stepper is not None:
            stepper.step()

    store.pushes.clear()
    with pytest.raises(NotFinite, match="nothing of this step is pushed"):
        step()
    assert store.pushes == []
    model.infinite = "none"
    step()
    assert {"users", "net"} <= {table for table, *_ in store.pushes}
    synced.pull()
    assert model.dense.item() == -LR
    np.testing.assert_array_equal(rows_of(store), -LR)


def test_step_that_one_table_cannot_make_pushes_nothing(store):
    model = nn.ModuleList([users(), Embedding(DIM, "z", optimizer="ftrl", lr=LR)])
    stepper = Optimizer(model)
    for group in stepper.param_groups:
        group["lr"] = 2 * LR
    (model[0](IDS).sum() + model[1](IDS).sum()).backward()
    with pytest.raises(MisuseError, match="table 'z'"):
        stepper.step()
    assert store.pushes == []


# --- an optimizer beside others -------------------------------------------------------------------


def test_second_optimizer_steps_the_gradients_that_wait(store):
    model = nn.ModuleList([users(), users()])
    first = Optimizer(model)
    (model[0](IDS).sum() + 2 * model[1](IDS).sum()).backward()
    second = Optimizer(model)
    first.step()
    second.step()
    assert [float(values[0, 0]) for _, _, values, _ in store.pushes] == [3.0]


def test_optimizer_takes_no_groups_parameters_or_copies(store):
    stepper = Optimizer(users())
    with pytest.raises(MisuseError, match="a group for each module"):
        stepper.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(MisuseError, match="expected a module of PyTorch, got generator"):
        Optimizer(nn.Linear(1, 1).parameters())
    with pytest.raises(MisuseError, match="not copied or pickled"):
        copy.deepcopy(stepper)


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


@pytest.mark.parametrize("most", [float("nan"), -1.0])
def test_norm_to_clip_to_is_a_number(store, most):
    module = users()
    optimizer = Optimizer(module)
    module(IDS).sum().backward()
    with pytest.raises(ConfigError, match="max_norm: expected a number, 0 or more"):
        optimizer.clip_grad_norm_(most)
    assert optimizer.clip_grad_norm_(float("inf")) == pytest.approx((2 * DIM) ** 0.5)
