"""Methods of callbacks that are named after no event, and callbacks that change training."""

import pytest

from composable import Callback, Event, LoggerDestination, register_global_callback
from composable._other_trainers import HOOKS
from composable.plan.global_callbacks import global_callbacks
from tests.support.runs import make_trainer


def callback(name, function=lambda self, state, logger: None, base=Callback):
    return type("Mine", (base,), {name: function})()


def of_transformers(self, args, state, control, **kwargs):
    pass


WAYS = [
    lambda mine, argument: make_trainer(**{argument: mine}),
    lambda mine, argument: register_global_callback(mine),
    lambda mine, argument: make_trainer().add_callback(mine),
]


@pytest.mark.parametrize(
    ("name", "function", "hint"),
    [
        ("batch_ends", lambda self, state, logger: None, r"; define batch_end\(self, state"),
        ("training_start", lambda self, state, logger: None, r"; define fit_start\("),
        ("epoch_ended", lambda self, *given: None, r"; define epoch_end\("),
        ("on_batch_end", lambda self: None, r"; define batch_end\("),
        ("after_optimiser_step", lambda self, state, logger: None, r"define after_optimizer_step"),
        ("on_train_begin", of_transformers, r"a hook of Transformers: define fit_start\("),
        ("on_push_begin", of_transformers, "of Transformers without a counterpart here"),
        ("on_validation_end", lambda self, trainer, module: None, "Lightning: define eval_after"),
        ("setup", lambda self, trainer, module, stage: None, r"define init\(self, state, logger"),
        ("teardown", lambda self, trainer, module, stage: None, r"define close\(self\)"),
        ("post_close", lambda self: None, r"a hook of Composer: define close\(self\)"),
        (
            "on_train_start",
            lambda self, trainer, model, loader, index: None,
            r"define fit_start\(.*\) for the hook of Lightning, or epoch_start\(.*Cerebras",
        ),
        ("batch_ended", lambda self, state, logger: None, r"; define batch_end\("),
        ("eval_strat", lambda self, state, logger: None, r"; define eval_start\("),
        ("before_optimizer", lambda self, state: None, r"; define before_optimizer_step\("),
        (
            "train_begin",
            lambda self: None,
            r"on_train_begin is a hook of Transformers: define fit_s",
        ),
        ("on_plateau", lambda self: None, "nearest name, or begin the name of a helper with '_'"),
        ("week_end", lambda self: None, r"define eval_end\(.*begin the name of a helper with '_'"),
        ("on_before_forward", lambda self: None, r"before_forward\(.*\) and eval_before_forward\("),
    ],
)
@pytest.mark.parametrize("base", [Callback, LoggerDestination])
@pytest.mark.parametrize("give", WAYS)
def test_method_meant_for_an_event_is_an_error(name, function, hint, base, give):
    argument = {Callback: "callbacks", LoggerDestination: "loggers"}[base]

    with pytest.raises(TypeError, match=rf"Mine\.{name} is never called, .*{hint}"):
        give(callback(name, function, base), argument)

    assert global_callbacks() == ()


@pytest.mark.parametrize("base", [Callback, LoggerDestination])
def test_method_that_takes_what_an_event_passes_is_a_warning(base):
    argument = {Callback: "callbacks", LoggerDestination: "loggers"}[base]

    with pytest.warns(UserWarning, match=r"Mine\.report is never called") as caught:
        make_trainer(**{argument: callback("report", base=base)})

    assert caught[0].filename.endswith("runs.py")


def callbacks_of_others():
    """Return the base classes of other libraries, which are slow to import."""
    from lightning.pytorch.callbacks import Callback as OfLightning
    from transformers.trainer_callback import TrainerCallback as OfTransformers

    return OfLightning, OfTransformers


@pytest.mark.parametrize(
    "mine",
    [
        callback("batch_end"),
        callback("_report"),
        callback("_on_plateau"),
        callback("_week_end", lambda self: None),
        callback("summary", lambda self: None),
        callback("setup", lambda self, folder: None),
        callback("teardown", lambda self: None),
        callback("batch_ends", lambda self: None),
        callback("eval_batch", lambda self, batch: None),
        callback("run_event", lambda self, event, state, logger: None),
        callback("on", property(lambda self: None)),
    ],
)
def test_other_methods_are_no_warning(mine):
    make_trainer(callbacks=mine)


def test_methods_of_a_mixin_may_be_named_like_events():
    """Something else calls them, such as a watcher of files or a user interface."""
    mixin = type("Watcher", (), {"on_modified": lambda self, path: None})

    make_trainer(callbacks=type("Mine", (Callback, mixin), {})())


def test_hooks_of_other_libraries_are_known():
    """Those that resemble the name of an event, such as `on_epoch_end`, included."""
    for kind in callbacks_of_others():
        hooks = {name for name in vars(kind) if name.startswith("on_")}

        assert len(hooks) > 15
        assert hooks <= {name for library in HOOKS.values() for name in library}


def test_callback_of_two_libraries_is_no_error():
    """The methods that it inherits run in the other library."""
    for kind in callbacks_of_others():
        make_trainer(callbacks=type("OfBoth", (kind, Callback), {})())


def test_hooks_are_replaced_by_methods_that_exist():
    ours = {one for hooks in HOOKS.values() for names in hooks.values() for one in names}

    assert ours <= {*(event.value for event in Event), "close"}
