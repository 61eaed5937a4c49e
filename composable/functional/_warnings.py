"""Warnings of the methods, each of its own class, so that it can be filtered."""

__all__ = ["ImageRangeWarning", "NoEffectWarning"]


class NoEffectWarning(UserWarning):
    """A model in which a method found nothing to replace, or a layer it could not replace."""


class ImageRangeWarning(UserWarning):
    """Images that are not in the range to which operations clip, such as normalized ones."""
