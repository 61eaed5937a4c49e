"""Several seeds of a small model in one computation."""
