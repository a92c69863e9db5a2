"""Dense parameters at the servers: steps as PyTorch's, several ranks, schedules, clipping."""

import gc
import sys
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import copy

from processes import SUPPORT
from torch import nn
from torchrun import ranks_told
from waiting import until

import snailps
from snailps.errors import ConfigError, MisuseError, WaitTimeout
from snailps.torch import Embedding, Optimizer, sync


@pytest.fixture(scope="module")
def cluster():
    with snailps.local_cluster(servers=2, workers=0, shard_num=1) as made:
        yield made


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)
    )


def normed(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))


def batch(step):
    draw = torch.Generator().manual_seed(step)
    x = torch.randn((20, 6), generator=draw)
    return x, x.sum(1, keepdim=True)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
}


class Heads(nn.Module):
    """A body, and two heads of which a step has one, or a part of one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body, self.heads = nn.Linear(6, 40), nn.ModuleList(nn.Linear(40, 2) for _ in range(2))

    def forward(self, x, head):
        hidden = torch.tanh(self.body(x))
        return self.heads[head](hidden) if head < 2 else hidden


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["async", "ssp", "bsp"])
def test_parameters_after_some_steps_are_those_of_torch(cluster, name, mode):
    """Also of those that have no gradient in a step, which are left alone."""
    made, options = OPTIMIZERS[name]
    ours, own = Heads(), Heads()
    kept = sync(
        ours, f"{name}-{mode}", mode=mode, optimizer=name, lr=options["lr"], cluster=cluster
    )
    stepper = made(own.parameters(), **options)
    for step in range(25):
        x, _ = batch(step)
        for module in (ours, own):
            module.heads[0].bias.requires_grad_(step % 3 > 0)
            (module(x, (0, 0, 1, 2, 0)[step % 5]) - 1).square().mean().backward()
        stepper.step()
        stepper.zero_grad()
    kept.close()
    for one, other in zip(ours.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(ours.body.weight, Heads().body.weight, atol=1e-3)


def test_cluster_ends_with_the_last_module_that_refers_to_it():
    made = snailps.cluster(servers=1, workers=1)
    ended = weakref.ref(made)
    model = nn.Sequential(Embedding(3, "rows", cluster=made), nn.Linear(3, 1))
    sync(model, cluster=made)
    model(torch.arange(4)).sum().backward()
    pids = [node["pid"] for node in made.status()["nodes"] if node["role"] == "server"]
    del made
    gc.collect()
    model(torch.arange(4)).sum().backward()  # as long as there is one
    del model
    gc.collect()
    assert ended() is None
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), f"the end of {pids}")


def test_model_with_modules_trains_in_distributed_data_parallel(cluster, tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1
    )
    try:
        rows = Embedding(3, "parallel", optimizer="sgd", lr=1.0, init="zeros", cluster=cluster)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(rows, nn.Linear(3, 1)))
        for _ in range(3):
            model(torch.arange(4)).sum().backward()
        with torch.no_grad():
            expected = -3 * model.module[1].weight.expand(4, 3)
            torch.testing.assert_close(rows(torch.arange(4)), expected)
    finally:
        torch.distributed.destroy_process_group()


def test_module_of_another_size_is_refused(cluster):
    sync(small(), "sized", cluster=cluster).close()
    with pytest.raises(MisuseError, match=r"have 1,961 parameters .* another name"):
        sync(nn.Sequential(small(), nn.Linear(1, 1)), "sized", cluster=cluster)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "sync"}, ConfigError),
        ({"optimizer": "lamb"}, ConfigError),
        ({"rank": 2, "world": 2}, ConfigError),
        ({"mode": "bsp", "rank": 0, "world": 2}, ConfigError),
        ({"staleness": -1}, ConfigError),
    ],
)
def test_sync_refuses_options_that_there_are_not(cluster, options, error):
    with pytest.raises(error):
        sync(small(), "refused", cluster=cluster, **options)
    with pytest.raises(MisuseError, match="no dense parameters"):
        sync(nn.ReLU(), "refused", cluster=cluster)


def test_rank_that_waits_for_one_that_does_not_come_says_so(cluster):
    with pytest.raises(WaitTimeout, match=r"rank 1 has waited 0.2 s for rank 0 to bring"):
        sync(small(), "alone", rank=1, world=2, timeout_s=0.2, cluster=cluster)


def test_ssp_rank_waits_for_the_slowest_and_names_it(cluster):
    ours = small()
    sync(ours, "slow", mode="ssp", staleness=2, rank=0, world=2, timeout_s=0.3, cluster=cluster)
    x, y = batch(0)
    for _ in range(3):
        (ours(x) - y).square().mean().backward()
    with pytest.raises(WaitTimeout, match="for rank 1, which has made 0 steps"):
        ours(x)


@pytest.mark.parametrize("mode", ["async", "ssp", "bsp"])
def test_buffers_are_those_of_torch_and_go_on_in_a_process_that_begins_again(cluster, mode):
    ours, own = normed(), normed()
    stepper = torch.optim.SGD(own.parameters(), lr=0.05)

    def train(module, steps):
        for step in steps:
            x, y = batch(step)
            for one in (module, own):
                (one(x) - y).square().mean().backward()
            stepper.step()
            stepper.zero_grad()

    def keep(module):
        return sync(module, f"normed-{mode}", mode=mode, optimizer="sgd", lr=0.05, cluster=cluster)

    kept = keep(ours)
    train(ours, range(8))
    kept.close()
    again = normed(seed=9)
    kept = keep(again)
    train(again, range(8, 15))
    kept.close()
    for module in (ours, again):
        assert int(module[1].num_batches_tracked) == (8 if module is ours else 15)
    for name, one in again.state_dict().items():
        torch.testing.assert_close(one, own.state_dict()[name], rtol=1e-3, atol=1e-5)
    assert (again[1].running_mean - normed()[1].running_mean).abs().max() > 0.01


def test_buffers_that_are_not_saved_and_integers_are_left_alone(cluster):
    module = nn.Linear(3, 1)
    module.register_buffer("places", torch.tensor([1 << 40, 7]))
    module.register_buffer("scratch", torch.zeros(2), persistent=False)
    kept = sync(module, "left-alone", cluster=cluster)
    module.scratch += 5
    module(torch.ones(2, 3)).sum().backward()
    kept.pull()
    assert module.scratch.tolist() == [5, 5]
    assert module.places.tolist() == [1 << 40, 7]
    assert kept.dense.size == 4
    kept.close()


# --- an optimiser ---------------------------------------------------------------------------------


class Both(nn.Module):
    def __init__(self, rows, dense):
        super().__init__()
        self.rows, self.dense = rows, dense

    def forward(self, ids):
        # The same rows come twice in a step: their gradients are summed.
        return self.dense(torch.cat([self.rows(ids), self.rows(ids.flip(0))], 1))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_schedule_clipping_and_accumulation_are_those_of_torch(cluster, clip):
    name = f"scheduled-{clip}"
    ours = Both(Embedding(3, name, lr=0.2, cluster=cluster), nn.Linear(6, 1))
    with torch.no_grad():
        first = ours.rows(torch.arange(9))
    own = Both(nn.Embedding(9, 3, _weight=first.clone()), copy.deepcopy(ours.dense))
    kept = sync(ours.dense, f"{name}-dense", optimizer="adagrad", lr=0.1, cluster=cluster)
    groups = [
        {"params": own.rows.parameters(), "lr": 0.2},
        {"params": own.dense.parameters(), "lr": 0.1},
    ]
    steppers = [Optimizer(ours), torch.optim.Adagrad(groups)]
    schedules = [torch.optim.lr_scheduler.StepLR(one, 3, 0.5) for one in steppers]
    draw = torch.Generator().manual_seed(3)
    for _ in range(10):
        parts = torch.randint(9, (2, 8), generator=draw)
        norms = []
        for module, stepper, schedule in zip((ours, own), steppers, schedules, strict=True):
            for ids in parts:
                (module(ids) - 1).square().mean().backward()
            if clip is not None and module is ours:
                norms.append(stepper.clip_grad_norm_(clip))
            elif clip is not None:
                norms.append(float(nn.utils.clip_grad_norm_(own.parameters(), clip)))
            stepper.step()
            stepper.zero_grad()
            schedule.step()
        assert not norms or norms[0] == pytest.approx(norms[1], rel=1e-3)
    assert steppers[0].param_groups[0]["lr"] == pytest.approx(0.2 * 0.5**3)
    steppers[0].flush()
    kept.pull()
    with torch.no_grad():
        torch.testing.assert_close(
            ours.rows(torch.arange(9)), own.rows.weight.detach(), rtol=1e-3, atol=1e-4
        )
    torch.testing.assert_close(ours.dense.weight, own.dense.weight, rtol=1e-3, atol=1e-4)


def test_zero_grad_drops_what_was_not_pushed(cluster):
    ours = Embedding(3, "dropped", optimizer="sgd", lr=1.0, cluster=cluster)
    stepper = Optimizer(ours)
    first = ours(torch.arange(3)).detach().clone()
    ours(torch.arange(3)).sum().backward()
    stepper.zero_grad()
    stepper.step()
    with torch.no_grad():
        assert torch.equal(ours(torch.arange(3)), first)


def test_optimizer_refuses_a_model_that_has_nothing_of_ours():
    with pytest.raises(MisuseError, match=r"no module of snailps\.torch"):
        Optimizer(nn.Linear(1, 1))


# --- under torchrun -------------------------------------------------------------------------------


@pytest.mark.long(but=["bsp", "ddp"])
@pytest.mark.parametrize("mode", ["async", "ssp", "bsp", "ddp"])
def test_two_processes_of_torchrun_train_one_model(mode):
    """As docs/pytorch.md has it: the cluster and torchrun by one command."""
    beside = [sys.executable, "-m", "snailps", "local", "--servers=2", "--"]
    told = ranks_told(str(SUPPORT / "torch_ranks.py"), "", mode, before=beside)
    assert sorted(one["rank"] for one in told) == [0, 1]
    untrained = max(one["first"] for one in told)  # of the rank that began first
    for one in told:
        assert one["last"] < 0.2 * untrained
    assert told[0]["sum"] == told[1]["sum"]  # both have the same parameters in the end
