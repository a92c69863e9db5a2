"""snailps."""
