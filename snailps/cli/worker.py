"""``snailps worker``: runs a worker process; `snailps.worker` drives the model."""

from __future__ import annotations

from snailps.cli.common import run_node
from snailps.cli.options import ConfigOption, DocumentFdOption, SetOption
from snailps.config import WorkerSettings
from snailps.node.usage import keep_memory
from snailps.worker.process import WorkerProcess


def command(
    config: ConfigOption = None, sets: SetOption = None, document_fd: DocumentFdOption = -1
) -> None:
    """Train: lease blocks of input, pull their rows, push deltas.

    Joins the master at master_addr, which also sends it the job. On SIGTERM it finishes its block
    and leaves; the other workers continue.

    For example: snailps worker --set master_addr=node1:16831
    """
    keep_memory()
    run_node(WorkerSettings, WorkerProcess, config, sets, document_fd)
