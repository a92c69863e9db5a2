"""A session of a cluster in this process: its jobs' passes, and tables in two shards."""

import importlib
from pathlib import Path
from types import SimpleNamespace

from attach import attach
from shards import Shards

from snailps.api.range_passes import PassRange
from snailps.api.wire_choice import WireChoice


class InProcess:
    """A session whose only worker is this process, beside two shards."""

    def run(self, model, settings, *, input):
        module, _, name = model.partition(":")
        cls = getattr(importlib.import_module(module), name)
        worker = cls(cls.Settings(**settings))
        lines = Path(input).read_bytes().splitlines()
        plan = cls.range_passes(worker.settings, b"")
        with Shards(2) as shards:
            client, numbered = shards.client(), dict(enumerate(worker.tables(), 1))
            for number, table in numbered.items():
                shards.declare(table, number)
            tables = {table.name: (number, table) for number, table in numbered.items()}
            attach(worker, client, WireChoice(client, shards.route), tables)
            worker.setup()
            for pass_ in range(1 + (plan.passes if plan else 0)):
                for place in range(plan.ranges if plan and pass_ else len(lines)):
                    terms = PassRange(pass_, place, len(lines), len(lines)) if plan else None
                    data = b"" if pass_ else lines[place]
                    worker.train(SimpleNamespace(data=data, terms=terms))
