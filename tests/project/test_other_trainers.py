"""The names of other trainers: each has an advice, and what it names here exists."""

import dataclasses
import inspect
import pickle
import re
from copy import deepcopy
from functools import partial
from importlib import import_module

import attrs
import pytest
import torch

import composable
from composable import Algorithm, Callback, Event, State, Trainer
from composable._other_trainers import (
    ARGUMENTS,
    CLASS_ARGUMENTS,
    CLASSES,
    METHODS,
    METRICS,
    STATE,
    _tables,
    advice_on,
    as_text,
)
from composable.callbacks import EarlyStopper
from composable.core.results import Results
from composable.loggers import InMemoryLogger
from composable.trainer.options import TrainerOptions
from tests.support.data import batches
from tests.support.folded import folded
from tests.support.models import linear
from tests.support.other_trainers import NAMES, names
from tests.support.runs import make_trainer
from tools.migration import ADVICE, as_markdown, is_ours

OURS = set(inspect.signature(TrainerOptions).parameters)


INSTALLED = {
    "huggingface": ("transformers", "Trainer"),
    "accelerate": ("accelerate", "Accelerator"),
    "fabric": ("lightning.fabric", "Fabric"),
    "lightning": ("lightning", "Trainer"),
}


@pytest.mark.parametrize("library", INSTALLED)
def test_the_lists_have_every_argument_of_the_installed_library(library):
    module, name = INSTALLED[library]
    installed = pytest.importorskip(module)
    known = {"self", *names(library, "arguments")}
    assert set(inspect.signature(getattr(installed, name).__init__).parameters) <= known
    if library == "huggingface":
        fields = dataclasses.fields(installed.Seq2SeqTrainingArguments)
        assert {field.name for field in fields} <= known


@pytest.mark.parametrize(
    ("library", "kind"), [(library, kind) for library, kinds in NAMES.items() for kind in kinds]
)
def test_every_name_is_ours_or_has_an_advice(library, kind):
    unknown = [name for name in names(library, kind) if name not in ADVICE[kind]]
    assert [name for name in unknown if not is_ours(kind, name)] == []


def test_the_tables_mark_code():
    assert as_markdown("see {state.flops}, {trainer.plan}.explain() or set_epoch") == (
        "see `state.flops`, `trainer.plan.explain()` or `set_epoch`"
    )
    assert as_markdown("pass {schedulers}={composable.optim.cosine}(warmup='5ep', a=1); or x") == (
        "pass `schedulers=composable.optim.cosine(warmup='5ep', a=1)`; or x"
    )
    assert as_markdown("pass mode='max' or metrics/eval/loss") == (
        "pass `mode='max'` or `metrics/eval/loss`"
    )


@folded("name", METRICS)
def test_an_unknown_result_gets_an_advice(name):
    message = as_text(METRICS[name])
    with pytest.raises(KeyError, match=re.escape(message)):
        Results({"eval": {"f1": 0.5}})[name]
    if "/" not in name and name != "loss":
        with pytest.raises(ValueError, match=re.escape(f"; {message}.")):
            make_trainer(callbacks=EarlyStopper(name, mode="min"), eval_dataloader=batches(4)).fit()


def test_an_unknown_result_without_an_advice_is_named_alone():
    with pytest.raises(KeyError) as caught:
        Results({"eval": {"f1": 0.5}})["nothing"]
    assert caught.value.args == ("nothing",)


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
    *(text for table in (ARGUMENTS, METHODS, METRICS, STATE, CLASSES) for text in table.values()),
    *(text for table in CLASS_ARGUMENTS.values() for text in table.values()),
]


@folded("advice", dict.fromkeys(EVERY))
def test_what_an_advice_names_exists(advice):
    for target in targets(advice):
        if target == "trainer.logger":  # set in the constructor
            assert hasattr(make_trainer(), "logger")
        else:
            assert exists(target), target
    assert not set(as_text(advice)) & set("{}")
    assert not advice.endswith(".")


def test_no_entry_is_a_name_that_exists():
    state = State(torch.nn.Linear(1, 1)).without_outputs()
    assert set(ARGUMENTS) & OURS == set()
    assert {name for name in METHODS if hasattr(Trainer, name)} == set()
    assert {name for name in STATE if name in dir(state)} == set()
    packages = ("algorithms", "callbacks", "loggers", "optim", "functional", "models")
    for package in packages:
        assert set(CLASSES) & set(import_module(f"composable.{package}").__all__) == set()


@folded("name", ARGUMENTS)
def test_trainer_advises_on_an_argument(name):
    with pytest.raises(TypeError) as caught:
        Trainer(linear(), **{name: 1})

    assert str(caught.value) == (
        f"Trainer got an unexpected argument {name!r}; {as_text(ARGUMENTS[name])}."
    )


def advised():
    """List errors, what raises each for a name of another trainer, and the advice that it has."""
    for name, advice in METHODS.items():
        yield AttributeError, partial(getattr, make_trainer(), name), advice
    for name, advice in STATE.items():
        yield AttributeError, partial(getattr, State(linear()).without_outputs(), name), advice
    for name, advice in CLASSES.items():
        for package in ("callbacks", "algorithms"):
            yield ImportError, partial(exec, f"from composable.{package} import {name}"), advice
    series = "; the values of a result are trainer.history.series(name)"
    yield AttributeError, lambda: InMemoryLogger().get_timeseries("loss/train"), series
    fit, evaluate = make_trainer().fit, make_trainer().eval
    arguments = "are arguments of the Trainer, and fit takes duration="
    yield TypeError, partial(fit, [1]), arguments
    yield TypeError, partial(fit, train_dataloader=[1]), arguments
    yield TypeError, partial(fit, epochs=2), "pass max_duration, such as '10ep'"
    yield TypeError, partial(evaluate, subset_num_batches=2), "pass eval_batches, or composable.Ev"


@folded("error,use,advice", advised)
def test_a_name_of_another_trainer_gets_an_advice(error, use, advice):
    with pytest.raises(error, match=re.escape(as_text(advice))):
        use()


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


@pytest.mark.parametrize(
    ("package", "name", "advice"),
    [
        ("trainer", "Trainer", "import it from composable itself"),
        ("metrics", "CrossEntropy", "the loss of an evaluation is 'metrics/eval/loss'"),
        ("utils", "dist", "see composable.distributed.Processes"),
    ],
)
def test_modules_advise_on_a_name_too(package, name, advice):
    with pytest.raises(ImportError, match=f"cannot import name '{name}'.*{re.escape(advice)}"):
        exec(f"from composable.{package} import {name}")
    with pytest.raises(ImportError, match=r"cannot import name 'Nothing'.*\)$"):
        exec(f"from composable.{package} import Nothing")


CASES = [
    (kind, name) for kind, table in CLASS_ARGUMENTS.items() if kind != "Algorithm" for name in table
]


@folded("kind,name", [*CASES, ("MixUp", "input_key"), ("EMA", "target_key")])
def test_classes_advise_on_an_argument(kind, name):
    packages = (composable.algorithms, composable.callbacks, composable.models)
    cls = next(getattr(one, kind) for one in packages if kind in one.__all__)
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


def test_a_run_without_an_error_reads_no_advice():
    class Helpers(Callback):
        def norm(self, model): ...
        def setup(self, model): ...

    _tables.cache_clear()
    make_trainer(callbacks=Helpers()).fit()
    assert _tables.cache_info().misses == 0
    assert len(ARGUMENTS) > 100
    assert _tables.cache_info().misses == 1
