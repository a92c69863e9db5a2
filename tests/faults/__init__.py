"""Proof that nothing acknowledged is lost: real processes, planted faults, and what is counted.

    schedule (seed) -> cluster (processes, proxy) -> counting (what was acknowledged, what is there)

docs/operations.md, "How this is proved", says what is claimed and how to run it for longer.
"""
