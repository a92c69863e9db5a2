"""``python -m with_cores 8 server ...``: snailps as on a machine of so many cores."""

import os
import sys

from snailps.cli.entry import main

if __name__ == "__main__":
    cores = set(range(int(sys.argv.pop(1))))
    os.sched_getaffinity = lambda pid: cores
    sys.argv[0] = "snailps"
    main()
