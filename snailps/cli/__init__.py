"""The command ``snailps``: parses and prints, the work is done elsewhere."""

PATHS = ("input", "test", "valid", "labels", "test_labels")
"""Settings that are paths: the option of such a setting takes several words."""

COMPLETE = "_SNAILPS_COMPLETE"
"""The variable by which a shell's script asks for completions (`snailps completion`)."""

FAULTS = ("lost", "replaced", "master", "restored")
"""Kinds of events that a run survives."""
FAULTS_MAX = 6
"""Faults that are listed at the end; of more, only their number."""
