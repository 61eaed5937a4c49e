"""What is known of classes of modules, some of them by name, so that nobody imports them."""

from typing import Any, Generic, TypeVar

from torch import nn

__all__ = ["Registry", "check_class", "full_name"]

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Entries for classes of modules, which are found by the class, its name, or a base of it.

    Args:
        known: The first entries, by classes or their full names.
    """

    def __init__(self, known: dict[type | str, Entry]) -> None:
        self.entries = dict(known)

    def add(self, kind: Any, entry: Entry) -> None:
        """Add an entry for a class, or replace it.

        Raises:
            TypeError: `kind` is neither a class of modules nor the full name of one.
        """
        check_class("kind", kind)
        self.entries[kind] = entry

    def find(self, kind: type) -> Entry | None:
        """Give the entry of a class: its own, or that of the nearest of its bases."""
        for base in kind.__mro__:
            for key in (base, full_name(base)):
                if key in self.entries:
                    return self.entries[key]
        return None

    @property
    def names(self) -> str:
        """The classes that have an entry."""
        return ", ".join(k if isinstance(k, str) else full_name(k) for k in self.entries)


def full_name(kind: type) -> str:
    """Say how a class is imported."""
    return f"{kind.__module__}.{kind.__qualname__}"


def check_class(name: str, kind: Any) -> None:
    """Refuse what is neither a class of modules nor the full name of one."""
    named = isinstance(kind, str) and "." in kind
    if not named and not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(
            f"{name} is {kind!r}, but must be a class of modules, or its full name, such as "
            "'package.module.Class'."
        )
