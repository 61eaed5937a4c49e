"""Models of one structure as one: their tensors are stacked, and one call computes all outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from composable.core.batch import map_tensors, tensors_of

__all__ = ["NotStackable", "Stack", "attributes", "is_same", "stack_trees"]


class NotStackable(BaseException):
    """Runs cannot be computed as one; the message says why.

    It is not an `Exception`: it ends a run that has no error, and handlers of errors must pass it.
    """


class Stack:
    """The stacked parameters and buffers of models.

    Args:
        models: Models of one structure.
        views: Make the tensors of the models views of the stacked ones, so that each model has
            the current values.

    Raises:
        NotStackable: The structures differ, or a model cannot be called for several.
    """

    def __init__(self, models: Sequence[nn.Module], *, views: bool) -> None:
        check_alike(models)
        self.models = tuple(models)
        self.own = [dict(model.named_parameters()) for model in models]
        self._buffers = [dict(model.named_buffers()) for model in models]
        with torch.no_grad():
            self.parameters = _stacked(self.own, views=views)
            self.buffers = _stacked(self._buffers, views=views)

    @property
    def trained(self) -> dict[str, Tensor]:
        """The stacked parameters that require gradients in the models now."""
        trained = [{n for n, p in own.items() if p.requires_grad} for own in self.own]
        if any(names != trained[0] for names in trained):
            raise NotStackable("the seeds train different parameters")
        return {name: p for name, p in self.parameters.items() if name in trained[0]}

    def call(
        self,
        call: Callable[[Any, Any], Any],
        trees: Sequence[Any],
        buffers: Mapping[str, Tensor] | None = None,
    ) -> list[Any]:
        """Return the outputs of each model for its tree of inputs.

        Args:
            call: A function of the model and of the inputs.
            trees: The inputs of each model, of equal shapes.
            buffers: Stacked buffers, which the models write to; by default, their own.
        """
        columns = stack_trees(trees)
        template: list[Any] = []
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(torch.is_grad_enabled() and self.own[0][name].requires_grad)

        def one(parameters: Any, buffers: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
            given = iter(tensors)
            base = self.models[0]

            def model(*args: Any, **kwargs: Any) -> Any:
                return functional_call(base, (parameters, buffers), args, kwargs)

            outputs = call(model, map_tensors(lambda _: next(given), trees[0]))
            template.append(outputs)
            return tuple(tensors_of(outputs))

        own = self.buffers if buffers is None else buffers
        stacked = vmap(one, randomness="error")(self.parameters, own, *columns)
        if not stacked:
            raise NotStackable("the model returns no tensor")
        rows = zip(*(column.unbind() for column in stacked), strict=True)
        return [_rebuilt(template[0], iter(row)) for row in rows]


def stack_trees(trees: Sequence[Any]) -> list[Tensor]:
    """Stack the tensors of trees, such as batches.

    Raises:
        NotStackable: The shapes, the dtypes or other values of the trees differ.
    """
    shapes = [map_tensors(_shape, tree) for tree in trees]
    if any(type(one) is not type(shapes[0]) or not is_same(one, shapes[0]) for one in shapes):
        raise NotStackable("the batches of the seeds have different shapes")
    columns = zip(*(tuple(tensors_of(tree)) for tree in trees), strict=True)
    return [torch.stack(column) for column in columns]


def check_alike(models: Sequence[nn.Module]) -> None:
    """Check that models have one structure, and that one of them can be called for all.

    Raises:
        NotStackable: They differ, or have hooks, which would be called for the first one only.
    """
    first = list(models[0].named_modules())
    for model in models:
        modules = list(model.named_modules())
        if len(modules) != len(first):
            raise NotStackable("the models of the seeds have different structures")
        for (name, module), (other_name, other) in zip(modules, first, strict=True):
            _check_pair(name, module, other_name, other)


_TENSORS = ("_parameters", "_buffers", "_modules")


def _check_pair(name: str, module: nn.Module, other_name: str, other: nn.Module) -> None:
    label = f"{name or 'the model'} ({type(module).__name__})"
    if name != other_name or type(module).__qualname__ != type(other).__qualname__:
        raise NotStackable("the models of the seeds have different structures")
    if any(vars(module).get(key) for key in _HOOKS):
        raise NotStackable(f"{label} has hooks")
    for key in _TENSORS[:2]:
        mine, theirs = vars(module)[key], vars(other)[key]
        if _shapes(mine) != _shapes(theirs):
            raise NotStackable(f"the tensors of {label} differ in shape between the seeds")
        if any(t is not None and not t.is_contiguous() for t in mine.values()):
            raise NotStackable(f"{label} has tensors that are not contiguous in memory")
    for key, value in vars(module).items():
        if key not in _TENSORS and key not in _HOOKS and not is_same(value, vars(other).get(key)):
            raise NotStackable(f"{key!r} of {label} differs between the seeds")


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def attributes(model: nn.Module) -> list[Any]:
    """Return the plain attributes of all modules of a model, which its forward may change."""
    plain = (bool, int, float, str, type(None), tuple)
    return [
        (name, key, value if isinstance(value, plain) else (id(value), _version(value)))
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _TENSORS
    ]


def _version(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value._version
    return repr(value) if isinstance(value, (list, dict, set)) else None


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; what cannot be compared by value is taken as such.

    Functions and objects of a class without equality differ by identity alone: the comparison with
    separate runs finds what matters of them.
    """
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(v, other[k]) for k, v in one.items())
    own_equality: Any = type(one).__eq__
    if own_equality is object.__eq__ or callable(one):
        return True
    equal: Any = one == other
    return bool(equal.all() if hasattr(equal, "all") else equal)  # of NumPy, an array


def _shape(tensor: Tensor) -> Any:
    return _Shape((tuple(tensor.shape), tensor.dtype, tensor.device))


class _Shape(tuple[Any, ...]):
    """What two tensors share that can be stacked; no tree, unlike a plain tuple."""


def _shapes(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if t is None else _shape(t) for name, t in tensors.items()}


def _stacked(tensors: Sequence[Mapping[str, Tensor]], *, views: bool) -> dict[str, Tensor]:
    stacked = {name: torch.stack([one[name] for one in tensors]).detach() for name in tensors[0]}
    if views:
        for i, one in enumerate(tensors):
            for name, tensor in one.items():
                tensor.data = stacked[name][i]
    return stacked


def _rebuilt(template: Any, tensors: Iterator[Tensor]) -> Any:
    return map_tensors(lambda _: next(tensors), template)
