"""Models for tests of clocks and rounds, which worker processes import: they stop at gates."""

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cluster_models import Counter, CountSettings, wait_at

from snailps import Block, Table, setting
from snailps.api.results import write_tables
from snailps.api.worker import Worker
from snailps.errors import WaitTimeout
from snailps.models.classifier.model import Classifier
from snailps.models.embeddings.kge import KnowledgeGraph
from snailps.models.embeddings.mf import MatrixFactorization
from snailps.models.fedavg import FedAvg
from snailps.models.mlp import Mlp
from snailps.models.sparse.fm import FactorizationMachine
from snailps.models.sparse.linear import Linear
from snailps.models.sparse.net import Net
from snailps.models.word_vectors.model import WordVectors
from snailps.worker.training import TrainPass

MEAN_KEYS = np.arange(64, dtype=np.uint64)
"""Rows of `Mean`, of every shard some: all of them are equal at any time."""


class Gated(Worker):
    """Stops at the gates ``before-N`` and ``after-N`` of block N, leaving its process id there.

    At ``seal-N`` it stops when the master knows that the block is done and no shard has its seal;
    where there is a file ``torn-N``, it dies when some of them may have it, and one has not.
    """

    def setup(self):
        super().setup()
        if self.settings.gates:
            seal = TrainPass.seal

            def stopping(training, block: Block):
                self._stop(f"seal-{block.number}")
                self._tear(training, block)
                seal(training, block)

            TrainPass.seal = stopping  # of this process only

    def _tear(self, training, block: Block):
        torn = Path(self.settings.gates) / f"torn-{block.number}"
        if not torn.exists():
            return
        torn.unlink()  # no other process dies of it
        Path(f"{torn}.pid").write_text(str(os.getpid()))
        client = training.client
        client.cut(len(client.names) - 1)
        with contextlib.suppress(WaitTimeout):
            client.seal_async(block.clock, block.slot, block.slots).wait(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    def train(self, block: Block) -> Mapping[str, float]:
        self._stop(f"before-{block.number}")
        figures = super().train(block)
        self._stop(f"after-{block.number}")
        return figures

    def _stop(self, name: str):
        wait_at(self.settings, name)

    @classmethod
    def export(cls, results):
        write_tables(Path(f"{results.settings.output}.tables.npz"), results)
        return super().export(results)


def gated(name, model):
    """A model with gates, and settings that have their folder."""
    gates = setting("", help="Folder of named pipes.", when="In tests.")
    own = {"__module__": __name__, "__doc__": "With gates."}
    fields = {"gates": gates, "__annotations__": {"gates": str}, **own}
    settings = type(f"{name}Settings", (model.Settings,), fields)
    settings = dataclass(frozen=True, slots=True)(settings)
    return type(name, (Gated, model), {"Settings": settings, **own})


GatedLinear = gated("GatedLinear", Linear)
GatedWords = gated("GatedWords", WordVectors)
GatedFm = gated("GatedFm", FactorizationMachine)
GatedClassifier = gated("GatedClassifier", Classifier)
GatedNet = gated("GatedNet", Net)
GatedMlp = gated("GatedMlp", Mlp)
GatedGraph = gated("GatedGraph", KnowledgeGraph)
GatedFactors = gated("GatedFactors", MatrixFactorization)
GatedFedAvg = gated("GatedFedAvg", FedAvg)


class Early(Counter):
    """Does what cannot be done in a job with clocks, where `fails_in` says."""

    def setup(self):
        if self.settings.fails_in == "setup":
            self.pull("counts", np.zeros(1, np.uint64))

    def prepare(self, block: Block):
        if self.settings.fails_in == "prepare":
            self.push("counts", np.zeros(1, np.uint64), np.ones((1, 1), np.float32))


@dataclass(frozen=True, slots=True)
class MeanSettings(CountSettings):
    """Of `Mean`."""

    rounds: int = setting(5, help="Rounds.", when="In tests.")
    fraction: float = setting(1.0, help="Share of workers a round.", when="In tests.")
    deadline: float = setting(0.0, help="Seconds a round.", when="In tests.")


class Mean(Gated, Counter):
    """In each round worker i adds i + 1 to the model, weighted by i + 1; all see their mean."""

    Settings = MeanSettings

    def tables(self):
        return [Table("model", 2, access="average")]

    def train(self, block: Block) -> Mapping[str, float]:
        self._stop(f"before-{block.number}")
        now = self.pull("model", MEAN_KEYS)
        weight = block.index + 1
        weights = np.full((len(now), 1), weight)
        values = np.hstack([(now + weight) * weight, weights]).astype(np.float32)
        self.push("model", MEAN_KEYS, values)
        self._stop(f"after-{block.number}")
        return {"units": 1, "examples": 1, "loss": float(now[0, 0])}

    @classmethod
    def rounds(cls, settings):
        return settings.rounds

    @classmethod
    def fraction(cls, settings):
        return settings.fraction

    @classmethod
    def deadline(cls, settings):
        return settings.deadline

    @classmethod
    def after_round(cls, results, round_):
        value = results.pull("model", MEAN_KEYS)
        if results.settings.gates:
            wait_at(results.settings, f"look-{round_}")
        path = Path(f"{results.settings.output}.{round_}")
        path.write_text(json.dumps(np.unique(value).tolist()))
        loss = float("nan") if round_ == results.settings.fails_on else 100 - float(value[0, 0])
        return {"loss": loss}

    @classmethod
    def export(cls, results):
        return {"model": results.pull("model", MEAN_KEYS)[0].tolist()}


class MeanByEpochs(Mean):
    """As many rounds as epochs."""

    @classmethod
    def rounds(cls, settings):
        return settings.epochs


class GatedCounter(Gated, Counter):
    """Counts lines by their text, with gates before and behind blocks."""

    def _wait(self, number: int, kind: str = "block"):
        pass
