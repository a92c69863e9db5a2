"""``python -m snailps`` is the command ``snailps``; our own processes start this file by its path.

Python searches a script's folder first, with ``-m`` the current one: a file there that is named
like a module of a library, as of a data set, would run in its place.  So that folder is taken off
the path of imports, and the package's is the last one.
"""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        del sys.path[0]
    home = __file__.rpartition("/snailps/")[0]
    if home not in sys.path:
        sys.path.append(home)
    try:
        from snailps.cli.entry import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
