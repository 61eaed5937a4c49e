"""The search of the language comparison, and the page that describes it."""

import json
import re
from concurrent.futures import Future
from pathlib import Path

import attrs
import pytest

from benchmarks import language

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


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


def test_steps_are_measured_once_for_each_setting_and_before_trials_run(tmp_path, monkeypatch):
    trials = [language.Trial("AdamW", {"lr": lr}, 10.0, seed) for lr in (1, 2) for seed in (0, 1)]
    log = []

    class Pool:
        def __init__(self, workers, *_):
            log.append(f"{workers} at once")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def map(self, function, given):
            return [log.append(f"cost {one.settings['lr']}") or one.settings["lr"] for one in given]

        def submit(self, function, trial, cost):
            log.append(f"trial of steps of {cost}")
            done = Future()
            done.set_result({**attrs.asdict(trial), "result": 1.0})
            return done

    monkeypatch.setattr(language, "ProcessPoolExecutor", Pool)
    language.trained(trials, tmp_path / "search.jsonl", workers=4)

    assert log == [
        *("1 at once", "cost 1", "cost 2", "4 at once"),
        *(f"trial of steps of {cost}" for cost in (1, 1, 2, 2)),
    ]


def test_the_plot_has_lines_of_counted_tokens():
    names = list(language.references())

    assert any(re.fullmatch(r"6-grams of tokens, \d CPU s", name) for name in names)
    assert min(language.references().values()) == language.references()["xz"]
