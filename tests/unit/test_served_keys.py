"""The table of keys at servers: a row for keys of several pages, few others, none missing."""

import math

import numpy as np
import pytest
from attach import attach
from shards import Shards

from snailps import Worker
from snailps.api.wire_choice import WireChoice
from snailps.config import JobSettings
from snailps.duplicates._pages import NO_KEY
from snailps.filtering.served_keys import BITS_A_KEY, SHIFTS, WORDS, ServedKeys

U64 = np.uint64


@pytest.fixture
def model():
    with Shards(2) as shards:
        tables = dict(enumerate(ServedKeys.TABLES, 1))
        for number, table in tables.items():
            shards.declare(table, number)
        model, client = Worker(JobSettings()), shards.client()
        by_name = {table.name: (number, table) for number, table in tables.items()}
        attach(model, client, WireChoice(client, shards.route), by_name)
        yield model


def run(table, keys, values, times=1):
    for step in (lambda: table.note(keys), *[lambda: table.push(keys, values)] * times):
        step()
    return table.pull(keys)


def test_key_of_several_pages_has_the_least_value_and_a_key_of_one_its_own_or_none(model):
    rng = np.random.default_rng(1)
    keys = rng.integers(0, NO_KEY, 6000, U64)
    keys[:3000] = rng.choice(keys[3000:3500], 3000)
    keys = rng.permutation(keys).reshape(1500, 4)
    keys[::7, 1] = NO_KEY
    values = rng.integers(0, 1 << 62, keys.shape, U64)
    found = run(ServedKeys(model, keys.size), keys, values, times=2)
    for key in np.unique(keys):
        offered = values[keys == key]
        answers = {*found[keys == key].tolist()}
        if key == NO_KEY:
            assert answers == {NO_KEY}
        elif len(offered) > 1:
            assert answers == {int(offered.min())}
        else:
            assert answers <= {int(offered[0]), NO_KEY}


def test_few_keys_of_a_single_page_have_a_row(model):
    """A bit came again if another key has it: of `n` keys with `k` bits of `m` each."""
    keys = np.random.default_rng(2).integers(0, NO_KEY, (4000, 5), U64)
    found = run(ServedKeys(model, keys.size), keys, keys)
    rows, bits = keys.size * BITS_A_KEY // (64 * WORDS), len(SHIFTS)
    mean, share = keys.size / rows, 0.0
    for others in range(200):  # in the row, Poisson: each of a key's bits is one of theirs
        chance = math.exp(others * math.log(mean) - mean - math.lgamma(others + 1))
        share += chance * (1 - (1 - 1 / (64 * WORDS)) ** (bits * others)) ** bits
    has_row = float((found != NO_KEY).mean())
    # Keys of a row share their bits, some sixteen of them.
    assert abs(has_row - share) < 5 * math.sqrt(16 * share / keys.size)
    assert has_row < 0.05


def test_repeated_note_makes_rows_without_need_and_loses_none(model):
    keys = np.arange(1, 400, dtype=U64).reshape(133, 3) * U64(0x9E3779B97F4A7C15)
    table = ServedKeys(model, keys.size)
    table.note(keys)
    assert np.array_equal(run(table, keys, keys), keys)


def test_pages_without_keys(model):
    keys = np.full((3, 2), NO_KEY, U64)
    assert np.array_equal(run(ServedKeys(model, 0), keys, keys), keys)
    assert run(ServedKeys(model, 0), keys[:0], keys[:0]).shape == (0, 2)
