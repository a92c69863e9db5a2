"""fastText's supervised mode: labels for lines of text.

settings -> model (survey, prepare, train) -> export
"""

from snailps.models.classifier.model import Classifier
from snailps.models.classifier.settings import ClassifierSettings

__all__ = ["Classifier", "ClassifierSettings"]
