"""The names of other trainers: each has an advice, and what it names here exists."""

import dataclasses
import inspect
import pickle
import re
from copy import deepcopy
from importlib import import_module

import attrs
import pytest
import torch

import composable
from composable import Algorithm, Event, State, Trainer
from composable._other_trainers import (
    ARGUMENTS,
    CLASS_ARGUMENTS,
    CLASSES,
    METHODS,
    STATE,
    advice_on,
    as_text,
)
from composable.trainer.options import TrainerOptions
from tests.support.models import linear
from tests.support.runs import make_trainer

OURS = set(inspect.signature(TrainerOptions).parameters)

COMPOSER = """
    model train_dataloader train_dataloader_label train_subset_num_batches spin_dataloaders
    max_duration algorithms algorithm_passes optimizers schedulers scale_schedule_ratio
    step_schedulers_every_batch eval_dataloader eval_interval eval_subset_num_batches callbacks
    loggers run_name progress_bar log_to_console console_stream console_log_interval log_traces
    auto_log_hparams load_path load_object_store load_weights_only load_strict_model_weights
    load_progress_bar load_ignore_keys load_exclude_algorithms save_folder save_filename
    save_latest_filename save_overwrite save_interval save_weights_only save_ignore_keys
    save_num_checkpoints_to_keep save_metrics autoresume parallelism_config dist_timeout
    ddp_sync_strategy fsdp_config device precision precision_config device_train_microbatch_size
    accumulate_train_batch_on_tokens seed deterministic_mode profiler python_log_level
    compile_config
"""
KERAS = """
    optimizer loss loss_weights metrics weighted_metrics run_eagerly steps_per_execution
    jit_compile auto_scale_loss x y batch_size epochs verbose callbacks validation_split
    validation_data shuffle class_weight sample_weight initial_epoch steps_per_epoch
    validation_steps validation_batch_size validation_freq
"""
FUNCTIONS_OF_COMPOSER = """
    apply_alibi augmix_image apply_blurpool apply_channels_last colout_batch compute_ema
    cutmix_batch cutout_batch apply_factorization apply_gated_linear_units apply_ghost_batchnorm
    apply_gradient_clipping apply_low_precision_layernorm apply_low_precision_groupnorm
    smooth_labels freeze_layers mixup_batch resize_batch randaugment_image
    should_selective_backprop select_using_loss set_batch_sequence_length apply_squeeze_excite
    apply_stochastic_depth apply_weight_standardization apply_gyro_dropout
"""


def of_transformers():
    transformers = pytest.importorskip("transformers")
    fields = dataclasses.fields(transformers.TrainingArguments)
    parameters = list(inspect.signature(transformers.Trainer.__init__).parameters)
    return [*(field.name for field in fields), *parameters[1:]]


def of_lightning():
    lightning = pytest.importorskip("lightning")
    return list(inspect.signature(lightning.Trainer.__init__).parameters)[1:]


@pytest.mark.parametrize(
    "names", [COMPOSER.split, KERAS.split, of_transformers, of_lightning], ids=lambda f: f.__name__
)
def test_every_argument_is_ours_or_has_an_advice(names):
    assert [name for name in names() if name not in OURS and name not in ARGUMENTS] == []


def test_every_function_of_composer_is_ours_or_has_an_advice():
    import composable.functional as F

    names = FUNCTIONS_OF_COMPOSER.split()
    assert [name for name in names if name not in F.__all__ and name not in CLASSES] == []


def targets(advice):
    return re.findall(r"{([^}]*)}", advice)


def exists(target):
    """Return whether a name of this library exists."""
    first, _, rest = target.partition(".")
    if not rest:
        return target in OURS
    value = {
        "trainer": Trainer,
        "state": State(torch.nn.Linear(1, 1), batch=(1, 2), max_duration="1ep"),
        "composable": composable,
    }[first]
    for name in rest.split("."):
        if value is composable or inspect.ismodule(value):
            found = getattr(value, name, None)
            value = import_module(f"{value.__name__}.{name}") if found is None else found
        elif not hasattr(value, name) and name not in inspect.get_annotations(value):
            return False
        else:
            value = getattr(value, name, None)
    return True


EVERY = [
    *(text for table in (ARGUMENTS, METHODS, STATE, CLASSES) for text in table.values()),
    *(text for table in CLASS_ARGUMENTS.values() for text in table.values()),
]


@pytest.mark.parametrize("advice", dict.fromkeys(EVERY))
def test_what_an_advice_names_exists(advice):
    for target in targets(advice):
        if target == "trainer.logger":  # set in the constructor
            assert hasattr(make_trainer(), "logger")
        else:
            assert exists(target), target
    assert not set(as_text(advice)) & set("{}")
    assert not advice.endswith(".")


def test_no_entry_is_a_name_that_exists():
    state = State(torch.nn.Linear(1, 1))
    assert set(ARGUMENTS) & OURS == set()
    assert {name for name in METHODS if hasattr(Trainer, name)} == set()
    assert {name for name in STATE if name in dir(state)} == set()
    packages = ("algorithms", "callbacks", "loggers", "optim", "functional", "models")
    for package in packages:
        assert set(CLASSES) & set(import_module(f"composable.{package}").__all__) == set()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_trainer_advises_on_an_argument(name):
    with pytest.raises(TypeError) as caught:
        Trainer(linear(), **{name: 1})

    assert str(caught.value) == (
        f"Trainer got an unexpected argument {name!r}; {as_text(ARGUMENTS[name])}."
    )


@pytest.mark.parametrize("name", METHODS)
def test_trainer_advises_on_a_method(name):
    with pytest.raises(AttributeError, match=re.escape(as_text(METHODS[name]))):
        getattr(make_trainer(), name)


@pytest.mark.parametrize("name", STATE)
def test_state_advises_on_a_field(name):
    with pytest.raises(AttributeError, match=re.escape(as_text(STATE[name]))):
        getattr(State(linear()), name)


def test_state_without_a_field_of_another_trainer_is_as_before():
    state = State(linear())

    with pytest.raises(AttributeError, match=r"'State' object has no attribute 'nothing'$"):
        _ = state.nothing
    assert not hasattr(state, "nothing")
    assert deepcopy(state).timestamp == pickle.loads(pickle.dumps(state)).timestamp


def test_error_of_a_property_is_its_own():
    state = State(linear(), batch=3).evolve(
        batch_spec=composable.batches.spec.BatchSpec(input_key=lambda batch: batch.missing)
    )

    with pytest.raises(AttributeError, match="missing"):
        _ = state.inputs
    with pytest.raises(AttributeError, match="keeps no history"):
        _ = make_trainer().history


@pytest.mark.parametrize("package", ["composable.callbacks", "composable.algorithms"])
@pytest.mark.parametrize("name", CLASSES)
def test_packages_advise_on_a_class(package, name):
    with pytest.raises(ImportError, match=re.escape(as_text(CLASSES[name]))):
        exec(f"from {package} import {name}")


CASES = [
    (kind, name) for kind, table in CLASS_ARGUMENTS.items() if kind != "Algorithm" for name in table
]


@pytest.mark.parametrize(("kind", "name"), [*CASES, ("MixUp", "input_key"), ("EMA", "target_key")])
def test_classes_advise_on_an_argument(kind, name):
    cls = getattr(composable.algorithms, kind, None) or getattr(composable.callbacks, kind)
    advice = {**CLASS_ARGUMENTS["Algorithm"], **CLASS_ARGUMENTS[kind]}[name]

    assert name not in inspect.signature(cls).parameters
    if named := re.match(r"pass (\w+)", advice):
        assert named[1] in inspect.signature(cls).parameters
    with pytest.raises(TypeError, match=re.escape(as_text(advice))):
        cls(**{name: 1})


def test_signatures_of_classes_are_kept():
    first, *_ = inspect.signature(composable.algorithms.EMA).parameters

    assert first == "half_life"
    assert attrs.evolve(composable.algorithms.EMA("2ba"), ema_start="1ba").ema_start.value == 1


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda trainer: trainer.fit([1]), "are arguments of the Trainer, and fit takes duration="),
        (lambda trainer: trainer.fit(train_dataloader=[1]), "are arguments of the Trainer, and fi"),
        (lambda trainer: trainer.fit(epochs=2), "pass max_duration, such as '10ep'"),
        (lambda trainer: trainer.eval(subset_num_batches=2), "pass a loader with fewer batches"),
    ],
)
def test_calls_advise_on_an_argument(call, advice):
    with pytest.raises(TypeError, match=re.escape(advice)):
        call(make_trainer())


def test_error_of_type_within_a_call_is_unchanged():
    def loss_fn(outputs, targets):
        raise TypeError("f() got an unexpected keyword argument 'epochs'")

    with pytest.raises(TypeError) as caught:
        make_trainer(loss_fn=loss_fn).fit()

    assert str(caught.value) == "f() got an unexpected keyword argument 'epochs'"


class OfComposer(Algorithm):
    events = frozenset({Event.BATCH_END})

    def match(self, state, event, logger):
        return True

    def apply(self, event, state):
        return state


class LogsByArgument(Algorithm):
    events = frozenset({Event.BATCH_END})

    def apply(self, event, state, logger):
        return state


class Swapped(Algorithm):
    def apply(self, state, event):
        return state


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (OfComposer(), r"OfComposer.match takes (state, event, logger), and is called with (event"),
        (LogsByArgument(), "LogsByArgument.apply takes (event, state, logger), and is called with"),
        (Swapped(), "Swapped.apply takes (state, event), and is called with (event, state): def"),
        (lambda state, event, logger: state, "<lambda> takes (state, event, logger), and is call"),
    ],
)
def test_algorithms_with_the_arguments_of_composer_are_refused(algorithm, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make_trainer(algorithms=algorithm)


@pytest.mark.parametrize(
    ("cls", "name", "similar"),
    [
        (composable.algorithms.MixUp, "alpa", "alpha"),  # no table has its name
        (composable.algorithms.EMA, "half_live", "half_life"),
        (composable.callbacks.MemoryMonitor, "intervals", "interval"),
    ],
)
def test_classes_suggest_a_similar_argument(cls, name, similar):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}'; .*'{similar}'\?$"):
        cls(**{name: 1})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        cls(zzz=1)


def test_a_name_that_is_only_similar_gets_no_wrong_advice():
    with pytest.raises(TypeError) as caught:
        Trainer(linear(), save_stuff=1)
    assert str(caught.value) == "Trainer got an unexpected argument 'save_stuff'."
    with pytest.raises(TypeError, match="did you mean 'max_duration'"):
        Trainer(linear(), max_durations=1)
    assert advice_on("save_stuff", ARGUMENTS, METHODS) == ""
