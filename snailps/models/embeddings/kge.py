"""Knowledge graphs: TransE, DistMult, ComplEx and RotatE with self-adversarial negatives.

    lines "head relation tail" -> EmbeddingWorker -> kernels.train_triples -> differences
    tables, known triples -> ranking -> MRR, hits@k, raw and filtered  -> OUTPUT.npz

Owns queries, ranks and files; the kernel computes (references in kernels/_triples.h), `worker`
moves rows.  Entities are names of kind 0, relations of kind 1.
Filtered ranks after A. Bordes et al., NIPS 2013; of equal scores the middle one, after M.
Berrendorf et al., "On the ambiguity of rank-based evaluation", 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.concurrency import COUNTED_FOR, Concurrency
from snailps.api.rotation import Rotation
from snailps.api.row_updates import RowUpdate
from snailps.api.tables import Rows, Table
from snailps.api.worker import Results
from snailps.config import JobSettings
from snailps.data.name_columns import NameColumns, Names
from snailps.files.input_files import InputFiles
from snailps.models.block_trainer import Rates, Span
from snailps.models.embeddings import files, ranking, triple_rotation, warm_start
from snailps.models.embeddings.relation_keys import relation_keys
from snailps.models.embeddings.rotating import RotatingWorker
from snailps.models.embeddings.rotation import LINES
from snailps.models.embeddings.settings import EmbeddingSettings, KgeSettings
from snailps.models.embeddings.triple_rotation import TripleTrainer
from snailps.models.embeddings.worker import KIND_KEY, EmbeddingWorker, LineBatch
from snailps.models.local_sgd import Floats, Keys
from snailps.models.rotation import shared_blocks
from snailps.models.row_bounds import make_unit

RELATIONS = {"transe": 1, "distmult": 2, "complex": 3, "rotate": 4}
"""Numbers of the models in `kernels.train_triples`."""
LOSSES = {"logistic": 0, "margin": 1, "softmax": 2}
ENTITY, RELATION = 0, 1
ONE_WORKER = 1 << 40
"""More triples than there are, where no number was found for which several learn what one does."""
TRIPLES_A_WORKER = {
    "transe": 240_000, "complex": 240_000, "rotate": 240_000, "distmult": ONE_WORKER,
}  # fmt: skip
"""Triples of an epoch that each worker needs, by model: with fewer, MRR is more than a twentieth
below one worker's after few epochs (docs/lab/rotation.md)."""
LINE_BYTES = 6
"""Least bytes of a triple."""
OTHERS_LEAST_TURNED = 2.0
"""`others_least` for rotate (docs/lab/shared-rows.md)."""


def metric_of(settings: KgeSettings) -> int:
    """The kernels' number of the metric."""
    if settings.model == "transe":
        return {"l1": 1, "l2": 2}[settings.norm]
    return 3 if settings.model == "rotate" else 0


def unit_of(settings: KgeSettings) -> float:
    """Radians of a phase of 1, chosen so that first phases are spread over the whole circle."""
    return float(np.pi / settings.first_scale)


def turns(settings: KgeSettings, relations: Rows) -> Rows:
    """Relations of rotate as complex numbers of length 1, (n, dim)."""
    phases = np.float32(unit_of(settings)) * relations[:, : settings.dim // 2]
    return np.concatenate((np.cos(phases), np.sin(phases)), axis=1)


def queries(settings: KgeSettings, anchors: Rows, relations: Rows, *, tails: bool) -> Rows:
    """Compute vectors (n, dim) to compare with candidates for the other ends of `anchors`."""
    if settings.model == "transe":
        return anchors + relations if tails else anchors - relations
    if settings.model == "distmult":
        return np.asarray(anchors * relations, np.float32)
    half = settings.dim // 2
    if settings.model == "rotate":
        turned = np.exp(1j * unit_of(settings) * relations[:, :half])
    else:
        turned = relations[:, :half] + 1j * relations[:, half:]
    if not tails:
        turned = turned.conj()
    product = (anchors[:, :half] + 1j * anchors[:, half:]) * turned
    return np.concatenate((product.real, product.imag), axis=1).astype(np.float32)


class KnowledgeGraph(RotatingWorker):
    """Knowledge graphs; see the module's docstring."""

    Settings = KgeSettings
    settings: KgeSettings
    row_updates: ClassVar[Mapping[str, RowUpdate]] = {
        **EmbeddingWorker.row_updates,
        "normalize: unit vectors": RowUpdate.READ,
    }
    columns = NameColumns(("head", "relation", "tail"))
    kinds = ("entities", "relations")
    kind_of_column = (ENTITY, RELATION, ENTITY)
    noise_kind = ENTITY

    @classmethod
    def keys_of(cls, kind: int, numbers: NDArray[np.integer[Any]]) -> Keys:
        """Keys of entities, or of relations by `relation_keys`, given their numbers."""
        if kind == ENTITY or not len(numbers):
            return super().keys_of(kind, numbers)
        count = 1 << int(numbers.max()).bit_length()
        keys: Keys = relation_keys(count)[numbers]
        return keys

    def others_least(self) -> float:
        turns = self.settings.model == "rotate"
        return OTHERS_LEAST_TURNED if turns else super().others_least()

    @classmethod
    def row_dim(cls, settings: EmbeddingSettings) -> int:
        return settings.dim

    def train_part(
        self, batch: LineBatch, rows: Floats, part: Span, rates: Rates, seed: int
    ) -> float:
        s = self.settings
        heads, relations, tails = batch.places
        return kernels.train_triples(
            rows,
            s.dim,
            heads,
            relations,
            tails,
            batch.noise,
            relation=RELATIONS[s.model],
            metric=metric_of(s),
            loss=LOSSES[s.loss],
            shared=s.shared,
            negatives=s.negatives,
            side=batch.side,
            normalize=s.normalize,
            margin=s.margin if s.distance or s.loss == "margin" else 0.0,
            temperature=s.temperature,
            seed=seed,
            **self.of_part(part, rates),
            turn=unit_of(s),
        )

    @classmethod
    def rotates(cls, settings: KgeSettings) -> bool:
        """With AdaGrad, whose state says how far relations went at other workers; not where rows
        are changed as they are read."""
        fits = settings.method == "adagrad" and not settings.normalize
        return fits and super().rotates(settings)

    @classmethod
    def may_rotate(cls, settings: KgeSettings, total_bytes: int, workers: int) -> bool:
        most = total_bytes // (cls.triples_a_worker(settings) * LINE_BYTES)
        return min(workers, most) >= 2 and cls.rotates(settings)

    @classmethod
    def rotation(
        cls, settings: KgeSettings, total_bytes: int, workers: int, summary: bytes
    ) -> Rotation | None:
        """None for a single worker, few triples, or more than a worker has memory for."""
        if not cls.may_rotate(settings, total_bytes, workers):
            return None
        each = cls.triples_a_worker(settings)
        return triple_rotation.rotation_of(Names(summary), workers, each)

    def tables(self) -> Sequence[Table]:
        """The rows, and the triples that may rotate."""
        lines = (shared_blocks.table(LINES),) if self.rotates(self.settings) else ()
        return (*super().tables(), *lines)

    def trainer(self) -> TripleTrainer:
        return TripleTrainer(self, self._names, translates=self.settings.model == "transe")

    def projection(self) -> Callable[[Keys, Floats], None] | None:
        """With `normalize`, entities are scaled to length 1 where they are read: servers add up
        steps, so the rows there have other lengths.
        """
        return self._normalize if self.settings.normalize else None

    def _normalize(self, keys: Keys, packed: Floats) -> None:
        entities = np.flatnonzero(keys < KIND_KEY)
        weights = packed[entities, : self.settings.dim]
        make_unit(weights)
        packed[entities, : self.settings.dim] = weights

    @classmethod
    def pieces_of_kind(cls, results: Results, kind: int, count: int) -> Iterator[Rows]:
        assert isinstance(results.settings, KgeSettings)
        for rows in super().pieces_of_kind(results, kind, count):
            if kind == ENTITY and results.settings.normalize:
                make_unit(rows)
            yield rows

    def curvature(self, rows: Floats) -> float:
        """An upper bound: a quarter (of the logistic loss) times the squared gradient of a score.

        The gradient of a distance consists of signs, or of directions of complex numbers; the
        gradient of a product is the query of the other end.
        """
        s = self.settings
        if s.model == "rotate":
            return 0.25 * s.dim / 2
        if s.model == "transe":
            return 0.25 * (s.dim if s.norm == "l1" else 1)
        return 0.25 * float(np.square(rows, dtype=np.float32).sum(1).mean())

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "kge"

    @classmethod
    def in_units_of(cls, before: Any, adopted: Any, explicit: Callable[[str], str | None]) -> Any:
        return warm_start.same_units(before, adopted, explicit)

    @classmethod
    def check(cls, settings: KgeSettings) -> None:
        """Refuse hold-out files that are not triples, before the training."""
        EmbeddingWorker.check.__func__(cls, settings)  # type: ignore[attr-defined]
        for name, paths in (("test", settings.test), ("valid", settings.valid)):
            files.check_heads(cls.columns, name, paths)

    @classmethod
    def triples_a_worker(cls, settings: KgeSettings) -> int:
        """Triples of an epoch for which one worker trains; override it to have more workers."""
        if settings.loss == "margin" and not settings.distance:
            return ONE_WORKER  # of complex, too
        return TRIPLES_A_WORKER[settings.model]

    @classmethod
    def workers_at_once(cls, settings: KgeSettings, files: InputFiles) -> Concurrency:
        """Allow a worker for every `triples_a_worker` triples; one in all with `sgd`."""
        if settings.method == "sgd":
            why = "with optimizer: sgd, steps of several workers on the same rows go too far"
            return Concurrency(
                1, f"{why}; optimizer: adagrad, or consistency: bsp, lets more train"
            )
        each = cls.triples_a_worker(settings)
        if each >= ONE_WORKER:  # need not be counted
            why = f"{settings.model} with loss: {settings.loss} learns less by several"
            return Concurrency(1, f"{why}; consistency: bsp lets more train")
        return Concurrency.by_size(files.lines(COUNTED_FOR * each), each, "triples")

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        s = results.settings
        assert isinstance(s, KgeSettings)
        if not (s.test or s.valid):
            return {}
        names = cls.names(results)
        parts = {
            name: files.read_lines(cls.columns, cls.kind_of_column, names, paths, s)
            for name, paths in (("train", s.input), ("valid", s.valid), ("test", s.test))
        }
        entities, relations = (cls.rows_of_kind(results, names, kind) for kind in (0, 1))
        known = np.concatenate([lines.ids for lines in parts.values()], axis=1)
        figures = {}
        for name in ("valid", "test"):
            if len(parts[name]) or parts[name].unknown:
                both = rank(s, entities, relations, parts[name].ids, known)
                figures[name] = {**ranking.figures_of(*both), "unknown": parts[name].unknown}
        return figures


def rank(
    settings: KgeSettings,
    entities: Rows,
    relations: Rows,
    triples: NDArray[np.int32],
    known: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Compute raw and filtered ranks (2, 2 n) of triples (3, n): of their tails, then heads.

    Filtered ranks leave out all true triples, `known`.
    """
    both_ends = []
    for tails in (True, False):
        anchor, other = (0, 2) if tails else (2, 0)

        def asked(at: slice, tails: bool = tails, anchor: int = anchor) -> Rows:
            ends, of = entities[triples[anchor, at]], relations[triples[1, at]]
            return queries(settings, ends, of, tails=tails)

        both_ends.append(
            ranking.ranks(
                asked,
                entities,
                metric_of(settings),
                _pairs(triples, anchor, len(relations)),
                triples[other],
                _pairs(known, anchor, len(relations)),
                known[other],
            )
        )
    return np.concatenate(both_ends, axis=1)


def _pairs(triples: NDArray[np.int32], anchor: int, relation_num: int) -> NDArray[np.int64]:
    """Number each pair of a given end and a relation."""
    numbers: NDArray[np.int64] = triples[anchor].astype(np.int64) * relation_num + triples[1]
    return numbers
