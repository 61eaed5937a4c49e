"""What changes training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar

import attrs

from composable.core.event import Event
from composable.core.state import State
from composable.core.window import Window

__all__ = ["Algorithm", "FunctionAlgorithm", "Stage"]


class Stage(IntEnum):
    """Where an algorithm stands among those of the same event: lower comes first."""

    SELECT = 10
    """Choosing examples: they are still raw."""
    RESIZE = 20
    """Changing their size or length."""
    AUGMENT = 30
    """Changing each example."""
    MIX = 40
    """Combining examples."""
    TARGETS = 50
    """Changing the targets alone."""
    SURGERY = 60
    """Replacing modules."""
    LAYOUT = 70
    """Changing how tensors lie in memory."""
    PRECISION = 80
    """Changing the precision of modules."""
    GRADIENTS = 90
    """Changing gradients."""
    AVERAGE = 100
    """Averaging weights."""
    OTHER = 110
    """Anything else."""


def check_name(_: Any, attribute: Any, value: Any) -> None:
    """A name is a string that isn't empty."""
    if not isinstance(value, str):
        raise TypeError(f"name={value!r} must be a string.")
    if not value:
        raise ValueError("name='' is empty: leave it out, or give a name.")


@attrs.frozen(kw_only=True, repr=False)
class Algorithm:
    """A transform of the training state: `(event, state) -> state`.

    A subclass is a frozen attrs class whose fields are hyperparameters. It says at which
    `events` it acts, at which `stage` among the others, and what it `reads` and `writes`, and
    implements `apply`. It holds no state: what it must remember goes into
    `state.remember(self.name, ...)`, and what it draws comes from `state.generator(self.name)`.

    Args:
        name: Names its memory and its random numbers; the class's name by default. Two
            instances of one class in a run need two names.

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
    """Its place among the algorithms of an event."""
    reads: ClassVar[Any] = frozenset()
    """The fields of the state on which its result depends."""
    writes: ClassVar[Any] = frozenset()
    """The fields of the state that it may change."""
    before: ClassVar[Any] = frozenset()
    """Classes of algorithms, or their names, that it comes before where the stage is the same."""
    after: ClassVar[Any] = frozenset()
    """Classes of algorithms, or their names, that it comes after where the stage is the same."""
    incompatible_with: ClassVar[Mapping[Any, str]] = MappingProxyType({})
    """Classes of algorithms, or their names, with which it must not act on one batch, and why."""
    discouraged_with: ClassVar[Mapping[Any, str]] = MappingProxyType({})
    """Classes of algorithms, or their names, with which it may not do what it does alone, and
    why: an order that somebody says, with `chain`, settles it."""
    replaces: ClassVar[Any] = frozenset()
    """Which kinds of layers a surgery replaces, such as "convolution"; any kind where empty."""
    exclusive: ClassVar[bool] = False
    """Whether one of its parts acts in each batch."""
    declares: ClassVar[bool] = True
    """Whether `writes` says all that it may change; a plain function doesn't say."""
    parts: ClassVar[Any] = ()
    """The algorithms that it is made of."""

    name: str = attrs.field(
        default=attrs.Factory(lambda self: type(self).__name__, takes_self=True),
        validator=check_name,
    )

    def match(self, event: Event, state: State) -> bool:
        """Whether it acts at this event in this state; asked at its `events` only."""
        return event in self.events

    def apply(self, event: Event, state: State) -> State:
        """The state after it acted."""
        raise NotImplementedError(
            f"{type(self).__name__} must implement apply(event, state) and return a State."
        )

    def idle_reason(self) -> str | None:
        """Why it can never act, or None where it can; asked when a plan is compiled."""
        return next((why for part in self.parts if (why := part.idle_reason())), None)

    def window(self) -> Window:
        """When it may act, as far as it says so beforehand: for the picture of the run."""
        return Window()

    def __call__(self, event: Event, state: State) -> State:
        """The state after it acted, or `state` itself where it doesn't."""
        matched = self.match(event, state)
        if matched is False:
            return state
        if matched is not True:
            raise TypeError(
                f"{type(self).__name__}.match returned {matched!r} and must return True or False."
            )
        return self.apply(event, state)

    def __repr__(self) -> str:
        cls = type(self)
        fields = {f.name: getattr(self, f.name) for f in attrs.fields(cls) if f.repr}
        if fields["name"] == cls.__name__:
            del fields["name"]
        return f"{cls.__name__}({', '.join(f'{k}={v!r}' for k, v in fields.items())})"


@attrs.frozen(repr=False)
class FunctionAlgorithm(Algorithm):
    """A plain function `(event, state) -> state` as an algorithm.

    Args:
        function: Called at every event; it returns `state` itself where it does nothing.
        name: The function's name by default.

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

    def match(self, event: Event, state: State) -> bool:
        """Always: the function decides."""
        return True

    def apply(self, event: Event, state: State) -> State:
        """The state that the function returns."""
        return self.function(event, state)

    def __repr__(self) -> str:
        return f"FunctionAlgorithm({self.name})"


def leaves(algorithm: Algorithm) -> Iterator[Algorithm]:
    """The algorithms that an algorithm is made of in the end: itself where it has no parts."""
    if algorithm.events and not algorithm.parts:  # identity has neither
        yield algorithm
    for part in algorithm.parts:
        yield from leaves(part)


def nested(algorithms: Sequence[Algorithm], event: Event) -> tuple[Algorithm, ...]:
    """Those that listen to an event, in the order in which they run.

    At an event that closes a pair, those that listen to both of it run in reverse, after those
    that listen to the closing event alone: before and after are brackets.
    """
    listening = [a for a in algorithms if event in a.events]
    if not event.closes:
        return tuple(listening)
    both = [a for a in listening if event.partner in a.events]
    alone = [a for a in listening if event.partner not in a.events]
    return (*alone, *reversed(both))


def check_returned(state: Any) -> State:
    """What an algorithm returned, if it is a state."""
    if type(state) is not State:
        raise TypeError(
            f"apply returned {state!r} and must return a State: end it with "
            "return state.evolve(...), or return state where nothing changes."
        )
    return state
