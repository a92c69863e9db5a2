"""Modules beside torch's own: values, gradients, conventions; what is pulled and pushed."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch_rows import Broken, StoredRows

from snailps.errors import ConfigError, MisuseError
from snailps.torch import Embedding, EmbeddingBag, EmbeddingBagCollection, prefetch, sync
from snailps.torch._bags import add_to_rows
from snailps.torch.exchange import KEPT, LARGE, RowBuffers
from snailps.torch.rows import bound

DIM, LR = 5, 0.25
IDS = [3, 1, 3, 2, 0, 3, 1]


@pytest.fixture
def store():
    made = StoredRows()
    with bound(made):
        yield made


def twin(store, name, count=8, bag=False, **options):
    """The module of torch that has the same rows."""
    rows = torch.from_numpy(np.stack([store.row(name, key) for key in range(count)]))
    if bag:
        return torch.nn.EmbeddingBag(count, DIM, _weight=rows, **options)
    return torch.nn.Embedding(count, DIM, _weight=rows, **options)


def assert_stepped(store, name, own, before):
    """Rows are those that a step of SGD makes of torch's gradient; others were never made."""
    for key in range(len(before)):
        gradient = own.weight.grad[key].numpy()
        np.testing.assert_allclose(
            store.row(name, key), before[key] - LR * gradient, rtol=1e-5, atol=1e-6
        )
        assert ((name, key) in store.rows) == bool(gradient.any())


def rows_of(store, name, count=8):
    return np.stack([store.row(name, key) for key in range(count)])


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8])
def test_embedding_takes_integers_that_torch_does_not(store, dtype):
    ours = Embedding(DIM, "t")
    assert torch.equal(ours(torch.tensor([1, 2], dtype=dtype)), ours(torch.tensor([1, 2])))


def test_embedding_takes_a_negative_id_as_its_64_bits(store):
    Embedding(DIM, "t")(torch.tensor([-1, 1 << 41]))
    assert store.pulls[0][1].tolist() == [2**64 - 1, 1 << 41]


@pytest.mark.parametrize("wrong", [torch.tensor([1.0]), torch.tensor([True])])
def test_embedding_refuses_what_is_no_id(store, wrong):
    with pytest.raises(MisuseError, match="expected integers"):
        Embedding(DIM, "t")(wrong)


def test_embedding_of_no_ids_asks_nothing(store):
    out = Embedding(DIM, "t")(torch.empty((0, 3), dtype=torch.int64))
    assert out.shape == (0, 3, DIM)
    out.sum().backward()
    assert store.pulls == store.pushes == []


@pytest.mark.parametrize("padding", [3, -2])
def test_padding_is_zeros_and_is_neither_pulled_nor_made(store, padding):
    ours = Embedding(DIM, "t", padding_idx=padding, optimizer="sgd", lr=LR)
    ids = torch.tensor([1, padding, 2])
    out = ours(ids)
    assert out[1].tolist() == [0.0] * DIM
    assert out[0].any()
    out.sum().backward()
    assert [keys.tolist() for _, keys in store.pulls] == [[1, 2]]
    assert [keys.tolist() for _, keys, _, _ in store.pushes] == [[1, 2]]


def test_number_of_rows_as_pytorch_takes_it_is_refused(store):
    with pytest.raises(MisuseError, match=r"got 16; rows are not counted here: \(dim, name\)"):
        Embedding(1000, 16)


@pytest.mark.parametrize("name", ["num_embeddings", "sparse", "max_norm", "scale_grad_by_freq"])
def test_option_of_pytorch_is_refused_with_why_it_is_not_needed(store, name):
    with pytest.raises(ConfigError, match=rf"{name}: .*: leave it out"):
        EmbeddingBag(embedding_dim=16, **{name: 1})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("optimiser", "optimizer"), ("padding_index", "padding_idx"), ("row_max", "rows_max")],
)
def test_mistyped_option_is_refused_with_the_one_that_is_meant(store, typed, meant):
    with pytest.raises(ConfigError, match=f"no option '{typed}'; did you mean '{meant}'\\?"):
        EmbeddingBag(embedding_dim=16, **{typed: 1})


def test_weight_is_lacking_with_where_rows_are(store):
    ours = Embedding(DIM, "t")
    with pytest.raises(AttributeError, match=r"Embedding\.weight: rows are at the servers, and no"):
        ours.weight.data.zero_()
    assert not hasattr(ours, "weight")
    with pytest.raises(AttributeError, match="no attribute 'weights'"):
        ours.weights  # noqa: B018


NO_TENSORS = [
    (Embedding, (np.array([1, 2]),), "ids: expected a tensor of PyTorch, got ndarray"),
    (Embedding, ([1, 2],), "ids: expected a tensor of PyTorch, got list"),
    (EmbeddingBag, (np.array([[1, 2]]),), "ids: expected .* got ndarray"),
    (EmbeddingBag, (torch.tensor([1, 2]), [0]), "offsets: expected .* got list"),
    (EmbeddingBag, (torch.tensor([[1]]), None, [[1.0]]), "per_sample_weights: .* got list"),
]


@pytest.mark.parametrize(("kind", "arguments", "words"), NO_TENSORS)
def test_arguments_that_are_no_tensors_are_refused_with_how_to_make_them(
    store, kind, arguments, words
):
    ours = kind(DIM, "t", **({"mode": "sum"} if kind is EmbeddingBag else {}))
    with pytest.raises(MisuseError, match=words + r": torch\.as_tensor\(\.\.\.\) makes one"):
        ours(*arguments)
    with pytest.raises(MisuseError, match="got ndarray"):
        EmbeddingBagCollection(DIM, 2)(np.zeros((3, 2), np.int64))


WRONG_BAGS = [
    ((torch.tensor([1.0]), torch.tensor([0])), "expected integers"),
    ((torch.tensor([1, 2]), None), "takes offsets"),
    ((torch.tensor([1, 2]), torch.tensor([[0]])), "takes offsets"),
    ((torch.tensor([[1, 2]]), torch.tensor([0])), "takes no offsets"),
    ((torch.tensor([1, 2]), torch.tensor([1])), "ascend from 0"),
    ((torch.tensor([1, 2]), torch.tensor([0, 3])), "up to the 2 ids"),
    ((torch.tensor([1, 2]), torch.tensor([0.0])), "expected integers"),
    ((torch.tensor([1, 2]), torch.tensor([False, True])), "offsets: expected integers"),
    ((torch.tensor([[1]]), None, torch.tensor([[1j]])), "per_sample_weights: expected real"),
    ((torch.tensor([[1]]).to_sparse(),), "ids: expected a tensor with values in memory"),
    ((torch.zeros((1, 1, 1), dtype=torch.int64), None), "one or two dimensions"),
    ((torch.tensor([[1, 2]]), None, torch.ones(2)), "per_sample_weights have shape"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG_BAGS)
def test_bag_refuses_other_shapes(store, arguments, words):
    with pytest.raises(MisuseError, match=words):
        EmbeddingBag(DIM, "t", mode="sum")(*arguments)
    assert store.pulls == []


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_bag_leaves_out_weights_of_padding_whatever_they_are(store, value, learnt):
    bag = EmbeddingBag(DIM, "words", mode="sum", padding_idx=0, optimizer="sgd", lr=LR)
    own, before = twin(store, "words", bag=True, mode="sum", padding_idx=0), rows_of(store, "words")
    ids, weights = torch.tensor([[1, 2, 0], [3, 0, 0]]), torch.tensor([[1.0, 2, value], [0.5] * 3])
    weights[1, 1:] = value
    for train in (False, True):
        found = bag.train(train)(ids, per_sample_weights=weights.clone().requires_grad_(learnt))
        right = own(ids, per_sample_weights=weights)
        assert found.isfinite().all()
        torch.testing.assert_close(found, right)
    found.sum().backward()
    right.sum().backward()
    assert_stepped(store, "words", own, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_module_has_the_type_that_the_model_is_turned_into(store, dtype):
    words, bag = Embedding(DIM, "words", optimizer="sgd", lr=LR), EmbeddingBag(DIM, "bags")
    columns = EmbeddingBagCollection(DIM, 2)
    model = torch.nn.ModuleList([words, bag, columns, torch.nn.Linear(DIM, 1)]).to(dtype)
    ids, before = torch.tensor([[1, 2], [3, 4]]), rows_of(store, "words")
    for module in (words, bag, columns):
        for train in (False, True):
            assert module.train(train)(ids).dtype == dtype
    assert bag(ids, None).dtype == dtype
    model[3](words(ids)).sum().backward()
    weight = model[3].weight.detach().float().numpy()
    for key in (1, 2, 3, 4):  # stepped as float32
        np.testing.assert_allclose(store.row("words", key), before[key] - LR * weight[0])
    assert model.float()[0](ids).dtype == torch.float32


def test_gradient_is_of_the_weights_and_offsets_that_forward_had(store):
    ours = EmbeddingBag(1, "bags", mode="sum", optimizer="sgd", lr=1.0)
    ids, weights, offsets = torch.tensor([1, 2, 3]), torch.tensor([1.0, 2, 3]), torch.tensor([0, 1])
    sums = ours(ids, offsets, weights)
    for reused, value in ((ids, 9), (weights, 7.0), (offsets, 0)):  # buffers for the next batch
        reused.fill_(value)
    (sums * torch.tensor([[1.0], [10.0]])).sum().backward()
    (_, keys, values, _) = store.pushes[0]
    assert dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True)) == {1: 1, 2: 20, 3: 30}


@pytest.mark.parametrize("names", ["user", b"user", True, 0, -1, []])
def test_collection_needs_several_names_or_their_number(store, names):
    with pytest.raises(ConfigError, match="names: expected"):
        EmbeddingBagCollection(2, names)


def test_features_of_one_name_share_a_table_and_its_step(store):
    """The seed of a table depends on its place, so that two declarations would differ."""
    ours = EmbeddingBagCollection(1, ["item", "user", "item"], optimizer="sgd", lr=1.0)
    assert ours.tables[0] == ours.tables[2] != ours.tables[1]
    ours(torch.tensor([[5, 5, 5], [6, 5, 5]])).sum().backward()
    pushed = {table: dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))
              for table, keys, values, _ in store.pushes}  # fmt: skip
    assert pushed == {"item": {5: 3, 6: 1}, "user": {5: 2}}


def test_collection_takes_a_number_of_numpy_and_a_batch_without_bags(store):
    ours = EmbeddingBagCollection(2, np.int64(2))
    assert len(ours.tables) == 2
    none = torch.zeros((0, 3), dtype=torch.long)
    assert ours([none, none]).shape == (0, 2, 2)


@pytest.mark.parametrize("wrong", [1.5, True, "1", 1 << 64, -(1 << 63) - 1])
def test_padding_that_is_no_id_is_refused(store, wrong):
    with pytest.raises(ConfigError, match="padding_idx: expected an id of 64 bits, got"):
        Embedding(2, "a", padding_idx=wrong)


@pytest.mark.parametrize("pad", [np.int64(-1), -1, (1 << 64) - 1, torch.tensor(-1)])
def test_padding_may_be_any_whole_number_of_64_bits(store, pad):
    ours = Embedding(2, "a", padding_idx=pad)
    assert ours(torch.tensor([-1])).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf"), "fast"])
def test_step_size_that_is_no_number_is_refused(store, lr):
    module, dense = Embedding(2, "a"), torch.nn.Linear(1, 1)
    for stepped in (module, sync(dense, "net")):
        with pytest.raises(ConfigError, match="lr: expected a number, 0 or more, got"):
            stepped.lr = lr


def test_rows_prefetched_by_one_module_age_by_pushes_of_another(store):
    ahead, other = (Embedding(1, "same", optimizer="sgd", lr=1.0, staleness=1) for _ in "ab")
    ids = torch.tensor([5])
    first = ahead(ids).item()
    ahead.prefetch(ids)
    for _ in range(2):  # one more than may be missing
        other(ids).sum().backward()
    assert ahead(ids).item() == pytest.approx(first - 2)


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "sdg"}, {"lr": -1.0}, {"staleness": -1}, {"init": "none"}, {"max_norm": 1.0}],
)
def test_modules_refuse_options_that_there_are_not(store, options):
    with pytest.raises((ConfigError, MisuseError)):
        Embedding(DIM, "t", **options)
    with pytest.raises(ConfigError, match="mode"):
        EmbeddingBag(DIM, "t", mode="product")


def test_eval_and_no_grad_push_nothing(store):
    ours = Embedding(DIM, "t")
    with torch.no_grad():
        assert not ours(torch.tensor([1])).requires_grad
    assert not ours.eval()(torch.tensor([1])).requires_grad
    assert ours.train()(torch.tensor([1])).requires_grad
    assert store.pushes == []
    assert store.rows == {}


def test_rows_are_no_parameters(store):
    model = torch.nn.Sequential(Embedding(DIM, "t"), torch.nn.Linear(DIM, 1))
    sizes = {name: one.numel() for name, one in model.named_parameters()}
    assert sizes == {"0.rows": 0, "1.weight": DIM, "1.bias": 1}
    assert set(model.state_dict()) == {"1.weight", "1.bias"}


def test_step_size_follows_lr(store):
    ours = Embedding(DIM, "t", optimizer="sgd", lr=0.5)
    ours.lr = 0.125
    ours(torch.tensor([1])).sum().backward()
    assert store.pushes[0][3] == 0.25
    assert ours.lr == 0.125


# --- a collection ---------------------------------------------------------------------------------


def test_collection_is_its_bags_in_one_request(store):
    ours = EmbeddingBagCollection(DIM, ["a", "bb"], optimizer="sgd", lr=LR)
    own = [twin(store, name) for name in ("a", "bb")]
    before = [rows_of(store, name) for name in ("a", "bb")]
    ids = torch.tensor([[1, 2], [3, 2], [1, 4]])
    out = ours(ids)
    assert out.shape == (3, 2, DIM)
    assert torch.equal(out, torch.stack([one(ids[:, i]) for i, one in enumerate(own)], 1))
    assert store.corks == 1
    factors = torch.arange(6.0).view(3, 2, 1)
    (out * factors).sum().backward()
    for i, one in enumerate(own):
        (one(ids[:, i]) * factors[:, i]).sum().backward()
        expected = before[i] - LR * one.weight.grad.numpy()
        np.testing.assert_allclose(rows_of(store, ("a", "bb")[i]), expected, rtol=1e-5)
    assert store.corks == 2
    assert [table for table, *_ in store.pushes] == ["a", "bb"]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("by_name", [False, True])
def test_collection_takes_bags_by_order_and_by_name(store, mode, by_name):
    ours = EmbeddingBagCollection(DIM, ["a", "bb"], mode=mode, padding_idx=0)
    options = {"bag": True, "mode": mode, "padding_idx": 0}
    a, b = (torch.tensor(IDS), torch.tensor([0, 5])), torch.tensor([[1, 2], [0, 0]])
    out = ours({"bb": b, "a": a} if by_name else [a, b])
    parts = [twin(store, "a", **options)(*a), twin(store, "bb", **options)(b)]
    torch.testing.assert_close(out, torch.stack(parts, 1))


@pytest.mark.parametrize("padding", [None, 2])
def test_collection_of_a_matrix_is_that_of_its_columns(store, padding):
    ours = EmbeddingBagCollection(DIM, ["a", "bb"], optimizer="sgd", lr=LR, padding_idx=padding)
    ids = torch.tensor([[1, 2], [3, 2], [1, 4]])
    factors = torch.arange(1.0, 7.0).view(3, 2, 1)
    found = []
    for features in (ids, list(ids.T.unsqueeze(2))):
        store.rows.clear()
        out = ours(features)
        (out * factors).sum().backward()
        rows = {key: row.tobytes() for key, row in store.rows.items()}
        found.append((out.detach().numpy().tobytes(), rows))
    assert found[0] == found[1]
    assert len(rows) == (4 if padding is None else 3)


# --- several modules ------------------------------------------------------------------------------


def test_separate_modules_pull_and_push_together(store):
    bags = [EmbeddingBag(DIM, name, optimizer="sgd", lr=LR) for name in ("a", "bb", "c")]
    own = [twin(store, one.tables[0].name, bag=True) for one in bags]
    before = [rows_of(store, one.tables[0].name) for one in bags]
    ids = torch.tensor([[1, 2, 1], [3, 2, 1]])
    columns = ids.split(1, 1)
    prefetch(*zip(bags, columns, strict=True))
    assert (len(store.pulls), store.outer_corks) == (3, 1)
    sum(bag(part).sum() for bag, part in zip(bags, columns, strict=True)).backward()
    assert (len(store.pulls), len(store.pushes), store.outer_corks) == (3, 3, 2)
    for i, one in enumerate(own):
        one(columns[i]).sum().backward()
        assert_stepped(store, bags[i].tables[0].name, one, before[i])


def test_module_that_is_called_twice_pushes_its_rows_once(store):
    ours = Embedding(DIM, "t", optimizer="sgd", lr=LR)
    own, before = twin(store, "t"), rows_of(store, "t")
    for module in (ours, own):
        (module(torch.tensor([1, 2, 1])).sum() * 2 + module(torch.tensor([2, 3])).sum()).backward()
    assert_stepped(store, "t", own, before)
    assert [sorted(keys.tolist()) for _, keys, _, _ in store.pushes] == [[1, 2, 3]]


def test_backward_that_fails_pushes_nothing_then_or_later(store):
    ours, other = (Embedding(DIM, name, optimizer="sgd", lr=LR) for name in ("t", "u"))
    ids = torch.tensor([1])
    x = torch.ones(1, requires_grad=True)
    broken = Broken.apply(x)  # its gradient comes last: it is the oldest
    with pytest.raises(RuntimeError, match="broken"):
        (ours(ids).sum() * broken.sum()).backward()
    assert store.pushes == []
    other(ids).sum().backward()
    assert [table for table, *_ in store.pushes] == ["u"]
    np.testing.assert_allclose(store.pushes[0][2], 1.0)


def test_push_that_is_refused_is_told_by_backward(store, monkeypatch):
    ours = Embedding(DIM, "t", staleness=0)

    def refuse(*_):
        raise MisuseError("no such step")

    monkeypatch.setattr(store, "push_async", refuse)
    with pytest.raises(MisuseError, match="no such step"):
        ours(torch.tensor([1])).sum().backward()


def test_collection_refuses_other_features(store):
    ours = EmbeddingBagCollection(DIM, 2)
    for wrong in (torch.zeros((2, 3), dtype=torch.int64), [torch.tensor([[1]])], {"a": [[1]]}):
        with pytest.raises(MisuseError):
            ours(wrong)
    with pytest.raises(MisuseError, match="unequal numbers of bags"):
        ours([torch.tensor([[1]]), torch.tensor([[1], [2]])])


# --- ahead, and behind ----------------------------------------------------------------------------


def test_prefetched_rows_are_not_pulled_again(store):
    ours = Embedding(DIM, "t")
    ours.prefetch(torch.tensor([5, 6]))
    assert torch.equal(ours(torch.tensor([5, 6])), torch.tensor(rows_of(store, "t")[[5, 6]]))
    assert len(store.pulls) == 1


def test_prefetch_takes_the_arguments_of_the_next_call(store):
    ours = EmbeddingBag(DIM, "t", mode="sum")
    call = torch.tensor([5, 6]), torch.tensor([0]), torch.tensor([1.0, 2])
    ours.prefetch(*call)
    ours(*call)
    assert len(store.pulls) == 1


@pytest.mark.parametrize(("staleness", "pulls"), [(1, 2), (0, 2)])
def test_prefetched_rows_lack_no_more_steps_than_staleness_allows(store, staleness, pulls):
    ours = Embedding(DIM, "t", optimizer="sgd", lr=LR, staleness=staleness)
    first = ours(torch.tensor([1, 2]))
    ours.prefetch(torch.tensor([1, 3]))
    first.sum().backward()
    stepped = store.row("t", 1)
    row = ours(torch.tensor([1, 3]))[0].detach().numpy()
    assert np.array_equal(row, stepped) == (staleness == 0)
    assert np.array_equal(row, store.first("t", 1)) == (staleness == 1)
    assert len(store.pulls) == pulls


def test_rows_prefetched_too_long_ago_are_pulled_again(store):
    ours = Embedding(DIM, "t", optimizer="sgd", lr=LR, staleness=1)
    ours.prefetch(torch.tensor([1]))
    for _ in range(2):
        ours(torch.tensor([2])).sum().backward()
    ours(torch.tensor([1]))
    assert [keys.tolist() for _, keys in store.pulls] == [[1], [2], [2], [1]]


@pytest.mark.parametrize("staleness", [0, 2])
def test_no_more_pushes_are_under_way_than_staleness_allows(store, staleness):
    ours = Embedding(DIM, "t", staleness=staleness)
    for step in range(1, 5):
        ours(torch.tensor([1])).sum().backward()
        pulls = step
        assert store.waited - pulls == max(0, step - staleness)
    ours.flush()
    assert store.waited == 8


def test_prefetched_batches_are_bounded(store):
    ours = Embedding(DIM, "t")
    for key in range(20):
        ours.prefetch(torch.tensor([key]))
    assert len(ours.exchange._ahead) == 8


def test_ids_that_change_behind_a_prefetch_are_pulled(store):
    ours, ids = Embedding(DIM, "t"), torch.tensor([5, 6])
    ours.prefetch(ids)
    ids += 1
    assert torch.equal(ours(ids), torch.tensor(rows_of(store, "t")[[6, 7]]))


# --- arrays that are used again ------------------------------------------------------------


def test_arrays_are_used_again_only_when_nothing_refers_to_them():
    buffers, seen = RowBuffers(), set()
    first = buffers.take(LARGE, 2)
    tensor, place = torch.from_numpy(first)[3:5], first.ctypes.data
    del first
    for _ in range(2 * KEPT):  # the tensor still refers to it
        other = buffers.take(LARGE, 2)
        assert other.ctypes.data != place
        seen.add(other.ctypes.data)
        del other
    assert len(seen) == 1  # of which the same one is used each time
    del tensor
    some = [buffers.take(LARGE, 2), buffers.take(LARGE - 9, 2)]
    assert {one.ctypes.data for one in some} == {place, *seen}
    assert some[1].shape == (LARGE - 9, 2)
    many = [buffers.take(LARGE, 1) for _ in range(2 * KEPT)]
    assert len({one.ctypes.data for one in many}) == 2 * KEPT
    kept = lambda: len(buffers._arrays)  # noqa: E731
    assert kept() == KEPT
    small = [buffers.take(3, 2) for _ in range(3)]
    assert small[0].shape == (3, 2)
    assert kept() == KEPT


# --- the kernel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bags", [False, True])
def test_add_to_rows_adds_what_numpy_does(weighted, bags):
    rng = np.random.default_rng(2)
    n, u, dim = 300, 40, 7
    places = rng.integers(0, u + 1, n).astype(np.int32)  # u: padding
    offsets = np.sort(rng.integers(0, n, 50)) if bags else None
    if bags:
        offsets[0] = 0
    m = len(offsets) if bags else n
    gradient = rng.normal(size=(m, dim)).astype(np.float32)
    weights = rng.normal(size=n).astype(np.float32) if weighted else None
    rows = np.zeros((u, dim), np.float32)
    add_to_rows(gradient, places, rows, offsets, weights)
    of = np.repeat(np.arange(m), np.diff(offsets, append=n)) if bags else np.arange(n)
    expected = np.zeros((u + 1, dim))
    np.add.at(expected, places, gradient[of] * (1 if weights is None else weights[:, None]))
    np.testing.assert_allclose(rows, expected[:u], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [{"rows": (2, 3)}, {"places": 4}, {"weights": 4}, {"offsets": [0, 3, 2]}, {"offsets": [0, 9]}],
)
def test_add_to_rows_refuses_other_shapes(change):
    rows = np.zeros(change.get("rows", (2, 2)), np.float32)
    places = np.zeros(change.get("places", 3), np.int32)
    weights = np.ones(change["weights"], np.float32) if "weights" in change else None
    offsets = np.array(change["offsets"]) if "offsets" in change else None
    with pytest.raises(ValueError, match=r"expected|ascend"):
        add_to_rows(np.zeros((3, 2), np.float32), places, rows, offsets, weights)
