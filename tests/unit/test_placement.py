"""master.replication.placement: what is noted of shards is what has changed of them."""

from planner_world import World


def test_facts_of_a_cluster_that_forms_grow_with_its_shards_and_not_with_their_square():
    few, many = World(servers=4, shards=4), World(servers=4, shards=16)
    assert few.plan.redundant
    assert many.plan.redundant
    assert many.noted < 6 * few.noted
