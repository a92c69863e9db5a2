"""A machine of so many cores: fewer than there are, by taking the others; more, by saying so."""

import itertools
import os

_affinity = os.sched_getaffinity


def install(cores):
    """Has this process and its threads see so many cores.

    A thread or process that has been kept on some of the real ones sees those.
    """
    real = _affinity(0)
    all_real = os.environ.setdefault("NIGHT_REAL", repr(sorted(real)))
    if cores > len(real) and all_real != repr(sorted(real)):
        return
    if cores <= len(real):
        os.sched_setaffinity(0, sorted(real)[:cores])
        seen = real = _affinity(0)
    else:
        others = (cpu for cpu in itertools.count() if cpu not in real)
        seen = real | set(itertools.islice(others, cores - len(real)))

    def affinity(pid):
        found = _affinity(pid)
        return set(seen) if found == real else found

    os.sched_getaffinity = affinity
    os.cpu_count = lambda: cores
