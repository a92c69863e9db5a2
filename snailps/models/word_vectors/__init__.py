"""fastText and word2vec as a parameter-server model.

settings -> model (survey, prepare, train) -> export        deltas: what a worker pushes
"""

from snailps.models.word_vectors.deltas import CURVATURE, Shelf, share_of_delta
from snailps.models.word_vectors.export import BUCKET_KEY
from snailps.models.word_vectors.model import WordVectors
from snailps.models.word_vectors.settings import WordVectorSettings

__all__ = [
    "BUCKET_KEY",
    "CURVATURE",
    "Shelf",
    "WordVectorSettings",
    "WordVectors",
    "share_of_delta",
]
