"""Compare modules: their tensors, and their attributes that are not tensors."""

from torch import Tensor, nn

_APART = ("_parameters", "_buffers", "_modules")


def description(model: nn.Module) -> dict[str, str]:
    """Return the attributes of all layers that are not tensors, by name, as text.

    Example:
        >>> from composable.testing.modules import description
        >>> description(torch.nn.Conv2d(1, 2, 3, stride=2))["stride"]
        '(2, 2)'
    """
    found: dict[str, str] = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        found[name] = f"{type(layer).__name__} {id(layer)}"
        for attribute, value in vars(layer).items():
            if attribute not in _APART:
                found[f"{name}.{attribute}".lstrip(".")] = repr(value)
    return found


def same_values(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
