"""Access methods written in Python, in a cluster."""

import io
import os

import numpy as np
import pytest
from processes import PACKAGE, SUPPORT

from snailps import SnailError, local_cluster


def test_python_method_in_a_cluster(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    log = io.StringIO()
    with local_cluster(servers=2, workers=0, shard_num=1, log=log) as cluster:
        table = cluster.table("w", dim=3, access="python_methods:Momentum", lr=0.25)
        table.push([1, 2, 2], np.ones((3, 3)))
        assert table.pull([0, 1, 2])[:, 0].tolist() == [0, 1.5, 3]
        copy = cluster.table("copy", dim=3, access="python_methods:Momentum", lr=0.25)
        for keys, rows in cluster.stored("w"):  # whole ones: it reads twice its weights
            copy.assign(keys, rows)
        for one in (table, copy):
            one.push([1], np.ones((1, 3)))
        assert np.array_equal(copy.pull([1, 2]), table.pull([1, 2]))
        faulty = cluster.table("f", dim=2, access="python_methods:Faulty")
        with pytest.raises(SnailError, match="ValueError: planted failure"):
            faulty.push([1], [[-1, 0]])
        faulty.push([1], [[5, 6]])
        assert faulty.pull([1]).tolist() == [[5, 6]]
        ftrl = cluster.table("ftrl", dim=1, access="ftrl", lr=0.5, l1=1.0, l2=0.5)
        ftrl.push([8, 8], [1, 2])  # one gradient of 3
        assert ftrl.pull([8]).tolist() == [[-0.25]]
        ftrl.push([8], [0.125])  # l2 takes away what the gradient adds
        assert ftrl.pull([8]).tolist() == [[-0.25]]
        with pytest.raises(SnailError, match=r"no snailps\.AccessMethod of that name"):
            cluster.table("g", dim=2, access="python_methods:Missing")
    assert "Traceback" not in log.getvalue()
