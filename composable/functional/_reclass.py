"""Change the class of a layer, and keep its tensors, options, hooks and mode."""

import functools
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from composable._support.registry import class_name


def reclass(module: nn.Module, kind: type[nn.Module], *, prefix: str = "") -> Any:
    """Build a layer of another class with the attributes of a layer.

    Args:
        module: A layer of a private copy. It must not be used afterwards.
        kind: A class whose `forward` calls or replaces the forward method of the layer. A subclass
            of the layer's class is used directly; otherwise a class that inherits from both is
            created, with `kind` first.
        prefix: Prefix of the name of a created class.

    Returns:
        The layer. The attributes that `kind` adds are not set yet.
    """
    joined = _joined(type(module), kind, prefix)
    new = joined.__new__(joined)
    new.__dict__.update(vars(module))
    return new


def keeps_forward_of(plain: type[nn.Module] | str, module: nn.Module) -> bool:
    """Return whether a layer inherits its forward method from a class, or from one of a name."""
    return any(
        base is plain or class_name(base) == plain
        for base in type(module).__mro__
        if getattr(base, "forward", None) is type(module).forward
    )


def refuse_lazy(name: str, module: nn.Module, kinds: Iterable[type], method: str) -> None:
    """Raise a ValueError for a lazy layer that becomes one of these classes at its first call."""
    becomes: Any = getattr(module, "cls_to_become", None)
    if isinstance(module, LazyModuleMixin) and issubclass(becomes, tuple(kinds)):
        raise ValueError(
            f"{name or 'model'} is lazy and its channels are not known yet; call the model once on "
            f"a batch before {method}."
        )


def _joined(kind: type[nn.Module], new: type[nn.Module], prefix: str) -> type[nn.Module]:
    base = kind.__bases__[0]
    if kind.__name__ == f"Parametrized{base.__name__}":
        # torch created this class for one layer: a subclass with properties. It is created again
        # from the new base, so that the parametrizations can still be removed.
        skipped = ("__dict__", "__weakref__")
        body = {key: value for key, value in vars(kind).items() if key not in skipped}
        base = _joined(base, new, prefix)
        return type(f"Parametrized{base.__name__}", (base,), body)
    return new if issubclass(new, kind) else _made(kind, new, prefix)  # type: ignore[arg-type]


@functools.cache
def _made(kind: Any, new: Any, prefix: str) -> type[nn.Module]:
    def reduce(self: nn.Module, protocol: Any) -> Any:  # pickle finds no class by this name
        parts: Any = object.__reduce_ex__(self, protocol)
        return _blank, (kind, new, prefix), *parts[2:]

    body = {"__module__": kind.__module__, "__reduce_ex__": reduce}
    return type(f"{prefix}{kind.__name__}", (new, kind), body)


def _blank(kind: Any, new: Any, prefix: str) -> nn.Module:
    made = _made(kind, new, prefix)
    return made.__new__(made)
