"""Serves trained rows, read only: from a running cluster through a cache, or from a checkpoint.

    reader(address, table) -> TableReader.pull(keys) -> rows     open_checkpoint(folder) -> tables
    recommender(address) -> Recommender.recommend(user) -> items

Must not know how rows are trained; nothing here declares a table or pushes a row.
"""
