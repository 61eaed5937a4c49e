"""Observers: which of their methods run, and what happens when one fails."""

import ast
import inspect
from pathlib import Path

import pytest

from composable import Callback, Control, Event, Plan, State, Time
from composable.core.callback import FunctionCallback
from composable.core.logger import Logger
from composable.loggers import CSVLogger
from composable.plan.dispatch import Dispatcher
from tests.support.models import linear


def dispatcher(*callbacks):
    return Dispatcher(Plan.compile(callbacks=callbacks), Logger())


def run(fire, *events):
    for event in events:
        fire.fire(event, State(linear()))


class ByName(Callback):
    def __init__(self):
        self.seen = []

    def batch_start(self, state, logger):
        self.seen.append("batch_start")

    def fit_start(self, state, logger):
        self.seen.append("fit_start")


class ByEvent(ByName):
    def run_event(self, event, state, logger):
        self.seen.append(event)


@pytest.mark.parametrize("event", list(Event))
def test_a_method_named_like_an_event_runs_at_it(event):
    seen = []
    cls = type("One", (Callback,), {event.value: lambda self, state, logger: seen.append(state)})
    state = State(linear())

    fire = dispatcher(cls())
    fire.fire(event, state)

    assert len(seen) == 1
    assert seen[0] is state
    assert [e for e in Event if fire.listens(e)] == [event]


@pytest.mark.parametrize("data", [[], "path", None, {"a": 1}])
def test_data_that_is_named_like_an_event_is_left_alone(data):
    watcher = ByName()
    watcher.log = watcher.fit_end = data

    run(dispatcher(watcher), *Event)
    for event in (Event.LOG, Event.BATCH_START, Event.FIT_START):
        watcher.run_event(event, State(linear()), Logger())

    assert watcher.seen == ["fit_start", "batch_start", "batch_start", "fit_start"]


def test_run_event_switches_the_methods_off():
    every = ByEvent()
    run(dispatcher(every), *Event)

    assert every.seen == list(Event)


def test_a_function_is_a_callback_of_every_event():
    seen = []

    def look(event, state, logger):
        seen.append(event)

    fire = dispatcher(look)
    run(fire, Event.INIT, Event.LOG)

    assert seen == [Event.INIT, Event.LOG]


def test_requests_are_joined_until_they_are_taken():
    fire = dispatcher(lambda *_: Control.STOP, lambda *_: None, lambda *_: Control.SAVE)
    run(fire, Event.BATCH_END)

    assert fire.requests == Control.STOP | Control.SAVE
    assert fire.pop(Control.SAVE)
    assert not fire.pop(Control.SAVE)
    assert fire.requests == Control.STOP


def test_a_callback_that_returns_anything_else_is_refused():
    with pytest.raises(TypeError, match=r"returned True and must return None or a Control.*STOP"):
        run(dispatcher(lambda *_: True), Event.BATCH_END)


class Fails(Callback):
    def batch_end(self, state, logger):
        raise KeyError("no disk")


def fails_too(event, state, logger=None):
    raise KeyError("no disk")


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (Plan.compile(callbacks=[Fails()]), "Fails"),
        (Plan.compile(callbacks=[fails_too]), "fails_too"),
        (Plan.compile([fails_too]), "fails_too"),
    ],
)
def test_exception_notes_name_who_raised_it_and_when(plan, name):
    with pytest.raises(KeyError, match=r"^'no disk'") as caught:
        run(Dispatcher(plan, Logger()), Event.BATCH_END)

    assert caught.value.__notes__ == [f"raised by {name} at BATCH_END"]


@pytest.mark.parametrize("returned", [None, 3, "state"])
def test_an_algorithm_that_returns_no_state_is_told_what_to_write(returned):
    fire = Dispatcher(Plan.compile([lambda event, state: returned]), Logger())

    with pytest.raises(TypeError, match=r"apply returned .* and must return a State: end it with"):
        run(fire, Event.INIT)


def look(event, state, logger):
    return None


def test_a_callback_that_has_a_state_only_now_loads_that_of_before():
    class Counts(Callback):
        def state_dict(self):
            return {"count": 0}

    Counts().load_state_dict({})


@pytest.mark.parametrize(
    ("callback", "name"), [(ByName(), "ByName"), (FunctionCallback(look), "look")]
)
def test_callback_rejects_state_that_it_did_not_save(callback, name):
    callback.load_state_dict(callback.state_dict())

    with pytest.raises(ValueError, match=rf"{name} was given the state \['best', 'wait'\]"):
        callback.load_state_dict({"wait": 1, "best": 0.5})


def test_repr_has_the_arguments_that_differ_from_the_defaults_and_no_secret():
    class Uploads(Callback):
        def __init__(self, path, api_key, every=1, *, period="1ep", **options):
            self._path, self.api_key, self.every, self.options = path, api_key, every, options
            self.period = Time.parse(period)

    assert repr(Callback()) == "Callback()"
    assert repr(Uploads(Path("a/b"), "abc", period="2ep", x=1)) == (
        "Uploads(path='a/b', api_key='[redacted]', period='2ep')"
    )
    assert repr(CSVLogger("runs/a.csv")) == "CSVLogger(path='runs/a.csv')"


def test_methods_of_all_events_are_declared_for_type_checkers_alone():
    source = ast.parse(inspect.getsource(Callback))
    (block,) = [one for one in source.body[0].body if isinstance(one, ast.If)]

    assert block.test.id == "TYPE_CHECKING"
    assert [one.name for one in block.body] == [event.name.lower() for event in Event]
    assert not any(hasattr(Callback, event.name.lower()) for event in Event)
