"""The parameters of a model, or its parameter groups, together with the model."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

__all__ = ["ModelGroups", "ModelParameters"]


class ModelParameters(Iterator[nn.Parameter]):
    """An iterator over parameters, like `model.parameters()`, with the modules that they are of.

    Args:
        parameters: The parameters.
        modules: The model, and then the loss, if it has parameters.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], modules: Iterable[nn.Module]) -> None:
        self._parameters = iter(parameters)
        self.modules = tuple(modules)

    def __next__(self) -> nn.Parameter:
        return next(self._parameters)


class ModelGroups(list[dict[str, Any]]):
    """A list of parameter groups, with the modules that they are of.

    Args:
        groups: The groups.
        modules: The model, and then the loss, if it has parameters.
        by_role: Whether they are those of `role_groups`; otherwise those of `decay_groups`.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        modules: Iterable[nn.Module],
        *,
        by_role: bool = False,
    ) -> None:
        super().__init__(groups)
        self.modules, self.by_role = tuple(modules), by_role
