"""Dense tensors: tables keyed by chunk."""

import numpy as np
import pytest
from attach import attach
from shards import Shards

from snailps import JobSettings, Table, Tensor, Worker
from snailps.api.tables import TENSOR_CHUNK
from snailps.api.wire_choice import WireChoice
from snailps.errors import ConfigError, MisuseError
from snailps.models.parameters import pulled


@pytest.mark.parametrize("shape", [(1,), (7, 3), (TENSOR_CHUNK,), (TENSOR_CHUNK + 1,), (50, 100)])
def test_tensor_rows_and_back_is_the_same_array(shape):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tensor = Tensor("w", shape)
    rows = tensor.to_rows(values)
    assert rows.shape == (len(tensor.keys()), tensor.table().dim)
    assert np.array_equal(tensor.from_rows(rows), values)


def test_tensor_table_has_its_options():
    options = {"access": "adagrad", "init": "uniform", "scale": 0.5, "lr": 0.1, "seed": 9}
    assert Tensor("w", (3, 4), **options).table() == Table("w", 12, **options)


@pytest.mark.parametrize("shape", [(), (0,), (3, -1), (2.0,)])
def test_tensor_of_no_shape_is_refused(shape):
    with pytest.raises(ConfigError, match="tensor 'w': shape"):
        Tensor("w", shape)


def test_worker_tensor_over_two_shards_adds_what_is_pushed():
    tensor = Tensor("w", (30, 200), init="uniform", scale=0.1, seed=4)
    table = tensor.table()
    with Shards(2) as shards:
        for thread in shards.threads:
            thread.add_table(1, *table.store_arguments())
        model = Worker(JobSettings())
        client = shards.client()
        attach(model, client, WireChoice(client, shards.route), {"w": (1, table)})
        first = pulled(model, [tensor])["w"]
        assert first.shape == (30, 200)
        assert 0 < np.abs(first).max() <= 0.1
        step = np.linspace(-1, 1, 6000, dtype=np.float32).reshape(30, 200)
        model.push("w", tensor.keys(), tensor.to_rows(step))
        assert np.array_equal(pulled(model, [tensor])["w"], first + step)
        with pytest.raises(MisuseError, match=r"shape \(30, 200\), got \(200, 30\)"):
            tensor.to_rows(step.T)
