"""The command ``snailps``: owns options, output and exit codes; other packages do the work.

One module per command or family of commands; `main.py` finds them by name.
"""

PATHS = ("input", "test", "valid", "labels", "test_labels")
"""Settings that are paths: their options take several words."""

COMPLETE = "_SNAILPS_COMPLETE"
"""Environment variable by which a shell's script asks for completions (`snailps completion`)."""

FAULTS = ("lost", "replaced", "master", "restored")
"""Kinds of events that a run survives."""
FAULTS_MAX = 6
"""At most this many faults are listed at the end of a run, the newest; the others are counted."""
