"""Networks with a sparse first layer: gradients, both ways of the first layer, against NumPy."""

import logging

import numpy as np
import pytest
from attach import attach
from products import ReferenceNet, batch, libsvm
from shards import Shards, push_out

from snailps.api.tables import Tensor
from snailps.api.wire_choice import WireChoice
from snailps.data._key_numbering import KeyNumbers
from snailps.errors import ConfigError, DataError
from snailps.models.layers import Layers
from snailps.models.losses import LOSSES
from snailps.models.parameters import pulled
from snailps.models.sparse.first_layer import (
    BatchEntries,
    bytes_at_servers,
    bytes_at_worker,
)  # fmt: skip
from snailps.models.sparse.net import (
    GROWTH,
    SHARE_MIN,
    STEPS,
    TABLE,
    Net,
    NetSettings,
    growing,
    share_of_batch,
)
from snailps.transport.messages.terms import Step
from tests.support.blocks import held_block

COLUMNS = 400
ACCESS = {"sgd": 1, "adagrad": 2, "adam": 3}


def labels_of(ptr, loss, seed=3):
    rng, m = np.random.default_rng(seed), len(ptr) - 1
    if loss == "squared":
        return rng.normal(size=m).astype(np.float32)
    return rng.integers(0, 4 if loss == "multinomial" else 2, m).astype(np.float32)


# --- weights ---


@pytest.mark.parametrize(
    ("method", "clock", "workers"), [("adagrad", -1, 3), ("sgd", -1, 3), ("adagrad", 0, 1)]
)
def test_gradients_are_divided_by_weights_so_that_2_is_twice(method, clock, workers):
    net = Net(NetSettings(optimizer=method, batch_size=10), 1)
    net.workers = workers
    plain = np.zeros(0, np.float32)
    block = held_block(terms=Step(clock, slots=4))
    by_hand = {("adagrad", -1): 3.0, ("sgd", -1): 9.0, ("adagrad", 0): 20.0}[method, clock]
    out_of = net._out_of
    assert out_of(block, plain, 5, slice(0, 3)) == by_hand
    for weight in (1, 2, 0.25):
        weights = np.full(5, weight, np.float32)
        assert out_of(block, weights, 5, slice(0, 3)) == weight * by_hand


@pytest.mark.parametrize(
    ("method", "clock", "workers", "by_hand"),
    [("adagrad", -1, 3, 20.0), ("sgd", -1, 3, 20.0), ("sgd", -1, 9, 27.0), ("adam", 0, 1, 20.0)],
)
def test_line_of_a_small_batch_moves_a_continued_net_as_far_as_before(
    method, clock, workers, by_hand
):
    """3 lines of a step of 20 lines so far; of all nine workers' 27 with sgd; 5 x 4 of bsp's."""
    net = Net(NetSettings(optimizer=method, batch_size=1000, learnt_batch=20), 1)
    net.workers = workers
    block = held_block(terms=Step(clock, slots=4))
    plain = np.zeros(0, np.float32)
    out_of = net._out_of
    assert out_of(block, plain, 5, slice(0, 3)) == pytest.approx(by_hand)
    twice = np.full(5, 2, np.float32)
    assert out_of(block, twice, 5, slice(0, 3)) == pytest.approx(2 * by_hand)


@pytest.mark.parametrize("method", ["adagrad", "sgd", "adam"])
def test_smaller_batches_that_a_user_sets_take_full_steps(method):
    """3 lines are a whole batch then, though the net has learnt 20 a step; 2 are not."""
    net = Net(NetSettings(optimizer=method, batch_size=3, learnt_batch=20), 1)
    block, plain = held_block(terms=None), np.zeros(0, np.float32)
    out_of = net._out_of
    assert [out_of(block, plain, 5, slice(*of)) for of in ((0, 3), (3, 5))] == [3, 3]


# --- the dense layers ----------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("hidden", [(7,), (7, 5), (6, 5, 4)])
def test_gradients_are_those_of_the_loss(loss, activation, hidden):
    """Every parameter and every Z, by differences in float64."""
    rng = np.random.default_rng(5)
    layers = Layers((*hidden, 4 if loss == "multinomial" else 1), activation, loss)
    z = rng.normal(size=(9, hidden[0]))
    labels = labels_of(np.arange(10), loss)
    weights = rng.uniform(0.5, 2, 9)
    shapes = {tensor.name: tensor.shape for tensor in layers.tensors(access="sgd", lr=1.0)}
    parameters = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    gradients, unused = ({name: np.empty(shapes[name]) for name in shapes} for _ in range(2))
    of_all = float(weights.sum())

    def mean_loss():
        return layers.step(z, parameters, labels, weights, unused, of_all)[0] / of_all

    _, weight, dz = layers.step(z, parameters, labels, weights, gradients, of_all)
    assert weight == pytest.approx(weights.sum())
    for array, gradient in [(z, dz), *((parameters[name], gradients[name]) for name in shapes)]:
        assert gradient.shape == array.shape
        for at in np.ndindex(array.shape):
            kept, h = array[at], 1e-6
            array[at] = kept + h
            above = mean_loss()
            array[at] = kept - h
            below = mean_loss()
            array[at] = kept
            assert gradient[at] == pytest.approx((above - below) / (2 * h), rel=1e-4, abs=1e-7)


def test_extreme_scores_give_finite_losses_and_gradients():
    layers = Layers((2, 1), "sigmoid", "logistic")
    z = np.array([[1e30, -1e30], [500, -500]], np.float32)
    parameters = {"dense1": np.full((2, 1), 1e4, np.float32), "biases": np.zeros(3, np.float32)}
    gradients = {name: np.full_like(of_it, np.nan) for name, of_it in parameters.items()}
    loss, _, dz = layers.step(z, parameters, np.zeros(2, np.float32), np.empty(0), gradients, 2)
    assert np.isfinite(loss)
    assert all(np.isfinite(one).all() for one in (dz, *gradients.values()))


# --- the whole network ---------------------------------------------------------------------------


class Setup:
    """A net on shards of this process, with its tables made."""

    def __init__(self, shards=2, **changed):
        self.settings = NetSettings(
            **{"hidden": ("12", "6"), "batch_size": 50, "optimizer": "adagrad", "seed": 5}
            | {"format": "libsvm", "wire": "float32", "shuffle": False} | changed
        )  # fmt: skip
        self.cluster = Shards(shards)
        self.model = Net(self.settings, 1)
        tables = [one.table() if isinstance(one, Tensor) else one for one in self.model.tables()]
        numbered = {table.name: (n, table) for n, table in enumerate(tables, 1)}
        for number, table in numbered.values():
            self.cluster.declare(table, number)
        self.client = self.cluster.client()
        attach(self.model, self.client, WireChoice(self.client, self.cluster.route), numbered)
        self.model.setup()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.cluster.__exit__(*failure)

    def start(self, entries):
        """Begins the products of a batch."""
        return self.model._start(entries)

    def edges(self, examples, size):
        """The batches of so many examples."""
        return self.model._edges(examples, size)

    def has_trained(self, examples):
        """As after so many examples."""
        self.model._trained = examples

    def before_steps(self, note):
        """Has each step's arguments noted."""
        step = self.model._step
        self.model._step = lambda *given: note(*given) or step(*given)

    def train(self, text):
        """One block of this text; what `train` returned."""
        block = held_block(text, 1, seed=1, progress=(0.0, 1.0))
        block.prepared = self.model.prepare(block)
        return self.model.train(block)

    def rows(self, columns=COLUMNS):
        self.client.flush()
        return self.model.pull(TABLE, np.arange(columns, dtype=np.uint64))

    def reference(self, columns=COLUMNS):
        s = self.settings
        hyper = (s.lr, 1e-8, 0.9, 0.999)
        return ReferenceNet(
            columns, s.layers.sizes, activation=s.activation, loss=s.loss,
            access=ACCESS[s.method], hyper=hyper, init_scale=s.init_scale, seed=s.seed,
            in_flight=s.in_flight,
        )  # fmt: skip


def examples(count=220, loss="logistic", columns=COLUMNS):
    ptr, keys, values = batch(np.random.default_rng(2), count, columns, 8)
    return ptr, keys, values, labels_of(ptr, loss)


def batches(data, size):
    ptr, keys, values, labels = data
    for first in range(0, len(labels), size):
        last = min(len(labels), first + size)
        a, b = ptr[first], ptr[last]
        yield ptr[first : last + 1] - a, keys[a:b], values[a:b], labels[first:last]


def close(got, wanted, bound=1e-4):
    return np.abs(got - wanted).max() <= bound * np.abs(wanted).max()


@pytest.mark.parametrize("first_layer", ["servers", "worker"])
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_training_is_that_of_the_reference(first_layer, in_flight):
    """220 examples in batches of 50, the last of 20; twice, so that steps build on steps."""
    data = examples()
    with Setup(first_layer=first_layer, in_flight=in_flight) as setup:
        reference = setup.reference()
        before = setup.rows()
        assert np.array_equal(before, reference.first.rows[:, :12].astype(np.float32))
        for _ in range(2):
            figures = setup.train(libsvm(*data))
            losses = reference.train(list(batches(data, 50)))
            sizes = [50, 50, 50, 50, 20]
            assert figures["units"] == figures["examples"] == 220
            assert figures["loss"] == pytest.approx(np.dot(losses, sizes), rel=1e-4)
        rows = setup.rows()
        assert not close(rows, before)
        assert close(rows, reference.first.rows[:, :12], 1e-3)
        weights, biases = reference.parameters()
        found = pulled(setup.model, setup.settings.layers.tensors()).values()
        for got, wanted in zip(found, [*weights, np.concatenate(biases)], strict=True):
            assert close(got, wanted, 1e-3)
        assert (setup.cluster.stats("products") > 0) == (first_layer == "servers")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_other_methods_and_losses_are_those_of_the_reference(optimizer, loss):
    data = examples(loss=loss)
    more = {"classes": 4} if loss == "multinomial" else {}
    with Setup(optimizer=optimizer, loss=loss, activation="sigmoid", lr=0.01, **more) as setup:
        reference = setup.reference()
        figures = setup.train(libsvm(*data))
        losses = reference.train(list(batches(data, 50)))
        assert figures["loss"] == pytest.approx(np.dot(losses, [50, 50, 50, 50, 20]), rel=1e-4)
        assert close(setup.rows(), reference.first.rows[:, :12], 2e-3)


def test_narrow_rows_train_nearly_the_same():
    """float16 forth and back, gradients scaled; adagrad would see any that vanish."""
    data = examples()
    with Setup(first_layer="servers", wire="float16") as setup:
        reference = setup.reference()
        figures = setup.train(libsvm(*data))
        losses = reference.train(list(batches(data, 50)))
        assert figures["loss"] == pytest.approx(np.dot(losses, [50, 50, 50, 50, 20]), rel=1e-2)
        assert close(setup.rows(), reference.first.rows[:, :12], 0.1)
        before = setup.client.counters()["bytes_in"]
        way = setup.start(BatchEntries(*next(batches(data, 50))[:3]))
        way.wait()
        assert setup.client.counters()["bytes_in"] - before < 50 * 12 * 4 * 2  # float32's


def test_servers_that_forget_every_batch_change_nothing():
    data = examples()
    found = []
    for forgetful in (False, True):
        with Setup(first_layer="servers") as setup:
            if forgetful:
                back = setup.model.backward

                def backward(forward, dz, client=setup.client, back=back):
                    push_out(client, dz.shape[1])
                    return back(forward, dz)

                setup.model.backward = backward
            setup.train(libsvm(*data))
            found.append(setup.rows())
            assert (setup.client.counters()["reconnects"] > 0) == forgetful
    assert np.array_equal(*found)


def test_fractions_of_blocks_and_empty_ones_are_trained():
    with Setup(first_layer="servers", in_flight=3) as setup:
        assert setup.train(b"")["units"] == 0
        assert setup.train(b"1 5:1\n")["examples"] == 1
        assert setup.train(b"1\n0\n")["examples"] == 2  # without features: biases alone
        setup.model.finish()


def test_labels_that_are_no_class_are_refused():
    with Setup(loss="multinomial", classes=3) as setup:
        for text in (b"3 1:1\n", b"-1 1:1\n", b"0.5 1:1\n"):
            with pytest.raises(DataError, match="expected labels 0 to 2"):
                setup.train(text)


# --- where the first layer computes --------------------------------------------------------------


@pytest.mark.parametrize(("shards", "dim"), [(1, 400), (3, 50)])
def test_estimated_bytes_are_those_that_travel(shards, dim):
    ptr, keys, values = batch(np.random.default_rng(1), 500, 1 << 20, 60, empty=0)
    entries = BatchEntries(ptr, keys, values)
    unique = len(np.unique(keys))
    moved = []
    for place in ("servers", "worker"):
        with Setup(shards, first_layer=place, hidden=(str(dim),)) as setup:
            before = setup.client.counters()
            way = setup.start(entries)
            z = way.wait()
            way.back(np.ones_like(z)).wait()
            after = setup.client.counters()
            moved.append(sum(after[name] - before[name] for name in ("bytes_in", "bytes_out")))
    estimated = [bytes_at_servers(entries, dim, shards), bytes_at_worker(entries, dim, unique)]
    assert estimated == pytest.approx(moved, rel=0.05)


@pytest.mark.parametrize(
    ("columns", "hidden", "chosen"), [(1 << 20, "64", "servers"), (30, "64", "worker")]
)
def test_auto_takes_the_way_of_fewer_bytes_and_says_so(caplog, columns, hidden, chosen):
    caplog.set_level(logging.INFO)
    data = examples(columns=columns)
    with Setup(hidden=(hidden,)) as setup:
        setup.train(libsvm(*data))
        (said,) = [one for one in caplog.messages if one.startswith("first_layer")]
        assert f"first_layer: auto: {chosen}, as 4 batches of 50 examples" in said
        assert (setup.cluster.stats("products") > 0) == (chosen == "servers")
        setup.train(libsvm(*data))
        assert len([one for one in caplog.messages if one.startswith("first_layer")]) == 1


def test_both_ways_see_the_same_product():
    ptr, keys, values = batch(np.random.default_rng(1), 100, 300, 10)
    numbers = KeyNumbers()
    assert len(numbers.number(keys)[0]) == len(np.unique(keys))
    found = []
    for place in ("servers", "worker"):
        with Setup(3, first_layer=place) as setup:
            found.append(setup.start(BatchEntries(ptr, keys, values)).wait())
    assert close(*found, 1e-5)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"optimizer": "add"}, "does not fit Net"),
        ({"l1": 1.0}, "l1: 1 needs optimizer ftrl"),
        ({"batch_size": 1 << 16, "hidden": ("400",)}, "2 batches of 65,536 rows of 400 floats"),
        ({"test": ("nowhere.svm",)}, "nowhere.svm does not exist"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_the_master(changed, said):
    with pytest.raises((ConfigError, DataError), match=said):
        Net.check(NetSettings(**changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden": ()}, "hidden: expected widths"),
        ({"hidden": ("0",)}, "hidden: expected widths"),
        ({"hidden": ("a",)}, "hidden: expected widths"),
        ({"loss": "multinomial"}, "needs the number of classes, got 0"),
        ({"classes": 3}, "classes: expected 0"),
    ],
)
def test_settings_that_are_none_are_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        NetSettings(**changed).validate(lambda key: key)


@pytest.mark.parametrize(
    ("workers", "expected"), [(1, 1024), (2, 512), (3, 341), (8, 128), (1000, SHARE_MIN)]
)
def test_share_of_batch_keeps_the_sum_of_all_workers_batches(workers, expected):
    assert share_of_batch(1024, workers, 0) == expected
    assert share_of_batch(1024, workers, expected * STEPS * workers) == expected


def test_shares_are_larger_where_a_training_has_examples_for_enough_steps():
    assert share_of_batch(1024, 8, 4_000_000) == 500
    assert share_of_batch(1024, 2, 1 << 40) == 1024


def test_share_of_batch_is_never_more_than_the_batch():
    assert share_of_batch(10, 4, 1 << 40) == 10


@pytest.mark.parametrize(
    ("trained", "expected"), [(0, 64), (64 * GROWTH, 64), (100 * GROWTH, 100), (10**9, 512)]
)
def test_growing_batch_is_a_part_of_what_was_trained_before(trained, expected):
    assert growing(512, trained) == expected


def test_batch_does_not_grow_beyond_the_share():
    assert growing(50, 0) == growing(50, 10**9) == 50


@pytest.mark.parametrize(("workers", "grows"), [(1, False), (2, True)])
def test_batches_of_several_workers_grow_from_block_to_block(workers, grows):
    examples = 40 * SHARE_MIN * GROWTH
    with Setup(batch_size=2 * 80) as one:
        one.model.workers = workers
        first = one.edges(examples, 80)
        one.has_trained(examples)
        second = one.edges(examples, 80)
    for edges in (first, second):
        assert [a for a, _ in edges] == [0, *(b for _, b in edges[:-1])]
        assert edges[-1][1] == examples
    sizes = [b - a for a, b in first]
    assert (sizes[0] == SHARE_MIN) == grows
    assert sizes[:-1] == sorted(sizes[:-1])
    assert sizes[-2] == 80
    assert second[0] == (0, 80)


@pytest.mark.parametrize(("consistency", "batches"), [("async", 2), ("ssp", 2), ("bsp", 1)])
def test_several_workers_take_smaller_batches(consistency, batches):
    with Setup(batch_size=128, consistency=consistency) as one:
        one.model._place, one.model.workers = "servers", 4
        ptr, keys, values = batch(np.random.default_rng(1), 128, COLUMNS, 7)
        sent = []
        one.before_steps(lambda *given: sent.append(given[2]))
        one.train(libsvm(ptr, keys, values, labels_of(ptr, "logistic")))
    assert len(sent) == batches


@pytest.mark.parametrize(
    ("workers", "in_flight", "trained", "before"),
    [
        (1, 2, 64 * GROWTH, 0),
        (2, 1, 64 * GROWTH, 0),
        (2, 2, 64 * GROWTH - 1, 0),
        (2, 2, 64 * GROWTH, 1),
        (2, 3, 64 * GROWTH, 1),
    ],
)
def test_dense_layers_of_the_next_batch_are_pulled_before_the_step_by_several_workers(
    workers, in_flight, trained, before
):
    settings = {"batch_size": 64 * workers, "in_flight": in_flight}
    with Setup(first_layer="servers", **settings) as one:
        one.model.workers, events = workers, []
        one.has_trained(trained)
        one.before_steps(lambda *given: events.append("step"))
        dense = one.model._dense
        pull = dense.pull
        dense.pull = lambda: events.append("pull") or pull()
        ptr, keys, values = batch(np.random.default_rng(1), 3 * 64, COLUMNS, 7)
        one.train(libsvm(ptr, keys, values, labels_of(ptr, "logistic")))
    steps = [number for number, event in enumerate(events) if event == "step"]
    pulled = [events[:at].count("pull") for at in steps]
    assert pulled == [1 + before, 2 + before, 3]
    assert events.count("pull") == 3  # none behind the last batch
