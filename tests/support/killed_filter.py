"""Runs a filter again and again, each process killed (SIGKILL) as it gives a new file its name.

    python killed_filter.py INPUT WHOLE OUTPUT [EARLIER]

WHOLE is what one process makes; with EARLIER, an earlier dump, each has an index beside it, in
which that dump is.  Of OUTPUT each new file meets two kills: before it has its name, and after.
Prints the names in the order in which they came, once for each kill.
"""

import os
import signal
import sys

import snailps
from snailps.files.atomic import NewFile

KEEP = "not (dup.contained >= .98 or dup.near >= .85)"


def filtered(folder, output, index=""):
    snailps.filter(
        folder, output=output, keep=KEEP, column="text", add=["dup.of"], threads=1, against=index
    )


def killed_at_a_new_file(after):
    """Kill this process at the first file that was not there before."""
    publish = NewFile.publish_as

    def publish_or_end(file, target):
        is_new = not target.exists()
        if is_new:
            print(target.name, flush=True)
        if not is_new or after:
            publish(file, target)
        if is_new:
            os.kill(os.getpid(), signal.SIGKILL)

    NewFile.publish_as = publish_or_end


def main(folder, whole, output, earlier=""):
    indexes = [f"{place}-index" if earlier else "" for place in (whole, output)]
    for place, index in zip((whole, output), indexes, strict=True):
        if earlier:
            filtered(earlier, f"{place}-earlier", index)
    filtered(folder, whole, indexes[0])  # also imports what the children would import again
    killed = 0
    while True:
        if (child := os.fork()) == 0:
            code = 1
            try:
                killed_at_a_new_file(after=killed % 2 == 1)
                filtered(folder, output, indexes[1])
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            return os.WEXITSTATUS(status)
        killed += 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
