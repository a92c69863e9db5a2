"""Federated averaging as a `Worker`: its learners together make one contribution to each round.

    round -> pull weights -> learners train, each on its own data -> weighted sums -> push
    (access method `average`: the servers divide when the round ends)
    every `MOMENT_ROUNDS` rounds, or each if not all take part: Adam's second moments, too

Owns learners and their moments.  Sums run in the order of the learners, and learners get batches in
a fixed order, so that runs with the same settings give the same bits.  The master (master/job/)
chooses rounds, their workers and their end; evaluation.py evaluates and saves.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.row_updates import RowUpdate
from snailps.api.tables import Table, Tensor
from snailps.api.traits import Adopted, InRounds, Limited
from snailps.api.worker import Block, Pending, Results, Worker
from snailps.config import JobSettings
from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.models.fedavg import evaluation
from snailps.models.fedavg import settings as files
from snailps.models.fedavg.feeds import Feeds
from snailps.models.fedavg.learner import Learner
from snailps.models.fedavg.network import Floats, Network, sum_into
from snailps.models.fedavg.settings import FedAvgSettings
from snailps.models.row_bounds import LOSS_BOUND
from snailps.models.shared_settings import check_optimizer

EMBEDDING, OUTPUT = "embedding", "output"
MOMENT = "moment"
"""The second moment, which several workers average.  A first moment forgets after some ten
steps."""
INIT_SCALE = 0.05
MOMENT_ROUNDS = 4
"""Rounds of a period, after which the second moments of several workers are averaged, if all take
part."""


@dataclass
class _FederatedClient:
    """The state of one client: its pipelines, and its learners with their moments.

    A round starts from `base`: weights, and moments where these are averaged.  `period` is the last
    period whose second moments were pulled, `shared` the last round whose push had them.
    """

    feeds: Feeds
    learners: list[Learner]
    base: Network
    period: int = -1
    shared: int = -1
    last: tuple[int, int] = (-1, -1)
    """Round and index of the last contribution."""


class FedAvg(Worker, Adopted, InRounds, Limited):
    """Learners of a CBOW network, averaged round by round."""

    loss_bound = LOSS_BOUND
    row_updates: ClassVar[Mapping[str, RowUpdate]] = {
        "weights, second moments: means over clients": RowUpdate.SHARE
    }
    Settings = FedAvgSettings
    settings: FedAvgSettings

    def tables(self) -> Sequence[Table | Tensor]:
        """Declare tables of weights, and with several workers of Adam's second moments."""
        s = self.settings
        self._words = files.read_vocab(s.data_dir)
        # In the seed, so that a table of another vocabulary is another table, and refused.
        vocabulary = zlib.crc32(b"\n".join(self._words))
        self._shape = Network(len(self._words), s.dim, 1)
        make = partial(Table, access="average")
        tables = [
            make(
                EMBEDDING, s.dim, init="uniform", scale=INIT_SCALE, seed=s.seed << 32 | vocabulary
            ),
            make(OUTPUT, self._shape.output_dim),
        ]
        if self._shares_moments:
            tables += [
                make(_named(EMBEDDING, MOMENT), s.dim + 1),  # and counts of steps
                make(_named(OUTPUT, MOMENT), self._shape.output_dim),
            ]
        return tables

    def setup(self) -> None:
        """Allocate networks; the pipelines of a client start with its first block."""
        s = self.settings
        self._learner_num = s.learners or self.threads
        if s.pipelines > self._learner_num:
            raise ConfigError(
                f"pipelines: expected at most {self._learner_num}, as many as this worker has "
                f"learners (its threads; `learners` sets another number); got {s.pipelines}"
            )
        self._pool = ThreadPoolExecutor(self._learner_num, "snailps-learner")
        self._sum = Network(len(self._words), s.dim, 3)
        self._clients: dict[int, _FederatedClient] = {}
        all_take_part = s.fraction == 1 and not s.deadline
        self._period_rounds = MOMENT_ROUNDS if all_take_part else 1
        self._since: int | None = None  # round in which the moments started
        self._keeping: Future[None] | None = None
        self._word_keys = np.arange(len(self._words), dtype=np.uint64)
        self._panel_keys = np.arange(self._sum.panels, dtype=np.uint64)

    @property
    def _shares_moments(self) -> bool:
        """Whether second moments are pulled and pushed: with several workers alone."""
        return self.workers > 1

    def prepare(self, block: Block) -> list[Pending]:
        wanted = [(EMBEDDING, self._word_keys), (OUTPUT, self._panel_keys)]
        client = self._clients.get(self._number_of(block))
        period = client.period if client else -1
        if self._shares_moments and block.clock // self._period_rounds != period:
            wanted += [(_named(part, MOMENT), keys) for part, keys in wanted]
        return [self.pull_async(name, keys) for name, keys in wanted]

    def train(self, block: Block) -> Mapping[str, float]:
        """Train a round: each learner trains `bpe` batches, all from the same weights."""
        if self._keeping is not None:
            self._keeping.result()
        client = self._client_of(self._number_of(block))
        rows = [pull.wait() for pull in block.prepared]
        round_, index = client.last
        if self.settings.own_input and round_ == block.clock and index != block.index:
            # The place of a lost worker, whose data are not here: this worker's would count twice.
            return {"units": 0, "examples": 0, "loss": 0.0}
        client.last = block.clock, block.index
        self._take_base(client.base, rows)
        begins = len(rows) > 2
        if begins:
            self._begin_period(client, block.clock // self._period_rounds)
        if self._since is None:  # a checkpoint of one worker has no moments
            has_moments = self._shares_moments and client.base.output[1:].any()
            self._since = 0 if has_moments else block.clock
        steps = (block.clock - self._since) * self.settings.bpe
        # A single learner keeps its moments until workers average theirs.
        layers = (0, 1, 2) if self._learner_num > 1 else (0, 2) if begins else (0,)
        tasks = [
            self._pool.submit(
                learner.train,
                client.base,
                partial(client.feeds.take, i),
                steps,
                layers=layers,
            )
            for i, learner in enumerate(client.learners)
        ]
        for task in tasks:
            task.result()
        ends = block.clock % self._period_rounds == self._period_rounds - 1
        self._push(client, shares_moments=self._shares_moments and ends)
        if ends:
            client.shared = block.clock
        windows = sum(learner.windows for learner in client.learners)
        return {
            "units": windows,
            "examples": windows,
            "loss": sum(learner.loss for learner in client.learners),
            "lr": self.settings.lr,
        }

    def _number_of(self, block: Block) -> int:
        """The client of a block; a worker with an input of its own has one, whatever the index."""
        if self.settings.own_input and self._clients:
            return next(iter(self._clients))
        return block.index

    def _client_of(self, index: int) -> _FederatedClient:
        """Get the state of a client; a worker has several clients only after another was lost."""
        if index not in self._clients:
            learners = [Learner(len(self._words), self.settings) for _ in range(self._learner_num)]
            feeds = Feeds(self.settings, self._words, self._learner_num, index, self.workers)
            base = Network(len(self._words), self.settings.dim, 3)
            self._clients[index] = _FederatedClient(feeds, learners, base)
        return self._clients[index]

    def _begin_period(self, client: _FederatedClient, period: int) -> None:
        """Start a period, with second moments that were pulled.

        If they may lack a learner's own, because it took no part in the last round, first moments
        are forgotten: a step is a first moment over the root of a second, and both must fit.
        """
        complete = client.shared == period * self._period_rounds - 1 and not self.settings.deadline
        client.period = period
        for learner in client.learners:
            learner.used[:] = 0
        networks = (client.base, *(learner.network for learner in client.learners))
        for network in () if complete else networks:
            network.embedding[1], network.output[1] = 0, 0

    def _take_base(self, base: Network, rows: Sequence[Floats]) -> None:
        """Copy pulled rows to `base`; moments that were not pulled stay from the round before."""
        base.put_embedding(0, rows[0])
        base.put_output(0, rows[1])
        if len(rows) > 2:
            base.put_embedding(2, rows[2][:, : self.settings.dim])
            base.counts[:] = rows[2][:, self.settings.dim]
            base.put_output(2, rows[3])

    def _push(self, client: _FederatedClient, *, shares_moments: bool) -> None:
        """Push this client's contribution: the weighted sums of its learners' networks.

        With `shares_moments` also sums of second moments, of words used since the last such push.
        """
        learners, total = client.learners, self._sum
        several = len(learners) > 1
        touched = [learner.touched for learner in learners]
        used = [learner.used for learner in learners] if shares_moments else touched
        sum_into(
            total,
            3 if several or shares_moments else 1,
            [learner.network for learner in learners],
            (touched, used),
            [learner.windows for learner in learners],
            self._pool,
        )
        windows = np.float32(sum(learner.windows for learner in learners))
        pushes = []
        for layer, name in ((0, ""), (2, MOMENT))[: 1 + shares_moments]:
            rows: Floats = np.asarray(np.sum(used if layer else touched, axis=0, dtype=np.float32))
            own = np.flatnonzero(rows)  # words that no learner used do not change
            parts = [total.embedding[layer, own, : self.settings.dim], rows[own, None]]
            if layer:
                parts.insert(1, total.counts[own, None])
            values = np.concatenate(parts, axis=1)
            pushes.append(self.push_async(_named(EMBEDDING, name), self._word_keys[own], values))
            panels = np.full((total.panels, 1), windows)
            values = np.concatenate([total.output_rows(total.output[layer]), panels], axis=1)
            pushes.append(self.push_async(_named(OUTPUT, name), self._panel_keys, values))
        if several:
            # In a thread: meanwhile servers apply the round, and the master evaluates it.
            keep = partial(self._keep_moments, client.base, own, rows[own], windows)
            self._keeping = self._pool.submit(keep)
        for push in pushes:
            push.wait()

    def _keep_moments(
        self, base: Network, own: NDArray[np.int64], weights: Floats, windows: np.float32
    ) -> None:
        """Store the mean of the moments for the client's next round."""
        base.embedding[1:, own] = self._sum.embedding[1:, own] / weights[:, None]
        base.counts[own] = self._sum.counts[own] / weights
        np.divide(self._sum.output[1:], windows, out=base.output[1:])

    def finish(self) -> None:
        self._pool.shutdown()
        for client in self._clients.values():
            client.feeds.close()

    # --- at the master ---------------------------------------------------------------------

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "fedavg"

    @classmethod
    def adopt(cls, settings: FedAvgSettings, explicit: Callable[[str], str | None]) -> JobSettings:
        """Take settings from cfg.json, if the user has not set them."""
        return files.adopt(settings, explicit)

    @classmethod
    def check(cls, settings: FedAvgSettings) -> None:
        check_optimizer(settings, (), "federated averaging, whose learners have Adam")
        evaluation.judge_of.cache_clear()  # this job's data may differ from an earlier job's
        evaluation.judge_of(settings)

    @classmethod
    def rounds(cls, settings: FedAvgSettings) -> int:
        return settings.rounds

    @classmethod
    def fraction(cls, settings: FedAvgSettings) -> float:
        return settings.fraction

    @classmethod
    def deadline(cls, settings: FedAvgSettings) -> float:
        return settings.deadline

    @classmethod
    def after_round(cls, results: Results, round_: int) -> Mapping[str, Any]:
        """Compute the loss on the test windows; files are written during the next round."""
        assert isinstance(results.settings, FedAvgSettings)
        return evaluation.judge_of(results.settings).inspect(results, round_)

    @classmethod
    def result_files(cls, settings: JobSettings) -> Sequence[str]:
        return [f"{settings.output}.{name}" for name in evaluation.FILES]

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Wait for the last round's files."""
        assert isinstance(results.settings, FedAvgSettings)
        return {"files": evaluation.judge_of(results.settings).finish(results)}


def _named(table: str, moment: str) -> str:
    return f"{table}.{moment}" if moment else table
