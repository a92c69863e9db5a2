"""Authentication: the secret, TLS, and the log and limits of refused connections."""
