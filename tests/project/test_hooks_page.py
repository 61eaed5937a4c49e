"""The page of hooks: hooks fire as often as it says, in their order, and none is missing."""

import re
from functools import cache
from pathlib import Path

import pytest

import composable
from composable import Event
from composable._other_trainers import HOOKS as FOREIGN
from tests.support import traced
from tests.support.traced import BATCHES, EPOCHS, EVAL_BATCHES, MICROBATCHES
from tools import hooks as generated

PAGE = (Path(__file__).parents[2] / "docs/hooks.md").read_text()
SECTIONS = {
    section.partition("\n")[0]: section for section in re.split("^## ", PAGE, flags=re.M)[1:]
}

SAVES = 1 + 2 * EPOCHS  # after batch 2, and after each epoch and iteration
EVALUATIONS = 1 + EPOCHS
TIMES = {
    "once per Trainer": 1,
    "each fit": 1,
    "each iteration": EPOCHS,
    "each epoch": EPOCHS,
    "each fetch": EPOCHS * (BATCHES + 1),
    "each batch": EPOCHS * BATCHES,
    "each microbatch": EPOCHS * BATCHES * MICROBATCHES,
    "each step of the schedulers": EPOCHS * BATCHES,
    "each log": EPOCHS * BATCHES,
    "each save": SAVES,
    "each evaluation in a fit": EVALUATIONS,
    "each evaluator": EVALUATIONS + 1,
    "each batch of an evaluation": (EVALUATIONS + 1) * EVAL_BATCHES,
    "each eval": 1,
    "each predict": 1,
    "each batch of a prediction": EVAL_BATCHES,
}

# The pseudocode of the others: a regular expression whose letters are their hooks.
EVALUATES = """
    (EVAL_BEFORE_ALL
        (EVAL_START
            (EVAL_BATCH_START EVAL_BEFORE_FORWARD EVAL_AFTER_FORWARD EVAL_BATCH_END)+
        EVAL_END)+
    EVAL_AFTER_ALL)?
"""
VALIDATES = """
    (on_validate_start
        (on_validate_batch_start on_before_forward on_after_forward on_validate_batch_end)+
    on_validate_end)?
"""
SAVES_IT = "(on_save_checkpoint on_after_save_checkpoint)*"
ORDER = {
    "Composer": f"""
        INIT BEFORE_LOAD AFTER_LOAD FIT_START
        (ITERATION_START
            (EPOCH_START
                (BEFORE_DATALOADER AFTER_DATALOADER BATCH_START BEFORE_TRAIN_BATCH
                    (BEFORE_FORWARD AFTER_FORWARD BEFORE_LOSS AFTER_LOSS
                    BEFORE_BACKWARD AFTER_BACKWARD)+
                AFTER_TRAIN_BATCH BATCH_END {EVALUATES} BATCH_CHECKPOINT)+
                BEFORE_DATALOADER
            EPOCH_END {EVALUATES} EPOCH_CHECKPOINT)+
        ITERATION_END ITERATION_CHECKPOINT)+
        FIT_END
    """,
    "Cerebras Model Zoo": f"""
        setup on_before_load_checkpoint on_load_checkpoint on_fit_start
        (on_train_start
            (on_train_batch_start
                (on_before_forward on_after_forward on_before_backward on_after_backward)+
                on_before_optimizer_step on_after_optimizer_step
                on_before_optimizer_zero_grad on_after_optimizer_zero_grad
                on_before_scheduler_step on_after_scheduler_step
            on_train_batch_end {VALIDATES} {SAVES_IT})+
        on_train_end {VALIDATES} {SAVES_IT})+
        on_fit_end
    """,
    "Lightning": """
        setup on_load_checkpoint on_fit_start
        (on_train_epoch_start
            (on_train_batch_start
                (on_before_backward on_after_backward)+
                on_before_optimizer_step on_before_zero_grad
            on_train_batch_end
            (on_validation_start
                ((on_validation_batch_start on_validation_batch_end)+)+
            on_validation_epoch_end)? (on_save_checkpoint)*)+
        on_train_epoch_end
        (on_validation_start
            ((on_validation_batch_start on_validation_batch_end)+)+
        on_validation_epoch_end)? (on_save_checkpoint)*)+
        on_train_end
    """,
    "Hugging Face Transformers": """
        on_init_end on_train_begin
        (on_epoch_begin
            (on_step_begin
                (on_substep_end)+
                on_pre_optimizer_step on_optimizer_step
            on_step_end on_log ((on_prediction_step)+ on_evaluate)? (on_save)?)+
        on_epoch_end ((on_prediction_step)+ on_evaluate)? (on_save)*)+
        on_train_end
    """,
}


# What their documentation names besides: synonyms, and hooks that a fit does not call.
BESIDES = {
    "Composer": """
        TRAINING_START TRAINING_END BEFORE_EVAL_ALL AFTER_EVAL_ALL
        EVAL_STANDALONE_START EVAL_STANDALONE_END
    """,
    "Cerebras Model Zoo": "",
    "Lightning": """
        on_train_start on_fit_end on_validation_epoch_start on_validation_end
        on_test_start on_test_epoch_start on_test_batch_start on_test_batch_end
        on_test_epoch_end on_test_end
        on_predict_start on_predict_epoch_start on_predict_batch_start
        on_predict_batch_end on_predict_epoch_end on_predict_end
        on_sanity_check_start on_sanity_check_end
    """,
    "Hugging Face Transformers": "on_predict on_push_begin",
}


def cells(section, columns):
    """Return the rows of the tables of a section that have this many columns."""
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in row] for row in rows if len(row) == columns]
    return [row for row in rows if row[0] != "theirs" and not set(row[0]) <= {"-"}]


def names(cell):
    return re.findall("`([^`]*)`", cell)


HOOKS = [(title, *row) for title, section in SECTIONS.items() for row in cells(section, 4)]
FIRING = [row[1:] for row in HOOKS if row[2] != "none"]
OTHERS = [row for section in SECTIONS.values() for row in cells(section, 3)]


@cache
def run():
    return traced.traced_run()


def test_the_run_has_every_event():
    assert {event.value for event in Event} <= set(run())


@pytest.mark.parametrize(("theirs", "ours", "when", "how_often"), FIRING)
def test_a_hook_fires_as_often_as_the_page_says(theirs, ours, when, how_often):
    times = [run().count(event) for event in names(ours)]

    assert times == [TIMES[words] for words in how_often.split("; ")]


@pytest.mark.parametrize("title", ORDER)
def test_the_page_lists_every_hook_of_the_other_libraries_and_no_more(title):
    listed = [name for where, theirs, *_ in HOOKS if where == title for name in names(theirs)]

    assert set(listed) == set(re.findall(r"\w+", ORDER[title] + BESIDES[title]))


@pytest.mark.parametrize("title", ORDER)
def test_the_hooks_of_the_other_libraries_fire_in_the_order_of_their_pseudocode(title):
    rows = [row[1:3] for row in HOOKS if row[0] == title]
    hooks = {event: names(theirs)[0] for theirs, ours in rows for event in names(ours)}
    trace = run()[: run().index("fit() returns")]

    word = "".join(f"{hooks[what]};" for what in trace if what in hooks)

    assert re.fullmatch(re.sub(r"\w+", r"\g<0>;", ORDER[title]), word, flags=re.VERBOSE)


LIBRARIES = {title: name for title, name in generated.LIBRARIES.items() if name in FOREIGN}
LIBRARIES.pop("Composer")  # its events are those of this library


@pytest.mark.parametrize("title", LIBRARIES)
def test_the_error_for_a_hook_names_the_events_of_the_page(title):
    page = {}
    for where, theirs, ours, *_ in HOOKS:
        for name in names(theirs) if where == title else []:
            page[name] = page.get(name, ()) + tuple(names(ours))
    known = FOREIGN[LIBRARIES[title]]

    assert {name: ours for name, ours in known.items() if ours != ("close",)} == page


def test_a_hook_without_a_counterpart_has_advice():
    without = [(theirs, advice) for _, theirs, ours, advice, _ in HOOKS if ours == "none"]

    sanity = ["on_sanity_check_start", "on_sanity_check_end"]
    assert [names(theirs) for theirs, _ in without] == [sanity, ["on_push_begin"]]
    assert all(len(advice.split()) > 3 for _, advice in without)


@pytest.mark.parametrize(("theirs", "ours", "difference"), OTHERS)
def test_what_the_page_names_beside_events_exists(theirs, ours, difference):
    (path,) = names(ours)
    found = composable
    for name in path.split("."):
        fields = getattr(found, "__annotations__", {})
        found = getattr(found, name, fields.get(name))
        assert found is not None, f"{path} does not exist"
    assert difference


def test_the_hooks_of_composer_are_the_members_of_event():
    rows = [
        (names(theirs), names(ours)) for title, theirs, ours, *_ in HOOKS if title == "Composer"
    ]

    for theirs, (ours,) in rows:
        assert [Event[name] for name in theirs] == [Event(ours)] * len(theirs)
