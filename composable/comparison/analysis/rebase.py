"""The trials of a study, with another arm as the baseline."""

import attrs

from composable.comparison.records import Study

__all__ = ["rebase"]


def rebase(study: Study, baseline: str, target: float | None = None) -> Study:
    """Return the study with another baseline, without the A/A arm of its own one.

    Args:
        study: The study.
        baseline: The name of one of its arms.
        target: The result to reach. Default: the mean final result of the new baseline on its
            longest schedule.
    """
    protocol = study.protocol
    dropped = None if baseline == protocol.baseline else protocol.repeated
    others = [arm for arm in protocol.arms if arm not in (baseline, dropped)]
    durations = protocol.durations_of(baseline)
    own = {arm: protocol.durations_of(arm) for arm in others}
    return Study(
        attrs.evolve(
            protocol,
            arms=(baseline, *others),
            baseline=baseline,
            repeated=None if dropped else protocol.repeated,
            target=target,
            durations=durations,
            own_durations={arm: one for arm, one in own.items() if one != durations},
            grids={arm: one for arm, one in protocol.grids.items() if arm != dropped},
            chosen={arm: one for arm, one in protocol.chosen.items() if arm != dropped},
        ),
        tuple(one for one in study.results if one.trial.arm != dropped),
        tuple(one for one in study.costs if one.arm != dropped),
    )
