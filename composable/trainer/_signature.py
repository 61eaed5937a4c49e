"""Give a method the signature of a function, for type checkers, `help` and notebooks."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from composable._other_trainers import ARGUMENTS, advice_on

__all__ = ["takes_arguments_of"]

_SIMILAR = 0.75

P = ParamSpec("P")


def takes_arguments_of(
    source: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Make a decorator for a method that takes the arguments of `source`, and documents them.

    The method raises a `TypeError` for an unknown argument, and suggests a similar one, or the
    counterpart of an argument of another trainer.

    Example:
        >>> from composable.trainer._signature import takes_arguments_of
        >>> def area(width: float, *, height: float = 1.0) -> float: ...
        >>> class Box:
        ...     @takes_arguments_of(area)
        ...     def __init__(self, *args, **kwargs): ...
        >>> import inspect
        >>> str(inspect.signature(Box))
        '(width: float, *, height: float = 1.0)'
        >>> Box(2.0, hight=1.0)
        Traceback (most recent call last):
            ...
        TypeError: Box got an unexpected argument 'hight'; did you mean 'height'?
    """
    signature = inspect.signature(source)

    def decorate(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        @functools.wraps(method)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            owner = method.__qualname__.partition(".")[0]
            for name in kwargs.keys() - signature.parameters.keys():
                raise TypeError(f"{owner} got an unexpected argument {name!r}{_hint(name)}")
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{owner}: {error}") from None
            method(self, *args, **kwargs)

        def _hint(name: str) -> str:
            from difflib import get_close_matches  # only for an error

            if advice := advice_on(name, ARGUMENTS):
                return f"{advice}."
            close = get_close_matches(name, signature.parameters, 1, _SIMILAR)
            return f"; did you mean {close[0]!r}?" if close else "."

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = signature.parameters.values()
        checked.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
        checked.__doc__ = source.__doc__
        return checked  # type: ignore[return-value]

    return decorate
