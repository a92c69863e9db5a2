"""``python -m with_peak worker ...``: snailps, which at its end says what memory it had at most."""

import atexit
import sys
from pathlib import Path

from snailps.cli.entry import main


def say():
    lines = Path("/proc/self/status").read_text().splitlines()
    print(*(line for line in lines if line.startswith("VmHWM")), file=sys.stderr, flush=True)


if __name__ == "__main__":
    atexit.register(say)
    sys.argv[0] = "snailps"
    main()
