"""Whole clusters in one process, drawn from one seed: `python -m tests.sim --seeds 1000`."""
