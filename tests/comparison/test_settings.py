import math
from typing import Any

import pytest

from composable.comparison.analysis.settings import choose_settings, edge_notes
from composable.comparison.records import Evaluation, Seconds, Trial, TrialResult

from .synthetic import protocol


def tuned(lr: float, loss: float, seed: int = 0, outcome: Any = "finished", **trial: Any) -> Any:
    purpose = trial.get("purpose", "tuning")
    curve = (Evaluation(9, 1.0, 1.0, {"loss": loss}),)
    run = Trial("plain", {"lr": lr}, "9ba", seed, purpose)
    return TrialResult(run, outcome, 9, Seconds(0, 0, 1, 0), curve)


def test_the_best_mean_over_the_seeds_wins() -> None:
    results = [tuned(0.1, 1.0), tuned(0.1, 3.0, 1), tuned(0.2, 1.5), tuned(0.2, 1.6, 1)]
    assert choose_settings(results, "loss", "min") == {"lr": 0.2}
    assert choose_settings(results, "loss", "max") == {"lr": 0.1}


def test_ties_go_to_the_first() -> None:
    assert choose_settings([tuned(0.3, 1.0), tuned(0.1, 1.0)], "loss", "min") == {"lr": 0.3}


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_diverged_run_is_the_worst(mode: Any) -> None:
    for bad in (tuned(0.1, 0.0, outcome="diverged"), tuned(0.1, math.nan), tuned(0.1, math.inf)):
        assert choose_settings([bad, tuned(0.2, 5.0)], "loss", mode) == {"lr": 0.2}


def test_reporting_trials_do_not_choose() -> None:
    results = [tuned(0.1, 2.0), tuned(0.2, 1.0, purpose="reporting")]
    assert choose_settings(results, "loss", "min") == {"lr": 0.1}


def test_nothing_finished_is_refused() -> None:
    with pytest.raises(ValueError, match="none finished on all of its seeds"):
        choose_settings([tuned(0.1, 1.0, outcome="failed")], "loss", "min")


@pytest.mark.parametrize(
    ("values", "chosen", "warned"),
    [
        ((0.3, 0.1, 0.2), 0.1, "lowest"),
        ((0.3, 0.1, 0.2), 0.3, "highest"),
        ((0.3, 0.1, 0.2), 0.2, None),
        ((0.3,), 0.3, None),
        (("a", "b"), "a", None),
        ((True, False), True, None),
        ((None, 1), 1, None),
    ],
)
def test_the_edge_of_a_grid_of_numbers_is_named(values: Any, chosen: Any, warned: Any) -> None:
    found = protocol(
        ["plain"], (1,), 3, None, grids={"plain": {"lr": values}}, chosen={"plain": {"lr": chosen}}
    )
    notes = edge_notes(found, "plain")
    assert [warned in note for note in notes] == ([True] if warned else [])
