"""References to modules and tensors in attributes, hooks and functions of a copied model."""

import functools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

DICTS = (dict, OrderedDict)
CONTAINERS = (*DICTS, list, tuple)


class References:
    """Replace references to modules and tensors in the attributes of modules.

    `deepcopy` shares functions, so a function that closes over a module of the original refers to
    it in the copy too. It is replaced by a function with the same code and with new cells.

    Args:
        successors: The new modules and tensors, by the ids of the old ones. The old ones must be
            alive, so that no other object has one of these ids.
    """

    def __init__(self, successors: Mapping[int, Any]) -> None:
        self.successors = successors
        self._visited: set[int] = set()
        self._functions: dict[int, FunctionType] = {}
        self._cells: dict[int, CellType] = {}
        self._containers: dict[int, Any] = {}

    def redirect_in(self, module: nn.Module) -> None:
        """Replace the references in the attributes and hooks of a module, in place."""
        self._redirect(vars(module))

    def _redirect(self, value: Any) -> Any:
        """Return a value with references replaced; dictionaries and lists are changed in place."""
        if isinstance(value, (nn.Module, Tensor)):
            return self.successors.get(id(value), value)
        if isinstance(value, FunctionType):
            return self._function(value) if self._refers(value) else value
        if isinstance(value, MethodType):
            return self._method(value)
        if type(value) is functools.partial:
            return self._partial(value)
        if type(value) is tuple:
            new = tuple(map(self._redirect, value))
            return value if _same(value, new) else new
        if type(value) in CONTAINERS and id(value) not in self._visited:
            self._visited.add(id(value))  # a container may contain itself
            for key, held in list(_items(value)):
                if (new := self._redirect(held)) is not held:
                    value[key] = new
        return value

    def _method(self, method: MethodType) -> Any:
        owner, function = self._redirect(method.__self__), self._redirect(method.__func__)
        if owner is method.__self__ and function is method.__func__:
            return method
        same_class = type(owner) is type(method.__self__)
        return MethodType(function, owner) if same_class else getattr(owner, method.__name__)

    def _partial(self, value: Any) -> Any:
        old = (value.func, *value.args, *value.keywords.values())
        new = tuple(map(self._redirect, old))
        if _same(old, new):
            return value
        last = 1 + len(value.args)
        keywords = dict(zip(value.keywords, new[last:], strict=True))
        return functools.partial(new[0], *new[1:last], **keywords)

    # --- functions, whose cells and containers the original keeps ---

    def _refers(self, value: Any) -> bool:
        return any(id(held) in self.successors for held in _reachable(value))

    def _function(self, function: FunctionType) -> FunctionType:
        """Return a function with the same code that refers to the successors."""
        if id(function) in self._functions:
            return self._functions[id(function)]
        old = function.__closure__ or ()
        cells = tuple(map(self._new_cell, old))
        new = FunctionType(
            function.__code__, function.__globals__, function.__name__, closure=cells
        )
        self._functions[id(function)] = new  # before the cells: a function may close over itself
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(function, name):
                setattr(new, name, getattr(function, name))
        vars(new).update({name: self._own(value) for name, value in vars(function).items()})
        new.__defaults__ = self._own(function.__defaults__)
        new.__kwdefaults__ = self._own(function.__kwdefaults__)
        for cell, before in zip(cells, old, strict=True):
            if cell is not before:
                cell.cell_contents = self._own(before.cell_contents)
        return new

    def _new_cell(self, cell: CellType) -> CellType:
        """Return a new cell, or the same one if it refers to nothing that is replaced."""
        if not any(map(self._refers, _contents(cell))):
            return cell
        return self._cells.setdefault(id(cell), CellType())

    def _own(self, value: Any) -> Any:
        """Return a value with references replaced, in copies of the containers that have some."""
        if type(value) not in CONTAINERS or not self._refers(value):
            return self._redirect(value)
        if type(value) is tuple:
            return tuple(map(self._own, value))
        if id(value) not in self._containers:
            new = self._containers[id(value)] = value.copy()
            for key, held in _items(value):
                new[key] = self._own(held)
        return self._containers[id(value)]


def _same(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    return all(a is b for a, b in zip(old, new, strict=True))


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if type(value) in DICTS else enumerate(value)


def _contents(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # an empty cell
        return []


def _reachable(value: Any) -> Iterator[Any]:
    """Iterate over the modules and tensors to which a value refers, itself included."""
    todo, seen = [value], set()
    while todo:
        value = todo.pop()
        if isinstance(value, (nn.Module, Tensor)):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            todo.extend(_referred(value))


def _referred(value: Any) -> Iterable[Any]:
    if isinstance(value, FunctionType):
        cells = [held for cell in value.__closure__ or () for held in _contents(cell)]
        return (*cells, value.__defaults__, value.__kwdefaults__, *vars(value).values())
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if type(value) is functools.partial:
        return (value.func, *value.args, *value.keywords.values())
    return [held for _, held in _items(value)] if type(value) in CONTAINERS else ()
