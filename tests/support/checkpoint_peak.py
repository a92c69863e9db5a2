"""``python -m checkpoint_peak FOLDER``: memory that a save and a restore take beside the rows.

One shard, two fragments, pieces of PIECE_BYTES; JSON, in bytes.  In a process of its own: a peak is
a process's.
"""

import json
import sys
from pathlib import Path

import numpy as np
import test_server_checkpoints as served

from snailps.server import checkpoints
from snailps.store.checkpoint import shard_file
from snailps.store.checkpoint.folder import CheckpointFolder
from snailps.transport import messages as m

PIECE_BYTES = 1 << 20
ROWS = 1_000_000
FRAG_NUM = 2


def kept_bytes(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def peak_of(work):
    """Most memory that the process had while this ran, over what it had behind it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    work()
    return kept_bytes("VmHWM") - kept_bytes("VmRSS")


def main(path):
    served.FRAG_NUM, served.SHARDS, served.ENDPOINTS = FRAG_NUM, 1, served.ENDPOINTS[:1]
    checkpoints.BATCH_BYTES = shard_file.BATCH_BYTES = PIECE_BYTES
    folder = CheckpointFolder(Path(path))
    folder.take()
    house, found = served.House(), {}
    (shard,) = house.shards.values()
    keys = np.arange(ROWS, dtype=np.uint64)
    for at in range(0, ROWS, 50_000):
        shard.store.push(1, 1, at + 1, keys[at : at + 50_000], np.ones((50_000, 4), np.float32))
    part, order = served.begin(folder)

    def save():
        house.order(order)
        house.finish()

    found["save"] = peak_of(save)
    (saved,) = house.told
    assert not saved.text, saved.text
    saved_at = served.complete(folder, part, saved)
    other = served.House()

    def load():
        other.order(m.Load(1, str(saved_at), [[1, 1]]))
        other.finish()

    found["load"] = peak_of(load)
    assert other.told == [m.Loaded(1, ROWS)]
    file = shard_file.FileEntry.from_dict(saved.files[0], "here")
    found |= {"rows": file.bytes, "sections": file.sections, "piece": PIECE_BYTES}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
