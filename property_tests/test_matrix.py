"""Law: every public function has every property, or a reason; and the pages say so."""

import sys
from types import ModuleType

import attrs
import pytest

import composable.functional as F
from composable.testing import PropertyViolation
from composable.testing.properties import PROPERTIES
from property_tests.matrix import COLUMNS, PAGE, answers, card, cards, page, recorded
from property_tests.subjects import (
    LEFT_OUT,
    SUBJECTS,
    Subject,
    SubjectNeeded,
    all_subjects,
    of_images,
    public_functions,
)

AGAIN = "write the pages anew: python -m property_tests.matrix"


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap maps some by a loop
@pytest.mark.parametrize("subject", all_subjects(), ids=repr)
def test_the_matrix_says_of_a_function_what_a_run_says(subject):
    report = subject.report().require(except_=subject.expected_failures)

    assert recorded().get(subject.name) == answers(report), AGAIN


def test_the_page_shows_the_matrix():
    said = recorded()

    assert said.keys() == {subject.name for subject in all_subjects()}, AGAIN
    assert PAGE.read_text() == page(said), AGAIN


@pytest.mark.parametrize("path", cards(), ids=lambda path: path.stem)
def test_a_card_shows_the_rows_of_its_functions(path):
    assert path.is_file(), f"write docs/methods/{path.name}, or name another card= in SUBJECTS"
    assert path.read_text() == card(path, cards()[path], recorded()), AGAIN


def test_every_public_function_is_in_the_matrix_once_for_each_of_its_rows():
    subjects = all_subjects()

    assert {subject.function for subject in subjects} == set(public_functions())
    assert len({subject.name for subject in subjects}) == len(subjects)
    assert {subject.function for subject in SUBJECTS} <= set(public_functions())


def test_every_exported_function_is_found_and_what_is_private_is_not():
    found = public_functions()

    assert {F.mixup, F.draw_mixup, F.blur, F.with_tensors, F.images.rotate} <= set(found)
    assert not any(function.__name__.startswith("_") for function in found)
    assert F.MixUpDraw not in found


def test_who_is_left_out_exists_and_has_a_reason_in_words(monkeypatch):
    assert all(callable(getattr(F, name)) for name in LEFT_OUT)
    assert all(len(reason.split()) > 3 for reason in LEFT_OUT.values())

    monkeypatch.setitem(LEFT_OUT, "ema", "only to see that it is left out")
    assert F.ema not in public_functions()


def test_the_matrix_has_a_column_for_every_property():
    assert list(COLUMNS) == list(PROPERTIES)


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.expected_failures], ids=repr)
def test_a_no_has_a_reason_in_words(subject):
    assert subject.expected_failures.keys() <= PROPERTIES.keys()
    assert all(len(reason.split()) > 3 for reason in subject.expected_failures.values())


# A function that has just been written


def a_new_module(monkeypatch, function):
    """Let a function be found in the package."""
    module = ModuleType(f"{F.__name__}.{function.__name__}")
    module.__all__ = [function.__name__]
    function.__module__ = module.__name__
    setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = [name for name in sys.modules if name.startswith(f"{F.__name__}.")]
    assert module.__name__ in names
    monkeypatch.setattr(
        "property_tests.subjects.pkgutil.iter_modules",
        lambda path, prefix: [ModuleInfo(module.__name__)] if prefix == f"{F.__name__}." else [],
    )


@attrs.frozen
class ModuleInfo:
    name: str
    ispkg: bool = False


def test_a_new_function_joins_by_existing(monkeypatch):
    def double(images):
        return images * 2

    a_new_module(monkeypatch, double)

    (joined,) = [subject for subject in all_subjects() if subject.function is double]
    assert (joined.name, joined.card) == ("`double`", "double")


@pytest.mark.compile
def test_a_new_function_that_lacks_a_property_is_refused_until_it_says_why():
    def total(images):
        return images.sum().item()

    with pytest.raises(PropertyViolation, match="no_sync: no: item would make the host wait"):
        Subject(total).report().require()


def test_a_new_function_that_nobody_knows_how_to_call_says_what_to_add():
    def brighten(pictures):
        return pictures + 1

    with pytest.raises(
        SubjectNeeded, match=r"brighten can't be called .*\n.*Subject\(F.brighten, "
    ):
        Subject(brighten).report()


@pytest.mark.filterwarnings("ignore::composable.functional.NoEffectWarning")
def test_a_surgery_that_finds_nothing_to_replace_is_asked_for_a_model():
    with pytest.raises(SubjectNeeded, match="found no"):
        Subject(F.squeeze_excite, {"min_channels": 1000}).report()


@pytest.mark.compile
def test_a_reason_for_a_yes_is_refused():
    claimed = Subject(
        F.images.autocontrast, arguments=of_images, expected_failures={"pure": "it must not be"}
    )

    with pytest.raises(PropertyViolation, match="remove it from except_"):
        claimed.report().require(except_=claimed.expected_failures)


# A card of before


def test_a_table_that_was_written_by_hand_is_replaced(tmp_path):
    (path,) = [path for path in cards() if path.stem == "ema"]
    old = tmp_path / "ema.md"
    old.write_text("# EMA\n\n## Properties\n\n| pure |\n|---|\n| no |\n\nA remark.\n")

    new = card(old, cards()[path], recorded())

    assert "| no |" not in new.partition("`ema`")[0]
    assert "| `ema` | yes |" in new
    assert new.endswith("<!-- end of matrix -->\n\nA remark.\n")


def test_a_card_without_properties_gets_them(tmp_path):
    (path,) = [path for path in cards() if path.stem == "ema"]
    old = tmp_path / "ema.md"
    old.write_text("# EMA\n")

    new = card(old, cards()[path], recorded())

    assert new.startswith("# EMA\n\n## Properties\n\n<!-- matrix")
    old.write_text(new)
    assert card(old, cards()[path], recorded()) == new
