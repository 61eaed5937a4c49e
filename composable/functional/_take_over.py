"""A layer of another class around what a layer holds: nothing is drawn anew."""

import functools
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

__all__ = ["keeps_forward_of", "refuse_lazy", "take_over"]


def take_over(module: nn.Module, kind: type[nn.Module], *, prefix: str = "") -> Any:
    """Build a layer that holds what another one holds: tensors, options, hooks and mode.

    Args:
        module: A layer of a private copy; it is not to be used any more.
        kind: A class whose `forward` calls or replaces the layer's own. A subclass of the layer's
            class is taken as it is; otherwise a class of both is made, `kind` first.
        prefix: What the name of a class that is made begins with.

    Returns:
        The layer, which its `kind` has yet to set up.
    """
    joined = _joined(type(module), kind, prefix)
    new = joined.__new__(joined)
    new.__dict__.update(vars(module))
    return new


def keeps_forward_of(plain: type[nn.Module], module: nn.Module) -> bool:
    """Say whether a layer computes what torch's class does, and is not a subclass that adds."""
    return isinstance(module, plain) and type(module).forward is plain.forward


def refuse_lazy(name: str, module: nn.Module, kinds: Iterable[type], method: str) -> None:
    """Refuse a layer that will be of one of these kinds when it has seen a batch."""
    becomes: Any = getattr(module, "cls_to_become", None)
    if isinstance(module, LazyModuleMixin) and issubclass(becomes, tuple(kinds)):
        raise ValueError(
            f"{name or 'the model'} is lazy and does not know its channels yet. Call the model "
            f"once on a batch, then apply {method}."
        )


def _joined(kind: type[nn.Module], new: type[nn.Module], prefix: str) -> type[nn.Module]:
    base = kind.__bases__[0]
    if kind.__name__ == f"Parametrized{base.__name__}":
        # torch made this class for one layer: its base, with properties in the body. It is made
        # again on the new base, so that the parametrizations can still be removed.
        left_out = ("__dict__", "__weakref__")
        body = {key: value for key, value in vars(kind).items() if key not in left_out}
        base = _joined(base, new, prefix)
        return type(f"Parametrized{base.__name__}", (base,), body)
    return new if issubclass(new, kind) else _made(kind, new, prefix)  # type: ignore[arg-type]


@functools.cache
def _made(kind: Any, new: Any, prefix: str) -> type[nn.Module]:
    def reduce(self: nn.Module, protocol: Any) -> Any:  # pickle looks for no class of that name
        parts: Any = object.__reduce_ex__(self, protocol)
        return _blank, (kind, new, prefix), *parts[2:]

    body = {"__module__": kind.__module__, "__reduce_ex__": reduce}
    return type(f"{prefix}{kind.__name__}", (new, kind), body)


def _blank(kind: Any, new: Any, prefix: str) -> nn.Module:
    made = _made(kind, new, prefix)
    return made.__new__(made)
