"""Checks before a job whether a host can join its cluster (`snailps doctor`)."""
