"""One table of cases: modules and optimisers beside PyTorch's own, value by value."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch_rows import StoredRows

from snailps.torch import Embedding, EmbeddingBag
from snailps.torch.rows import bound

DIM, LR, COUNT = 4, 0.5, 9
IDS = [3, 1, 3, 2, 0, 3, 1, 8]


@pytest.fixture
def store():
    made = StoredRows()
    with bound(made):
        yield made


def rows_of(store, name="t"):
    return torch.from_numpy(np.stack([store.row(name, key) for key in range(COUNT)]))


def ids(*shape, dtype=torch.int64):
    return torch.tensor(IDS[: int(np.prod(shape))], dtype=dtype).view(shape)


LOOKUPS = {
    "no dimension": ((), {}),
    "one dimension": ((8,), {}),
    "two dimensions": ((2, 4), {}),
    "three dimensions": ((2, 2, 2), {}),
    "no ids": ((0,), {}),
    "no ids of two dimensions": ((0, 3), {}),
    "int32": ((8,), {"dtype": torch.int32}),
    "padding": ((8,), {"padding_idx": 3}),
    "padding alone": ((1,), {"padding_idx": 3}),
    "padding that is not there": ((8,), {"padding_idx": 7}),
}


@pytest.mark.parametrize("state", ["train", "eval", "frozen"])
@pytest.mark.parametrize("case", LOOKUPS)
def test_embedding_of_each_case_is_that_of_torch(store, case, state):
    shape, options = LOOKUPS[case]
    input = ids(*shape, dtype=options.get("dtype", torch.int64))
    padding = {key: value for key, value in options.items() if key == "padding_idx"}
    ours = Embedding(DIM, "t", optimizer="sgd", lr=LR, **padding)
    own = torch.nn.Embedding(COUNT, DIM, _weight=rows_of(store), **padding)
    if padding and padding["padding_idx"] in IDS:
        own.weight.data[padding["padding_idx"]] = 0  # as PyTorch makes it at first
    before = rows_of(store)
    put(ours, state)
    out, expected = ours(input), own(input)
    assert torch.equal(out, expected)
    assert out.requires_grad == (state == "train")
    assert_steps(store, own, before, out, expected, [], [], state)


def put(module, state):
    if state == "eval":
        module.eval()
    if state == "frozen":
        torch.nn.Sequential(module).requires_grad_(False)


def assert_steps(store, own, before, out, expected, ours_of, own_of, state):
    """A step of the same loss: rows, and gradients of what was looked up by."""
    factors = torch.linspace(-1, 2, out.numel()).view(out.shape)
    if out.requires_grad:
        (out * factors).sum().backward()
    (expected * factors).sum().backward()
    for one, other in zip(ours_of, own_of, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    if state == "train":
        before = before - LR * own.weight.grad
    else:
        assert store.pushes == []
    for _, keys, *_ in store.pushes:
        assert len(np.unique(keys)) == len(keys)
        assert own.padding_idx is None or own.padding_idx not in keys
    torch.testing.assert_close(rows_of(store), before, rtol=1e-5, atol=1e-6)


BAGS = {
    "two dimensions": ((2, 4), None, {}),
    "two dimensions, one id": ((8, 1), None, {}),
    "no bags": ((0, 4), None, {}),
    "offsets": ((8,), [0, 3, 5], {}),
    "one bag": ((8,), [0], {}),
    "empty bags in the middle": ((8,), [0, 3, 3, 3, 5], {}),
    "an empty bag first": ((8,), [0, 0, 5], {}),
    "an empty bag last": ((8,), [0, 3, 8], {}),
    "no ids": ((0,), [0, 0], {}),
    "int32": ((8,), [0, 3], {"dtype": torch.int32}),
    "the last offset": ((8,), [0, 3, 3, 8], {"include_last_offset": True}),
    "the last offset alone": ((0,), [0, 0], {"include_last_offset": True}),
    "padding": ((8,), [0, 3, 5], {"padding_idx": 3}),
    "padding in two dimensions": ((2, 4), None, {"padding_idx": 3}),
    "a bag of padding": ((8,), [0, 2, 3], {"padding_idx": 3}),
    "padding that is not there": ((8,), [0, 3], {"padding_idx": 7}),
}
KINDS = ["sum", "mean", "max", "weighted", "learnt"]


@pytest.mark.parametrize("state", ["train", "eval", "frozen"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", BAGS)
def test_bag_of_each_case_is_that_of_torch(store, case, kind, state):
    shape, offsets, options = BAGS[case]
    dtype = options.get("dtype", torch.int64)
    same = {key: value for key, value in options.items() if key != "dtype"}
    same["mode"] = kind if kind in ("sum", "mean", "max") else "sum"
    ours = EmbeddingBag(DIM, "t", optimizer="sgd", lr=LR, **same)
    own = torch.nn.EmbeddingBag(COUNT, DIM, _weight=rows_of(store), **same)
    before = rows_of(store)
    put(ours, state)
    weights = [None, None]
    if kind in ("weighted", "learnt"):
        size = int(np.prod(shape))
        weights = [torch.linspace(-1, 2, size).view(shape) for _ in range(2)]
    if kind == "learnt":
        weights = [one.clone().requires_grad_() for one in weights]
    at = None if offsets is None else torch.tensor(offsets, dtype=dtype)
    input = ids(*shape, dtype=dtype)
    found = [
        module(input, at, factors) for module, factors in zip((ours, own), weights, strict=True)
    ]
    torch.testing.assert_close(found[0], found[1])
    assert found[0].requires_grad == (state == "train" or kind == "learnt")
    learnt = [[one] if kind == "learnt" else [] for one in weights]
    assert_steps(store, own, before, *found, *learnt, state)
