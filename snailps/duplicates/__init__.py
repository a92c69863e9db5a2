"""Near-duplicates of texts, and texts that have benchmarks in them: words, keys, sets, least rows.

    texts -> _pages -> keys, sets of 3-grams, overlap with lines of benchmarks
    keys -> KeyTable -> the first page of each key
    search: from keys and sets to what stays; dedup: of texts in memory

docs/duplicates.md has the definitions.  Must not know filters, or how files are read.
"""
