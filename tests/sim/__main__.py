"""The command: run many seeds, replay one, or compare the recorded lives.

python -m tests.sim --seeds 100000 [--from 0] [--jobs 2]        many seeds, with progress
python -m tests.sim --seed 4711 --trace                         one run, each event of it
python -m tests.sim --life lost_server                          one life, and its problems
python -m tests.sim --lives [--rewrite]                         compare the lives, or write them
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import multiprocessing
import sys
import time

from tests.sim.cluster import run
from tests.sim.scheduler import shown

_PR_SET_THP_DISABLE = 41


def failure(outcome):
    """The report of a seed that failed: the last events, the problems, how to replay it."""
    lines = [f"seed {outcome.seed}: {len(outcome.problems)} problems, ended {outcome.ended!r}"]
    lines += [shown(line) for line in outcome.recent]
    lines += [f"  {problem}" for problem in outcome.problems]
    lines.append(f"  replay: python -m tests.sim --seed {outcome.seed} --trace")
    return "\n".join(lines)


@contextlib.contextmanager
def small_pages():
    """Disables huge pages: clearing 2 MB for each small table takes a tenth of a run's CPU."""
    set_disabled = ctypes.CDLL(None).prctl
    set_disabled(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        set_disabled(_PR_SET_THP_DISABLE, 0, 0, 0, 0)


def quiet_run(seed):
    """Runs a seed with the product's log disabled."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with small_pages():
            return run(seed)
    finally:
        logging.disable(before)


def walk(first, count, jobs, most=10, say=print):
    """Runs `count` seeds in `jobs` processes, and shows `most` failures; the failed seeds."""
    failed, begun, reported = [], time.monotonic(), time.monotonic()
    endings = {}
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=2000) as pool:
        outcomes = pool.imap_unordered(quiet_run, range(first, first + count), chunksize=8)
        for done, outcome in enumerate(outcomes, 1):
            kind = outcome.ended.split(" ")[0]
            endings[kind] = endings.get(kind, 0) + 1
            if outcome.problems:
                failed.append(outcome.seed)
                if len(failed) <= most:
                    say(failure(outcome))
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                left_s = (reported - begun) / done * (count - done)
                say(f"{done:,} of {count:,} seeds, {len(failed)} failed, {left_s:,.0f} s left")
    took_s = time.monotonic() - begun
    codes = dict(sorted(endings.items()))
    say(f"{count:,} seeds in {took_s:.1f} s; exit codes of the masters: {codes}")
    return sorted(failed)


def main(arguments=None):
    """Runs the command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes to run them in")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="print each event of the run")
    parser.add_argument("--log", action="store_true", help="print the product's log as well")
    parser.add_argument("--lives", action="store_true", help="compare the recorded lives")
    parser.add_argument("--life", help="run this life alone, for problems")
    parser.add_argument("--rewrite", action="store_true", help="write them anew")
    chosen = parser.parse_args(arguments)
    if chosen.life:
        return _life(chosen.life)
    if chosen.lives:
        return _lives(chosen.rewrite)
    if chosen.seed is None:
        failed = walk(chosen.first, chosen.seeds, chosen.jobs)
        if failed:
            print(f"{len(failed)} seeds failed: {failed[:50]}")
        return int(bool(failed))
    if chosen.log:
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s", stream=sys.stdout)
    else:
        logging.disable(logging.CRITICAL)
    outcome = run(chosen.seed, print if chosen.trace else None)
    if outcome.problems:
        print(failure(outcome))
    print(
        f"seed {outcome.seed}: {outcome.events:,} events, {outcome.virtual_s:.1f} s, "
        f"{outcome.faults} faults, digest {outcome.digest:08x}: {outcome.ended}"
    )
    return int(bool(outcome.problems))


def _life(name):
    """Runs a life; exit code 1 if a promise is broken in it, whatever its log."""
    from tests.sim import lives

    logging.disable(logging.CRITICAL)
    _, commands, _ = lives.read(lives.FOLDER / f"{name}.txt")
    _, problems = lives.live(commands)
    print(f"life {name}: {problems or 'no problems'}")
    return int(bool(problems))


def _lives(rewrites):
    """Compares the recorded lives, or writes them; the exit code."""
    from tests.sim import lives

    logging.disable(logging.CRITICAL)
    wrong = 0
    for path in sorted(lives.FOLDER.glob("*.txt")):
        about, commands, log = lives.read(path)
        lived, problems = lives.live(commands)
        if rewrites:
            path.write_text(lives.written(about, commands, lived))
        changed = lived != log
        print(path.stem, *problems, "changed" if changed else "as it is written", sep=": ")
        wrong += bool(problems) or (changed and not rewrites)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
