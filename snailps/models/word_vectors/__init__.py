"""fastText and word2vec as a parameter-server model.

settings -> model (survey, prepare, train) -> export        start, look: before and meanwhile
"""

from snailps.models.word_vectors.model import WordVectors
from snailps.models.word_vectors.settings import WordVectorSettings

__all__ = ["WordVectorSettings", "WordVectors"]
