"""What a worker with a PyTorch model asks the servers for in a block, and in which order."""

import itertools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch_rows import StoredRows

from snailps.errors import MisuseError
from snailps.torch import Embedding, TorchSettings, Worker, training

BATCHES = [torch.tensor([3, 1, 3]), torch.tensor([2, 7]), torch.tensor([1, 9])]


class Order(StoredRows):
    """Notes each request, and the cork that it is asked in."""

    def __init__(self):
        super().__init__()
        self.asked, self.corked_in = [], []

    def _note(self, what, table):
        self.asked.append((what, table))
        assert self._within
        self.corked_in.append(self.outer_corks)

    def pull_async(self, table, keys, out):
        self._note("pull", table)
        return super().pull_async(table, keys, out)

    def push_async(self, table, keys, values, factor):
        self._note("push", table)
        return super().push_async(table, keys, values, factor)


class Sums(Worker):
    """A row of each id, a linear map of it."""

    def __init__(self, settings, fetches=True):
        super().__init__(settings)
        self.store, self.fetches = Order(), fetches
        for table in self.tables():
            self.store.declare(table)
        self.setup()

    def model(self):
        rows = Embedding(4, "rows", optimizer="sgd", lr=0.5)
        return torch.nn.ModuleDict({"rows": rows, "top": torch.nn.Linear(4, 1)})

    def ahead(self, batch):
        if self.fetches:
            self.net["rows"].prefetch(batch)

    def loss(self, batch):
        return self.net["top"](self.net["rows"](batch)).square().mean(), len(batch)

    def pull_async(self, table, keys, out):
        return self.store.pull_async(table, keys, out)

    def push_async(self, table, keys, values, *, lr_scale):
        return self.store.push_async(table, keys, values, lr_scale)

    def corked(self):
        return self.store.corked()


def train(worker):
    block = SimpleNamespace(seed=1, prepared=list(BATCHES), clock=-1, slots=1)
    return worker.train(block)


def test_dense_parameters_that_are_set_outside_of_model_are_refused(settings):
    worker = Sums(settings)
    train(worker)
    worker.net["top"].weight.data.zero_()
    with pytest.raises(MisuseError, match=r"dense parameters of Sums were set outside of model"):
        train(worker)


def test_frozen_rows_of_a_job_are_not_pushed(settings):
    worker = Sums(settings)
    worker.net["rows"].requires_grad_(False)
    train(worker)
    assert {table for what, table in worker.store.asked if what == "push"} == {"dense"}


@pytest.fixture
def settings():
    return TorchSettings(dense_optimizer="sgd", dense_lr=0.1)


def test_a_step_pushes_and_asks_for_its_dense_part_before_its_rows(settings):
    worker = Sums(settings)
    assert train(worker)["examples"] == 7
    step = [("push", "dense"), ("pull", "dense"), ("push", "rows")]
    assert worker.store.asked == [
        ("pull", "dense"), ("pull", "rows"),  # together, before the first batch
        ("pull", "rows"), *step,
        ("pull", "rows"), *step,
        ("push", "dense"), ("push", "rows"),
    ]  # fmt: skip
    assert worker.net["rows"].exchange.held == []


def test_requests_of_a_step_leave_together(settings):
    worker = Sums(settings)
    train(worker)
    groups = [len(list(group)) for _, group in itertools.groupby(worker.store.corked_in)]
    assert groups == [2, 1, 3, 1, 3, 2]


def test_rows_are_the_same_whether_they_are_asked_for_ahead_or_not(settings):
    found = []
    for fetches in (True, False):
        worker = Sums(settings, fetches)
        worker.net["rows"].exchange.staleness = 0
        train(worker)
        found.append({key: row.tobytes() for key, row in worker.store.rows.items()})
    assert found[0] == found[1]
    assert len(found[0]) > 5


class Normed(Sums):
    def model(self):
        return torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(1), "top": torch.nn.Linear(1, 1)})

    def loss(self, batch):
        return self.net["top"](self.net["norm"](batch.float().view(-1, 1))).mean(), len(batch)


def test_worker_pushes_its_share_of_running_means_and_all_of_its_counts(settings):
    worker = Normed(settings, fetches=False)
    worker.workers = 4
    block = SimpleNamespace(seed=1, prepared=[BATCHES[0]], clock=-1, slots=1)
    worker.train(block)
    (pushed,) = [values for table, _, values, _ in worker.store.pushes if table == "dense.buffers"]
    batch = BATCHES[0].float()
    assert pushed[0, :2].tolist() == pytest.approx(
        [0.1 * batch.mean().item() / 4, 0.1 * (batch.var().item() - 1) / 4], rel=1e-4
    )
    assert pushed[0, 2:4].tolist() == [1, 0]


class Versioned(torch.nn.Linear):
    """Has a part of its state that is no tensor."""

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        assert state == {"version": 3}


def test_result_has_the_state_that_is_no_tensor(tmp_path, monkeypatch):
    net = Versioned(2, 1)

    class Exported(Worker):
        @classmethod
        def trained(cls, results):
            return net

    monkeypatch.setattr(training, "write_tables", lambda path, results: None)
    Exported.export(SimpleNamespace(settings=SimpleNamespace(output=str(tmp_path / "out"))))
    loaded = Versioned(2, 1)
    loaded.load_state_dict(torch.load(tmp_path / "out.pt"))
    assert torch.equal(loaded.weight, net.weight)
