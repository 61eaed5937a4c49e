"""Model surgery without side effects: a copy of a model that shares the tensors."""

import functools
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from composable._support.checks import check_module, check_tensors
from composable._support.dtensors import LentModel, is_sharded
from composable._support.references import References
from composable._support.warn import NoEffectWarning, warn_user

Model = TypeVar("Model", bound=nn.Module)

log = logging.getLogger("composable")
_counts: ContextVar[Counter[str] | None] = ContextVar("replaced_modules", default=None)

ATOMS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)
CALLABLES = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)
# By name: importing them takes a second, and not every build of torch has them.
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def copy_on_write(model: Model, tensors: Mapping[str, Tensor] | None = None) -> Model:
    """Copy the structure of a model; share its parameters and clone its buffers.

    Functions and hooks that close over modules of the model close over the copies instead.

    Args:
        model: Any module. Changes to the structure, the mode or the buffers of the copy don't
            affect it. In-place changes of the shared parameters do.
        tensors: Parameters and buffers to replace, by the names of `state_dict`.

    Returns:
        The copy. Modules and parameters that the model shares stay shared.

    Raises:
        ValueError: A name is unknown, a shape differs, or the model is wrapped for distributed
            training.
    """
    check_unwrapped(model)
    memo: dict[int, Any] = {}
    for module in model.modules():
        memo |= {id(p): p for p in module._parameters.values() if p is not None}
        for buffer in (b for b in module._buffers.values() if b is not None):
            memo[id(buffer)] = buffer if is_lazy(buffer) else buffer.detach().clone()
        if isinstance(module, torch.jit.ScriptModule):  # its tensors are in an object of C++
            continue
        for value in _plain_values(module):
            if isinstance(value, Tensor):
                memo.setdefault(id(value), value)
            elif not _copies(value):
                memo[id(value)] = value
    memo |= _substitutes(model, tensors or {})
    new = deepcopy(model, memo)
    references = References(memo)
    for module in new.modules():
        references.redirect_in(module)
    _write_scripted(new, tensors or {})
    return new


def _write_scripted(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of TorchScript modules, whose copies don't share tensors by their ids."""
    scripted = [
        name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)
    ]
    if not scripted:
        return
    held: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    held |= dict(model.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, tensor in tensors.items():
            if any(not path or name.startswith(f"{path}.") for path in scripted):
                held[name].copy_(tensor)


def check_unwrapped(model: nn.Module) -> None:
    """Raise a ValueError if a module of the model is wrapped for distributed training."""
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in WRAPPERS:
                raise ValueError(
                    f"model must not be wrapped in {kind.__name__}, which is bound to the "
                    "parameters of its construction; change the model before wrapping it."
                )


def check_uncompiled(model: nn.Module, changed: Collection[str]) -> None:
    """Raise a ValueError if a module to change is compiled, by `torch.compile` or in place.

    Args:
        model: Any module.
        changed: Names of the modules to change.
    """
    for name, module in model.named_modules(remove_duplicate=False):
        within = any(f"{one}.".startswith(f"{name}." if name else "") for one in changed)
        wrapped = type(module).__name__ == "OptimizedModule" and within
        in_place = module._compiled_call_impl is not None  # copies don't have it
        if wrapped or in_place:
            raise ValueError(
                f"{name or 'model'} must not be compiled yet; change the model first, and compile "
                "it afterwards (in the Trainer: pass the plain module and compile=True)."
            )


def with_tensors(model: Model, tensors: Mapping[str, Tensor]) -> Model:
    """Replace tensors of a model in a copy.

    Args:
        model: Any module. It is not modified.
        tensors: Parameters and buffers to replace, by the names of `state_dict`. They are converted
            to the dtype and device of the old ones; all other tensors stay shared. Tied parameters
            can be replaced by any of their names.

    Returns:
        A new model with these tensors. Parameters share the memory of `tensors` if dtype and device
        are the same; buffers are cloned.

    Raises:
        TypeError: `model` is not a module, or `tensors` is not a mapping of names to tensors.
        ValueError: A name is unknown, or a shape differs.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> averaged = with_tensors(model, {"weight": torch.tensor([[1.0, 2.0]])})
        >>> averaged(torch.tensor([[3.0, 4.0]])).item()
        11.0
    """
    check_module("model", model)
    check_tensors("tensors", tensors)
    if is_sharded(model):
        return LentModel(model, tensors)  # type: ignore[return-value]
    return copy_on_write(model, tensors)


def report_nothing(method: str, sought: str, advice: str = "") -> None:
    """Warn that a method found nothing to replace, with the kinds of layers it looked for."""
    said = f"{method} found nothing to replace; it looked for {sought}."
    warn_user(f"{said} {advice}" if advice else said, NoEffectWarning)


@contextmanager
def counting_replaced() -> Iterator[Counter[str]]:
    """Count the modules that `replace_modules` replaces within a block, by their class."""
    counts: Counter[str] = Counter()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


def log_replaced(pairs: Sequence[tuple[nn.Module, nn.Module]]) -> None:
    """Log and count how many modules of each class were replaced."""
    kinds = Counter(tuple(type(module).__name__ for module in pair) for pair in pairs)
    if (counts := _counts.get()) is not None:
        counts.update(type(old).__name__ for old, _ in pairs)
    parts = [f"{count} {old} by {new}" for (old, new), count in kinds.items()]
    log.info("replaced %d modules: %s", len(pairs), ", ".join(parts))


def _plain_values(module: nn.Module) -> Iterator[Any]:
    """Iterate over the attributes of a module that are not parameters, buffers or children."""
    registered = ("_parameters", "_buffers", "_modules")
    for name, value in vars(module).items():
        if name not in registered:
            yield from _flatten(value)


def _flatten(value: Any) -> Iterator[Any]:
    todo, seen = [value], set()
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping | list | tuple | set | frozenset):
            if id(item) not in seen:
                seen.add(id(item))
                todo.extend(item.values() if isinstance(item, Mapping) else item)
        elif isinstance(item, functools.partial):
            todo.extend((item.func, *item.args, *item.keywords.values()))
        else:
            yield item


def _copies(value: Any) -> bool:
    """Return whether deepcopy supports a value; others, such as a lock, are shared."""
    if isinstance(value, (*ATOMS, *CALLABLES, nn.Module)):
        return True
    try:
        value.__reduce_ex__(4)
    except Exception:
        return False
    return True


def _substitutes(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Map the ids of the tensors of a model to their replacements."""
    known: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    known |= dict(model.named_buffers(remove_duplicate=False))
    if unknown := sorted(set(tensors) - set(known)):
        raise ValueError(
            f"tensors has {', '.join(unknown[:5])}, but the model has no parameter or buffer of "
            "that name; use the names of model.state_dict()."
        )
    memo: dict[int, Tensor] = {}
    for name, given in tensors.items():
        old = known[name]
        if given.shape != old.shape:
            raise ValueError(
                f"tensors[{name!r}] must have shape {tuple(old.shape)}, as in the model, not "
                f"{tuple(given.shape)}."
            )
        tensor = given.detach().to(old)
        if given is not old and isinstance(old, nn.Parameter):
            memo.setdefault(id(old), nn.Parameter(tensor, requires_grad=old.requires_grad))
        elif given is not old:
            memo.setdefault(id(old), tensor.clone())
    return memo
