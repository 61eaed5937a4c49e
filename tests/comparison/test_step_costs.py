"""The calibrated costs of a comparison: when they are measured, and which stored ones count."""

import types

import attrs
import pytest

from composable.algorithms import LabelSmoothing
from composable.comparison.plan.stages import Trained
from composable.comparison.records import Seconds, StepCost, Trial, TrialResult
from composable.comparison.trials import cores, step_costs
from composable.comparison.trials.cache import Cache, DamagedCacheWarning
from composable.comparison.trials.step_costs import measure_costs
from tests.comparison.small import design

POOL = types.SimpleNamespace(threads=1)


@pytest.fixture
def calibrated(monkeypatch):
    """Record the schedules of each calibration in the place of measuring."""
    calls = []

    def calibrate(pool, requests, *, batches, on_part):
        names = [(one.trial.arm, one.trial.duration) for one in requests]
        calls.append(list(zip(names, batches, strict=True)))
        return [
            StepCost(one.trial.arm, {}, "4ep", (0.5,), ((float(number + 1),),))
            for number, one in enumerate(requests)
        ]

    monkeypatch.setattr(step_costs, "calibrate", calibrate)
    return calls


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "trials")


def trained(made, *, failing=()):
    results = []
    for arm in made.arms:
        for duration in made.durations:
            outcome = "failed" if (arm, duration) in failing else "finished"
            trial = Trial(arm, {}, duration, 0, "reporting")
            results.append(TrialResult(trial, outcome, 40, Seconds(0, 0, 1, 0), ()))
    return Trained(tuple(results), {arm: {} for arm in made.arms}, (0,), ())


def test_costs_are_measured_once_and_read_again(cache, calibrated):
    made = design()
    first, notes = measure_costs(made, POOL, cache, trained(made))

    assert [one.arm for one in first] == ["baseline", "other"]
    assert notes == ()
    assert measure_costs(made, POOL, cache, trained(made)) == (first, ())
    assert len(calibrated) == 1


def test_stored_costs_have_the_present_names_of_the_arms(cache, calibrated):
    smoothing, plain = [LabelSmoothing(0.1)], [LabelSmoothing(0.2)]
    before = design(arms={"a": smoothing, "b": plain})
    costs, _ = measure_costs(before, POOL, cache, trained(before))
    after = design(arms={"b": smoothing, "a": plain})
    renamed, _ = measure_costs(after, POOL, cache, trained(after))

    assert len(calibrated) == 1
    assert [one.arm for one in renamed] == ["baseline", "b", "a"]
    assert [one.seconds for one in renamed] == [one.seconds for one in costs]


def test_costs_of_another_machine_are_measured_again(cache, calibrated, monkeypatch):
    made = design()
    measure_costs(made, POOL, cache, trained(made))
    monkeypatch.setattr(step_costs, "processor_name", lambda device: "another")
    measure_costs(made, POOL, cache, trained(made))

    assert len(calibrated) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_damaged_costs_are_measured_again_with_a_warning(cache, calibrated, text):
    made = design()
    first, _ = measure_costs(made, POOL, cache, trained(made))
    (path,) = (cache.folder.parent / "costs").iterdir()
    path.write_text(text)

    with pytest.warns(DamagedCacheWarning, match="is damaged, and the costs of steps"):
        assert measure_costs(made, POOL, cache, trained(made)) == (first, ())


def test_an_arm_without_a_finished_run_has_no_cost(cache, calibrated):
    made = design(arms={"good": [LabelSmoothing(0.1)], "bad": [LabelSmoothing(0.9)]})
    costs, _ = measure_costs(made, POOL, cache, trained(made, failing={("bad", "4ep")}))

    assert [one.arm for one in costs] == ["baseline", "good"]


@pytest.mark.parametrize("others", [(), ("other", "baseline (repeated)")])
def test_without_a_finished_run_of_the_baseline_nothing_is_calibrated(cache, calibrated, others):
    made = design()
    failing = {(arm, "4ep") for arm in ("baseline", *others)}
    costs, notes = measure_costs(made, POOL, cache, trained(made, failing=failing))

    assert costs == ()
    assert "no run of baseline on 4ep finished" in notes[0]
    assert calibrated == []


@pytest.mark.parametrize(
    ("batches", "duration", "measured"), [(400, "4ep", 400), (120, "4ep", 120), (50, "12ep", 150)]
)
def test_a_short_schedule_is_calibrated_on_a_multiple(
    cache, calibrated, batches, duration, measured
):
    made = design()
    ran = trained(made)
    results = tuple(attrs.evolve(one, batches=batches) for one in ran.results)
    measure_costs(made, POOL, cache, attrs.evolve(ran, results=results))

    assert calibrated == [[((arm, duration), measured) for arm in ("baseline", "other")]]


def test_the_processor_is_the_model_of_the_cpu(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast CPU\nmodel name\t: Fast CPU\n")
    monkeypatch.setattr(cores, "_CPU_INFO", info)
    assert cores.processor_name("cpu") == "Fast CPU cpu"

    monkeypatch.setattr(cores, "_CPU_INFO", tmp_path / "missing")
    assert cores.processor_name("cpu").endswith(" cpu")
