"""models.sparse.fm: settings, and blocks at one worker."""

from dataclasses import replace

import numpy as np
import pytest
from connected import block_of, connected, flush, train
from first_rows import first_row
from twins import fm as twin

from snailps import kernels
from snailps.config import (
    RawConfig,
)
from snailps.data.examples import ExampleReader, entries_in
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import expand
from snailps.files.input_files import InputFiles
from snailps.files.scratch import Scratch
from snailps.models.sparse.batch import BatchReader, batch_reader
from snailps.models.sparse.fm import FactorizationMachine, FmSettings, untrained
from snailps.models.sparse.linear import LinearSettings
from snailps.models.sparse.net import NetSettings
from snailps.models.sparse.sample import encoded

LINES = b"1 3:1 7:0.5\n-1 7:1 9:2\n1 3:1 9:1\n-1 12:1\n"
FIELDS = b"1 0:3:1 1:7:0.5\n-1 1:7:1 2:9:2\n1 0:3:1 2:9:1\n-1 1:12:1\n"


def settings_of(**values):
    return RawConfig.from_mapping(values, "--{key}").build(FmSettings)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"fields": "3", "format": "libsvm"}, "fields: LIBSVM's examples have none"),
        ({"fields": "65535", "factors": "2"}, "up to 65,536, got 1 \\+ 2 x 65535"),
        ({"loss": "multinomial"}, "loss"),
        ({"factors": "0"}, "factors"),
    ],
)
def test_fm_settings_that_cannot_be_are_refused(values, what):
    with pytest.raises(ConfigError, match=what):
        settings_of(**values)


# --- a worker -----------------------------------------------------------------------------------


@pytest.fixture
def make():
    """Makes models that are connected to a shard."""
    with connected(FactorizationMachine) as make:
        yield make


def batch_of(data, settings):
    reader = ExampleReader(settings.format)
    return BatchReader(reader, bias=True, fields=settings.fields).read(data)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "ftrl"])
@pytest.mark.parametrize(("data", "fields"), [(LINES, 0), (FIELDS, 3), (FIELDS, 0)])
def test_fm_block_changes_the_rows_as_the_twin_does(make, optimizer, data, fields):
    settings = FmSettings(optimizer=optimizer, factors=3, fields=fields, l2=0.01, shuffle=False)
    model = make(settings)
    batch = batch_of(data, settings)
    before = model.pull("weights", batch.keys, state=True)
    assert not before[:, 0].any()
    assert before[:, 1 : settings.dim].all()
    told = train(model, data)
    flush(model)
    after = model.pull("weights", batch.keys, state=True)
    parts = before.shape[1] // settings.dim
    padded = kernels.padded(len(before), parts * settings.stride)
    kernels.unpack_parts(before, padded, settings.dim, parts)
    rates = model.rates(block_of(b""))
    want, loss, weight = twin.train_fm(
        padded, batch.ptr, batch.places, batch.values, batch.fields if fields else [],
        batch.labels, batch.weights, factors=3, field_num=max(1, fields), loss=0,
        method={"sgd": 1, "adagrad": 2, "ftrl": 4}[optimizer], bias=batch.bias,
        lr_start=rates[0], lr_stop=rates[1], first=0, last=len(batch),
        eps=settings.eps, l1=0.0, l2=0.01, beta=settings.beta,
        factor_l2=settings.factor_l2,
    )  # fmt: skip
    want = want.reshape(len(want), parts, -1)[:, :, : settings.dim].reshape(before.shape)
    np.testing.assert_allclose(after, want, atol=1e-5)
    assert told["loss"] == pytest.approx(loss, rel=1e-5)
    assert (told["examples"], told["units"]) == (weight, 4)
    assert (after != before).any()


def test_fm_rate_falls_but_for_ftrl(make):
    block = block_of(b"", progress=(0.5, 1.0))
    assert make(FmSettings(lr=0.2)).rates(block) == (0.1, pytest.approx(0, abs=1e-6))
    assert make(FmSettings(lr=0.2, optimizer="ftrl")).rates(block) == (0.2, 0.2)


def test_fm_scores_count_untrained_features_as_nothing():
    settings = FmSettings(factors=3, seed=5)
    batch = batch_of(LINES, settings)
    rows = np.stack(
        [first_row(kernels, 3, settings.scale, 5, key, settings.dim) for key in batch.keys]
    )
    assert untrained(settings, batch.keys, rows).tolist() == list(range(len(rows)))
    assert not FactorizationMachine.scores(settings, rows, batch, {}).any()
    rows[:2, 0] = 1  # of features 3 and 7
    rows[:2, 1:] = 2
    got = FactorizationMachine.scores(settings, rows, batch, {})
    np.testing.assert_allclose(got[:, 0], [1.5 + 0.5 * 12, 1, 1, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("data", "fields", "what"),
    [
        (LINES, 2, "expected fields 0 to 1, got none. LIBSVM has none.*or set fields: 0"),
        (FIELDS, 2, "expected fields 0 to 1, got 0 to 2"),
    ],
)
def test_fm_with_fields_that_do_not_fit_refuses(tmp_path, make, data, fields, what):
    (tmp_path / "in.svm").write_bytes(data)
    settings = FmSettings(fields=fields, factors=2, input=(str(tmp_path / "in.svm"),))
    with pytest.raises(DataError, match=rf"input: .*in\.svm: {what}"):
        FactorizationMachine.check(settings)
    rows = np.zeros((9, settings.dim), np.float32)
    own = settings if data == FIELDS else replace(settings, fields=0)
    with pytest.raises(DataError, match="as the model has, got") as refused:
        FactorizationMachine.scores(settings, rows, batch_of(data, own), {})
    assert "et fields" not in str(refused.value)  # the model is there
    with pytest.raises(DataError, match=f"text.*{what.partition('.')[0]}"):
        train(make(settings), data)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "ftrl"])
def test_fm_of_empty_lines_only_learns_nothing(make, optimizer):
    model = make(FmSettings(optimizer=optimizer))
    assert train(model, b"\n\n")["units"] == 0


@pytest.mark.parametrize("kind", [FmSettings, LinearSettings, NetSettings])
def test_index_that_a_line_repeats_is_the_sum_of_its_values_in_every_model(tmp_path, kind):
    """Else it is learnt by two steps, or by their product; a row of a matrix has one."""
    texts = b"1 3:1 3:2 5:1\n0 5:1 3:1 5:.5\n" * 40, b"1 3:3 5:1\n0 5:1.5 3:1\n" * 40
    one, other = (batch_reader(kind(hash_bits=0)).read(text, "x") for text in texts)
    for part in ("keys", "values", "ptr"):
        assert getattr(one, part).tolist() == getattr(other, part).tolist()
    encodings = []
    for text in texts:  # so are the scales of columns, and what is counted
        path = tmp_path / f"{len(encodings)}.svm"
        path.write_bytes(text)
        settings = kind(input=(str(path),))
        with Scratch(str(tmp_path / "scratch"), 1 << 30) as scratch:
            files = InputFiles(expand(settings.input, scratch), scratch)
            encodings.append(encoded(settings, files, has_constant=True).encoding)
            assert entries_in(files, ExampleReader(), 10**6) == 80 * 3  # and labels
    assert encodings[0] == encodings[1]
