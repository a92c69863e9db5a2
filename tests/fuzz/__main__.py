"""The long run, and what it found.

PYTHONPATH=tests:tests/support:tests/unit python -m fuzz FRAMES [SEED]
"""

import sys
import tempfile
import time
from pathlib import Path

from live import Live

from fuzz.attack import FRAG_NUM, attack

TELL_S = 10.0


def main(frames, seed):
    begin, told = time.monotonic(), [0.0]

    def tell(tally):
        now = time.monotonic() - begin
        if now - told[0] > TELL_S:
            told[0] = now
            print(
                f"{now:6.0f} s  {tally.frames:9,} frames  {tally.connections:8,} connections  "
                f"{tally.served:7,} times served  {tally.memory_mb[-1]:6.1f} MB  "
                f"{tally.descriptors[-1]} descriptors",
                flush=True,
            )

    with tempfile.TemporaryDirectory() as folder:
        live = Live(Path(folder), frag_num=FRAG_NUM)
        try:
            tally = attack(live, seed, frames, tell=tell)
            lines = len(live.refusals())
        finally:
            live.close()
    print(
        f"{tally.frames:,} frames in {tally.connections:,} connections, seed {seed}, "
        f"{time.monotonic() - begin:.0f} s: no crash, no hang; grew by {tally.growth_mb:.1f} MB, "
        f"honest client served {tally.served:,} times, {lines} lines on refusals"
    )


if __name__ == "__main__":
    main(int(sys.argv[1].replace("_", "")), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
