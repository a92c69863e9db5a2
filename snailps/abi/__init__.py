"""What the compiled parts agree on: key hash, row operations, wire types, prefetch, large pages."""
