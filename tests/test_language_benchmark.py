"""The search of the language comparison, and the page that describes it."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import language

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"


def test_the_page_has_the_search_space():
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE))
    space = {
        **language.SPACE,
        "lr of AdamW": language.ADAMW_LR,
        "lr of Muon": language.MUON_LR,
    }

    assert {name: rows[name] for name in space} == {
        name: ", ".join(map(str, values)) for name, values in space.items()
    }
    assert set(language.ARMS) <= set(rows)


def test_all_arms_try_the_same_settings_but_for_their_own():
    shared = [
        [{name: one[name] for name in language.SPACE} for one in language.candidates(arm)]
        for arm in language.ARMS
    ]

    assert all(one == shared[0] for one in shared)
    assert len(shared[0]) == language.TRIALS
    assert {one["lr"] for one in language.candidates("Muon")} == set(language.MUON_LR)


def results(arm, **by_setting):
    return [
        {"arm": arm, "settings": {"lr": name}, "result": result, "step_seconds": 0.5}
        for name, values in by_setting.items()
        for result in values
    ]


def test_the_best_mean_is_chosen_for_each_arm():
    found = language.best(
        [
            *results("AdamW", low=[1.0, 3.0], high=[1.5, 1.6]),
            *results("Muon", low=[1.2, 1.2], high=[float("nan"), 1.0]),
        ]
    )

    assert {arm: one["settings"]["lr"] for arm, one in found.items()} == {
        "AdamW": "high",
        "Muon": "low",
    }


def test_finished_trials_are_not_repeated(tmp_path, monkeypatch):
    trial = language.Trial("AdamW", {"lr": 1e-3}, 10.0, 100)
    stored = {"arm": "AdamW", "settings": {"lr": 1e-3}, "seconds": 10.0, "seed": 100, "result": 1.5}
    file = tmp_path / "search.jsonl"
    file.write_text(json.dumps(stored) + "\n")
    monkeypatch.setattr(language, "run", lambda one: pytest.fail("the trial runs again"))

    assert language.trained([trial], file, workers=1) == [stored]


def test_schedules_have_the_seconds_of_the_protocol():
    chosen = {
        "AdamW": {"settings": {"lr": 1e-3}, "step_seconds": 0.02},
        "Muon": {"settings": {"lr": 1e-2}, "step_seconds": 0.04},
    }

    arguments = language.comparison(chosen)

    assert arguments["durations"]["AdamW"] == ["500ba", "800ba", "1250ba", "2000ba"]
    assert arguments["durations"]["Muon"] == ["250ba", "400ba", "625ba", "1000ba"]
    assert arguments["tune"]["Muon"] == {"lr": [1e-2]}


def test_the_page_has_the_targets():
    line = next(line for line in PAGE.read_text().splitlines() if "are targets" in line)

    assert re.findall(r"\d\.\d+", line) == [f"{one:.2f}" for one in language.TARGETS]


def test_targets_span_the_schedules_of_the_baseline(tmp_path, monkeypatch):
    monkeypatch.setattr(
        language,
        "trained",
        lambda trials, file, workers: [{"result": 2.0 - one.seconds / 100} for one in trials],
    )

    found = language.targets({"settings": {"lr": 1e-3}}, tmp_path, workers=1)

    assert found == pytest.approx([1.9, 1.825, 1.75, 1.675, 1.6], abs=0.006)
