"""Callbacks of a Trainer: which ones it calls, in which order, and what happens if one fails."""

import contextvars
import threading

import pytest
import torch

from composable import Callback, Control, Event, ObserverError, register_global_callback
from composable.algorithms import MixUp
from composable.core.destination import LoggerDestination
from composable.loggers import InMemoryLogger
from tests.support.tiny import Watch, batches, linear, make_trainer, same, weights

CALLS = {
    "fit": (lambda trainer: trainer.fit(duration="1ep"), Event.FIT_START),
    "eval": (lambda trainer: trainer.eval(batches()), Event.EVAL_END),
    "predict": (lambda trainer: trainer.predict(batches()), Event.PREDICT_END),
    "train_batch": (
        lambda trainer: trainer.train_batch(trainer.state.evolve(batch=batches()[0])),
        Event.BATCH_START,
    ),
}
ENDING = [name for name in CALLS if name != "train_batch"]
events_of = {name: event for name, (_, event) in CALLS.items()}


def call(trainer, name):
    return CALLS[name][0](trainer)


class Says(Callback):
    """Writes its label down at every event."""

    def __init__(self, label, said):
        self.label, self.said = label, said

    def run_event(self, event, state, logger):
        self.said.append((event, self.label))


class SaysToo(Says, LoggerDestination):
    pass


# --- order ---


def test_callbacks_run_before_loggers_and_in_each_yours_before_global_ones():
    said = []
    trainer = make_trainer(
        callbacks=[Says("callback 1", said), Says("callback 2", said)],
        loggers=[SaysToo("logger", said)],
    )
    trainer.add_callback(Says("added", said))
    trainer.add_callback(SaysToo("added logger", said))
    handle = register_global_callback(Says("registered", said))
    said.clear()

    with SaysToo("global logger", said), Says("entered", said):
        trainer.fit()
    handle.remove()

    labels = [label for event, label in said if event is Event.FIT_START]
    assert labels == [
        "callback 1",
        "callback 2",
        "added",
        "registered",
        "entered",
        "logger",
        "added logger",
        "global logger",
    ]


def test_the_plan_shows_global_callbacks_where_they_are_heard():
    trainer = make_trainer(callbacks=[Watch(Event.FIT_START)], progress_bar=True)

    with Callback(), Says("", []):
        steps = [step for step in trainer.plan.steps() if step.event is Event.FIT_START]

    assert [(step.who, step.why) for step in steps] == [
        ("Watch", "observes, in list order"),
        ("Says", "observes, global ones after yours"),
        ("ProgressBarLogger", "records metrics, after all callbacks"),
    ]
    assert "Says" not in trainer.plan.explain()


# --- global callbacks ---


@pytest.mark.parametrize("name", list(CALLS))
def test_a_call_hears_the_global_callbacks_that_there_are_when_it_begins(name):
    trainer, watch = make_trainer(), Watch(events_of[name])
    plan = trainer.plan

    call(trainer, name)
    assert len(watch.seen) == 0
    with watch:
        call(trainer, name)
        assert len(watch.seen) == 1
    call(trainer, name)
    assert len(watch.seen) == 1
    assert trainer.plan is plan


@pytest.mark.parametrize("name", list(CALLS))
def test_a_registered_callback_is_heard_until_it_is_removed(name):
    trainer, watch = make_trainer(), Watch(events_of[name])

    handle = register_global_callback(watch)
    call(trainer, name)
    handle.remove()
    trainer.eval(batches())

    assert len(watch.seen) == 1


def test_a_trainer_that_is_built_inside_the_block_has_its_init_heard():
    watch = Watch(Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD)

    with watch:
        trainer = make_trainer()
    trainer.fit()

    assert [event for event, _ in watch.seen] == [Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD]


def test_a_global_callback_that_the_trainer_has_anyway_is_heard_once():
    watch = Watch(Event.FIT_START)
    trainer = make_trainer(callbacks=[watch])

    with watch, watch:
        handle = register_global_callback(watch)
        trainer.fit()
    handle.remove()

    assert len(watch.seen) == 1


def test_a_global_callback_can_ask():
    trainer = make_trainer()

    with Asks():
        trainer.fit()

    assert trainer.state.timestamp.batch == 1


class Asks(Callback):
    def batch_end(self, state, logger):
        return Control.STOP


def test_a_global_logger_takes_in_metrics_and_is_gone_afterwards():
    trainer = make_trainer(max_duration="1ep")

    with InMemoryLogger() as logger:
        trainer.fit()
    trainer.fit(duration="1ep")

    assert len(logger.series("loss/train")) == 3
    assert trainer.logger.destinations == ()


def test_a_run_that_has_begun_keeps_the_callbacks_that_it_began_with():
    late, watch = Watch(Event.BATCH_END), Watch(Event.BATCH_END)
    handle = register_global_callback(watch)

    def swap(event, state, logger):
        if event is Event.EPOCH_START and state.timestamp.epoch == 1:
            handle.remove()
            later.append(register_global_callback(late))
            trainer.add_callback(added)

    later, added = [], Watch(Event.BATCH_END)
    trainer = make_trainer(callbacks=[swap])
    trainer.fit()
    seen = [len(one.seen) for one in (watch, late, added)]
    trainer.fit(duration="1ba")
    later[0].remove()

    assert seen == [6, 0, 0]
    assert [len(one.seen) for one in (watch, late, added)] == [6, 1, 1]


def test_an_error_leaves_the_trainer_without_the_global_callback():
    class Breaks(Callback):
        def batch_start(self, state, logger):
            raise RuntimeError("no disk")

    trainer = make_trainer()
    with pytest.raises(RuntimeError, match="no disk"), Breaks():
        trainer.fit()

    assert trainer.fit().timestamp.batch == 6


def test_a_block_in_one_thread_is_not_heard_in_a_run_of_another():
    here, there = Watch(Event.BATCH_END), Watch(Event.BATCH_END)
    both = threading.Barrier(2)

    def train(watch):
        with watch:
            both.wait()  # both blocks are open
            make_trainer(max_duration="1ep").fit()
            both.wait()

    threads = [
        threading.Thread(target=contextvars.Context().run, args=(train, watch))
        for watch in (here, there)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(here.seen), len(there.seen)) == (3, 3)


# --- add_callback ---


def test_an_added_callback_is_heard_from_the_next_call_on():
    trainer = make_trainer()
    watch = trainer.add_callback(Watch(Event.INIT, Event.FIT_START, Event.EVAL_END))

    assert trainer.plan.callbacks == (watch,)
    trainer.fit()
    trainer.eval(batches())

    assert [event for event, _ in watch.seen] == [Event.FIT_START, Event.EVAL_END]


def test_a_class_is_called_without_arguments():
    trainer = make_trainer()

    added = trainer.add_callback(InMemoryLogger)
    trainer.fit()

    assert type(added) is InMemoryLogger
    assert len(added.series("loss/train")) == 6


def test_a_function_can_be_added():
    seen = []
    trainer = make_trainer()
    trainer.add_callback(lambda event, state, logger: seen.append(event))

    trainer.fit()

    assert seen[0] is Event.FIT_START


def test_two_of_one_class_can_be_added():
    trainer = make_trainer()

    assert trainer.add_callback(Callback) is not trainer.add_callback(Callback)


def look(event, state, logger):
    pass


LOGGER = InMemoryLogger()


@pytest.mark.parametrize("one", [Watch(), look, LOGGER], ids=["instance", "function", "logger"])
def test_the_same_one_is_not_added_twice(one):
    trainer = make_trainer()
    trainer.add_callback(one)

    with pytest.raises(ValueError, match="was given twice, the same instance: drop one"):
        trainer.add_callback(one)
    with pytest.raises(ValueError, match="was given twice"):
        make_trainer(**{"loggers" if one is LOGGER else "callbacks": [one, one]})

    assert len(trainer.plan.callbacks) == 1


class NeedsMore(Callback):
    def __init__(self, threshold):
        raise AssertionError("never reached")


class HasNoDisk(Callback):
    def __init__(self):
        raise OSError("no disk")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (NeedsMore, r"the class NeedsMore, and NeedsMore\(\) failed: .*'threshold'; pass an inst"),
        (HasNoDisk, r"the class HasNoDisk, and HasNoDisk\(\) failed: no disk; pass an instance"),
        (MixUp, r"add_callback got the class MixUp"),
        (MixUp(), r"add_callback got MixUp.*an algorithm; pass it in algorithms=\[...\]"),
        (3, "add_callback got 3; pass a Callback, or a function"),
    ],
)
def test_add_callback_says_what_can_be_added(given, message):
    trainer = make_trainer()

    with pytest.raises(TypeError, match=message):
        trainer.add_callback(given)

    assert trainer.plan.callbacks == ()


# --- errors, and closing ---


class Counts(Callback):
    """Counts how often it is closed; fails at an event, at closing, or at both."""

    def __init__(self, event=None, *, closes=True):
        self.event, self.closes, self.closed = event, closes, 0

    def run_event(self, event, state, logger):
        if event is self.event:
            raise RuntimeError("at work")

    def close(self):
        self.closed += 1
        if not self.closes:
            raise OSError("while closing")


class CountsToo(Counts, LoggerDestination):
    pass


def closed(*callbacks):
    return [callback.closed for callback in callbacks]


@pytest.mark.parametrize("name", ENDING)
@pytest.mark.parametrize("event", [None, "its own"])
def test_everything_is_closed_once_however_a_call_ends(name, event):
    first, fails, last = Counts(), Counts(event and events_of[name]), CountsToo()
    visitor, writer = Counts(), CountsToo()
    trainer = make_trainer(callbacks=[first, fails], loggers=[last])

    with visitor, writer:
        if event is None:
            call(trainer, name)
        else:
            with pytest.raises(RuntimeError, match="at work") as caught:
                call(trainer, name)
            assert caught.value.__notes__ == [f"raised by Counts at {events_of[name].name}"]

    assert closed(first, fails, last, visitor, writer) == [1] * 5


@pytest.mark.parametrize("name", ENDING)
def test_one_that_fails_to_close_is_named_and_the_others_are_closed(name):
    first, last = Counts(closes=False), CountsToo()
    trainer = make_trainer(callbacks=[first], loggers=[last])

    with pytest.raises(OSError, match="while closing") as caught:
        call(trainer, name)

    assert caught.value.__notes__ == ["raised by Counts at close"]
    assert closed(first, last) == [1, 1]


@pytest.mark.parametrize("name", ENDING)
def test_an_error_at_work_is_kept_where_closing_fails_too(name):
    first, last = Counts(events_of[name], closes=False), CountsToo(closes=False)
    trainer = make_trainer(callbacks=[first], loggers=[last])

    with (
        pytest.raises(RuntimeError, match="at work"),
        pytest.warns(UserWarning, match=r"Counts(Too)? could not be closed: while closing"),
    ):
        call(trainer, name)

    assert closed(first, last) == [1, 1]


def test_an_interrupt_while_one_is_closed_does_not_keep_the_others_open():
    class Interrupted(Callback):
        def close(self):
            raise KeyboardInterrupt

    last = CountsToo()
    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=[Interrupted()], loggers=[last]).fit()

    assert last.closed == 1


@pytest.mark.parametrize("event", [Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD])
def test_an_error_in_the_constructor_closes_everything_once(event):
    first, fails, last, visitor = Counts(), Counts(event), CountsToo(), Counts()

    with visitor, pytest.raises(RuntimeError, match="at work") as caught:
        make_trainer(callbacks=[first, fails], loggers=[last])

    assert caught.value.__notes__ == [f"raised by Counts at {event.name}"]
    assert closed(first, fails, last, visitor) == [1] * 4


def test_an_argument_that_is_refused_after_init_closes_everything_too():
    first = Counts()

    with pytest.raises(TypeError, match="optimizers"):
        make_trainer(callbacks=[first], optimizers=3)

    assert first.closed == 1


def test_a_trainer_that_was_built_is_not_closed_yet():
    first = Counts()

    make_trainer(callbacks=[first])

    assert first.closed == 0


def test_a_call_by_a_callback_is_part_of_the_run_and_closes_nothing():
    class Evaluates(Callback):
        def epoch_end(self, state, logger):
            trainer.eval(batches())
            closed_by_then.append(counts.closed)

    counts, visitor, closed_by_then = Counts(), Counts(), []
    seen = Watch(Event.EVAL_END, Event.BATCH_END)
    trainer = make_trainer(callbacks=[Evaluates(), counts])
    plain = make_trainer()
    plain.fit()

    with seen, visitor:
        trainer.fit()

    assert closed_by_then == [0, 0]
    assert closed(counts, visitor) == [1, 1]
    assert [event.value for event, _ in seen.seen].count("eval_end") == 2
    assert len(seen.seen) == 8  # the global callback still listens after the call
    assert same(weights(trainer.state.model), weights(plain.state.model))


def test_a_logger_that_fails_while_it_takes_in_metrics_is_named():
    class Full(LoggerDestination):
        def log_metrics(self, metrics, timestamp):
            raise OSError("no space left")

    def logs(event, state, logger):
        if event is Event.BATCH_START:
            logger.log_metrics({"a": 1})

    with pytest.raises(OSError, match="no space left") as caught:
        make_trainer(loggers=[Full()]).fit()
    assert caught.value.__notes__ == ["raised by Full at log_metrics"]

    with pytest.raises(OSError, match="no space left") as caught:
        make_trainer(loggers=[Full()], callbacks=[logs]).fit()
    assert caught.value.__notes__ == [
        "raised by Full at log_metrics",
        "raised by logs at BATCH_START",
    ]


# --- what an observer must not do ---


class Writes(Callback):
    """Doubles a weight at an event."""

    def __init__(self, event):
        self.event = event

    def run_event(self, event, state, logger):
        if event is self.event:
            with torch.no_grad():
                state.model.weight.mul_(2)


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("place", ["user's", "global"])
def test_check_effects_refuses_a_callback_that_writes(name, place):
    writes = Writes(events_of[name])
    trainer = make_trainer(callbacks=[writes] * (place == "user's"), check_effects=True)

    with (
        writes,
        pytest.raises(
            ObserverError,
            match=f"Writes changed state.model.weight in place at {events_of[name].name}",
        ),
    ):
        call(trainer, name)


def test_check_effects_refuses_a_callback_that_leaves_the_model_in_evaluation_mode():
    def peek(event, state, logger):
        if event is Event.EPOCH_END:
            state.model.eval()

    with pytest.raises(
        ObserverError, match=r"peek changed state.model.training from True to False"
    ):
        make_trainer(callbacks=[peek], check_effects=True).fit()


def test_checking_changes_no_weight_and_the_loop_itself_may_write():
    plain = make_trainer()
    checked = make_trainer(
        callbacks=[Watch()],
        loggers=[InMemoryLogger()],
        eval_dataloader=batches(),
        check_effects=True,
    )

    plain.fit()
    checked.fit()

    assert same(weights(checked.state.model), weights(plain.state.model))


def test_writing_is_found_at_any_event():
    for event in Event:
        if event.value.startswith("predict"):
            run = lambda trainer: trainer.predict(batches())  # noqa: E731
        elif "standalone" in event.value:
            run = lambda trainer: trainer.eval(batches())  # noqa: E731
        else:
            run = lambda trainer: trainer.fit()  # noqa: E731
        with pytest.raises(ObserverError, match=f"in place at {event.name},"):
            run(
                make_trainer(
                    linear(),
                    callbacks=[Writes(event), SavesEachBatch()],
                    loggers=[InMemoryLogger()],
                    schedulers=lambda clock: 1.0,
                    saver=lambda state: None,
                    eval_dataloader=batches(),
                    check_effects=True,
                )
            )


class SavesEachBatch(Callback):
    def batch_end(self, state, logger):
        return Control.SAVE
