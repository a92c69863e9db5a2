"""The master: forms the cluster, runs its job, and replaces lost processes."""
