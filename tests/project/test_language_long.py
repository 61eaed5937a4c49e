"""The long language comparison: its text, its search, the line that counting reaches, its page."""

import hashlib
import re

import numpy as np
import pytest

from benchmarks import corpus, counting, language_long
from benchmarks.language import BASELINE, RECIPE

PAGE = language_long.ROOT / "docs/protocol_long.md"


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
