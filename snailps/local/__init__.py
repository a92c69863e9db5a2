"""A cluster on this machine: its processes, a driver, and an export without a cluster."""
