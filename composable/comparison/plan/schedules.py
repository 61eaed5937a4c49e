"""The schedules of each arm: given for all arms, or by the name of an arm."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from composable.comparison.plan.arms import Arm
from composable.comparison.plan.planning import check_durations
from composable.core.time import Time

__all__ = ["Schedules", "given_schedules", "schedules_of"]

Schedules: TypeAlias = Mapping[str, tuple[str, ...]]


def given_schedules(durations: Any, arms: Sequence[Arm]) -> Schedules:
    """Return the given schedules by arm; those for all arms are of the baseline.

    Args:
        durations: One or more durations for all arms, a mapping from names of arms to them, or
            None.
        arms: The arms, the baseline first, without the A/A arm.

    Raises:
        ValueError: There is no such arm, or the durations are invalid.
    """
    if durations is None:
        return {}
    if not isinstance(durations, Mapping):
        return {arms[0].name: check_durations(durations)}
    names = [arm.name for arm in arms]
    if not durations:
        raise ValueError(f"durations={{}} must have schedules for an arm; the arms are {names}.")
    for name in durations:
        if name not in names:
            raise ValueError(f"durations has schedules for {name!r}; the arms are {names}.")
    return {name: check_durations(one, f"durations[{name!r}]") for name, one in durations.items()}


def schedules_of(given: Schedules, arms: Sequence[Arm], baseline: tuple[str, ...]) -> Schedules:
    """Return the schedules of every arm.

    An arm without given ones has those of the arm that it is derived from, or of the baseline.

    Args:
        given: Those of some arms.
        arms: The arms, each after the one that it is derived from.
        baseline: The schedules of the baseline.

    Raises:
        ValueError: Two arms have schedules of different units.

    Example:
        >>> from composable.comparison.plan.arms import Arm
        >>> from composable.comparison.plan.schedules import schedules_of
        >>> arms = [Arm("plain", []), Arm("muon", []), Arm("muon without EMA", [], origin="muon")]
        >>> schedules_of({"muon": ("9ba", "18ba")}, arms, ("30ba",))
        {'plain': ('30ba',), 'muon': ('9ba', '18ba'), 'muon without EMA': ('9ba', '18ba')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for arm in arms:
        inherited = baseline if arm.origin is None else found[arm.origin]
        found[arm.name] = given.get(arm.name, inherited)
    unit = Time.parse(baseline[0]).unit
    for name, durations in found.items():
        if Time.parse(durations[0]).unit is not unit:
            raise ValueError(
                f"durations[{name!r}]={list(durations)} and those of the baseline, "
                f"{list(baseline)}, must have one unit: costs are estimated for it."
            )
    return found
