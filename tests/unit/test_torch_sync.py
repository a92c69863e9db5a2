"""What `sync` pulls and pushes, whatever is called, set, loaded, copied or failed in between."""

import copy
import gc
import io
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch_rows import Broken, StoredRows

from snailps.errors import ConfigError, MisuseError, NotFinite
from snailps.torch import Embedding, Optimizer, sync
from snailps.torch.dense import ATTRIBUTE, BASE, row_width
from snailps.torch.rows import bound

LR = 0.125


@pytest.fixture
def store():
    made = StoredRows()
    with bound(made):
        yield made


class Net(nn.Module):
    """Parts, and parameters of its own, that other methods than `forward` use."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.encoder, self.norm, self.decoder = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def encode(self, x):
        return torch.tanh(self.scale * x @ self.encoder.weight.T + self.encoder.bias)

    def loss(self, x):
        return self.decoder(self.norm(self.encode(x))).square().mean()

    def forward(self, x):
        return self.decoder(self.norm(self.encode(x)))


def batch(step):
    return torch.randn((6, 3), generator=torch.Generator().manual_seed(step))


def by_forward(net, x):
    return net(x).square().mean()


def by_method(net, x):
    return net.loss(x)


def by_parts(net, x):
    return net.decoder(net.norm(torch.tanh(net.encoder(x)))).square().mean()


class Checkpointed(Net):
    def forward(self, x):
        if not torch.is_grad_enabled():
            return super().forward(x)
        hidden = checkpoint(self.encode, x.clone().requires_grad_(), use_reentrant=True)
        hidden = checkpoint(lambda one: torch.tanh(self.encoder(one[:, :3])), hidden,
                            use_reentrant=True)  # fmt: skip
        return checkpoint(self.decoder, hidden, use_reentrant=True)


def assert_same(net, own):
    for name, one in own.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], one, rtol=1e-5, atol=1e-6, msg=name)


def kept(net, name="net", **options):
    return sync(net, name, optimizer="sgd", lr=LR, **options)


@pytest.mark.parametrize("mode", ["async", "ssp", "bsp"])
@pytest.mark.parametrize(
    ("cls", "loss"),
    [(Net, by_forward), (Net, by_method), (Net, by_parts), (Checkpointed, by_forward)],
)
def test_training_by_any_call_is_that_of_torch(store, cls, loss, mode):
    net, own = cls(), cls()
    synced = kept(net, mode=mode)
    stepper = torch.optim.SGD(own.parameters(), lr=LR)
    for step in range(6):
        loss(net, batch(step)).backward()
        if step == 2:  # an evaluation in between
            with torch.no_grad():
                net.eval()(batch(9))
                net.train()
        stepper.zero_grad()
        loss(own, batch(step)).backward()
        stepper.step()
    synced.pull()
    assert_same(net, own)
    if cls is Checkpointed and mode != "bsp":  # one step a pass, however many are within it
        assert sum(table == "net" for table, *_ in store.pushes) == 6


@pytest.mark.parametrize("loss", [by_forward, by_parts])
def test_training_goes_on_after_a_backward_that_failed(store, loss):
    net, own = Net(), Net()
    synced = kept(net)
    stepper = torch.optim.SGD(own.parameters(), lr=LR)
    for step in range(5):
        x = batch(step).requires_grad_()
        if step in (1, 3):  # fails when all parameters have their gradients
            with pytest.raises(RuntimeError, match="broken"):
                loss(net, Broken.apply(x)).backward()
            assert net.encoder.weight.grad is not None
            own.norm.load_state_dict(net.norm.state_dict())
            continue
        loss(net, x).backward()
        stepper.zero_grad()
        loss(own, x).backward()
        stepper.step()
    synced.pull()
    for one, other in zip(net.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one, other)


# --- what a script sets ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "ssp", "bsp"])
@pytest.mark.parametrize("steps", [0, 2])
def test_state_dict_that_is_loaded_is_that_of_the_servers(store, mode, steps):
    net = Net()
    synced = kept(net, mode=mode)
    loaded = copy.deepcopy(Net(seed=7).state_dict())
    loaded["norm.running_mean"] += 3
    loaded["norm.num_batches_tracked"] += 1 << 30
    for step in range(steps):
        by_forward(net, batch(step)).backward()
    net.load_state_dict(loaded)
    synced.pull()
    assert_state(net, loaded)
    other = Net(seed=3)
    kept(other, mode=mode)
    assert_state(other, loaded)
    own = Net()
    own.load_state_dict(loaded)
    stepper = torch.optim.SGD(own.parameters(), lr=LR)
    for step in range(2):
        by_forward(net, batch(step)).backward()
        stepper.zero_grad()
        by_forward(own, batch(step)).backward()
        stepper.step()
    synced.pull()
    assert_same(net, own)


def assert_state(net, expected):
    for name, one in net.state_dict().items():
        torch.testing.assert_close(one, expected[name], rtol=1e-6, atol=1e-6, msg=name)


def test_part_that_is_loaded_from_a_state_dict_leaves_the_rest(store):
    net, own = Net(), Net()
    synced = kept(net)
    by_forward(net, batch(0)).backward()
    net.encoder.load_state_dict(Net(seed=7).encoder.state_dict())
    synced.pull()
    torch.testing.assert_close(net.encoder.weight, Net(seed=7).encoder.weight)
    assert not torch.equal(net.decoder.weight, own.decoder.weight)


def clamp(net):
    net.decoder.weight.data.clamp_(-0.05, 0.05)


def replace(net):
    net.decoder.weight.data = torch.full((1, 4), 0.05)


def initialise(net):
    nn.init.constant_(net.decoder.weight, 0.05)


@pytest.mark.parametrize("change", [clamp, replace, initialise])
@pytest.mark.parametrize("called", ["forward", "method"])
def test_values_that_a_script_sets_are_added_at_the_servers(store, change, called):
    net, other = Net(), Net(seed=4)
    synced, second = kept(net), kept(other)
    loss = by_forward if called == "forward" else by_method
    loss(net, batch(0)).backward()
    synced.pull()
    change(net)
    set_to, bias = net.decoder.weight.detach().clone(), net.decoder.bias.detach().clone()
    loss(net, batch(1)).backward()
    synced.pull()
    second.pull()
    gradient = (set_to - net.decoder.weight.detach()) / LR
    assert 0 < gradient.abs().max() < 5  # a step from there, and no more
    assert not torch.equal(net.decoder.bias, bias)
    torch.testing.assert_close(other.decoder.weight, net.decoder.weight)
    torch.testing.assert_close(other.scale, net.scale)


def test_values_that_are_set_after_a_step_are_there_in_the_next_forward(store):
    net = Net()
    sync(net, optimizer="sgd", lr=1e-6)
    for step in range(3):
        by_forward(net, batch(step)).backward()
        with torch.no_grad():
            net.decoder.weight[0, 1] = 5.0 + step
            net.norm.running_mean[2] = 7.0 + step
        net.eval()(batch(9))
        assert net.decoder.weight[0, 1].item() == pytest.approx(5.0 + step, abs=1e-3)
        assert net.norm.running_mean[2].item() == pytest.approx(7.0 + step, abs=1e-4)
        net.train()


def test_parameter_in_the_place_of_another_is_refused(store):
    net = Net()
    synced = kept(net)
    net.load_state_dict(Net(seed=7).state_dict(), assign=True)
    with pytest.raises(MisuseError, match=r"'scale' of Net was replaced: .* close\(\) and sync"):
        synced.pull()


def test_what_another_rank_than_the_first_sets_is_not_kept_and_is_told(store):
    net, other = Net(), Net()
    kept(net, world=2, rank=0)
    synced = kept(other, world=2, rank=1)
    said = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            clamp(other)
            other.norm.load_state_dict(Net(seed=5).norm.state_dict())
            synced.pull()
        said.append([str(one.message) for one in told])
    assert [len(each) for each in said] == [1, 0]
    assert "rank 1 has set parameters" in said[0][0]
    assert_same(other, net)


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", [2**24, BASE - 2])
def test_steps_are_counted_beyond_what_float32_has(store, low):
    """2^24 in one float is what an earlier version left behind."""
    net = nn.Linear(2, 1)
    first = kept(net, mode="ssp", world=2, rank=0, staleness=0)
    first.close()
    key = np.array([0], np.uint64)
    store.push_async("net.steps", key, np.array([[low, 0, 0]], np.float32), 1.0)
    synced = kept(net, mode="ssp", world=2, rank=0, staleness=5)
    store.push_async("net.steps", key + 1, np.array([[low, 0, 0]], np.float32), 1.0)
    for step in range(5):
        net(torch.ones(1, 2)).sum().backward()
        assert kept(nn.Linear(2, 1), mode="ssp", world=2)._ranks.steps == low + step + 1
    ranks = synced._ranks
    assert ranks.slowest() == low
    assert "rank 1, which has made" in ranks.text_of_slowest()


@pytest.mark.parametrize("processes", [1, 3])
def test_batches_are_counted_beyond_what_float32_has(store, processes):
    nets = [nn.Sequential(nn.BatchNorm1d(2)) for _ in range(processes)]
    for net in nets:
        net[0].num_batches_tracked += (1 << 24) - 3
    all_synced = [kept(net) for net in nets]
    for _ in range(10):
        for net in nets:
            net(torch.randn(4, 2)).sum().backward()
    for net, synced in zip(nets, all_synced, strict=True):
        synced.pull()
        assert int(net[0].num_batches_tracked) == (1 << 24) - 3 + 10 * processes


def test_counts_of_batches_are_carried_by_several_at_once(store):
    nets = [nn.Sequential(nn.BatchNorm1d(2)) for _ in range(3)]
    all_synced = [kept(net) for net in nets]
    for _ in range(4):
        for net in nets:
            net[0].num_batches_tracked += (1 << 15) - 1
            net(torch.randn(4, 2)).sum().backward()
    for synced in all_synced:
        synced.pull()
    assert int(nets[0][0].num_batches_tracked) == 12 << 15
    assert abs(store.row("net.buffers", 0)[4]) < 8 * (1 << 15)  # the low digit


# --- running means of several processes -----------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "ssp"])
@pytest.mark.parametrize("world", [1, 4])
def test_running_means_of_several_processes_move_as_far_as_those_of_one(store, mode, world):
    nets = [nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)) for _ in range(world)]
    several = [
        kept(net, mode=mode, world=world, rank=rank, staleness=9) for rank, net in enumerate(nets)
    ]
    bases = [torch.tensor([[0.0] * 3, [1.0] * 3])] * world
    at_servers = bases[0].clone()
    for step in range(4):  # all have computed before one pushes
        batches = [batch(world * step + rank) + 3 for rank in range(world)]
        losses = [net(x).mean() for net, x in zip(nets, batches, strict=True)]
        for rank, x in enumerate(batches):
            losses[rank].backward()
            at_servers += 0.1 * (torch.stack([x.mean(0), x.var(0)]) - bases[rank]) / world
            bases[rank] = at_servers.clone()  # which async asks for with its push
        if mode == "ssp":
            bases = [at_servers.clone()] * world
    for synced in several:
        synced.flush()
    several[-1].pull()
    norm = nets[-1][0]
    moved = torch.stack([norm.running_mean, norm.running_var])
    torch.testing.assert_close(moved, at_servers, rtol=1e-5, atol=1e-5)
    assert int(norm.num_batches_tracked) == 4 * world
    assert norm.running_mean.mean().item() == pytest.approx(3 * (1 - 0.9**4), abs=0.3)


@pytest.mark.parametrize("steps", [1, 2])
def test_means_over_all_batches_of_several_processes_are_those_of_one(store, steps):
    world, all_batches = 3, []
    nets = [nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 1)) for _ in range(world)]
    several = [
        kept(net, mode="ssp", world=world, rank=rank, staleness=9) for rank, net in enumerate(nets)
    ]
    for round_ in range(5):
        losses = []
        for rank, net in enumerate(nets):
            batches = [batch(100 * round_ + 10 * rank + step) + step for step in range(steps)]
            losses.append(sum(net(x).mean() for x in batches))  # all before one pushes
            all_batches += batches
        for loss in losses:
            loss.backward()
    for synced in several:
        synced.flush()
    several[0].pull()
    norm = nets[0][0]
    assert int(norm.num_batches_tracked) == 15 * steps
    means, variances = ([getattr(x, of)(0) for x in all_batches] for of in ("mean", "var"))
    torch.testing.assert_close(norm.running_mean, torch.stack(means).mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        norm.running_var, torch.stack(variances).mean(0), rtol=1e-4, atol=1e-5
    )


def test_buffers_that_all_processes_set_are_set_once(store):
    """Also those that rank 0 alone sets; and a forward without a step counts by its share."""
    nets = [nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)) for _ in range(3)]
    several = [kept(net, world=3, rank=rank) for rank, net in enumerate(nets)]
    for rank, net in enumerate(nets):
        net(batch(rank) + 3).mean().backward()
    for synced in several:
        synced.pull()
    for net in nets:
        net[0].reset_running_stats()
        net[0].running_mean.fill_(5.0)
    nets[0][0].running_var[1] = 7.0
    for net in nets:
        net.eval()(batch(0))
    for synced in several:
        synced.pull()
    assert nets[2][0].running_mean.tolist() == pytest.approx([5.0] * 3, abs=1e-5)
    assert nets[2][0].running_var.tolist() == pytest.approx([1.0, 7.0, 1.0], abs=1e-5)
    assert int(nets[2][0].num_batches_tracked) == 0
    nets[1].train()
    with torch.no_grad():
        nets[1](batch(3))
    for rank in (1, 0):
        several[rank].pull()
    expected = 5 + 0.1 * (batch(3).mean(0) - 5) / 3
    torch.testing.assert_close(nets[0][0].running_mean, expected)


# --- parameters without a gradient, refused gradients, scaled losses ------------------------------


def test_parameters_without_a_gradient_are_not_pushed(store):
    heads = nn.ModuleList([nn.Linear(3, 5), nn.Linear(3, 2)])
    synced = kept(heads)
    store.pushes.clear()
    heads[1](torch.ones(1, 3)).sum().backward()
    (table, keys, values, _) = store.pushes[0]
    starts = synced.dense._starts
    of = starts[2]
    assert (table, keys.min()) == ("net", of)
    assert len(keys) == starts[-1] - of
    assert values[0, :6].tolist() == [1.0] * 6
    before = len(store.pushes)
    for one in heads.parameters():
        one.requires_grad_(False)
    heads[0](torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert len(store.pushes) == before


@pytest.mark.parametrize("sizes", [[1], [16, 16], [1000, 3], [64 * 64, 64] * 9, [10**6, 10**3]])
def test_width_of_rows_wastes_little(sizes):
    dim = row_width(sizes)
    assert 16 <= dim < 1024
    floats = sum(-(-size // dim) * dim for size in sizes)
    assert floats <= max(1.1 * sum(sizes), 16 * len(sizes) * 2)


@pytest.mark.parametrize("mode", ["async", "ssp", "bsp"])
@pytest.mark.parametrize("in_buffers", [False, True])
def test_step_that_is_not_finite_is_refused_and_the_next_goes_on(store, mode, in_buffers):
    net, own = Net(), Net()
    synced = kept(net, mode=mode)
    stepper = torch.optim.SGD(own.parameters(), lr=LR)
    for step in range(3):
        if step == 1:
            factors = (float("nan"), 1.0) if in_buffers else (1.0, float("inf"))
            loss = by_forward(net.train(in_buffers), batch(step) * factors[0]) * factors[1]
            with pytest.raises(NotFinite, match="nothing of this step is pushed"):
                loss.backward()
            net.train()
            continue
        by_forward(net, batch(step)).backward()
        stepper.zero_grad()
        by_forward(own, batch(step)).backward()
        stepper.step()
    synced.pull()
    assert_same(net, own)


def test_scaled_loss_needs_an_optimizer(store):
    net, own = Net(), Net()
    kept(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with pytest.raises(MisuseError, match="scaled by a GradScaler"):
        scaler.scale(by_forward(net.eval(), batch(0))).backward()
    net.train()
    stepper = Optimizer(net)
    plain = torch.optim.SGD(own.parameters(), lr=LR)
    for step in range(3):
        stepper.zero_grad()
        scaler.scale(by_forward(net, batch(step))).backward()
        scaler.step(stepper)
        scaler.update()
        plain.zero_grad()
        by_forward(own, batch(step)).backward()
        plain.step()
    getattr(net, ATTRIBUTE).pull()
    for one, other in zip(net.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_of_sparse_gradients_are_refused_at_once(store, kind):
    net = nn.Sequential(kind(9, 3, sparse=True), nn.Linear(3, 1))
    with pytest.raises(MisuseError, match=rf"0, {kind.__name__}: expected dense .* sparse=False"):
        kept(net)
    net[0].requires_grad_(False)
    kept(net)


def test_sparse_gradient_of_a_function_is_refused(store):
    table = nn.ParameterList([torch.ones(4, 3)])
    kept(table)
    with pytest.raises(MisuseError, match="expected dense gradients"):
        nn.functional.embedding(torch.tensor([1]), table[0], sparse=True).sum().backward()


def test_dense_part_that_waits_for_an_optimizer_that_is_gone_is_refused(store):
    net = Net()
    kept(net)
    Optimizer(net)
    gc.collect()
    with pytest.raises(MisuseError, match=r"dense parameters wait for a .* that is gone"):
        by_forward(net, batch(0)).backward()


# --- copies ---------------------------------------------------------------------------------------


def test_module_is_kept_once(store):
    net = Net()
    synced = sync(net.encoder, "part")
    for module in (net, net.encoder):
        with pytest.raises(MisuseError, match=r"'weight' of Linear already, under the name 'part'"):
            sync(module, "net")
    synced.close()
    sync(net, "net")


def test_two_modules_of_the_default_name_are_told_that_they_are_one(store):
    towers = Net(0), Net(1)
    sync(towers[0])
    with pytest.warns(UserWarning, match="another module of this process under the default name"):
        synced = sync(towers[1])
    synced.close()
    del towers
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sync(Net(2))


def test_optimizer_of_torch_is_refused_a_dense_part_that_waits(store):
    net = nn.Linear(1, 1, bias=False)
    kept(net)
    before, ours, other = net.weight.item(), Optimizer(net), torch.optim.SGD(net.parameters(), LR)
    net(torch.ones(1, 1)).sum().backward()
    with pytest.raises(MisuseError, match="would both step the parameters"):
        other.step()
    ours.step()
    other.step()  # no gradient is left
    net(torch.ones(1, 1))
    assert net.weight.item() == pytest.approx(before - LR)


class Masked(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        self.mean += 0.5
        return super().forward(x) + 0 * self.mask.softmax(1)


def test_buffers_that_are_infinite_or_empty_stay_local(store):
    net = Masked()
    synced = kept(net)
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
    synced.pull()
    assert torch.equal(net.mask, Masked().mask)
    assert net.mean.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": "0"}, "rank: expected a whole number, got '0'"),
        ({"world": 1.5}, "world: expected a whole number"),
        ({"staleness": 1.5}, "staleness: expected 0 or more steps"),
        ({"timeout_s": 0}, "timeout_s: expected more than 0"),
    ],
)
def test_sync_refuses_what_is_no_number_of_its_kind(store, options, words):
    with pytest.raises(ConfigError, match=words):
        sync(Net(), "net", mode="ssp", **options)


def test_ranks_of_the_environment_may_be_empty_and_must_be_numbers(store, monkeypatch):
    monkeypatch.setenv("RANK", "")
    monkeypatch.setenv("WORLD_SIZE", "")
    sync(Net(), "net")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match=r"world, from WORLD_SIZE of the environment: .* 'two'"):
        sync(Net(), "net")
    with pytest.raises(MisuseError, match="expected a module of PyTorch, got generator"):
        sync(Net().parameters(), "net")


def test_copy_and_pickle_of_a_synced_module_are_kept_by_nothing(store):
    net = Net()
    synced = kept(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    copies = [copy.deepcopy(net), torch.load(file, weights_only=False), AveragedModel(net).module]
    pushes = len(store.pushes)
    for one in copies:
        assert_same(one, net)
        by_forward(one, batch(0)).backward()
        assert one.decoder.weight.grad is not None
        one.load_state_dict(Net(seed=7).state_dict())
    assert len(store.pushes) == pushes
    by_forward(net, batch(0)).backward()
    synced.pull()
    assert not torch.equal(net.decoder.weight, Net().decoder.weight)
    again = kept(copies[0], "again")  # and can be kept anew
    again.close()


def test_module_of_another_shape_of_the_same_size_is_refused(store):
    kept(nn.Linear(3, 4, bias=False))
    with pytest.raises(MisuseError, match="parameters of other shapes"):
        kept(nn.Linear(4, 3, bias=False))


def test_embeddings_within_are_no_dense_parameters(store):
    model = nn.Sequential(Embedding(3, "rows", optimizer="sgd", lr=LR), nn.Linear(3, 1))
    synced = kept(model)
    assert synced.dense.size == 4
    model(torch.tensor([5])).sum().backward()
    assert sorted({table for table, *_ in store.pushes}) == [
        "net", "net.first", "net.steps", "rows",
    ]  # fmt: skip
