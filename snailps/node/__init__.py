"""What the processes of a cluster share: joining, heartbeats, signals, status, checks."""
