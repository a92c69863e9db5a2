"""``python -m snailps.config > docs/settings.md``: the page of all settings, models included."""

import sys

from snailps.config.document import describe, documented_classes

if __name__ == "__main__":
    sys.stdout.write(describe(documented_classes()))
