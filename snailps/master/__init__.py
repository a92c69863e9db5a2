"""The master: forms the cluster, follows the job, replaces what is lost, ends both."""
