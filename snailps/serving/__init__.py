"""Serves trained rows, read only: from a running cluster through a cache, or from a checkpoint.

    reader(address, table) -> TableReader.pull(keys) -> rows     open_checkpoint(folder) -> tables

Must not know training; nothing here declares a table or pushes a row.
"""
