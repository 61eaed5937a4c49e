"""Utilities for reproducibility."""
