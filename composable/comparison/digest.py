"""Digests of code and values that are the same in every process.

Digests of pickles are not: they depend on the order of sets, and on which objects are shared.
"""

import ast
import dis
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Set
from functools import cache, partial
from hashlib import sha256
from importlib.util import resolve_name
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from composable.checkpoint.compare import digest as tensor_digest

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), PurePath, torch.dtype)
_BUILTIN = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType)
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_LIBRARY = str(Path(__file__).parents[1])
_PACKAGES = ("site-packages", "dist-packages")
_UNSTABLE = (
    *("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__"),
    *("__static_attributes__", "__annotations_cache__", "__abstractmethods__", "_abc_impl"),
)
"""The attributes of a class that differ between processes, or say nothing of what it does."""


def stable_digest(*values: Any) -> str:
    """Return a digest of values: of functions, their code and what they refer to.

    A function is described by its bytecode, its defaults, the values that it closes over and the
    globals that it names; so are functions and classes among them, unless they belong to an
    installed package. A module is described by its source and the source of the modules that it
    imports. Comments in functions don't count. Tensors are described by their elements, other
    objects by their class and attributes. Other inputs of a function, such as files and imports
    within it, are not part of the digest.
    """
    digest = sha256()
    seen: dict[int, tuple[int, Any]] = {}  # with the object: no other one may get its id

    def put(kind: str, data: bytes) -> None:
        digest.update(f"{kind}:{len(data)}:".encode() + data)

    def add(value: Any) -> None:
        if isinstance(value, _PLAIN):
            text = value if isinstance(value, bytes) else repr(value).encode("utf-8", "replace")
            put(type(value).__name__, text)
        elif id(value) in seen and not isinstance(value, tuple):  # equal tuples may be one
            put("again", str(seen[id(value)][0]).encode())
        else:
            seen[id(value)] = len(seen), value
            kind, *parts = _describe(value)
            put(kind, str(len(parts)).encode())
            for part in parts:
                add(part)

    for value in values:
        add(value)
    return digest.hexdigest()


def _describe(value: Any) -> tuple[Any, ...]:  # noqa: C901 (a case for each kind)
    """Return the kind of a value, and its parts."""
    match value:
        case torch.Tensor():
            return "tensor", str(value.dtype), tuple(value.shape), *_elements(value)
        case Mapping():
            items = sorted(value.items(), key=lambda item: repr(item[0]))
            return type(value).__name__, *(part for item in items for part in item)
        case Set():
            return type(value).__name__, *sorted(value, key=repr)
        case list() | tuple():
            return type(value).__name__, *value
        case partial():
            return "partial", value.func, value.args, value.keywords
        case FunctionType():
            return "function", *_function(value)
        case CellType():
            return "cell", *_content(value)
        case CodeType():
            return "code", *_code(value)
        case type():
            return "class", f"{value.__module__}.{value.__qualname__}", *_class(value)
        case ModuleType():
            return "module", value.__name__, *_module(value)
        case MethodType():
            return "method", value.__func__, value.__self__
        case staticmethod() | classmethod():
            return type(value).__name__, value.__func__
        case property():
            return "property", value.fget, value.fset, value.fdel
    if isinstance(value, _BUILTIN):
        return "builtin", f"{getattr(value, '__module__', None)}.{value.__qualname__}"
    return "object", type(value), *_state(value)


def _elements(value: torch.Tensor) -> tuple[Any, ...]:
    if value.device.type == "meta":
        return ("meta",)
    return value.device.type, str(value.layout), tensor_digest(value.to_dense())


def _state(value: Any) -> Any:
    """Return the attributes of an object, or what pickle would store, such as values of slots."""
    if isinstance(getattr(value, "__dict__", None), dict):
        return (vars(value),)
    try:
        reduced = value.__reduce_ex__(2)
    except Exception:  # such as a lock, which has its class alone
        return ()
    parts = (reduced,) if isinstance(reduced, str) else reduced
    return (list(part) if isinstance(part, Iterator) else part for part in parts)


# --- code ---


def _function(value: FunctionType) -> tuple[Any, ...]:
    file = value.__code__.co_filename
    # attrs generates a __hash__ with a constant that differs between processes.
    if _is_installed(file) or file.startswith("<attrs generated"):
        return (f"{value.__module__}.{value.__qualname__}",)
    names = sorted(_global_names(value.__code__) & value.__globals__.keys())
    read = {name: value.__globals__[name] for name in names}
    return value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__, read


def _content(value: CellType) -> tuple[Any, ...]:
    try:
        return (value.cell_contents,)
    except ValueError:  # not assigned yet
        return ()


def _code(value: CodeType) -> tuple[Any, ...]:
    return (
        value.co_code,
        getattr(value, "co_exceptiontable", b""),  # from Python 3.11 on
        (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags),
        (value.co_names, value.co_varnames, value.co_freevars),
        value.co_consts,
    )


def _class(value: type) -> tuple[Any, ...]:
    if not _is_own(value.__module__):
        return ()
    return value.__bases__, {n: one for n, one in vars(value).items() if n not in _UNSTABLE}


def _module(value: ModuleType) -> tuple[Any, ...]:
    file = getattr(value, "__file__", None)
    if file is None or not _is_own(value.__name__):
        return ()
    source = Path(file).read_bytes()
    return source, *(_imported_modules(value, source) if file.endswith(".py") else ())


def _global_names(code: CodeType) -> set[str]:
    """Return the names of globals that code reads, also in functions defined within it."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in _GLOBALS}
    return names.union(*(_global_names(one) for one in code.co_consts if isinstance(one, CodeType)))


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
