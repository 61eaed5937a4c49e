"""Tests, and what they share: import helpers as `from tests.<module> import ...`."""
