"""Warnings that point at the user's code."""

from composable.functional._warnings import warn_user

__all__ = ["warn_user"]
