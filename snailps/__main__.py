"""``python -m snailps`` is the command ``snailps``."""

import sys

if __name__ == "__main__":
    try:
        from snailps.cli.entry import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
