"""A job at the master: input, phases, recovery, metrics, expiry of rows."""
