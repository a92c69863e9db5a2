"""scikit-learn's own checks of estimators, without a cluster; weights are made up.

Those that judge what was learnt are in tests/cluster/test_estimator_checks_cluster.py.
"""

import learners
import pytest

pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
if not learners.can_say_cases():
    pytest.skip("this scikit-learn cannot say its checks one by one", allow_module_level=True)


@pytest.mark.filterwarnings(*learners.WARNINGS)
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(estimator, check, id=f"{name}-{what}")
        for name, what, estimator, check in learners.cases()
        if what not in learners.JUDGED and what not in learners.EXCEPTIONS
    ],
)
def test_check_of_scikit_learn_passes(monkeypatch, estimator, check):
    learners.MadeUpJobs(monkeypatch)
    check(estimator)
