"""``python -m with_cores 8 server ...``: snailps as on a machine of so many cores."""

import os
import sys

from snailps.cli.entry import BLAS_THREADS, main

if __name__ == "__main__":
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")  # before NumPy
    from snailps.abi import quota

    cores = set(range(int(sys.argv.pop(1))))
    os.sched_getaffinity = lambda pid: cores
    quota.group_quota = lambda root: sys.maxsize  # that of this machine
    sys.argv[0] = "snailps"
    main()
