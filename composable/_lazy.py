"""Packages that import a name on its first use (PEP 562).

A package lists its names once, as imports that type checkers and editors read:

    if TYPE_CHECKING:
        from composable.algorithms.mixup import MixUp as MixUp
    else:
        export_lazily(__name__)

`export_lazily` reads this list by executing the code of the package once more, in a separate
namespace, where `TYPE_CHECKING` is true and the import statement only records names.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import resolve_name
from types import CodeType, ModuleType
from typing import Any, NamedTuple


class _Source(NamedTuple):
    """The place of a name: `from module import name`."""

    module: str
    name: str


class _Recorded:
    """A module whose import was only recorded: each of its attributes is a source."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> _Source:
        return _Source(self._module, name)


class _LazyPackage(ModuleType):
    _sources: dict[str, _Source]

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__["_sources"].get(name)
        if source is None:
            return _explain_name(self.__name__, name)
        if source.module == self.__name__:
            value = import_module(f"{self.__name__}.{name}")
        else:
            value = getattr(import_module(source.module), source.name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets a submodule as an attribute of its package. Where the package
        # exports a function of the same name, as `mixup`, the attribute is the function.
        source = self._sources.get(name)
        if isinstance(value, ModuleType) and source and source.module != self.__name__:
            value = getattr(import_module(source.module), source.name)
        if type(value) is ModuleType:  # it has advice on names, as this package has
            explain = partial(_explain_name, value.__name__, has_modules=True)
            value.__dict__.setdefault("__getattr__", explain)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        # A function that cloudpickle sends to another process may use the package.
        return import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted(self._sources)


def _explain_name(module: str, name: str, *, has_modules: bool = False) -> Any:
    # A name of `has_modules` in lower case is perhaps one that is not imported yet.
    if not has_modules or not name.islower() or name == "dist":
        from composable._other_trainers import CLASSES, advice_on  # only for an error

        if name in CLASSES:  # not an AttributeError: `from package import name` would drop it
            missing = f"cannot import name {name!r} from {module!r}"
            raise ImportError(f"{missing}{advice_on(name, CLASSES)}.", name=name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def export_lazily(package: str) -> None:
    """Make a package import its names on their first use.

    Sets `__all__` of the package (without its subpackages, so that `import *` adds no name as
    common as `data`), and makes `dir` list the names and the subpackages only.

    Args:
        package: The calling package's `__name__`.
    """
    sources = _read_sources(package, sys._getframe(1).f_code)
    module = sys.modules[package]
    module.__dict__["_sources"] = sources
    module.__dict__["__all__"] = [
        name
        for name, source in sorted(sources.items())
        if source.module != package and not name.startswith("__")
    ]
    module.__class__ = _LazyPackage


def _read_sources(package: str, code: CodeType) -> dict[str, _Source]:
    def record(name: str, _globals: Any, _locals: Any, _names: Any, level: int = 0) -> _Recorded:
        return _Recorded(resolve_name("." * level + name, package))

    namespace: dict[str, Any] = {"__name__": package, "__builtins__": {"__import__": record}}
    exec(code, namespace)
    return {
        name: value
        for name, value in namespace.items()
        if isinstance(value, _Source)
        and value.module != __name__
        and value.module.partition(".")[0] == __name__.partition(".")[0]
    }
