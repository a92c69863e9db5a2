"""models.lead: which part of a delta a worker's own steps are."""

import numpy as np
import pytest

from snailps.models.lead import Lead


def test_share_of_others_is_of_the_steps_since_the_last_exchange():
    lead = Lead()
    lead.trained(10, 1.0)
    assert not lead.has_led
    assert lead.share_of_others(np.array([0.0, 4.0])).tolist() == [0, 0]
    for now in (15, 20):
        lead.trained(now, 4.0)
    lead.trained(30, 2.0)
    assert lead.has_led
    # Own steps and all: of 5 examples 10, of 15 20 + 20, of 25 20 + 40 + 5.
    got = lead.share_of_others(np.array([5.0, 15.0, 25.0]))
    assert got == pytest.approx([1 / 2, 1 - 15 / 40, 1 - 25 / 65])
    lead.trained(60, 1.0)
    assert lead.share_of_others(np.array([0.0, 30.0])) == pytest.approx([0, 0])
