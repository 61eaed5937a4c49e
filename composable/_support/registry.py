"""A registry of classes of modules, by class or by name, so that they need not be imported."""

from typing import Any, Generic, TypeVar

from torch import nn

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Entries for classes of modules, found by the class, its full name, or a base class.

    Args:
        known: Initial entries, by classes or their full names.
    """

    def __init__(self, known: dict[type | str, Entry]) -> None:
        self.entries = dict(known)

    def add(self, kind: Any, entry: Entry) -> None:
        """Add an entry for a class, or replace it.

        Raises:
            TypeError: `kind` is neither a class of modules nor the full name of such a class.
        """
        check_class("kind", kind)
        self.entries[kind] = entry

    def find(self, kind: type) -> Entry | None:
        """Return the entry of a class, or of the nearest base class that has one."""
        for base in kind.__mro__:
            for key in (base, class_name(base)):
                if key in self.entries:
                    return self.entries[key]
        return None

    @property
    def names(self) -> str:
        """The full names of the classes that have an entry."""
        return ", ".join(k if isinstance(k, str) else class_name(k) for k in self.entries)


def named(entry: Entry, *names: str) -> dict[type | str, Entry]:
    """Return an entry for each class of Hugging Face, given its family: "bert.BertLayer"."""
    modules = (f"transformers.models.{name.partition('.')[0]}.modeling_{name}" for name in names)
    return dict.fromkeys(modules, entry)


def class_name(kind: type) -> str:
    """Return the full name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def check_class(name: str, kind: Any) -> None:
    """Raise a TypeError unless the value is a class of modules or the full name of such a class."""
    named = isinstance(kind, str) and "." in kind
    if not named and not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(
            f"{name}={kind!r} must be a class of modules, or its full name, such as "
            "'package.module.Class'."
        )
