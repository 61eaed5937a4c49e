"""The language comparisons: texts, searches, targets, what counting reaches, and their pages."""

import hashlib
import json
import re
from concurrent.futures import Future

import attrs
import numpy as np
import pytest

from benchmarks import corpus, counting, language, language_long
from benchmarks.language import BASELINE, RECIPE
from composable.comparison.study_file import read_study

DOCS = language_long.ROOT / "docs"
PAGE, LONG_PAGE = DOCS / "protocol.md", DOCS / "protocol_long.md"
SPACES = {
    PAGE: {
        **language.SPACE,
        "lr of AdamW": language.ADAMW_LR,
        "lr of Muon": language.MUON_LR,
    },
    LONG_PAGE: {
        **language_long.SPACE,
        "lr of AdamW": language_long.OF_ARM[BASELINE]["lr"],
        "lr of Muon": language_long.OF_ARM[RECIPE]["lr"],
    },
}


@pytest.mark.parametrize("page", SPACES, ids=lambda page: page.stem)
def test_the_page_has_the_search_space(page):
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", page.read_text(), re.MULTILINE))

    space = SPACES[page]
    assert {name: rows[name] for name in space} == {
        name: ", ".join(map(str, values)) for name, values in space.items()
    }
    assert page == LONG_PAGE or set(language.ARMS) <= set(rows)


@pytest.mark.parametrize(
    ("study", "arms"), [(language, language.ARMS), (language_long, (BASELINE, RECIPE))]
)
def test_all_arms_try_the_same_settings_but_for_their_own(study, arms):
    shared = [
        [{name: one[name] for name in study.SPACE} for one in study.candidates(arm)] for arm in arms
    ]

    assert all(one == shared[0] for one in shared)
    assert len(shared[0]) == study.TRIALS


def test_arms_try_values_of_their_own():
    assert {one["lr"] for one in language.candidates("Muon")} == set(language.MUON_LR)
    space = {**language_long.SPACE, **language_long.OF_ARM[RECIPE]}
    for one in language_long.candidates(RECIPE):
        assert all(one[name] in values for name, values in space.items())


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


# --- the long comparison


def stored(name):
    return json.loads((language_long.STORED / name).read_text())


def test_files_that_share_more_than_half_of_their_lines_are_kept_once():
    first = "\n".join(f"line {i}" for i in range(10))
    copy = "\n".join([*(f"line {i}" for i in range(6)), *(f"new {i}" for i in range(4))])
    half = "\n".join([*(f"line {i}" for i in range(5)), *(f"other {i}" for i in range(5))])
    unlike = "\n".join(f"new {i}" for i in range(20))

    assert list(corpus.without_copies([first, copy, half, unlike])) == [first, half, unlike]


def test_a_wheel_of_another_hash_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    version, known = corpus.WHEELS["sympy"]
    path = tmp_path / "composable/wheels" / f"sympy-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"other")

    digest = hashlib.sha256(b"other").hexdigest()
    message = f"has the SHA-256 {digest[:16]}..., and the study the text of {known[:16]}"
    with pytest.raises(ValueError, match=message):
        corpus.wheel("sympy")


def test_no_package_is_in_two_parts():
    names = [name for some in corpus.PACKAGES.values() for name in some]

    assert len(set(names)) == len(names)
    assert {*names} == {"torch", *corpus.WHEELS}


def test_a_run_that_would_read_the_text_twice_is_refused(monkeypatch):
    monkeypatch.setattr(language_long.small_gpt, "SOURCE", None)
    monkeypatch.setattr(language_long.small_gpt, "training_tokens", lambda _: range(1000))
    settings = {"vocabulary": 1024, "batch_tokens": 100}

    with pytest.raises(ValueError, match=r"11 steps read 1,100 tokens, and the text has 1,000"):
        language_long.build([], 0, max_duration="11ba", **settings)


@pytest.mark.parametrize("name", ["processor", "test text", "tokens of vocabulary 2048"])
def test_a_stage_on_other_data_is_refused(name, tmp_path, monkeypatch):
    known = {"processor": "AMX", "test text": "a", "tokens of vocabulary 2048": "b"}
    (tmp_path / "data.json").write_text(json.dumps(known))
    monkeypatch.setattr(language_long, "data", lambda _: {**known, name: "z"})

    with pytest.raises(ValueError, match=f"stored study: {name} .*begin without .*data.json"):
        language_long.check(tmp_path, ())


def test_the_line_is_the_best_table_that_is_counted_in_time():
    tables = [
        {"arm": arm, "after": after, "seconds": seconds, "nats_per_byte": loss}
        for arm, after, seconds, loss in [
            (BASELINE, 40.0, 3.0, 1.5),
            (BASELINE, 40.0, 9.0, 1.4),
            (BASELINE, 40.0, 41.0, 1.2),
            (BASELINE, 80.0, 41.0, 1.1),
            (RECIPE, 40.0, 3.0, 1.0),
        ]
    ]

    assert language_long.reached(tables, BASELINE, 40.0) == 1.4


def test_tables_count_the_given_tokens(monkeypatch):
    text = "abcd" * 2000
    monkeypatch.setattr(
        counting.small_gpt, "texts", lambda: {"train": ["zz"], "test": [text], "validation": []}
    )
    letters = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    class_of_bytes = type("Bytes", (), {"ids": property(lambda self: list(self.text.encode()))})

    def encode(content):
        found = class_of_bytes()
        found.text = content
        return found

    monkeypatch.setattr(
        counting.small_gpt, "tokenizer", lambda _: type("T", (), {"encode": staticmethod(encode)})
    )
    found = counting.counted_tokens(256, 2, letters, repeats=1)

    assert found["nats_per_byte"] < 0.1


def test_targets_are_below_the_line_and_above_the_results_of_the_tuning_seeds():
    line = min(
        language_long.reached(stored("line.json")["tables"], arm, language_long.SECONDS[-1])
        for arm in (BASELINE, RECIPE)
    )
    part = LONG_PAGE.read_text().split("## The targets")[1]

    assert max(language_long.TARGETS) < line
    assert re.findall(r"\d\.\d+", part)[: len(language_long.TARGETS)] == [
        str(one) for one in language_long.TARGETS
    ]
    assert f"{line:.3f}" in part
    assert min(language_long.TARGETS) > max(one["result"] for one in stored("targets.json"))


def test_the_stored_study_trained_what_the_search_chose():
    searched = stored("search.json")
    chosen = language.best([one for one in searched if one["seconds"] == language_long.SEARCHED[1]])
    protocol = read_study(language_long.STORED / "study.json").protocol

    for arm, one in chosen.items():
        assert protocol.grids[arm] == {name: (value,) for name, value in one["settings"].items()}
        assert [*protocol.schedules[arm]] == language_long.arguments(chosen)["durations"][arm]
    for arm, values in language_long.OF_ARM.items():
        tried = [one for one in searched if one["arm"] == arm]
        assert len(tried) == language_long.TRIALS + language_long.FINALISTS
        assert all(one["settings"][name] in some for one in tried for name, some in values.items())


def test_no_stored_run_read_a_token_twice():
    protocol = read_study(language_long.STORED / "study.json").protocol
    tokens = {one["vocabulary"]: one["tokens"] for one in stored("line.json")["whole text"]}

    for arm, durations in protocol.schedules.items():
        grid = protocol.grids[protocol.baseline if arm == protocol.repeated else arm]
        steps = max(int(one.removesuffix("ba")) for one in durations)
        assert steps * grid["batch_tokens"][0] <= tokens[grid["vocabulary"][0]]
