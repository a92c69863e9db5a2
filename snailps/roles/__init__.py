"""What each process of a cluster does, from its birth to its exit code."""
