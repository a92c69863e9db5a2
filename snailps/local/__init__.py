"""A cluster on this machine: its processes, a driver, and an export without a cluster."""

LAUNCHED = "--launched"
"""Precedes the arguments of a process that the launcher starts: those of its command, as JSON."""
