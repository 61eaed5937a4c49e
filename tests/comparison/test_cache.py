"""Finished trials on disk: what is found again, and what is not."""

import json
import math

import attrs
import pytest

from composable.comparison.records import Evaluation, Seconds, TrialResult
from composable.comparison.study_file import Cache, DamagedCacheWarning
from tests.support.comparison import build, build_or_die, compared, trial


def result_of(one, outcome="finished", loss=0.5):
    curve = (Evaluation(6, {"eval/loss": 0.7}), Evaluation(12, {"l": loss}))
    return TrialResult(one, outcome, 12, Seconds(1.0, 0.5, 3.0, 0.25), curve, "why")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", compared(build))


@pytest.mark.parametrize("outcome", ["finished", "diverged", "stopped"])
def test_a_stored_trial_is_found_again(cache, outcome):
    one = trial(arm="mixed")
    cache.put(result_of(one, outcome))

    assert Cache(cache.folder, compared(build)).get(one) == result_of(one, outcome)


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_keeps_losses_that_are_not_finite(cache, loss):
    one = trial()
    cache.put(result_of(one, loss=loss))

    assert repr(cache.get(one).curve[-1].metrics["l"]) == repr(loss)
    (path,) = cache.folder.iterdir()
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_a_failed_trial_is_not_kept(cache):
    one = trial()
    cache.put(result_of(one, "failed"))

    assert cache.get(one) is None


OTHERS = {
    "algorithms": trial(arm="mixed more"),
    "no algorithms": trial(),
    "an argument": trial(arm="mixed", lr=0.2),
    "the duration": trial(arm="mixed", duration="3ep"),
    "the seed": trial(arm="mixed", seed=1),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_trial_is_not_found(cache, what):
    one = trial(arm="mixed")
    cache.put(result_of(one))

    assert cache.get(OTHERS[what]) is None


def test_an_arm_may_be_renamed(cache):
    one, other = trial(arm="plain"), trial(arm="renamed")
    cache.put(result_of(one))

    assert cache.get(other) == attrs.evolve(result_of(one), trial=other)


@pytest.mark.parametrize(
    "others",
    [
        {"function": build_or_die},
        {"threads": 2},
        {"metrics": ("eval/loss",)},
        {"data": "second version"},
    ],
)
def test_trials_of_another_function_or_data_are_not_found(cache, others):
    one = trial()
    cache.put(result_of(one))
    data, subject = others.pop("data", None), compared(**{"function": build, **others})

    assert Cache(cache.folder, subject, data=data).get(one) is None


def nested(start):
    """Return JSON that begins like this, at several depths."""
    end = {"[": "]"}.get(start, "}" * start.count("{"))
    return [start + "[" * depth + "]" * depth + end for depth in (190, 900, 20_000)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", "{}", '{"outcome": "finished"}'),
        *(text for start in ("[", '{"a":', '{"trial":{"settings":{"a":') for text in nested(start)),
    ],
    ids=range(15),
)
def test_a_damaged_file_is_ignored_with_a_warning(cache, text):
    one = trial()
    cache.put(result_of(one))
    cache.path(one).write_text(text)

    with pytest.warns(DamagedCacheWarning, match="is damaged, and its trial is run again"):
        assert cache.get(one) is None


@pytest.mark.parametrize("name", ["trial", "seconds", "curve", "batches", "outcome"])
def test_a_file_without_an_entry_is_damaged(cache, name):
    one = trial()
    cache.put(result_of(one))
    stored = json.loads(cache.path(one).read_text())
    del stored[name]
    cache.path(one).write_text(json.dumps(stored))

    with pytest.warns(DamagedCacheWarning):
        assert cache.get(one) is None
