"""Who is let in: the secret, TLS, and what becomes of those who are refused."""
