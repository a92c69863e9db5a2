"""What the compiled parts agree on: key hash, row operations, wire types, prefetch, large pages.

Imports nothing else of the package.  `store` and `transport` are compiled without `kernels`, and
get its functions at run time as capsules: structs that are declared here.
"""
