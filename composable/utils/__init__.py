"""Reproducibility."""
