"""What the compiled parts agree on: key hash, row operations, wire types, prefetch, large pages.

And which build of the kernels this CPU runs.  Imports nothing of the package but its errors.
`store` and `transport` are compiled without `kernels`, and get its functions at run time as
capsules: structs that are declared here.
"""
