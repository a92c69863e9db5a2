"""File formats that have rows: each is a module of this package.

To add a format, write a module with a `TableFile` (table.py) and add a row to the table
of them all, `files/formats.py`: then training, fit, predict and evaluation read it, and filter does
if it has a `target`.  A format's module is imported when its first file is opened, so that a job
without tables starts without pyarrow.
"""
