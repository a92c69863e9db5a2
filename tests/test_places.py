"""roles.places: what is noted of shards is what has changed of them."""

import json

import pytest
from test_standbys import World

from snailps.roles.places import changes_of, with_changes


class Noted(World):
    """Keeps what the journal gets of it, and what comes back from there."""

    def __init__(self, **size):
        self.bytes, self.before, self.back = 0, {}, {}
        super().__init__(**size)

    def take(self):
        picture = self.plan.picture()
        if picture != self.before:
            said = json.dumps(changes_of(self.before, picture))
            self.bytes += len(said)
            self.back = with_changes(self.back, json.loads(said))
            assert self.back == json.loads(json.dumps(picture))
            self.before = picture
        super().take()


@pytest.mark.parametrize("server", [1, 2, 3])
def test_changes_of_shards_make_up_the_picture_whatever_happens(server):
    world = Noted(servers=3, shards=4)
    world.kill(server)
    world.settle()
    world.join(9)
    for _ in range(20):
        world.wait(10.0)
        world.settle()
    assert world.plan.redundant


def test_facts_of_a_cluster_that_forms_grow_with_its_shards_and_not_with_their_square():
    few, many = Noted(servers=4, shards=4), Noted(servers=4, shards=16)
    assert few.plan.redundant
    assert many.plan.redundant
    assert many.bytes < 6 * few.bytes
