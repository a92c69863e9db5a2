"""``python -m with_endless_input master ...``: snailps whose packed input never ends."""

import sys
from time import sleep

from waiting import PAUSE_S

from snailps.cli.entry import main
from snailps.files import scratch


def pieces_of(path):
    """Lines, one at a time, for ever."""
    while True:
        yield b"1\n"
        sleep(PAUSE_S)


if __name__ == "__main__":
    scratch.pieces_of = pieces_of
    sys.argv[0] = "snailps"
    main()
