"""store.route: fragments of keys, and the route's way to JSON and back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import store as twin

from snailps.abi.key_hash import fragment_of
from snailps.errors import ConfigError, ProtocolError, SnailError
from snailps.store.route import Route, ShardAddress


def addresses(count):
    return [ShardAddress(i // 2, f"10.0.0.{i // 2}", 7000 + i) for i in range(count)]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), st.integers(1, 1 << 20))
def test_fragment_of_any_keys_equals_twin(keys, frag_num):
    found = fragment_of(np.array(keys, np.uint64), frag_num)
    assert found.dtype == np.uint32
    assert found.tolist() == [twin.fragment_of(key, frag_num) for key in keys]


def test_fragment_of_known_keys_keeps_its_answer():
    """Fragments are part of what is on the wire and on disk: these may never change."""
    keys = np.array([0, 1, 2, 1000, 2**63, 2**64 - 1], np.uint64)
    # SplitMix64 seeded with 0 gives e220a8397b1dcdaf first: that is the hash of key 0.
    assert twin.hash_key(0) == 0xE220A8397B1DCDAF
    assert fragment_of(keys, 1024).tolist() == [904, 580, 605, 240, 288, 915]
    assert fragment_of(keys, 1).tolist() == [0] * 6


@pytest.mark.parametrize("step", [1, 1024, 2**20, 2**32, 2**40 + 1])
def test_fragment_of_regular_keys_spreads_evenly(step):
    keys = np.arange(2**18, dtype=np.uint64) * np.uint64(step)
    counts = np.bincount(fragment_of(keys, 1024), minlength=1024)
    chi2 = ((counts - 256.0) ** 2 / 256.0).sum()
    assert 1023 - 6 * 46 < chi2 < 1023 + 6 * 46  # 46: standard deviation with 1,023 degrees


def test_fragment_of_bits_leave_index_bits_free():
    """Keys of one fragment fill the index's positions as chance would: 1 - 1/e of them."""
    keys = np.arange(2**20, dtype=np.uint64)
    mine = keys[fragment_of(keys, 1024) == 7][:1024].tolist()
    positions = {twin.hash_key(key) & 1023 for key in mine}
    assert len(mine) > 900
    assert abs(len(positions) / 1024 - (1 - np.exp(-len(mine) / 1024))) < 0.05


@pytest.mark.parametrize(("shard_num", "frag_num"), [(1, 1), (1, 1024), (3, 1024), (7, 7), (5, 13)])
def test_route_build_gives_each_shard_an_equal_share(shard_num, frag_num):
    route = Route.build(1, addresses(shard_num), frag_num)
    shares = [route.fragments_of(i) for i in range(shard_num)]
    assert {len(share) for share in shares} <= {frag_num // shard_num, -(-frag_num // shard_num)}
    assert np.concatenate(shares).tolist() == list(range(frag_num))
    assert route.frag_num == frag_num
    assert all(share.dtype == np.uint32 for share in shares)


def test_route_build_more_shards_than_fragments_says_what_to_raise():
    with pytest.raises(ConfigError, match="raise frag_num to at least 9"):
        Route.build(1, addresses(9), 8)


@pytest.mark.parametrize(
    ("shards", "frag_num"), [([], 8), (addresses(1), 0), (addresses(1), 2**21)]
)
def test_route_build_impossible_numbers_is_an_error(shards, frag_num):
    with pytest.raises(SnailError):
        Route.build(1, shards, frag_num)


def test_route_owner_cannot_be_changed():
    route = Route.build(1, addresses(2), 8)
    with pytest.raises(ValueError, match="read-only"):
        route.owner[0] = 1


@given(st.integers(1, 40), st.integers(0, 100), st.randoms(use_true_random=False))
def test_route_through_json_comes_back_equal(shard_num, more, random):
    route = Route.build(3, addresses(shard_num), shard_num + more)
    owner = route.owner.tolist()
    random.shuffle(owner)
    for candidate in (route, Route(4, route.shards, np.array(owner, np.uint32))):
        back = Route.from_dict(json.loads(json.dumps(candidate.to_dict())))
        assert (back.epoch, back.shards) == (candidate.epoch, candidate.shards)
        assert back.owner.tolist() == candidate.owner.tolist()
        assert back.owner.dtype == np.uint32


def test_route_to_dict_of_neighbours_is_short():
    assert Route.build(1, addresses(2), 1024).to_dict() == {
        "epoch": 1,
        "shards": [[0, "10.0.0.0", 7000], [0, "10.0.0.0", 7001]],
        "owner": [[0, 512], [1, 512]],
    }


GOOD = {"epoch": 1, "shards": [[0, "::1", 7000]], "owner": [[0, 8]]}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"epoch": -1}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"epoch": 1.0}, "epoch"),
        ({"extra": 1}, "expected epoch, shards and owner"),
        ({"shards": []}, "shards"),
        ({"shards": {}}, "shards"),
        ({"shards": [[0, "a"]]}, "shard"),
        ({"shards": [[0, "", 7000]]}, "host"),
        ({"shards": [[0, "a" * 256, 7000]]}, "host"),
        ({"shards": [[0, 5, 7000]]}, "host"),
        ({"shards": [[0, "a", 0]]}, "port"),
        ({"shards": [[0, "a", 65536]]}, "port"),
        ({"shards": [[-1, "a", 7000]]}, "server"),
        ({"owner": []}, "owner"),
        ({"owner": [[1, 8]]}, "owner's shard"),
        ({"owner": [[0, 0]]}, "owner's length"),
        ({"owner": [[0, 2**40]]}, "owner's length"),
        ({"owner": [[0, 2**20], [0, 1]]}, "frag_num"),
        ({"owner": [[0]]}, "owner"),
        ({"owner": "00000000"}, "owner"),
        ({"shards": [[0, "a", 1], [0, "a", 2]], "owner": [[0, 1]]}, "frag_num"),
    ],
)
def test_route_from_bad_dict_is_a_protocol_error(change, complaint):
    Route.from_dict(GOOD)
    with pytest.raises(ProtocolError, match=complaint):
        Route.from_dict({**GOOD, **change})


@pytest.mark.parametrize("data", [None, [], "x", {}, {"epoch": 1}])
def test_route_from_other_data_is_a_protocol_error(data):
    with pytest.raises(ProtocolError, match="expected epoch, shards and owner"):
        Route.from_dict(data)
