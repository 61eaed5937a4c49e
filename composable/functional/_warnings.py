"""The warnings that methods give: by its class each can be silenced or made an error."""

__all__ = ["NoEffectWarning"]


class NoEffectWarning(UserWarning):
    """A method found nothing to change, or something that it could not change."""
