"""The long language comparison: its text, its search, the line that counting reaches, its page."""

import hashlib
import json
import re

import numpy as np
import pytest

from benchmarks import corpus, counting, language, language_long
from benchmarks.language import BASELINE, RECIPE
from composable.comparison.study_file import read_study

PAGE = language_long.ROOT / "docs/protocol_long.md"


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


def test_both_arms_try_the_same_settings_but_for_their_own():
    shared = [
        [{name: one[name] for name in language_long.SPACE} for one in language_long.candidates(arm)]
        for arm in (BASELINE, RECIPE)
    ]

    assert shared[0] == shared[1]
    assert len(shared[0]) == language_long.TRIALS
    space = {**language_long.SPACE, **language_long.OF_ARM[RECIPE]}
    for one in language_long.candidates(RECIPE):
        assert all(one[name] in values for name, values in space.items())


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


def test_the_page_has_the_search_space():
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE))
    alone = {
        "lr of AdamW": language_long.OF_ARM[BASELINE]["lr"],
        "lr of Muon": language_long.OF_ARM[RECIPE]["lr"],
    }

    for name, values in {**language_long.SPACE, **alone}.items():
        assert rows[name] == ", ".join(map(str, values))


def test_targets_are_below_the_line_and_above_the_results_of_the_tuning_seeds():
    line = min(
        language_long.reached(stored("line.json")["tables"], arm, language_long.SECONDS[-1])
        for arm in (BASELINE, RECIPE)
    )
    part = PAGE.read_text().split("## The targets")[1]

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
