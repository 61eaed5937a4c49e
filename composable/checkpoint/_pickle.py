"""Interpret the instructions of a pickle; no code is executed."""

from collections.abc import Callable
from pickletools import genops
from typing import Any

import attrs


class RefusedPickleError(ValueError):
    """A pickle contains what is not accepted; the message says what."""


@attrs.frozen
class Name:
    """A class or a function, by its module and name."""

    path: str


@attrs.define(eq=False)
class Made:
    """What a class or a function returned; nothing was called."""

    by: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


@attrs.define
class PickleReader:
    """Builds the value of a pickle from the few instructions that checkpoints have.

    A subclass says which classes, functions and keys are accepted. Errors are a ValueError, or any
    other exception where a pickle takes values that it does not have.
    """

    stack: list[Any] = attrs.field(factory=list)
    marks: list[int] = attrs.field(factory=list)
    memo: dict[int, Any] = attrs.field(factory=dict)

    def read(self, source: Any) -> Any:
        """Return the value of a pickle: bytes, or a file at its start, which is read to its end."""
        for opcode, argument, _ in genops(source):
            if opcode.name not in _STEPS:
                raise ValueError(f"it has the instruction {opcode.name}")
            _STEPS[opcode.name](self, argument)
        return self.pop(1)[0]

    # --- for subclasses

    def named(self, module: Any, name: Any) -> Name:
        """Return the name of a class or a function."""
        if not (isinstance(module, str) and isinstance(name, str)):
            raise RefusedPickleError("the name of a class that is not a string")
        return Name(f"{module}.{name}")

    def created(self, callee: Any, arguments: Any) -> Made:
        """Return what stands for the result of a class or a function."""
        if not (isinstance(callee, Name) and isinstance(arguments, tuple)):
            # The value is not printed: it may have exponentially many parts.
            raise RefusedPickleError("a call of a value that is not a function")
        return Made(callee.path, arguments)

    def stored(self, place: Any) -> Any:
        """Return the value that is stored outside the pickle."""
        raise RefusedPickleError("a value that is stored elsewhere")

    def set_item(self, container: Any, key: Any, value: Any) -> None:
        """Set an item of a dictionary, unless the hash of its key takes long."""
        raise NotImplementedError

    # --- the instructions

    def push(self, value: Any) -> None:
        """Push a value."""
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        """Remove the last values, and return them."""
        if len(self.stack) < count:
            raise ValueError("it takes more values than it has")
        start = len(self.stack) - count
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_marked(self) -> list[Any]:
        """Remove the values after the last mark, and return them."""
        return self.pop(len(self.stack) - self.marks.pop())

    def remember(self, number: Any) -> None:
        """Store the last value under a number."""
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]

    def extend(self, items: list[Any]) -> None:
        """Add items to the container that is the last value."""
        container = self.stack[-1]
        if isinstance(container, list):
            container.extend(items)
            return
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.set_item(container, key, value)

    def set_state(self, _: Any) -> None:
        """Set the state of the last value but one to the last."""
        (state,) = self.pop(1)
        if not isinstance(self.stack[-1], Made):
            raise RefusedPickleError("the state of a value that has none")
        self.stack[-1].state = state


_Step = Callable[[PickleReader, Any], None]
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda at, _: None),
    **dict.fromkeys(("MEMOIZE", "BINPUT", "LONG_BINPUT"), PickleReader.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda at, number: at.push(at.memo[number])),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), PickleReader.push),
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINSTRING"), PickleReader.push),
    "MARK": lambda at, _: at.marks.append(len(at.stack)),
    "NONE": lambda at, _: at.push(None),
    "NEWTRUE": lambda at, _: at.push(True),
    "NEWFALSE": lambda at, _: at.push(False),
    "EMPTY_TUPLE": lambda at, _: at.push(()),
    "TUPLE": lambda at, _: at.push(tuple(at.pop_marked())),
    "TUPLE1": lambda at, _: at.push(tuple(at.pop(1))),
    "TUPLE2": lambda at, _: at.push(tuple(at.pop(2))),
    "TUPLE3": lambda at, _: at.push(tuple(at.pop(3))),
    "EMPTY_LIST": lambda at, _: at.push([]),
    "APPEND": lambda at, _: at.extend(at.pop(1)),
    "APPENDS": lambda at, _: at.extend(at.pop_marked()),
    "EMPTY_SET": lambda at, _: at.push(set()),
    "EMPTY_DICT": lambda at, _: at.push({}),
    "SETITEM": lambda at, _: at.extend(at.pop(2)),
    "SETITEMS": lambda at, _: at.extend(at.pop_marked()),
    "GLOBAL": lambda at, words: at.push(at.named(*words.split(" "))),
    "STACK_GLOBAL": lambda at, _: at.push(at.named(*at.pop(2))),
    "NEWOBJ": lambda at, _: at.push(at.created(*at.pop(2))),
    "REDUCE": lambda at, _: at.push(at.created(*at.pop(2))),
    "BUILD": PickleReader.set_state,
    "BINPERSID": lambda at, _: at.push(at.stored(*at.pop(1))),
}
