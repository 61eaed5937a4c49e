"""What a comparison divides, time or amounts of data, and the words for it."""

import attrs

from composable.comparison.records import Protocol

__all__ = ["Axis", "axis_of"]


@attrs.frozen(kw_only=True)
class Axis:
    """The words for the ratio of what the baseline and an arm need for a result.

    Args:
        ratio: Its name.
        claim: That an arm pays.
        unclaimed: That none does.
        above: What an arm does where the ratio is above 1.
        below: What it does where it is below 1.
        point: A point of a curve.
        example: Arguments that give enough points.
        less: What to add to noisy curves.
        unit: The axis of a plot.
        results: What the columns of the table of results are.
    """

    ratio: str
    claim: str
    unclaimed: str
    above: str
    below: str
    point: str
    example: str
    less: str
    unit: str
    results: str


_TIME = Axis(
    ratio="speed-up",
    claim="{arm} trains {ratio} as fast as {baseline}{goal}",
    unclaimed="No evidence that an arm trains faster than {baseline}",
    above="faster",
    below="slower",
    point="schedule",
    example='durations=["5ep", "10ep", "20ep"]',
    less="shorter schedules",
    unit="{clock} of training",
    results="step, set-up: in milliseconds; set-up has the compilation and first steps, and does "
    "not count as a cost",
)
_DATA = Axis(
    ratio="times the data",
    claim="{arm} is worth {ratio} the data{goal}, against {baseline}",
    unclaimed="No evidence that an arm needs less data than {baseline}",
    above="less data",
    below="more data",
    point="amount",
    example="data_amounts=[0.1, 0.3, 1.0]",
    less="smaller amounts",
    unit="amount of training data",
    results="result: that of the evaluation, of all schedules of a seed, with the best metric of "
    "tuning. batches: the mean number before it",
)


def axis_of(protocol: Protocol) -> Axis:
    """Return what a comparison divides."""
    return _DATA if protocol.data_amounts else _TIME
