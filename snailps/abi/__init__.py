"""What the compiled parts agree on: key hash, row operations, wire types, prefetch, large pages.

And what this machine has: which build of the kernels its CPU runs (`builds`, `loops`), cores and
memory (`quota`), memory nodes (`numa`).  Imports nothing of the package but its leaves.
`store` and `transport` are compiled without the kernels, and get their functions at run time as
capsules: structs that are declared here.
"""
