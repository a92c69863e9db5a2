"""Runs the command ``snailps``: for ``python -m snailps``, and by its path for child processes.

Python puts the folder of a script, with ``-m`` the current one, first on the path of imports: a
file there with the name of a library's module, in a folder of data, say, would run instead of the
library.  So that folder is removed from the path, and the package's folder becomes the last one.
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
