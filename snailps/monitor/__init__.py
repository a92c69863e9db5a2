"""The live page of a run, and its report: what `snailps ui` shows, asked of the master."""
