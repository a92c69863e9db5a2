"""``python -m snailps`` is the command ``snailps``."""

from snailps.cli.main import main

if __name__ == "__main__":
    main()
