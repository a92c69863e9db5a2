"""``python -m with_slow_push FOLDER worker ...``: snailps whose last pushes stop at a gate there.

rotation    TABLE-0  behind the push of all rows of a table
kept rows   flush-0  before the last push of a period
"""

import sys
from pathlib import Path

from cluster_models import stop_at

from snailps.cli.entry import main
from snailps.master.leases import late_workers
from snailps.models.kept_rows import KeptRows
from snailps.models.rotation.partition_rows import PartitionRows


def slow_down(folder):
    """Has this process stop there; a master waits half a second for what does not move."""
    late_workers.DROP_S = late_workers.ASK_S = 0.5
    close, flush = PartitionRows.close, KeptRows.flush

    def closed(self, places, shares=None):
        close(self, places, shares)
        stop_at(folder / f"{self._table}-0")

    def flushed(self):
        stop_at(folder / "flush-0")
        flush(self)

    PartitionRows.close, KeptRows.flush = closed, flushed


if __name__ == "__main__":
    slow_down(Path(sys.argv.pop(1)))
    sys.argv[0] = "snailps"
    main()
