"""Runs clusters on this machine: starts their processes, joins them as a driver, submits jobs.

Also exports checkpoints without a cluster.  Must not know displays or the command line.
"""

LAUNCHED = "--launched"
"""Second word of a command line that the launcher makes; the third has the arguments as JSON."""
