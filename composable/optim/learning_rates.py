"""Set the learning rates of optimizers, by schedules or by PyTorch's schedulers.

Schedules may set other options of parameter groups too, such as the weight decay.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeAlias

import attrs
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import TypedDict

from composable._support.notes import add_note
from composable._support.warn import warn_user
from composable.core.stateful import Number
from composable.core.time import HasTime, TimeUnit, progress
from composable.optim.per_name import UPDATE, PerGroup, PerOption, check_options
from composable.optim.schedule import Schedule
from composable.resume.changes import check_as_many, check_same_entries, entry

Step: TypeAlias = Callable[[HasTime], None]


class RatesState(TypedDict):
    """The states of the torch schedulers, and the recorded rates."""

    schedulers: list[Mapping[str, Any]]
    last_lrs: dict[str, Number]


@attrs.define(eq=False)
class LearningRates:
    """The schedules and schedulers of a run, grouped by when they step.

    Args:
        optimizers: The optimizers whose learning rates are set.
        schedules: Functions of time whose product scales the learning rate of every batch, or
            another option. They are called when the batch begins.
        every_batch: PyTorch schedulers that step after each batch.
        every_epoch: PyTorch schedulers that step after each epoch.
        plateaus: `ReduceLROnPlateau` schedulers, which step after the evaluation of an epoch.
    """

    optimizers: tuple[Optimizer, ...]
    schedules: tuple[Callable[[HasTime], float], ...] = ()
    every_batch: tuple[LRScheduler, ...] = ()
    every_epoch: tuple[LRScheduler, ...] = ()
    plateaus: tuple[ReduceLROnPlateau, ...] = ()
    last_lrs: dict[str, Any] = attrs.field(factory=dict)
    """The learning rates of the last step that was recorded."""

    @classmethod
    def build(
        cls, given: Any, optimizers: Sequence[Optimizer], *, every_batch: bool
    ) -> "LearningRates":
        """Build from schedules, PyTorch schedulers, and functions or classes that make one.

        A function whose first parameter is named `optimizer` makes a scheduler.

        Raises:
            TypeError: An item is of another type.
            ValueError: A PyTorch scheduler has another optimizer.
        """
        if given is None:
            given = []
        several = isinstance(given, Iterable) and not isinstance(given, (str, bytes, dict, Tensor))
        built = [_build(one, optimizers) for one in (given if several else [given])]
        stepped = [s for s in built if isinstance(s, LRScheduler)]
        plateaus = tuple(s for s in stepped if isinstance(s, ReduceLROnPlateau))
        others = tuple(s for s in stepped if not isinstance(s, ReduceLROnPlateau))
        schedules = tuple(s for s in built if not isinstance(s, LRScheduler))
        if schedules and stepped:
            raise ValueError(
                f"schedulers contains {schedules[0]!r} and a {type(stepped[0]).__name__}, which "
                "both set the learning rate: pass schedules or PyTorch schedulers, not both."
            )
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for schedule in schedules:
            if isinstance(schedule, PerGroup):
                schedule.check_names(groups)
            for group in groups:
                check_options(group, [option for option, _ in _parts(schedule, group)])
        return cls(
            tuple(optimizers),
            schedules,
            others if every_batch else (),
            () if every_batch else others,
            plateaus,
        )

    @property
    def all(self) -> tuple[Any, ...]:
        """Every schedule and scheduler."""
        return (*self.schedules, *self.every_batch, *self.every_epoch, *self.plateaus)

    @property
    def steppers(self) -> tuple[Any, ...]:
        """The PyTorch schedulers, which are stateful; schedules are functions of time."""
        return (*self.every_batch, *self.every_epoch, *self.plateaus)

    def check_warmup(self, clock: HasTime) -> None:
        """Warn about schedules whose warm-up is longer than the run."""
        for schedule in self.schedules:
            if isinstance(schedule, Schedule) and schedule.outlasts(clock):
                warn_user(
                    f"warmup={str(schedule.warmup)!r} of {type(schedule).__name__} is longer than "
                    f"the run of {clock.max_duration}, so the learning rate only rises; an integer "
                    "is a number of epochs, and '100ba' are batches.",
                )

    def check_length(self, clock: HasTime) -> None:
        """Warn about schedules that change between epochs only, whose length is unknown."""
        for schedule in self.schedules:
            if isinstance(schedule, Schedule) and schedule.counts_whole(clock):
                warn_user(
                    f"{type(schedule).__name__} is measured in epochs or iterations of unknown "
                    "length, so the learning rate is constant within each; pass max_duration or "
                    "the duration of the schedule in batches or samples, such as '1000ba', or in "
                    "epochs with a loader that has a length.",
                )

    def check_counts(self, clock: HasTime) -> None:
        """Warn about PyTorch schedulers that count the batches of the run, and step each epoch."""
        whole, length = clock.max_duration, clock.epoch_length
        if whole is None or not length or whole.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH):
            return
        batches = progress(clock, whole)[1]
        for scheduler in self.every_epoch:
            for name in ("total_steps", "T_max", "total_iters"):
                if length > 1 and any(
                    getattr(part, name, None) == batches for part in with_parts(scheduler)
                ):
                    warn_user(
                        f"{type(scheduler).__name__} has {name}={batches}, the number of batches "
                        "of the run, and steps once per epoch, so it stays near its start; pass "
                        f"step_schedulers_every_batch=True, or {name} in epochs.",
                    )

    def check_epoch(self) -> None:
        """Warn if PyTorch schedulers that step once an epoch set all learning rates to 0."""
        groups = [group for one in self.every_epoch for group in one.optimizer.param_groups]
        if groups and not any(group["lr"] for group in groups):
            warn_user(
                f"the learning rate of this epoch is 0: {type(self.every_epoch[0]).__name__} steps "
                "after every epoch. If it counts batches, pass step_schedulers_every_batch=True.",
            )

    def set(self, clock: HasTime) -> None:
        """Set the learning rates of a batch that begins at the time of `clock`, by schedules."""
        values: dict[int, float] = {}  # of each schedule, by its id
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                factors: dict[str, float] = {}
                for schedule in self.schedules:
                    for option, one in _parts(schedule, group):
                        if id(one) not in values:
                            values[id(one)] = _check_factor(one, _call(one, clock))
                        factors[option] = factors.get(option, 1.0) * values[id(one)]
                for option, factor in factors.items():
                    # The key that PyTorch uses too: it is saved and loaded with the optimizer.
                    initial = group.setdefault(f"initial_{option}", _number(group[option]))
                    write_option(group, initial * factor, option)

    def steps_after_batch(self) -> Sequence[Step]:
        """Return the steps of the PyTorch schedulers after each batch, one by one."""
        return _steps(self.every_batch)

    def steps_of_epoch(self) -> Sequence[Step]:
        """Return what sets the learning rates of the next epoch: each PyTorch scheduler."""
        return _steps(self.every_epoch)

    def steps_of_plateaus(self, loss: float) -> Sequence[Step]:
        """Return the steps of the plateau schedulers with the loss of an evaluation."""
        return _steps(self.plateaus, loss)

    def record(self) -> None:
        """Record the learning rates of the step, for the loggers."""
        self.last_lrs = self.read()

    def state_dict(self) -> RatesState:
        """Return the states of the torch schedulers and the recorded rates."""
        return {
            "schedulers": [scheduler.state_dict() for scheduler in self.steppers],
            "last_lrs": self.last_lrs,
        }

    def load_state_dict(self, state: RatesState) -> None:
        """Restore what `state_dict` returned.

        Raises:
            MismatchError: The states are of other torch schedulers.
        """
        check_as_many("torch schedulers", self.steppers, state["schedulers"], "schedulers")
        for i, (scheduler, values) in enumerate(
            zip(self.steppers, state["schedulers"], strict=True)
        ):
            check_same_entries(scheduler, values, f"schedulers/{i}")
            with entry(f"schedulers/{i}"):
                scheduler.load_state_dict(values)
            # PyTorch warns if its first step precedes one of the optimizer in this process.
            scheduler.optimizer._opt_called = True
        self.last_lrs = dict(state["last_lrs"])

    @contextmanager
    def override(self, by: Callable[[Any], Any]) -> Iterator[None]:
        """Apply a function to every learning rate, and restore the rates afterwards."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        own = [_number(group["lr"]) for group in groups]
        try:
            for group, rate in zip(groups, own, strict=True):
                write_option(group, by(rate))
            yield
        finally:
            for group, rate in zip(groups, own, strict=True):
                write_option(group, rate)

    def read(self) -> dict[str, Any]:
        """Return the current learning rates by name."""
        rates = {}
        for i, optimizer in enumerate(self.optimizers):
            for j, group in enumerate(optimizer.param_groups):
                name = group.get(UPDATE) or (f"optimizer{i}" if i else "")
                rates[_rate_name(name, j)] = _number(group["lr"])
        return rates


@cache
def _rate_name(optimizer: str, group: int) -> str:
    """Return the name under which the learning rate of a parameter group is logged."""
    parts = [optimizer] * bool(optimizer) + [f"group{group}"] * (group > 0)
    return "/".join(["lr", *parts])


def with_parts(scheduler: Any) -> Iterator[Any]:
    """Iterate over a PyTorch scheduler and those that it combines."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from with_parts(part)


def _steps(schedulers: Iterable[Any], *given: float) -> Sequence[Step]:
    return [lambda _, one=one: one.step(*given) for one in schedulers]  # type: ignore[misc]


def _parts(schedule: Any, group: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return the options of a group that a schedule sets, each with its schedule."""
    own = schedule.schedule_of(group) if isinstance(schedule, PerGroup) else schedule
    return own.schedules if isinstance(own, PerOption) else (("lr", own),)


def _call(schedule: Callable[[HasTime], float], clock: HasTime) -> Any:
    try:
        return schedule(clock)
    except TypeError as error:
        if "is not an Optimizer" in str(error):
            raise TypeError(
                f"schedulers contains {schedule!r}, which builds a PyTorch scheduler; name its "
                "first parameter 'optimizer', or pass functools.partial of the scheduler's class."
            ) from error
        raise


def _check_factor(schedule: Any, value: Any) -> float:
    if isinstance(value, (int, float)):
        return value
    raise TypeError(
        f"schedulers contains {schedule!r}, which returned {value!r} instead of a number. Pass "
        "a PyTorch scheduler as an instance, or as functools.partial of its class."
    )


def write_option(group: dict[str, Any], value: Any, option: str = "lr") -> None:
    """Set an option of a parameter group; a tensor, which a compiled step may have, in place."""
    if isinstance(group[option], Tensor):
        group[option].fill_(value)
    else:
        group[option] = value


def _number(rate: Any) -> Any:
    return rate.clone() if isinstance(rate, Tensor) else rate


def _takes_optimizer(given: Any) -> bool:
    """Return whether the first parameter of a function is an optimizer, by its name."""
    try:
        parameters = list(inspect.signature(given).parameters)
    except (TypeError, ValueError):
        return False
    return parameters[:1] in (["optimizer"], ["opt"], ["optim"])


def _makes_schedule(given: Any) -> bool:
    """Return whether a function is one of this library, which return schedules."""
    named = getattr(given, "__name__", None) == getattr(given, "__qualname__", "")
    return named and str(getattr(given, "__module__", None)).startswith("composable.optim.")


def _build(given: Any, optimizers: Sequence[Optimizer]) -> Any:
    made_of = given.func if isinstance(given, partial) else given
    is_class = isinstance(made_of, type) and issubclass(made_of, LRScheduler)
    if is_class or _takes_optimizer(given):
        if len(optimizers) != 1:
            raise ValueError(
                f"schedulers contains {given!r}, which requires exactly one optimizer, got "
                f"{len(optimizers)}: pass instances, one scheduler for each optimizer."
            )
        try:
            built = given(optimizers[0])
        except TypeError as error:
            name = getattr(made_of, "__name__", made_of)
            add_note(
                error,
                f"schedulers contains {name}, which is called with the optimizer; pass its other "
                f"arguments by functools.partial({name}, ...).",
            )
            raise
        return _build(built, optimizers)
    if isinstance(given, LRScheduler):
        if not any(given.optimizer is optimizer for optimizer in optimizers):
            raise ValueError(
                f"schedulers contains a {type(given).__name__} whose optimizer is not one of the "
                "Trainer's: pass that optimizer in optimizers=."
            )
        return given
    if _makes_schedule(given):
        raise TypeError(
            f"schedulers contains the function {given.__name__}: pass the schedule that it "
            f"returns, {given.__name__}(...)."
        )
    if callable(given):
        return given
    raise TypeError(
        f"schedulers contains {given!r}: each must be a schedule such as composable.optim.cosine(),"
        " a PyTorch scheduler, or functools.partial of a PyTorch scheduler's class."
    )
