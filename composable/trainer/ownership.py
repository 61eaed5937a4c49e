"""The model that a Trainer is given: one Trainer owns it, and it stays the model that is trained.

Algorithms replace layers in copies of the model. The modules of the given model take over the
layers of the trained one, so that any of its holders computes with them.
"""

import gc
import weakref
from typing import Any

import attrs
from torch import nn

from composable._support.references import References

_owners: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Any]]" = weakref.WeakKeyDictionary()


def check_unowned(model: nn.Module) -> None:
    """Check that no other Trainer trains a model.

    Raises:
        ValueError: One does.
    """
    if _owner(model) is None:
        return
    gc.collect()  # a Trainer that is out of scope is in circles of references
    if (owner := _owner(model)) is not None:
        raise ValueError(
            f"model belongs to {owner!r}. Call the fit of that Trainer to train it further; to "
            "train a copy, pass copy.deepcopy(model); to continue from its weights in a new run, "
            "delete that Trainer first: del trainer."
        )


def _owner(model: nn.Module) -> Any:
    reference = _owners.get(model)
    return None if reference is None else reference()


@attrs.define(eq=False)
class GivenModel:
    """The modules of the model that a Trainer was given, by name.

    Args:
        model: The model.
        owner: A reference to the Trainer. The model is free when it is deleted.
    """

    model: nn.Module
    owner: "weakref.ref[Any]"
    _modules: dict[str, nn.Module] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._modules = dict(self.model.named_modules(remove_duplicate=False))
        _owners[self.model] = self.owner

    def follow(self, trained: nn.Module) -> None:
        """Let the modules share the layers, the hooks and the modes of the trained model.

        A module that cannot is withdrawn: each use of it raises.
        """
        _owners[trained] = self.owner
        if not self._modules or self.model is trained or vars(self.model) is vars(trained):
            return
        if any(module is self.model for module in trained.modules()):
            _put_inside(self.model, trained)
        inside = set(map(id, trained.modules()))
        for name, new in dict(trained.named_modules(remove_duplicate=False)).items():
            old = self._modules.get(name)
            if old is not None and id(old) not in inside:
                _share(old, new)

    def withdraw(self, trained: nn.Module, reason: str) -> None:
        """Let each use of the modules raise a RuntimeError, and drop their tensors."""
        _owners[trained] = self.owner
        modules, self._modules = self._modules, {}
        for module in modules.values():
            _withdraw(module, reason)


def _put_inside(given: nn.Module, trained: nn.Module) -> None:
    """Replace a module inside the trained model by another with its attributes."""
    stand_in = object.__new__(type(given))
    object.__setattr__(stand_in, "__dict__", vars(given))
    references = References({id(given): stand_in})
    for module in list(trained.modules()):
        references.redirect_in(module)


def _share(old: nn.Module, new: nn.Module) -> None:
    try:
        object.__setattr__(old, "__class__", type(new))
        object.__setattr__(old, "__dict__", vars(new))
    except TypeError:  # a class with another layout in memory
        _withdraw(
            old,
            f"an algorithm replaced this {type(old).__name__} by a {type(new).__name__}, which it "
            "cannot become: use trainer.state.model.",
        )


class Withdrawn:
    """A module that must not be used any more."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__call__", "__reduce_ex__", "__deepcopy__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(object.__getattribute__(self, "__dict__")["reason"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise a RuntimeError."""
        raise RuntimeError(vars(self)["reason"])

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError(vars(self)["reason"])

    def __repr__(self) -> str:
        return f"<a model that was given to a Trainer: {vars(self)['reason']}>"


def _withdraw(module: nn.Module, reason: str) -> None:
    kind = type(f"Withdrawn{type(module).__name__}", (Withdrawn, type(module)), {})
    object.__setattr__(module, "__class__", kind)
    object.__setattr__(module, "__dict__", {"reason": reason})
