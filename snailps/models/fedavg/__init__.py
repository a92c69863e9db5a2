"""Federated averaging of a CBOW network: learners train separately for a round, then are averaged.

text -> pipelines (data/pipeline.py) -> learners (learner.py) -> sums and weights -> servers
-> mean -> evaluated and saved by the master after each round (evaluation.py) -> next round
"""

from snailps.models.fedavg.model import FedAvg
from snailps.models.fedavg.settings import FedAvgSettings

__all__ = ["FedAvg", "FedAvgSettings"]
