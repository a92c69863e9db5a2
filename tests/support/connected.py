"""Models connected to shards of their own, as in a worker, and blocks for them."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

from attach import attach, attached
from shards import FRAG_NUM, Shards
from workers_in_order import AtOnce

from snailps.api.passes import EPOCHS
from snailps.api.results import Results
from snailps.api.tables import Tensor
from snailps.api.wire_choice import WireChoice
from snailps.models.kept_rows import KeptRows
from snailps.models.sparse.batch import TABLE
from snailps.models.sparse.worker import PERIOD_BLOCKS
from snailps.pieces import Piece
from tests.support.blocks import HeldContent, held_block

BLOCK_BYTES_MAX = 1 << 30


@contextlib.contextmanager
def connected(model_class, shards=1):
    """Makes models, each with tables of its own or those `beside` it; finishes them at the end."""
    with Shards(shards) as cluster:
        made, tables = [], 0

        def make(settings, threads=1, workers=1, summary=b"", beside=None):
            nonlocal tables
            settings = replace(settings, epochs=settings.epochs or EPOCHS)  # as a job decides it
            model, numbered = model_class(settings, threads), {}
            if beside is not None:
                _, numbered = attached(beside)
            for declared in model.tables() if beside is None else ():
                table = declared.table() if isinstance(declared, Tensor) else declared
                tables += 1
                cluster.declare(table, tables)
                numbered[table.name] = (tables, table)
            client = cluster.client(incarnation=len(made) + 1)
            attach(model, client, WireChoice(client, cluster.route), numbered)
            model.workers, model.summary = workers, summary
            model.setup()
            made.append(model)
            return model

        yield make
        for model in made:
            model.finish()


def results_of(model, summary=b""):
    """The tables of a connected model, as its class loads and exports them."""
    client, numbered = attached(model)
    numbers = {name: number for name, (number, _) in numbered.items()}
    tables = {name: table for name, (_, table) in numbered.items()}
    return Results(model.settings, summary, {}, client, numbers, tables, FRAG_NUM)


def in_order(model):
    """Makes the training of a model deterministic, and returns the model.

    Its parts train one after the other, and each request is answered before it goes on, also with
    other workers and several threads.  Exchanges take no time, as their duration sets their rate.
    """

    def answered(call):
        def ask(*given, **named):
            answer = call(*given, **named).wait()
            return SimpleNamespace(wait=lambda: answer, done=True)

        return ask

    model.pull_async, model.push_async = map(answered, (model.pull_async, model.push_async))
    model.sgd.pool.shutdown()
    model.sgd.pool = AtOnce()
    for rows in model.rows:
        if isinstance(rows, KeptRows):
            rows.times.seconds = lambda: 0.0
    return model


def keep(model, room):
    """Limits the rows that a worker of sparse examples keeps."""
    rows = KeptRows(model.sgd, TABLE, model.shares.estimate, room=room, period_blocks=PERIOD_BLOCKS)
    model.rows = (rows,)


def flush(model):
    """Pushes all deltas of a model, and waits for the acknowledgements."""
    for rows in model.rows:
        rows.flush()


def block_of(data, number=0, progress=(0.0, 0.5), first=None):
    """A block with this text; blocks of other numbers have other places in the file."""
    data, start = data if isinstance(data, bytes) else data.encode(), number * BLOCK_BYTES_MAX
    first = number == 0 and progress[0] == 0 if first is None else first
    piece = Piece("text", start, start + len(data))
    return held_block(HeldContent(data, data), number, piece, progress=progress, first=first)


def train(model, data, number=0, progress=(0.0, 0.5), first=None):
    """Prepares and trains a block; its figures."""
    block = block_of(data, number, progress, first)
    block.prepared = model.prepare(block)
    return model.train(block)
