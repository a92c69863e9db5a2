"""What a round of `make test-night` does to each Python of its tests, before anything else runs.

    NIGHT_CORES=8          -> os.sched_getaffinity, os.cpu_count
    NIGHT_LATE=seed:ms     -> late_threads

This folder is on PYTHONPATH in those rounds, and in no others.  What is compiled is late by itself:
late_calls.c, in LD_PRELOAD.
"""

import os

if os.environ.get("NIGHT_CORES"):
    import faked_cores

    faked_cores.install(int(os.environ["NIGHT_CORES"]))
if os.environ.get("NIGHT_LATE"):
    import late_threads

    late_threads.install(*map(int, os.environ["NIGHT_LATE"].split(":")))
