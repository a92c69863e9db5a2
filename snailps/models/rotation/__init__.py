"""The trainer of leases of partitions, in which no output row has two writers at a time.

A model says what is an example and which rows it trains: words in `word_vectors.rotation`, ratings
in `embeddings.rotation`.  docs/design/rotation.md.
"""
