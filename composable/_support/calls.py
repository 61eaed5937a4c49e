"""Calls of modules of Transformers, whose arguments have other names in other versions."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from composable._support.extras import check_floors

CACHELESS = ("DistilBertSelfAttention",)
"""The known attention without a cache."""


@dataclass(frozen=True)
class Arguments:
    """The names of the arguments of a forward method: see `arguments_of`."""

    names: tuple[str, ...]
    cache: str | None
    cache_types: tuple[type, ...]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by their names."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def cache_in(self, bound: Mapping[str, Any]) -> Any:
        """Return the cache of a call, found by its name or its type; None without a cache."""
        if self.cache is not None and bound.get(self.cache) is not None:
            return bound[self.cache]
        found = [value for value in bound.values() if isinstance(value, self.cache_types)]
        return found[0] if found else None


def cache_types() -> tuple[type, ...]:
    """Return the base class of the caches of Transformers; nothing if it is not imported.

    `isinstance` with the result can be compiled, and an import within a call can't.
    """
    if "transformers" not in sys.modules:
        return ()
    from transformers.cache_utils import Cache

    return (Cache,)


def arguments_of(attention: nn.Module, *needed: str) -> Arguments:
    """Return the names of the arguments of an attention of Transformers.

    Args:
        attention: The attention. Of its base classes, the first counts that names its arguments.
        needed: Names that the arguments must have.

    Raises:
        ImportError: The installed version of Transformers is too old.
        TypeError: The forward method lacks one, or takes no cache.
    """
    check_floors("huggingface")
    kind = type(attention)
    forwards = list(_forwards(kind))
    named = (one for one in forwards if all(p.kind is not p.VAR_POSITIONAL for p in one))
    names = tuple(p.name for p in next(named, []))
    caches = (p.name for forward in forwards for p in forward if "Cache" in str(p.annotation))
    found = Arguments(names, next(caches, None), cache_types())
    missing = [repr(name) for name in needed if name not in names]
    if found.cache is None and not any(base.__name__ in CACHELESS for base in kind.__mro__):
        missing.append("a Cache")
    if missing:
        raise TypeError(
            f"{kind.__name__}.forward must take {' and '.join(missing)}, and takes "
            f"{', '.join(names)}; install a version of transformers with which this was run: "
            "docs/status.md lists them."
        )
    return found


def _forwards(kind: type) -> Iterator[list[inspect.Parameter]]:
    """Yield the parameters of the forward methods of a class and its bases, without `self`."""
    for base in kind.__mro__:
        if "forward" in vars(base):
            yield list(inspect.signature(vars(base)["forward"]).parameters.values())[1:]
