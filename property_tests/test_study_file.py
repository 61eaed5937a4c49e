"""Every study that can be written is read back as it was, and every broken one is refused."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from composable.comparison.records import (
    Evaluation,
    Protocol,
    Seconds,
    StepCost,
    Study,
    Trial,
    TrialResult,
)
from composable.comparison.study_file import InvalidRecordError, format_study, parse_study

NAMES = st.sampled_from(["baseline", "EMA + MixUp", "ä\ud800\n", "a/a"])
DURATIONS = st.sampled_from(["10ba", "2ep", "0.5dur", "1h30m"])
SECONDS = st.floats(min_value=0) | st.just(float("nan"))
POINTS = st.lists(st.floats(0, 1), min_size=1, max_size=3).map(sorted).map(tuple)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=5)
PLAIN: st.SearchStrategy[Any] = SCALARS | st.lists(SCALARS) | st.dictionaries(st.text(), SCALARS)
SETTINGS = st.dictionaries(st.text(max_size=4), SCALARS, max_size=2)
TRIALS = st.builds(
    Trial, NAMES, SETTINGS, DURATIONS, st.integers(), st.sampled_from(["tuning", "reporting"])
)


@st.composite
def results(draw: st.DrawFn) -> TrialResult:
    batches = sorted(draw(st.lists(st.integers(0), max_size=3)))
    metrics = st.dictionaries(st.text(max_size=4), st.floats(), max_size=2)
    curve = [Evaluation(batch, draw(metrics)) for batch in batches]
    return TrialResult(
        draw(TRIALS),
        draw(st.sampled_from(["finished", "diverged", "failed", "stopped"])),
        draw(st.integers(0)),
        Seconds(*draw(st.tuples(*[SECONDS] * 4))),
        tuple(curve),
        draw(st.none() | st.text(max_size=5)),
    )


@st.composite
def costs(draw: st.DrawFn) -> StepCost:
    progress = draw(POINTS)
    rounds = st.lists(SECONDS, min_size=1, max_size=3).map(tuple)
    seconds = tuple(draw(rounds) for _ in progress)
    return StepCost(draw(NAMES), draw(DURATIONS), progress, seconds)


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


PROTOCOLS = st.builds(
    Protocol,
    arms=st.just(("baseline", "EMA + MixUp", "ä\ud800\n")),
    baseline=st.just("baseline"),
    repeated=st.just("a/a"),
    metric=st.text(max_size=5),
    tuning_metric=st.text(max_size=5),
    mode=st.sampled_from(["min", "max"]),
    target=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    durations=tuples(DURATIONS),
    seeds=tuples(st.integers()),
    tuning_seeds=tuples(st.integers()),
    grids=st.dictionaries(NAMES, st.dictionaries(st.text(max_size=4), tuples(SCALARS), max_size=2)),
    chosen=st.dictionaries(NAMES, SETTINGS),
    clock=st.sampled_from(["cpu", "wall"]),
    versions=st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    notes=tuples(st.text(max_size=5)),
    own_durations=st.dictionaries(NAMES, st.lists(DURATIONS, min_size=1, max_size=3).map(tuple)),
)
STUDIES = st.builds(Study, PROTOCOLS, tuples(results()), tuples(costs()))


@given(STUDIES)
def test_a_study_is_read_back_as_it_was_written(study: Study) -> None:
    text = format_study(study)
    back = parse_study(text)
    assert repr(back) == repr(study)  # NaN is not equal to itself
    assert format_study(back) == text


@given(STUDIES, st.data())
def test_a_file_with_another_value_anywhere_is_refused_or_another_study(
    study: Study, data: st.DataObject
) -> None:
    content = json.loads(format_study(study))
    place, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(place[key], (dict, list)) and len(place[key]) and data.draw(st.booleans()):
        place = place[key]
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
    place[key] = data.draw(PLAIN)
    with suppress(InvalidRecordError):
        back = parse_study(json.dumps(content))
        assert repr(parse_study(format_study(back))) == repr(back)
