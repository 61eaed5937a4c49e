"""Give a function the signature of another, for type checkers, `help` and notebooks."""

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["takes_arguments_of"]

P = ParamSpec("P")
T = TypeVar("T")


def takes_arguments_of(
    source: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Make a decorator for a method that takes the arguments of `source`, and documents them.

    Example:
        >>> from composable.trainer._signature import takes_arguments_of
        >>> def area(width: float, *, height: float = 1.0) -> float: ...
        >>> class Box:
        ...     @takes_arguments_of(area)
        ...     def __init__(self, *args, **kwargs): ...
        >>> import inspect
        >>> str(inspect.signature(Box))
        '(width: float, *, height: float = 1.0)'
    """

    def decorate(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = inspect.signature(source).parameters.values()
        method.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
        method.__doc__ = source.__doc__
        return method

    return decorate
