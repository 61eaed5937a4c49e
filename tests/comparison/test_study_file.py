"""A study survives its file, and a wrong field is named by its path."""

import json
import math
import re
from pathlib import Path

import attrs
import pytest

from composable.comparison.records import Evaluation, Seconds, TrialResult
from composable.comparison.study_file import (
    InvalidRecordError,
    decode,
    encode,
    format_study,
    parse_study,
    read_study,
    write_study,
)
from tests.comparison.synthetic import make_study


@pytest.fixture
def study():
    return make_study(failing={"MuonClip": 1})


def changed(study, path, value):
    """Return the JSON of a study with one value replaced; `...` removes it."""
    content = json.loads(format_study(study))
    *way, last = path
    place = content
    for key in way:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(content)


def test_reading_returns_the_study_that_was_written(study, tmp_path):
    (tmp_path / "study.json").write_text("old")
    path = write_study(study, tmp_path / "study.json")
    assert read_study(path) == study
    assert read_study(str(path)) == study
    assert [file.name for file in tmp_path.iterdir()] == ["study.json"]


def test_the_file_has_a_line_for_each_trial(study):
    lines = format_study(study).splitlines()
    assert sum('"trial": ' in line for line in lines) == len(study.results)


def test_a_study_that_cannot_be_written_keeps_the_old_file(study, tmp_path):
    path = tmp_path / "study.json"
    path.write_text("old")
    bad = attrs.evolve(
        study, protocol=attrs.evolve(study.protocol, chosen={"MuonClip": {"act": len}})
    )
    with pytest.raises(
        InvalidRecordError, match="cannot be written as JSON: Object of type builtin_function"
    ):
        write_study(bad, path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_numbers_that_are_not_finite_survive(study):
    curve = (Evaluation(10, {"loss": math.nan, "low": -math.inf}),)
    seconds = Seconds(math.inf, 0.0, 0.0, 0.0)
    result = attrs.evolve(study.results[0], curve=curve, seconds=seconds)
    text = format_study(attrs.evolve(study, results=(result,)))
    assert '"loss": "nan", "low": "-inf"' in text
    assert parse_study(text).results[0].seconds.setup == math.inf
    (back,) = parse_study(text).results[0].curve
    assert math.isnan(back.metrics["loss"])
    assert back.metrics["low"] == -math.inf
    older = text.replace('"nan"', '"NaN"').replace('"-inf"', '"-Infinity"')
    assert parse_study(older).results[0].curve[0].metrics["low"] == -math.inf


def test_settings_keep_their_types(study):
    settings = {"name": "NaN", "a": None, "b": True, "c": 1, "d": 1.0}
    trial = attrs.evolve(study.results[0].trial, settings=settings)
    result = attrs.evolve(study.results[0], trial=trial)
    back = decode(TrialResult, json.loads(json.dumps(encode(result))))
    assert repr(back) == repr(result)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("results", 3, "seconds", "training"),
            "fast",
            "could not convert string to float: 'fast' @ study.results[3].seconds.training",
        ),
        (("results", 3, "seconds", "training"), True, "@ study.results[3].seconds.training."),
        pytest.param(
            ("results", 3, "seconds", "training"),
            10**400,
            "int too large to convert to float @",
            id="an integer beyond the largest float",
        ),
        (("results", 3, "batches"), 1.5, "1.5 must be of the type int @ study.results[3].batches."),
        (("results", 3, "outcome"), "fine", "fine not in literal"),
        (("results", 3, "error"), 5, "5 must be of the type str @ study.results[3].error"),
        (
            ("results", 3, "curve", 0, "metrics", "test/accuracy"),
            None,
            "@ study.results[3].curve[0].metrics['test/accuracy']",
        ),
        (
            ("results", 3, "trial", "settings", "lr"),
            {"$odd": 1},
            "must be null, true, false, a number or a string @",
        ),
        (("results", 3, "seconds"), ..., "the field 'seconds' is missing @ study.results[3]"),
        (("results",), {}, "{} must be of the type list @ study.results"),
        (("protocol", "mode"), "best", "best not in literal"),
        (
            ("protocol", "durations", 1),
            3,
            "3 must be of the type str @ study.protocol.durations[1]",
        ),
        (("version",), 2, "'version': 2"),
        (("format",), "other", "study is not a study that"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(study, path, value, message):
    with pytest.raises(InvalidRecordError, match=re.escape(message)):
        parse_study(changed(study, path, value))


def test_a_field_of_another_release_is_ignored(study):
    assert parse_study(changed(study, ("results", 3, "more"), 1)) == study


def test_a_missing_field_with_a_default_has_the_default(study):
    assert parse_study(changed(study, ("protocol", "notes"), ...)).protocol.notes == ()
    older = parse_study(changed(study, ("protocol", "own_durations"), ...)).protocol
    assert older.schedules["MuonClip"] == older.durations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "study is damaged, invalid JSON"),
        (b"\xff", "study is damaged, invalid JSON"),
        ("[" * 100_000, "study is nested too deeply"),
        ("[]", "study is not a study that"),
        ('{"format": NaN}', "NaN is not JSON"),
        ('{"format": 1, "format": 2}', "duplicate key 'format'"),
    ],
)
def test_other_text_is_refused(text, message):
    with pytest.raises(InvalidRecordError, match=message):
        parse_study(text)


def test_the_name_of_the_file_is_in_the_message(study, tmp_path):
    path = tmp_path / "old.json"
    path.write_text(changed(study, ("results",), 1))
    with pytest.raises(InvalidRecordError, match=r"1 must be of the type list @ old.json.results"):
        read_study(path)


def test_studies_of_earlier_releases_stay_readable():
    text = (Path(__file__).parents[2] / "docs/evidence/digits/study.json").read_text()
    assert '"together"' in text
    assert '"progress"' in text
    assert parse_study(text).results
