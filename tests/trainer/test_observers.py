"""Callbacks of a Trainer: which ones it calls, in which order, and what happens if one fails.

That global callbacks leave no trace is in property_tests/test_observers.py.
"""

import contextvars
import threading
from contextlib import contextmanager, nullcontext

import pytest
import torch

from composable import Callback, Control, Evaluator, Event, ObserverError, register_global_callback
from composable.algorithms import MixUp
from composable.callbacks import CheckpointSaver
from composable.core.destination import LoggerDestination
from composable.loggers import InMemoryLogger
from composable.plan.global_callbacks import global_callbacks
from tests.support.data import batches
from tests.support.models import same, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, trained

CALLS = {
    "fit": (lambda trainer: trainer.fit(duration="1ep"), Event.FIT_START),
    "eval": (lambda trainer: trainer.eval(batches(12)), Event.EVAL_END),
    "predict": (lambda trainer: trainer.predict(batches(12)), Event.PREDICT_END),
    "train_batch": (
        lambda trainer: trainer.train_batch(trainer.state.evolve(batch=batches(12)[0])),
        Event.BATCH_START,
    ),
}
ENDING = [name for name in CALLS if name != "train_batch"]
events_of = {name: event for name, (_, event) in CALLS.items()}


def call(trainer, name):
    return CALLS[name][0](trainer)


class Says(Callback):
    """Records its label at every event."""

    def __init__(self, label, said):
        self.label, self.said = label, said

    def run_event(self, event, state, logger):
        self.said.append((event, self.label))


@contextmanager
def registered(callback):
    """Register a global callback until the end of the block."""
    handle = register_global_callback(callback)
    yield
    handle.remove()


# --- order ---


def test_plan_shows_active_global_callbacks():
    trainer = make_trainer(callbacks=[Watch(Event.FIT_START)], progress_bar=True)

    with Callback(), Says("", []):
        steps = [step for step in trainer.plan.steps() if step.event is Event.FIT_START]

    assert [(step.who, step.why) for step in steps] == [
        ("Watch", "observes, in list order"),
        ("Says", "observes, global ones after yours"),
        ("ProgressBarLogger", "records metrics, after all callbacks"),
    ]
    assert "Says" not in trainer.plan.explain(observers=True)


# --- global callbacks ---


@pytest.mark.parametrize("way", [lambda callback: callback, registered], ids=["with", "register"])
@pytest.mark.parametrize("name", CALLS)
def test_global_callbacks_are_called_while_they_are_active(name, way):
    trainer, watch = make_trainer(), Watch(events_of[name])
    plan = trainer.plan

    call(trainer, name)
    assert len(watch.seen) == 0
    with way(watch):
        call(trainer, name)
        assert len(watch.seen) == 1
    call(trainer, name)
    assert len(watch.seen) == 1
    assert trainer.plan is plan


def test_global_callback_sees_the_events_of_the_constructor():
    watch = Watch()

    with watch:
        trainer = make_trainer()
    trainer.fit()

    assert [event for event, _ in watch.seen] == [Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD]


def test_callback_that_is_given_and_global_is_called_once():
    watch = Watch(Event.FIT_START)
    trainer = make_trainer(callbacks=[watch])

    with watch, watch, registered(watch):
        trainer.fit()

    assert len(watch.seen) == 1


def test_callbacks_of_a_run_are_those_at_its_start():
    late, watch, added = Watch(Event.BATCH_END), Watch(Event.BATCH_END), Watch(Event.BATCH_END)
    handles = [register_global_callback(watch)]

    def swap(event, state, logger):
        if event is Event.EPOCH_START and state.timestamp.epoch == 1:
            handles.pop().remove()
            handles.append(register_global_callback(late))
            trainer.add_callback(added)

    trainer = make_trainer(callbacks=[swap])
    trainer.fit()
    seen = [len(one.seen) for one in (watch, late, added)]
    trainer.fit(duration="1ba")
    handles.pop().remove()

    assert seen == [6, 0, 0]
    assert [len(one.seen) for one in (watch, late, added)] == [6, 1, 1]


# --- add_callback ---


def test_instances_classes_and_functions_can_be_added_and_are_called_from_the_next_call_on():
    seen, trainer = [], make_trainer()
    watch = trainer.add_callback(Watch(Event.INIT, Event.FIT_START, Event.EVAL_END))
    logger, other = trainer.add_callback(InMemoryLogger), trainer.add_callback(InMemoryLogger)
    trainer.add_callback(lambda event, state, logger: seen.append(event))

    trainer.fit()
    trainer.eval(batches(12))

    assert trainer.plan.callbacks[0] is watch
    assert [event for event, _ in watch.seen] == [Event.FIT_START, Event.EVAL_END]
    assert type(logger) is InMemoryLogger
    assert logger is not other
    assert len(logger.series("loss/train")) == 6
    assert seen[0] is Event.FIT_START


def test_constructor_takes_classes_of_callbacks_and_loggers():
    trainer = make_trainer(callbacks=[Watch, Callback], loggers=InMemoryLogger)

    assert [type(one) for one in trainer.plan.callbacks] == [Watch, Callback, InMemoryLogger]


def look(event, state, logger):
    pass


LOGGER = InMemoryLogger()


@pytest.mark.parametrize("one", [Watch(), look, LOGGER], ids=["instance", "function", "logger"])
def test_same_callback_cannot_be_added_twice(one):
    trainer = make_trainer()
    trainer.add_callback(one)

    with pytest.raises(ValueError, match="was given twice, the same instance: drop one"):
        trainer.add_callback(one)
    with pytest.raises(ValueError, match="was given twice"):
        make_trainer(**{"loggers" if one is LOGGER else "callbacks": [one, one]})

    assert len(trainer.plan.callbacks) == 1


class HasNoDisk(Callback):
    def __init__(self):
        raise OSError("no disk")


GIVE = [
    lambda trainer, one: trainer.add_callback(one),
    lambda _, one: register_global_callback(one),
]


@pytest.mark.parametrize("give", GIVE, ids=["add", "register"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Says, r"the class Says, and Says\(\) failed: .*'label'.*; pass an inst"),
        (HasNoDisk, r"the class HasNoDisk, and HasNoDisk\(\) failed: no disk; pass an instance"),
        (MixUp, r"callback is the class MixUp; pass an instance, MixUp\(\)"),
        (MixUp(), r"callback is MixUp.*an algorithm; pass it in algorithms=\[...\]"),
        (3, "callback is 3; pass a Callback, or a function"),
    ],
)
def test_anything_else_is_refused(given, message, give):
    trainer = make_trainer()

    with pytest.raises(TypeError, match=message):
        give(trainer, given)

    assert trainer.plan.callbacks == global_callbacks() == ()


# --- errors, and closing ---


class Counts(Callback):
    """Counts how often it is closed; may raise errors at an event and at closing."""

    def __init__(self, event=None, error=None, *, closing=None):
        self.event, self.error, self.closing, self.closed = event, error, closing, 0

    def run_event(self, event, state, logger):
        if event is self.event:
            raise self.error or RuntimeError("at work")

    def close(self):
        self.closed += 1
        if self.closing:
            raise self.closing


class CountsToo(Counts, LoggerDestination):
    pass


def closed(*callbacks):
    return [callback.closed for callback in callbacks]


def notes(error):
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize("name", ENDING)
def test_call_closes_callbacks_and_constructor_does_not(name):
    first, last, visitor = Counts(), CountsToo(), Counts()
    trainer = make_trainer(callbacks=[first], loggers=[last])
    assert closed(first, last) == [0, 0]

    with visitor:
        call(trainer, name)

    assert closed(first, last, visitor) == [1, 1, 1]


BUILDING = [Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD]


@pytest.mark.parametrize("event", [*BUILDING, *(events_of[name] for name in ENDING)])
@pytest.mark.parametrize(("error", "note"), [(RuntimeError, True), (KeyboardInterrupt, False)])
def test_error_closes_all_callbacks_once(event, error, note):
    (name,) = [name for name in ENDING if events_of[name] is event] or ["fit"]
    first, fails, last = Counts(), Counts(event, error("at work")), CountsToo()
    visitor, writer = Counts(), CountsToo()

    with visitor, writer, pytest.raises(error, match="at work") as caught:
        call(make_trainer(callbacks=[first, fails], loggers=[last]), name)

    assert notes(caught.value) == ([f"raised by Counts at {event.name}"] if note else [])
    assert closed(first, fails, last, visitor, writer) == [1] * 5


@pytest.mark.parametrize("at_work", [False, True])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ENDING)
def test_error_while_closing_closes_the_others_and_hides_no_earlier_one(name, error, at_work):
    first = Counts(events_of[name] if at_work else None, closing=error("full"))
    last = CountsToo(closing=OSError("full") if at_work else None)
    trainer = make_trainer(callbacks=[first], loggers=[last])
    raised, warned = pytest.raises(error, match="full"), nullcontext()
    if at_work:
        raised = pytest.raises(RuntimeError, match="at work")
        warned = pytest.warns(UserWarning, match=r"Counts(Too)? could not be closed: full")

    with raised as caught, warned:
        call(trainer, name)

    assert at_work or notes(caught.value) == ["raised by Counts at close"]
    assert closed(first, last) == [1, 1]


def test_invalid_argument_closes_all_callbacks():
    first = Counts()

    with pytest.raises(TypeError, match="optimizers"):
        make_trainer(callbacks=[first], optimizers=3)

    assert first.closed == 1


def test_call_by_a_callback_is_part_of_the_run_and_closes_nothing():
    class Evaluates(Callback):
        def epoch_end(self, state, logger):
            trainer.eval(batches(12))
            closed_by_then.append(counts.closed)

    counts, visitor, closed_by_then = Counts(), Counts(), []
    seen = Watch(Event.EVAL_END, Event.BATCH_END)
    trainer = make_trainer(callbacks=[Evaluates(), counts])

    with seen, visitor:
        trainer.fit()

    assert closed_by_then == [0, 0]
    assert closed(counts, visitor) == [1, 1]
    assert [event.value for event, _ in seen.seen].count("eval_end") == 2
    assert len(seen.seen) == 8  # the global callback still listens after the call
    assert same(weights(trainer.state.model), trained())


def test_a_trainer_within_a_callback_is_not_reported():
    class Nest(Callback):
        def fit_start(self, state, logger):
            make_trainer(max_duration="1ba").fit()

    make_trainer(callbacks=[Nest()], max_duration="1ba", check_effects=False).fit()


def test_logger_that_fails_is_named():
    class Full(LoggerDestination):
        def log_metrics(self, metrics, timestamp):
            raise OSError("no space left")

    def logs(event, state, logger):
        if event is Event.BATCH_START:
            logger.log_metrics({"a": 1})

    expected = ["raised by Full at log_metrics", "raised by logs at BATCH_START"]
    for callbacks in ([], [logs]):
        with pytest.raises(OSError, match="no space left") as caught:
            make_trainer(loggers=[Full()], callbacks=callbacks).fit()
        assert notes(caught.value) == expected[: 1 + len(callbacks)]


# --- check_effects ---


class Writes(Callback):
    """Doubles a weight at an event."""

    def __init__(self, event):
        self.event = event

    def run_event(self, event, state, logger):
        if event is self.event:
            with torch.no_grad():
                state.model.weight.mul_(2)


class SavesEachBatch(Callback):
    def batch_end(self, state, logger):
        return Control.SAVE


@pytest.mark.parametrize("event", Event)
def test_check_effects_rejects_a_callback_that_writes(event, tmp_path):
    if event.value.startswith("predict"):
        name = "predict"
    else:
        name = "eval" if "standalone" in event.value else "fit"
    options = {
        "callbacks": [Writes(event), SavesEachBatch()],
        "loggers": [InMemoryLogger()],
        "schedulers": lambda clock: 1.0,
        "save_folder": tmp_path,
        "eval_dataloader": batches(12),
        "check_effects": True,
    }

    with pytest.raises(ObserverError, match=f"in place at {event.name},"):
        call(make_trainer(**options), name)


@pytest.mark.parametrize("name", CALLS)
def test_check_effects_rejects_a_global_callback_that_writes(name):
    trainer, event = make_trainer(check_effects=True), events_of[name]

    message = f"Writes changed state.model.weight in place at {event.name}"
    with Writes(event), pytest.raises(ObserverError, match=message):
        call(trainer, name)


# --- who is a global callback, where, and until when ---


class One(Callback):
    pass


class Equal(Callback):
    def __eq__(self, other):
        return isinstance(other, Equal)

    __hash__ = None


def test_callbacks_of_blocks_are_ordered_from_outside_in_and_once_each():
    outer, inner = One(), One()

    with outer as entered:
        assert entered is outer
        assert global_callbacks() == (outer,)
        with inner, outer:
            assert global_callbacks() == (outer, inner)
        assert global_callbacks() == (outer,)
    assert global_callbacks() == ()


def test_blocks_may_end_in_another_order_and_end_after_an_error():
    first, second = One(), One()
    with pytest.raises(RuntimeError, match="no disk"), One(), One():
        raise RuntimeError("no disk")
    first.__enter__()
    second.__enter__()

    first.__exit__(None, None, None)
    assert global_callbacks() == (second,)

    second.__exit__(None, None, None)
    assert global_callbacks() == ()


def test_callbacks_that_are_equal_are_two():
    first, second = Equal(), Equal()

    with first, second:
        assert [one is two for one, two in zip(global_callbacks(), (first, second), strict=True)]
        second.__exit__(None, None, None)
        assert [one is first for one in global_callbacks()] == [True]
        second.__enter__()
    assert global_callbacks() == ()


def test_a_block_is_of_its_thread_and_a_registered_one_of_the_process():
    registered, entered, seen = One(), One(), []
    handle = register_global_callback(registered)

    with entered:
        thread = threading.Thread(
            target=contextvars.Context().run, args=(lambda: seen.append(global_callbacks()),)
        )
        thread.start()
        thread.join()
        assert global_callbacks() == (registered, entered)
    handle.remove()

    assert seen == [(registered,)]


def test_many_threads_can_register_and_remove_at_once():
    begin = threading.Barrier(8)

    def work():
        begin.wait()
        for _ in range(200):
            handle = register_global_callback(One())
            assert handle.callback in global_callbacks()
            handle.remove()
            assert handle.callback not in global_callbacks()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert global_callbacks() == ()


def test_each_handle_removes_its_own_registration_once():
    one, other = One(), InMemoryLogger()
    handles = [register_global_callback(each) for each in (one, one, other, look, look)]

    handles[0].remove()
    handles[0].remove()
    assert global_callbacks()[:2] == (one, other)
    assert [callback.name for callback in global_callbacks()[2:]] == ["look"]

    for handle in handles[1:]:
        handle.remove()
    assert global_callbacks() == ()


# --- what a callback may ask of the run that it is attached to ---


class Asks(Callback):
    """Keeps the run, and what it offers in an evaluation."""

    def attach(self, run):
        self.run = run

    def eval_start(self, state, logger):
        self.seen = self.run.train_dataloader, self.run.evaluators, self.run.loss_scaler


def test_a_callback_gets_the_loaders_and_the_loss_scaler():
    loader, evaluated, asks = batches(12), batches(8), Asks()
    evaluator = Evaluator("test", evaluated)

    make_trainer(loader=loader, eval_dataloader=evaluator, callbacks=[asks]).fit()

    train_dataloader, evaluators, scaler = asks.seen
    assert train_dataloader is loader
    assert [one.label for one in evaluators] == ["test"]
    assert evaluators[0].dataloader is evaluated
    assert (scaler.scale.shape, scaler.num_skipped) == ((), 0)


def files_in(folder):
    return sorted(one.name for one in folder.iterdir())


def test_a_global_saver_writes_what_it_requests_within_its_block(tmp_path):
    trainer = make_trainer(loader=batches(4), max_duration="1ep")
    with CheckpointSaver(tmp_path):
        trainer.fit()
    assert files_in(tmp_path) == ["ep1-ba1"]

    trainer.fit(duration="1ep")
    assert files_in(tmp_path) == ["ep1-ba1"]


def test_each_call_attaches_a_callback_once(tmp_path):
    trainer = make_trainer(save_folder=tmp_path, loader=batches(4), max_duration="1ep")
    trainer.fit()
    trainer.fit(duration="1ep")

    run = trainer._run
    assert len(run.checkpoints.managers) == len(run.recorders) == 1
