"""Large numbers in time strings: with an exponent, or with underscores between digits."""

import pytest

from composable.core.time import Time


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("3e10sp", "30000000000sp"),
        ("1.5e3ba", "1500ba"),
        ("4_000tok", "4000tok"),
        ("1_000_000ba", "1000000ba"),
        ("2_5e1ep", "250ep"),
    ],
)
def test_parses_large_numbers(text, plain):
    assert Time.parse(text) == Time.parse(plain)
    assert str(Time.parse(text)) == plain


@pytest.mark.parametrize(
    "text", ["_4tok", "4_tok", "4__0tok", "e3ba", "3eba", "3e-1ba", "1.25e1ba", "1e100sp", "3e1"]
)
def test_rejects_other_forms(text):
    with pytest.raises(ValueError, match=f"invalid time '{text}'"):
        Time.parse(text)
