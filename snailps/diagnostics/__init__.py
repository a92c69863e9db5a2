"""Checks whether a host can join its cluster, before a job begins."""
