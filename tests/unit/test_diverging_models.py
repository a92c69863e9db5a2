"""Every kind of model says that its training has diverged: by its loss, or by the push."""

import math

import pytest
from connected import block_of, connected, train

from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import NotFinite
from snailps.models.classifier import Classifier, ClassifierSettings
from snailps.models.embeddings.kge import KgeSettings, KnowledgeGraph
from snailps.models.embeddings.mf import MatrixFactorization, MfSettings
from snailps.models.sparse.fm import FactorizationMachine, FmSettings
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.models.sparse.net import Net, NetSettings
from snailps.models.word_vectors import WordVectors, WordVectorSettings

LR = 1e25
TEXT = b"__label__a the cat sat on the mat\n__label__b and the dog sat by it\n" * 5
CLICKS = b"".join(b"%d %d:%d.5 %d:1\n" % (i % 2, i % 9 + 1, i % 4, i % 7 + 20) for i in range(60))
TRIPLES = b"".join(b"e%d\tr%d\te%d\n" % (i % 7, i % 2, (i * 3 + 1) % 7) for i in range(40))
RATINGS = b"".join(b"u%d,i%d,%d\n" % (i % 5, i * i % 6, 1 + i % 5) for i in range(60))
MODELS = {
    "linear": (Linear, LinearSettings(loss="squared", optimizer="sgd", lr=LR), CLICKS),
    "multinomial": (
        Linear,
        LinearSettings(loss="multinomial", classes=2, optimizer="sgd", lr=LR),
        CLICKS.replace(b":1\n", b":1e15\n"),  # whose gradients are bounded by it alone
    ),
    "fm": (FactorizationMachine, FmSettings(factors=2, optimizer="sgd", lr=LR), CLICKS),
    "net": (
        Net,
        NetSettings(hidden=("4",), optimizer="sgd", lr=LR, batch_size=20, wire="float32"),
        CLICKS,
    ),
    "classifier": (Classifier, ClassifierSettings(dim=8, bucket=1000, lr=LR), TEXT),
    "skipgram": (WordVectors, WordVectorSettings(dim=8, min_count=1, sample=0, lr=LR), TEXT),
    "cbow": (
        WordVectors,
        WordVectorSettings(dim=8, min_count=1, sample=0, lr=LR, model="cbow"),
        TEXT,
    ),
    "kge": (KnowledgeGraph, KgeSettings(dim=4, shared=2, optimizer="sgd", lr=LR), TRIPLES),
    "mf": (MatrixFactorization, MfSettings(dim=4, lr=LR), RATINGS),
}


def summary_of(cls, settings, data):
    """What the survey of `data` makes."""
    if cls in (Linear, FactorizationMachine, Net):
        return b""
    if cls is WordVectors:
        counter = WordCounter()
        counter.count(data)
        return Vocabulary.from_counter(counter, 1).to_bytes()
    part = cls(settings).survey_part()
    part.add(block_of(data))
    surveyor = cls.surveyor(settings)
    surveyor.add(part.take())
    return surveyor.result()


def ending(cls, settings, data, workers):
    """What is said of a training that cannot go well."""
    try:
        with connected(cls) as make:
            model = make(settings, workers=workers, summary=summary_of(cls, settings, data))
            for number in range(12):
                figures = train(model, data, number)
                if figures["examples"] > 0 and not math.isfinite(figures["loss"]):
                    return f"the loss is {figures['loss']}"  # which ends a job
    except NotFinite as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_training_that_diverges_says_so(name, workers):
    said = ending(*MODELS[name], workers)
    assert said.startswith(("the loss is ", "table '")), said
