"""Trained rows for serving: of a running cluster through a cache, or of a checkpoint."""
