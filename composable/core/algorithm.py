"""Algorithms: transforms of the training state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar

import attrs

from composable._other_trainers import explain_arguments
from composable._support.surgery import counting_replaced
from composable.core.event import Event
from composable.core.state import State
from composable.core.window import Window

BEFORE_TRAINING = frozenset({Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START})
"""The events at which modules may be replaced for good."""


@attrs.frozen
class Remark:
    """Why an algorithm has little effect in a run, and the remedy, or no effect at all."""

    text: str
    warns: bool = False
    """Whether it has no effect, which is a warning at the start of training."""

    def __str__(self) -> str:
        return self.text


class Stage(IntEnum):
    """The position of an algorithm among the algorithms of an event: lower runs first."""

    SELECT = 10
    """Select examples, while they are still raw."""
    RESIZE = 20
    """Change the size or length of examples."""
    AUGMENT = 30
    """Augment each example."""
    MIX = 40
    """Combine examples."""
    TARGETS = 50
    """Change only the targets."""
    SURGERY = 60
    """Replace modules."""
    LAYOUT = 70
    """Change the memory layout of tensors."""
    PRECISION = 80
    """Change the precision of modules."""
    GRADIENTS = 90
    """Change gradients."""
    AVERAGE = 100
    """Average weights."""
    OTHER = 110
    """Anything else."""


def check_name(_: Any, attribute: Any, value: Any) -> None:
    """Check that a name is a string and not empty."""
    if not isinstance(value, str):
        raise TypeError(f"name={value!r} must be a string.")
    if not value:
        raise ValueError("name='' is empty: omit it, or pass a name.")


@attrs.frozen(kw_only=True, repr=False)
class Algorithm:
    """A transform of the training state: `(event, state) -> state`.

    A subclass is a frozen attrs class whose fields are hyperparameters. It declares the `events`
    at which it acts, its `stage` among the other algorithms and the fields of the state that it
    `reads` and `writes`, and it implements `apply`. It holds no state: keep values between calls
    with `state.remember(self.name, ...)`, draw random numbers from `state.generator(self.name)`,
    and log metrics with `state.log({...})`.

    Args:
        name: The name of its memory and of its random numbers; by default the name of the class.
            Two instances of one class in a run need different names.

    Example:
        >>> import attrs
        >>> from composable import Algorithm, Event
        >>> @attrs.frozen
        ... class ShortenTraining(Algorithm):
        ...     factor: float = 0.5
        ...     events = {Event.FIT_START}
        ...     writes = {"max_duration"}
        ...
        ...     def apply(self, event, state):
        ...         return state.evolve(max_duration=state.max_duration * self.factor)
        >>> ShortenTraining(0.25)
        ShortenTraining(name='ShortenTraining', factor=0.25)
    """

    events: ClassVar[Any] = frozenset(Event)
    """The events at which it may act."""
    stage: ClassVar[Stage] = Stage.OTHER
    """Its position among the algorithms of an event."""
    reads: ClassVar[Any] = frozenset()
    """The fields of the state on which its result depends."""
    writes: ClassVar[Any] = frozenset()
    """The fields of the state that it may change."""
    before: ClassVar[Any] = frozenset()
    """Classes of algorithms of the same stage, or their names, before which it runs."""
    after: ClassVar[Any] = frozenset()
    """Classes of algorithms of the same stage, or their names, after which it runs."""
    incompatible_with: ClassVar[Mapping[Any, str]] = MappingProxyType({})
    """Classes of algorithms, or their names, that must not act on the same batch, with reasons."""
    discouraged_with: ClassVar[Mapping[Any, str]] = MappingProxyType({})
    """Classes of algorithms, or their names, that may change its effect, with reasons. They cause
    a warning, unless `chain` fixes the order."""
    replaces: ClassVar[Any] = frozenset()
    """The kinds of layers that a surgery replaces, such as "convolution"; empty for any kind."""
    exclusive: ClassVar[bool] = False
    """Whether only one of its parts acts in each batch."""
    declares: ClassVar[bool] = True
    """Whether `writes` is complete; a plain function declares nothing."""
    parts: ClassVar[Any] = ()
    """The algorithms that it combines."""

    name: str = attrs.field(
        default=attrs.Factory(lambda self: type(self).__name__, takes_self=True),
        validator=check_name,
    )

    def __init_subclass__(cls) -> None:
        # attrs calls this again for a class whose __init__ it has written.
        if "__init__" in vars(cls) and "__attrs_attrs__" not in vars(cls):
            raise TypeError(
                f"{cls.__name__} defines __init__, but an Algorithm is a frozen value: decorate "
                "the class with @attrs.frozen, and declare each argument as a field, such as "
                "'factor: float = 0.5'. Validate them in __attrs_post_init__(self)."
            )
        explain_arguments(cls)

    def match(self, event: Event, state: State) -> bool:
        """Return whether it acts at this event in this state; called at its `events` only."""
        return event in self.events

    def apply(self, event: Event, state: State) -> State:
        """Return the state after the algorithm."""
        raise NotImplementedError(
            f"{type(self).__name__} must implement apply(event, state) -> State."
        )

    def idle_reason(self) -> str | None:
        """Explain why it can never act, or return None; called when a plan is compiled."""
        return next((why for part in self.parts if (why := part.idle_reason())), None)

    def remark(self, state: State) -> Remark | None:
        """Say why it has little effect in a run that starts with this state, and the remedy."""

    def window(self) -> Window:
        """Return the part of a run in which it may act, as far as it is known beforehand."""
        return Window()

    def check_memory(self, memory: Any, state: State) -> None:
        """Raise a `ValueError` if a loaded memory is not one that it keeps in such a state."""

    def __call__(self, event: Event, state: State) -> State:
        """Return the state after the algorithm, or `state` itself if it doesn't act."""
        matched = self.match(event, state)
        if matched is False:
            return state
        if matched is not True:
            raise TypeError(
                f"{type(self).__name__}.match returned {matched!r} and must return True or False."
            )
        if self.parts or event not in BEFORE_TRAINING:
            return self.apply(event, state)
        with counting_replaced() as counts:
            new = self.apply(event, state)
        if not counts:
            return new
        counts += state.replaced_modules.get(self.name, {})
        counted = {**state.replaced_modules, self.name: dict(counts)}
        return check_returned(new).evolve(replaced_modules=counted)

    def __repr__(self) -> str:
        cls = type(self)
        fields = {f.name: getattr(self, f.name) for f in attrs.fields(cls) if f.repr}
        if fields["name"] == cls.__name__:
            del fields["name"]
        # A function by its name: its repr has an address, which differs between processes.
        shown = {k: getattr(v, "__name__", None) or repr(v) for k, v in fields.items()}
        return f"{cls.__name__}({', '.join(f'{k}={v}' for k, v in shown.items())})"


@attrs.frozen(repr=False)
class FunctionAlgorithm(Algorithm):
    """A plain function `(event, state) -> state` as an algorithm.

    Args:
        function: Called at every event; it returns `state` itself if it does nothing.
        name: By default the name of the function.

    Example:
        >>> from composable.core.algorithm import FunctionAlgorithm
        >>> def keep(event, state):
        ...     return state
        >>> FunctionAlgorithm(keep).name
        'keep'
    """

    declares = False

    function: Callable[[Event, State], State]
    name: str = attrs.field(
        kw_only=True,
        default=attrs.Factory(
            lambda self: getattr(self.function, "__name__", type(self.function).__name__),
            takes_self=True,
        ),
        validator=check_name,
    )

    def apply(self, event: Event, state: State) -> State:
        """Call the function."""
        return self.function(event, state)

    def __repr__(self) -> str:
        return f"FunctionAlgorithm({self.name})"


def leaves(algorithm: Algorithm) -> Iterator[Algorithm]:
    """Iterate over the innermost parts of an algorithm: itself, if it has no parts."""
    if algorithm.events and not algorithm.parts:  # identity has neither
        yield algorithm
    for part in algorithm.parts:
        yield from leaves(part)


def nested(algorithms: Sequence[Algorithm], event: Event) -> tuple[Algorithm, ...]:
    """Select the algorithms that listen to an event, in the order in which they run.

    At an event that closes a pair, algorithms of both events run in reverse order (first in, last
    out), after the algorithms of the closing event only.
    """
    listening = [a for a in algorithms if event in a.events]
    if not event.closes:
        return tuple(listening)
    both = [a for a in listening if event.partner in a.events]
    alone = [a for a in listening if event.partner not in a.events]
    return (*alone, *reversed(both))


def called_at(event: Event, algorithm: Algorithm) -> Callable[[Event, State], State]:
    """Return what one of its events calls: `apply`, if an algorithm acts there in every state."""
    kind = type(algorithm)
    decides = kind.match is not Algorithm.match or kind.__call__ is not Algorithm.__call__
    return algorithm if decides or event in BEFORE_TRAINING else algorithm.apply


def check_returned(state: Any) -> State:
    """Return the result of an algorithm; raise an error if it isn't a state."""
    if type(state) is not State:
        raise TypeError(
            f"apply returned {state!r} and must return a State: end it with "
            "return state.evolve(...), or return state if nothing changes."
        )
    return state
