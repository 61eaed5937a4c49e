"""Events: their names, their order and their pairs."""

import pytest

from composable import Event

# As the documentation of Composer lists them: "Events" of its callbacks, ...
OF_CALLBACKS = """
    INIT BEFORE_LOAD AFTER_LOAD FIT_START ITERATION_START EPOCH_START BEFORE_DATALOADER
    AFTER_DATALOADER BATCH_START BEFORE_TRAIN_BATCH BEFORE_FORWARD AFTER_FORWARD BEFORE_LOSS
    AFTER_LOSS BEFORE_BACKWARD AFTER_BACKWARD AFTER_TRAIN_BATCH BATCH_END BATCH_CHECKPOINT
    EPOCH_END EPOCH_CHECKPOINT ITERATION_END ITERATION_CHECKPOINT FIT_END EVAL_BEFORE_ALL
    EVAL_START EVAL_BATCH_START EVAL_BEFORE_FORWARD EVAL_AFTER_FORWARD EVAL_BATCH_END EVAL_END
    EVAL_AFTER_ALL EVAL_STANDALONE_START EVAL_STANDALONE_END
"""
# ... and the older list of its algorithms.
OF_ALGORITHMS = """
    INIT TRAINING_START EPOCH_START EPOCH_END BATCH_START BATCH_END AFTER_DATALOADER
    BEFORE_TRAIN_BATCH AFTER_TRAIN_BATCH BEFORE_FORWARD AFTER_FORWARD BEFORE_LOSS AFTER_LOSS
    BEFORE_BACKWARD AFTER_BACKWARD TRAINING_END EVAL_START EVAL_END EVAL_BATCH_START
    EVAL_BATCH_END EVAL_BEFORE_FORWARD EVAL_AFTER_FORWARD
"""


@pytest.mark.parametrize("name", sorted(set(f"{OF_CALLBACKS} {OF_ALGORITHMS}".split())))
def test_every_documented_event_has_its_name_and_its_value(name):
    older = {"training_start": "fit_start", "training_end": "fit_end"}

    assert Event[name] is Event(older.get(name.lower(), name.lower()))
    assert Event[name].value == Event[name].name.lower()


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("FIT_START", "FIT_END"),
        ("EPOCH_START", "EPOCH_END"),
        ("BATCH_START", "BATCH_END"),
        ("BEFORE_FORWARD", "AFTER_FORWARD"),
        ("BEFORE_LOAD", "AFTER_LOAD"),
        ("EVAL_BEFORE_ALL", "EVAL_AFTER_ALL"),
        ("EVAL_BATCH_START", "EVAL_BATCH_END"),
        ("EVAL_STANDALONE_START", "EVAL_STANDALONE_END"),
        ("PREDICT_BEFORE_FORWARD", "PREDICT_AFTER_FORWARD"),
    ],
)
def test_an_event_that_opens_knows_the_one_that_closes(opening, closing):
    assert Event[opening].partner is Event[closing]
    assert Event[closing].partner is Event[opening]
    assert Event[opening].opens
    assert not Event[opening].closes
    assert Event[closing].closes
    assert not Event[closing].opens


ALONE = {"INIT", "LOG", "BATCH_CHECKPOINT", "EPOCH_CHECKPOINT", "ITERATION_CHECKPOINT"}


def test_checkpoints_init_and_log_have_no_partner():
    assert {event.name for event in Event if event.partner is None} == ALONE
    assert {event.name for event in Event if not event.opens and not event.closes} == ALONE
