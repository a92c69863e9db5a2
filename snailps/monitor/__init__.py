"""Observes runs: the live page of `snailps ui`, the report, json_log, TensorBoard.

Must not know the master's core: it sees a run through its `Status`.
"""
