"""What a comparison divides, time or amounts of data, and the words for it."""

import attrs

from composable.comparison.records import Protocol

__all__ = ["Axis", "axis_of"]


@attrs.frozen(kw_only=True)
class Axis:
    """The words for the ratio of what the baseline and an arm need for a result."""

    ratio: str
    claim: str
    unclaimed: str
    above: str  # what an arm does where the ratio is above 1
    below: str
    point: str
    shorter: str
    example: str
    unit: str
    results: str  # the columns of the table of results


_TIME = Axis(
    ratio="speed-up",
    claim="{arm} trains {ratio} as fast as {baseline}{goal}",
    unclaimed="No evidence that an arm trains faster than {baseline}",
    above="faster",
    below="slower",
    point="schedule",
    shorter="shorter schedules",
    example='durations=["5ep", "10ep", "20ep"]',
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
    shorter="smaller amounts",
    example="data_amounts=[0.1, 0.3, 1.0]",
    unit="amount of training data",
    results="result: that of the evaluation, of all schedules of a seed, with the best metric of "
    "tuning. batches: the mean number before it",
)


def axis_of(protocol: Protocol) -> Axis:
    """Return what a comparison divides."""
    return _DATA if protocol.data_amounts else _TIME
