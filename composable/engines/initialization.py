"""Initial values of models that were built on the meta device, one part of a model at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable._support.dtensors import local_part, sharded_like
from composable.core.key import Key
from composable.utils.reproducibility import seed_all

_ALIGNED = 64
"""A multiple of the sizes of all elements, in bytes."""


def has_meta_tensors(module: nn.Module) -> bool:
    """Return whether a module has parameters or buffers on the meta device."""
    return any(tensor.is_meta for one in module.modules() for tensor in _own(one).values())


class Initialization:
    """Gives memory and initial values to the tensors of a model that are on the meta device.

    Random numbers depend on the seed and on the name of a module. So the values are the same for
    any number of processes, and in whatever parts the model is filled.

    Args:
        model: The model.
        key: The key of the run.
        device: Where the tensors are put.
        function: Sets the tensors of a module. Default: the method `_init_weights` of the module,
            or of the nearest one around it that has such a method.
        reuse: Whether the parameters of a part are not used any more when the next one is filled:
            then all parts use the same memory, in turn.
    """

    def __init__(
        self,
        model: nn.Module,
        key: Key,
        device: torch.device,
        function: Callable[[nn.Module], object] | None = None,
        *,
        reuse: bool = False,
    ) -> None:
        self.key, self.device, self.function = key.fold("initialize"), device, function
        self.kind = type(model).__name__
        self._reuse, self._memory = reuse, torch.empty(0, dtype=torch.uint8, device=device)
        self.unset: dict[str, str] = {}
        """The names of tensors that nothing has set, with the types of their modules."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._given = {id(module) for module in model.modules() if _has_weights(module)}
        self._done: set[int] = set()
        self._functions = dict(_functions(model, None))

    def fill(self, part: nn.Module) -> dict[Tensor, Tensor]:
        """Fill a part of the model whose children that are sharded were filled before.

        Modules are initialized after their children: by `reset_parameters`, if they have direct
        tensors and this method, and then by the function.

        Returns:
            The new parameters by the old ones.

        Raises:
            ValueError: The function changed a parameter that is sharded.
        """
        old = dict(_meta_tensors(part))
        if not old:
            return {}
        self._move(part)
        new = self._allocate(list(dict.fromkeys(old.values())))
        for (module, name), tensor in old.items():
            setattr(module, name, new[tensor])
        holders = {id(module) for module, _ in old}
        with torch.no_grad():
            part.apply(partial(self._initialize, holders))  # children first
        for (module, name), _ in old.items():
            if is_unset(getattr(module, name)):
                full = ".".join(filter(None, (self._names[id(module)], name)))
                self.unset[full] = type(module).__name__
        return {tensor: getattr(*place) for place, tensor in old.items()}

    def _move(self, part: nn.Module) -> None:
        """Move what has values to the device, such as layers that an algorithm has added."""
        for module in part.modules():
            for name, tensor in _own(module).items():
                if tensor.is_meta or hasattr(tensor, "device_mesh"):
                    continue
                if name in module._parameters:
                    tensor.data = tensor.data.to(self.device)
                else:
                    module._buffers[name] = tensor.to(self.device)

    def _allocate(self, tensors: list[Tensor]) -> dict[Tensor, Tensor]:
        """Return tensors with memory, whose values show that they were not set."""
        shared = [tensor for tensor in tensors if self._reuse and isinstance(tensor, nn.Parameter)]
        sizes = [-(-one.numel() * one.element_size() // _ALIGNED) * _ALIGNED for one in shared]
        if sum(sizes) > len(self._memory):
            self._memory = self._memory.new_empty(sum(sizes))
        places = iter(torch.split(self._memory[: sum(sizes)], sizes))
        new: dict[Tensor, Tensor] = {}
        for one in tensors:
            if self._reuse and isinstance(one, nn.Parameter):
                size = one.numel() * one.element_size()
                empty = next(places)[:size].view(one.dtype).as_strided(one.shape, one.stride())
            else:
                empty = torch.empty_like(one, device=self.device, requires_grad=False)
            new[one] = _as(one, empty)
        return new

    def _initialize(self, holders: set[int], module: nn.Module) -> None:
        """Initialize a module once, if it has tensors that were filled, or only such children."""
        if id(module) in self._done:
            return
        self._done.add(id(module))
        owns, inside = id(module) in holders, list(module.modules())
        if not owns and (_own(module) or any(id(one) in self._given for one in inside)):
            return
        seed_all(self.key.fold(self._names[id(module)]).seed)
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if owns and reset is not None and id(module) not in self._given:
            reset()
        function = self.function or self._functions.get(id(module))
        if function is None:
            return
        sharded = [(n, p) for n, p in module.named_parameters() if hasattr(p, "device_mesh")]
        versions = [p._version for _, p in sharded]
        function(module)
        for (name, p), version in zip(sharded, versions, strict=True):
            if p._version != version:
                kind = type(module).__name__
                raise ValueError(
                    f"initialize changed {name} when it was called for {kind}, when that parameter "
                    "was sharded already: set it in the call for the module that has it, or let "
                    f"wrap= select {kind} and not modules inside it."
                )


def replace_parameters(optimizers: Iterable[Optimizer], replaced: Mapping[Tensor, Tensor]) -> None:
    """Put new parameters, with their states, in the places of old ones."""
    for optimizer in optimizers:
        for one in [tensor for tensor in optimizer.state if tensor in replaced]:
            new, values = replaced[one], optimizer.state.pop(one)
            optimizer.state[new] = {name: _placed(value, new) for name, value in values.items()}
        for group in optimizer.param_groups:
            group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]


def _placed(value: Any, parameter: Tensor) -> Any:
    """Shard a value of the state of a parameter as the parameter is."""
    if not isinstance(value, Tensor):
        return value
    if value.is_meta and not parameter.is_meta:
        raise ValueError(
            "optimizers contains one that computes a state from the parameters when it is built, "
            "such as Adagrad, and the model is on the meta device: build the model on the CPU, or "
            "use another optimizer."
        )
    return sharded_like(value, parameter)


def is_unset(tensor: Tensor) -> bool:
    """Return whether the part of a tensor that this process has contains a value never set."""
    local = local_part(tensor.detach())
    if not local.numel():
        return False
    if local.is_complex():
        local = torch.view_as_real(local)
    if local.is_floating_point():
        return bool(local.amin().isnan())
    lowest = _sentinel(local.dtype)
    return bool(local.amin() == lowest) if lowest else local._version == 0


def _sentinel(dtype: torch.dtype) -> int:
    """Return the value of integers that were not set; 0 if the dtype has none to spare."""
    return torch.iinfo(dtype).min if dtype.is_signed and dtype != torch.bool else 0


def _as(tensor: Tensor, empty: Tensor) -> Tensor:
    """Return memory as a parameter or a buffer like a given one, that was not set."""
    if empty.is_floating_point() or empty.is_complex():
        empty.fill_(float("nan"))
    elif lowest := _sentinel(empty.dtype):
        empty.fill_(lowest)
    if not isinstance(tensor, nn.Parameter):
        return empty
    new = nn.Parameter(empty, requires_grad=tensor.requires_grad)
    vars(new).update(vars(tensor))
    return new


def _own(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that a module has itself."""
    both = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in both.items() if tensor is not None}


def _has_weights(module: nn.Module) -> bool:
    """Return whether a module has direct parameters that are not on the meta device."""
    return any(not one.is_meta for one in module._parameters.values() if one is not None)


def _meta_tensors(part: nn.Module) -> Iterator[tuple[tuple[nn.Module, str], Tensor]]:
    for module in part.modules():
        for name, tensor in _own(module).items():
            if tensor.is_meta:
                yield (module, name), tensor


def _functions(module: nn.Module, outer: Any) -> Iterator[tuple[int, Any]]:
    """Yield the `_init_weights` that initializes each module, by its id."""
    own = getattr(module, "_init_weights", None)
    function = own if callable(own) else outer
    if function is not None:
        yield id(module), function
    for child in module.children():
        yield from _functions(child, function)
