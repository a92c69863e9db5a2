"""Read by each Python that a test starts: rooms that its test does without (`without.py`)."""

import os

if os.environ.get("SNAILPS_TESTS_WITHOUT"):
    import without

    without.begin(os.environ[without.VARIABLE].split(","))
