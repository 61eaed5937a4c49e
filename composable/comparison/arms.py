"""The arms of a comparison: named algorithms, recipes, or functions that return these."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from composable.comparison.records import AMOUNT
from composable.core.algorithm import Algorithm
from composable.plan.compatibility import IncompatibleAlgorithmsError
from composable.plan.plan import Plan
from composable.recipes.recipe import Recipe

ArmLike: TypeAlias = Sequence[Any] | Recipe | Callable[..., Any]

_ALLOWED = "a list of algorithms, a Recipe, or a function of hyperparameters that returns either"


@attrs.frozen
class Arm:
    """A compared composition: algorithms, a `Recipe`, or a function that returns either.

    An arm of a loop has any value, which the loop gets, with all hyperparameters.
    """

    name: str
    value: ArmLike = attrs.field(eq=False)
    of_loop: bool = attrs.field(default=False, kw_only=True, eq=False)

    @property
    def takes(self) -> Mapping[str, inspect.Parameter]:
        """The hyperparameters of its function."""
        if callable(self.value) and not self.of_loop:
            return inspect.signature(self.value).parameters
        return {}

    def arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the compared function, without the seed and the duration."""
        if self.of_loop:
            return {"arm": self.value, **settings}
        own = self.takes.keys() - {AMOUNT}  # which the function may know too
        others = {name: value for name, value in settings.items() if name not in own}
        return {**self.recipe(settings).arguments(), **others}

    def recipe(self, settings: Mapping[str, Any]) -> Recipe:
        """Return the composition for the values of hyperparameters; others are ignored."""
        value: Any = self.value
        if callable(value):
            value = value(**{name: settings[name] for name in self.takes if name in settings})
        if isinstance(value, Recipe):
            return value
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
            return Recipe(value)
        raise TypeError(
            f"the function of arm {self.name!r} returned {value!r}; it must return a list of "
            "algorithms or a Recipe."
        )


def as_arms(
    arms: Mapping[str, Any], baseline: Any = (), *, of_loop: bool = False
) -> tuple[Arm, ...]:
    """Return the baseline, which may be named, and the arms; a loop's arms have any values."""
    if not isinstance(arms, Mapping):
        raise TypeError(f"arms={arms!r} must be a mapping from names to arms, each {_ALLOWED}.")
    named = {name: _arm(name, value, of_loop) for name, value in arms.items()}
    if isinstance(baseline, str):
        if baseline not in named:
            raise ValueError(f"baseline={baseline!r} must be one of the arms: {sorted(named)}.")
        first = named.pop(baseline)
    elif "baseline" in named:
        raise ValueError(
            "arms has the name 'baseline', the name of the arm baseline=...; pass "
            "baseline='baseline' to use the one in arms, or rename it."
        )
    else:
        first = _arm("baseline", baseline, of_loop)
    if not named:
        raise ValueError(
            "arms must have at least one arm beside the baseline, such as "
            "arms={'mixup': [MixUp()]}."
        )
    return first, *named.values()


def _arm(name: Any, value: Any, of_loop: bool) -> Arm:
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"arms has the name {name!r}; a name must be a string, and not empty.")
    if of_loop:
        return Arm(name, value, of_loop=True)
    if isinstance(value, type):
        raise TypeError(f"arm {name!r} is the class {value.__name__}; pass [{value.__name__}()].")
    if isinstance(value, Algorithm):
        raise TypeError(f"arm {name!r} is an algorithm; pass a list of algorithms.")
    if callable(value):
        _check_function(name, value)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        value = tuple(value)
    elif not isinstance(value, Recipe):
        raise TypeError(f"arm {name!r} is {value!r}; it must be {_ALLOWED}.")
    return Arm(name, value)


def _check_function(name: str, function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"the function of arm {name!r} has the parameter {parameter}; each hyperparameter "
                "must be a named parameter."
            )


# --- checks before anything trains ---


def check_composed(arm: Arm, configurations: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Check an arm for all values of hyperparameters, and return the warnings of its plans."""
    found: dict[str, None] = {}
    for settings in configurations if not arm.of_loop else ():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                Plan.compile(arm.recipe(settings).algorithms)
            except (IncompatibleAlgorithmsError, ValueError, TypeError) as error:
                own = {name: settings[name] for name in arm.takes if name in settings}
                at = f" with {own}" if own else ""
                raise type(error)(f"arm {arm.name!r}{at} cannot be composed: {error}") from error
            except Exception as error:  # raised by the function of the arm
                text = f"{type(error).__name__}: {error}"
                raise ValueError(f"the function of arm {arm.name!r} fails: {text}") from error
        found.update({f"{arm.name}: {warning.message}": None for warning in caught})
    return tuple(found)
