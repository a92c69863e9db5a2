"""Bytes of the input, and files of results: what the core reads and writes by.

    files, folders, addresses -> Scratch -> blocks of bytes;  arrays, rows -> a file with its name

Must not know what the bytes mean: words, examples and tables are `data/`'s.
"""
