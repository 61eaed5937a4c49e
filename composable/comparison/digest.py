"""Digests of code and values that are the same in every process.

Those of pickles are not: they depend on the order of sets, and on which objects are shared.
"""

import ast
import ctypes
import dis
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from functools import cache, partial
from hashlib import sha256
from importlib.util import resolve_name
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import attrs
import torch

__all__ = ["digest_of"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), PurePath, torch.dtype)
_BUILTIN = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType)
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_LIBRARY = str(Path(__file__).parents[1])
_PACKAGES = ("site-packages", "dist-packages")


def digest_of(*values: Any) -> str:
    """Return a digest of values: of functions, their code and what they refer to.

    A function is described by its bytecode, its defaults, the values that it closes over and the
    globals that it names; so are functions and classes among them, unless they belong to an
    installed package. A module is described by its source and that of the modules that it imports.
    Comments in functions don't count. Tensors and arrays are described by their elements, other
    objects by their class and attributes. Other inputs of a function, such as files and imports
    within it, are not part of the digest.

    Example:
        >>> from composable.comparison.digest import digest_of
        >>> digest_of(lambda x: x + 1) == digest_of(lambda x: x + 1)
        True
        >>> digest_of(lambda x: x + 1) == digest_of(lambda x: x + 2)
        False
    """
    walk = _Walk()
    for value in values:
        walk.add(value)
    return walk.hash.hexdigest()


class _Walk:
    """Adds the parts of values to a hash; an object that was added before is only counted."""

    def __init__(self) -> None:
        self.hash = sha256()
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of a seen one

    def add(self, value: Any) -> None:
        """Add a value."""
        if isinstance(value, _PLAIN):
            self._put(type(value).__name__, repr(value))
            return
        number = self._seen.get(id(value))
        if number is not None:
            self._put("again", str(number))
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        for kinds, method in self._METHODS:
            if isinstance(value, kinds):
                method(self, value)
                return
        for kinds, parts in _PARTS:
            if isinstance(value, kinds):
                name = "method" if isinstance(value, MethodType) else type(value).__name__
                self._add_all(name, parts(value))
                return
        self._add_object(value)

    def _put(self, kind: str, text: str | bytes = b"") -> None:
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        self.hash.update(f"{kind}:{len(data)}:".encode())
        self.hash.update(data)

    def _add_all(self, kind: str, values: Any) -> None:
        given = list(values)
        self._put(kind, str(len(given)))
        for value in given:
            self.add(value)

    # --- containers ---

    def _add_mapping(self, value: Mapping[Any, Any]) -> None:
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        self._add_all(type(value).__name__, (part for item in items for part in item))

    def _add_tensor(self, value: torch.Tensor) -> None:
        self._put("tensor", f"{value.dtype} {tuple(value.shape)} {value.device.type}")
        if value.device.type != "meta":
            dense = value.detach() if value.layout == torch.strided else value.detach().to_dense()
            plain = dense.cpu().contiguous()
            if plain.numel():
                size = plain.numel() * plain.element_size()
                self.hash.update((ctypes.c_ubyte * size).from_address(plain.data_ptr()))

    # --- code ---

    def _add_function(self, value: FunctionType) -> None:
        file = value.__code__.co_filename
        # attrs generates a __hash__ with a constant that differs between processes.
        if _is_installed(file) or file.startswith("<attrs generated"):
            self._put("function", f"{value.__module__}.{value.__qualname__}")
            return
        self._put("function")
        self.add(value.__code__)
        self.add(value.__defaults__)
        self.add(value.__kwdefaults__)
        for cell in value.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not assigned yet
                self._put("empty")
        for name in sorted(_global_names(value.__code__)):
            if name in value.__globals__:
                self._put("global", name)
                self.add(value.__globals__[name])

    def _add_builtin(self, value: Any) -> None:
        self._put("builtin", f"{getattr(value, '__module__', None)}.{value.__qualname__}")

    def _add_code(self, value: CodeType) -> None:
        self._put("code", value.co_code)
        self._put("exceptions", getattr(value, "co_exceptiontable", b""))  # from Python 3.11 on
        counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount
        self._add_all("parameters", (*counts, value.co_flags))
        self._add_all("names", (*value.co_names, *value.co_varnames, *value.co_freevars))
        self._add_all("constants", value.co_consts)

    def _add_class(self, value: type) -> None:
        self._put("class", f"{value.__module__}.{value.__qualname__}")
        if _is_own(value.__module__):
            own = {n: v for n, v in vars(value).items() if n not in _UNSTABLE}
            self._add_all("bases", value.__bases__)
            self._add_mapping(own)

    def _add_module(self, value: ModuleType) -> None:
        self._put("module", value.__name__)
        file = getattr(value, "__file__", None)
        if file is not None and _is_own(value.__name__):
            source = Path(file).read_bytes()
            self._put("source", source)
            if Path(file).suffix == ".py":
                self._add_all("imports", _imported_modules(value, source))

    # --- objects ---

    def _add_object(self, value: Any) -> None:
        self.add(type(value))
        if isinstance(value, Enum):
            self._put("member", value.name)
        elif hasattr(value, "tobytes") and hasattr(value, "dtype"):  # an array
            self._put("array", f"{value.dtype} {getattr(value, 'shape', ())}")
            self.hash.update(value.tobytes())
        elif attrs.has(type(value)):
            fields = attrs.fields(type(value))
            self._add_mapping({one.name: getattr(value, one.name, None) for one in fields})
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._add_mapping(vars(value))
        else:
            self._add_reduced(value)

    def _add_reduced(self, value: Any) -> None:
        """Add what pickle would store, such as the values of slots."""
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:  # such as a lock, which has its class alone
            return
        if isinstance(reduced, str):
            self._put("name", reduced)
            return
        function, arguments, *state = reduced
        items = [list(one) if isinstance(one, Iterator) else one for one in state]
        self._add_all("reduced", (function, arguments, *items))

    _METHODS: tuple[tuple[Any, Callable[["_Walk", Any], None]], ...] = (
        (torch.Tensor, _add_tensor),
        (FunctionType, _add_function),
        (_BUILTIN, _add_builtin),
        (CodeType, _add_code),
        (type, _add_class),
        (ModuleType, _add_module),
        (Mapping, _add_mapping),
    )


_PARTS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (partial, lambda one: (one.func, one.args, one.keywords)),
    (MethodType, lambda one: (one.__func__, one.__self__)),
    ((staticmethod, classmethod), lambda one: (one.__func__,)),
    (property, lambda one: (one.fget, one.fset, one.fdel)),
    (Set, lambda one: sorted(one, key=repr)),
    ((list, tuple), lambda one: one),
)
"""What is described by its type and its parts."""
_UNSTABLE = (
    *("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__"),
    *("__static_attributes__", "__annotations_cache__", "__abstractmethods__", "_abc_impl"),
)


def _global_names(code: CodeType) -> set[str]:
    """Return the names of globals that code reads, also in functions defined within it."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in _GLOBALS}
    for inner in _inner_codes(code):
        names |= _global_names(inner)
    return names


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    return (one for one in code.co_consts if isinstance(one, CodeType))


def _imported_modules(module: ModuleType, source: bytes) -> list[ModuleType]:
    """Return the user's modules that a module imports, also within functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = resolve_name(relative, module.__package__) if node.level else relative
            names.update((base, *(f"{base}.{one.name}" for one in node.names)))
    return [sys.modules[name] for name in sorted(names) if name in sys.modules and _is_own(name)]


def _is_own(module: str | None) -> bool:
    """Return whether a module is the user's: not installed, nor of Python or this library."""
    if module is None or module in sys.builtin_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # a notebook, or a module of the interpreter
        return module == "__main__" or module not in sys.modules
    return not _is_installed(file)


@cache
def _is_installed(file: str) -> bool:
    """Return whether a file belongs to Python, an installed package or this library."""
    path, python = Path(file), sysconfig.get_paths()
    own = (python["stdlib"], python["platstdlib"], _LIBRARY)
    return any(part in _PACKAGES for part in path.parts) or any(map(path.is_relative_to, own))
