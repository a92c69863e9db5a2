"""Modules over rows that are read only: values are the rows, gradients are of the rest alone."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from snailps import Table
from snailps.errors import ConfigError, MisuseError
from snailps.torch import Embedding, EmbeddingBag, EmbeddingBagCollection
from snailps.torch.embedding import served
from snailps.torch.serving import ServedRows

DIM = 4


class Rows:
    """A table whose rows state their keys."""

    def __init__(self, name="w", dim=DIM):
        self.table, self.asked = Table(name, dim), []

    def pull(self, keys, out=None):
        self.asked.append(keys.tolist())
        out[:] = (keys % np.uint64(1000)).astype(np.float32)[:, None] + np.arange(self.table.dim)
        return out


def rows(keys):
    return torch.tensor([[float(key % 1000 + at) for at in range(DIM)] for key in keys])


def test_embedding_has_the_rows_of_its_ids():
    source = Rows()
    module = served(Embedding, [source])
    found = module(torch.tensor([[7, 2], [7, -1]]))
    assert found.shape == (2, 2, DIM)
    assert torch.equal(found.view(4, DIM), rows([7, 2, 7, 2**64 - 1]))
    assert sorted(source.asked[0]) == [2, 7, 2**64 - 1]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_those_of_torch(mode):
    module = served(EmbeddingBag, [Rows()], mode=mode, padding_idx=0)
    ids, offsets = torch.tensor([3, 1, 0, 2, 3]), torch.tensor([0, 3])
    own = torch.nn.EmbeddingBag(4, DIM, mode=mode, padding_idx=0, _weight=rows(range(4)))
    torch.testing.assert_close(module(ids, offsets), own(ids, offsets).detach())


def test_collection_has_a_table_a_feature():
    module = served(EmbeddingBagCollection, [Rows("a"), Rows("b")])
    found = module(torch.tensor([[1, 2], [3, 4], [5, 6]]))
    assert found.shape == (3, 2, DIM)
    assert torch.equal(found[:, 1], rows([2, 4, 6]))


def test_served_rows_have_the_type_that_the_model_is_turned_into():
    model = torch.nn.Sequential(served(Embedding, [Rows()]), torch.nn.Linear(DIM, 1))
    half = model.to(torch.bfloat16)
    assert half(torch.tensor([1, 2])).dtype == torch.bfloat16
    assert torch.equal(half[0](torch.tensor([7])), rows([7]).bfloat16())
    assert half.to("cpu")[0](torch.tensor([7])).dtype == torch.bfloat16  # a device keeps the type


def test_rest_of_a_model_trains_and_rows_do_not():
    source = Rows()
    head = torch.nn.Linear(DIM, 1)
    model = torch.nn.Sequential(served(Embedding, [source]), head).train()
    model(torch.tensor([1, 2])).sum().backward()
    torch.testing.assert_close(head.weight.grad[0], rows([1, 2]).sum(0))
    assert not list(model[0].parameters())
    with pytest.raises(MisuseError, match="read only"):
        ServedRows([source]).push_async("w", np.uint64([1]), np.zeros((1, DIM), np.float32), 1.0)


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="expected one table, got 2"):
        served(Embedding, [Rows("a"), Rows("b")])
    with pytest.raises(ConfigError, match="one width, got a 4, b 3"):
        served(EmbeddingBagCollection, [Rows("a"), Rows("b", 3)])
    with pytest.raises(ConfigError, match="mode"):
        served(EmbeddingBag, [Rows()], mode="median")
    with pytest.raises(ConfigError, match="expected Embedding"):
        served(torch.nn.Embedding, [Rows()])
