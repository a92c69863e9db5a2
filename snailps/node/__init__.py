"""Shared parts of a cluster's processes: joining, heartbeats, signals, status, checks."""
