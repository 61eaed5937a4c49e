"""Change the class of a layer, and keep its tensors, options, hooks and mode."""

import functools
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_module_registration_hook

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
    new.__dict__.update(vars(module), changed_outputs=True)
    return new


def is_adapter(module: nn.Module) -> bool:
    """Return whether a module is an adapter of PEFT, if it has a layer of the name `base_layer`."""
    return hasattr(type(module), "merge")


def _refuse_adapter(module: nn.Module, name: str, layer: nn.Module | None) -> None:
    """Raise an error if an adapter wraps a changed layer: it would change the plain layer alone."""
    if name == "base_layer" and is_adapter(module) and getattr(layer, "changed_outputs", False):
        raise ValueError(
            f"{type(layer).__name__} must not get an adapter, since a method has changed what the "
            "layer returns: merged, the model would compute something else. Omit the layer from "
            "target_modules, or change the model after merge_and_unload()."
        )


register_module_module_registration_hook(_refuse_adapter)  # which PEFT has at no other place


def keeps_forward_of(plain: type[nn.Module] | str, module: nn.Module) -> bool:
    """Return whether a layer inherits its forward method from a class, or from one of a name."""
    return any(
        base is plain or class_name(base) == plain
        for base in type(module).__mro__
        if getattr(base, "forward", None) is type(module).forward
    )


def other_setting(wanted: str, found: object, name: str) -> ValueError:
    """Return the error for a module that is converted already, with another setting."""
    return ValueError(
        f"{wanted} must be {found}, with which {name or 'model'} is converted already; convert the "
        "original model instead."
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
    made_of = (kind, new, prefix)
    body = {"__module__": kind.__module__, "__reduce_ex__": _reduce, "made_of": made_of}
    return type(f"{prefix}{kind.__name__}", (new, kind), body)


def _reduce(layer: nn.Module, protocol: Any) -> Any:
    parts: Any = object.__reduce_ex__(layer, protocol)
    recipe = _recipe(type(layer))
    return (_blank, recipe, *parts[2:]) if isinstance(recipe, tuple) else parts


def _recipe(kind: Any) -> Any:
    """Return what a created class is made of, since pickle finds none by its name."""
    made_of = vars(kind).get("made_of")
    return kind if made_of is None else (_recipe(made_of[0]), *made_of[1:])


def _from_recipe(recipe: Any) -> Any:
    if not isinstance(recipe, tuple):
        return recipe
    kind, new, prefix = recipe
    return _made(_from_recipe(kind), new, prefix)


def _blank(*recipe: Any) -> Any:
    made = _from_recipe(recipe)
    return made.__new__(made)
