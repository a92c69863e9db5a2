"""The command ``snailps``: one file a command; parses and prints, the work is done elsewhere."""

PATHS = ("input", "test", "labels", "test_labels")
"""Settings that are paths: the option of such a setting takes several words."""
