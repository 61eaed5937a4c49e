"""Methods of callbacks that are named after no event, and callbacks that write to the loss."""

import warnings

import pytest

from composable import Callback, LoggerDestination, register_global_callback
from composable.plan.effects import ObserverError
from tests.support.runs import make_trainer


def callback(name, function=lambda self, state, logger: None, base=Callback):
    return type("Mine", (base,), {name: function})()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("batch_ends", "batch_end"),
        ("on_batch_end", "batch_end"),
        ("after_optimiser_step", "after_optimizer_step"),
        ("on_train_batch_begin", ""),
        ("report", ""),
    ],
)
@pytest.mark.parametrize("base", [Callback, LoggerDestination])
def test_unknown_event_is_a_warning(name, hint, base):
    argument = {Callback: "callbacks", LoggerDestination: "loggers"}[base]
    message = rf"Mine\.{name} is never called.*{hint and f'did you mean {hint}'}"
    with pytest.warns(UserWarning, match=message) as caught:
        make_trainer(**{argument: callback(name, base=base)})
    assert caught[0].filename.endswith("runs.py")
    with pytest.warns(UserWarning, match=message):
        register_global_callback(callback(name, base=base)).remove()
    with pytest.warns(UserWarning, match=message):
        make_trainer().add_callback(callback(name, base=base))


@pytest.mark.parametrize(
    "mine",
    [
        callback("batch_end"),
        callback("_report"),
        callback("summary", lambda self: None),
        callback("run_event", lambda self, event, state, logger: None),
        callback("on", property(lambda self: None)),
    ],
)
def test_other_methods_are_no_warning(mine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_trainer(callbacks=mine)


@pytest.mark.parametrize(
    ("event", "field"),
    [("after_loss", "loss"), ("before_backward", "loss"), ("after_forward", "outputs")],
)
def test_write_that_changes_training_is_found_without_check_effects(event, field):
    def double(self, state, logger):
        getattr(state, field).mul_(2)

    mine = callback(event, double)
    with pytest.raises(ObserverError, match=f"in place at {event.upper()}"):
        make_trainer(callbacks=mine, check_effects=False).fit()


def test_values_computed_from_the_loss_are_fine():
    mine = callback(
        "after_loss", lambda self, state, logger: logger.log_metrics({"x": state.loss * 2})
    )
    make_trainer(callbacks=mine, check_effects=False).fit()
