"""What keeps a host from its cluster, found before a job begins."""
