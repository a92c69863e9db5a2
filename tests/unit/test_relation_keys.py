"""Keys of a graph's relations: near each other, apart from entities, by their numbers alone."""

import numpy as np
import pytest

from snailps.abi.key_hash import fragment_of
from snailps.models.embeddings.kge import ENTITY, RELATION, KnowledgeGraph
from snailps.models.embeddings.relation_keys import GROUP, PLACES, relation_keys
from snailps.models.embeddings.worker import KIND_KEY


@pytest.mark.parametrize("shards", [2, 8, PLACES])
def test_relations_of_a_group_are_in_one_shard_and_groups_are_spread(shards):
    groups = relation_keys(20 * GROUP).reshape(-1, GROUP)
    places = [set(fragment_of(group, shards).tolist()) for group in groups]
    assert all(len(place) == 1 for place in places)
    assert len(set.union(*places)) > 1


def test_keys_of_relations_are_distinct_and_apart_from_entities():
    keys = relation_keys(10_000)
    assert len(np.unique(keys)) == len(keys)
    assert (np.diff(keys.astype(np.int64)) > 0).all()
    assert keys[0] >= KIND_KEY


def test_key_of_a_relation_depends_on_its_number_alone():
    keys = relation_keys(5000)
    for numbers in ([0], [4], [3, 1], [4999, 0, 4096], np.arange(100)):
        given = KnowledgeGraph.keys_of(RELATION, np.asarray(numbers, np.int32))
        np.testing.assert_array_equal(given, keys[numbers])
    assert not len(KnowledgeGraph.keys_of(RELATION, np.zeros(0, np.int64)))
    np.testing.assert_array_equal(KnowledgeGraph.keys_of_kind(ENTITY, 3), [0, 1, 2])
