"""The events of a run: a file that is appended to, and warnings that are shown as before."""

import json
import warnings

import pytest

from composable import Event
from composable.core.time import Timestamp
from composable.runs import RunRecorder, records
from composable.runs.events import EVENTS, EventLog
from composable.runs.shown_warnings import ShownWarnings
from tests.support.observers import Raise
from tests.support.runs import make_trainer


def events(folder, name=EVENTS):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_run_has_a_start_times_and_an_end(tmp_path):
    make_trainer(save_folder=tmp_path).fit()

    found = events(tmp_path)
    assert [one["event"] for one in found if one["event"] != "time"] == ["start", "end"]
    assert [(one["batch"], one["sample"], one["epoch"]) for one in found][-1] == (6, 24, 2)
    assert found[-1]["error"] is None
    assert found[1]["event"] == "time"
    assert found[1]["batch"] == 1


def test_times_are_rarer_in_a_longer_run(tmp_path):
    log = EventLog(tmp_path)
    log.start(Timestamp())
    for batch in range(1, 10_001):
        log.batch_end(Timestamp(batch=batch, total_wct=100.0 * batch))
    log.close()
    log.flush()

    assert 500 < len(events(tmp_path)) < 5000


def test_a_second_run_in_the_folder_keeps_the_events_of_the_first(tmp_path):
    make_trainer(save_folder=tmp_path).fit()
    make_trainer(save_folder=tmp_path, save_overwrite=True).fit()

    assert [one["event"] for one in events(tmp_path)].count("start") == 1
    assert [one["event"] for one in events(tmp_path, "events.1.jsonl")].count("start") == 1


def test_the_end_of_a_run_has_its_error(tmp_path):
    with pytest.raises(KeyError):
        make_trainer(
            save_folder=tmp_path, callbacks=Raise(KeyError("lost"), Event.EPOCH_END, 3)
        ).fit()

    assert events(tmp_path)[-1]["error"].startswith("KeyError: ")
    assert events(tmp_path)[-1]["batch"] == 3


def test_a_line_that_a_killed_process_left_is_ended(tmp_path):
    (tmp_path / EVENTS).write_text('{"event": "ti')
    log = EventLog(tmp_path)
    log.end(Timestamp(batch=3), None)
    log.flush()

    first, last = (tmp_path / EVENTS).read_text().splitlines()
    assert first == '{"event": "ti'
    assert json.loads(last)["batch"] == 3


def test_a_folder_that_cannot_be_written_is_the_error_and_not_its_report(tmp_path):
    (tmp_path / "file").write_text("")

    def fail(event, state, logger):
        if event.value == "epoch_end":
            (tmp_path / "run" / EVENTS).unlink()
            (tmp_path / "run" / EVENTS).mkdir()
            raise KeyError("lost")

    closes = pytest.warns(UserWarning, match="RunRecorder could not be closed")
    with pytest.raises(KeyError, match="lost"), closes:
        make_trainer(callbacks=[RunRecorder(tmp_path / "run"), fail]).fit()


def test_events_are_written_where_steps_cannot_be(tmp_path):
    recorder, found = RunRecorder(tmp_path, on_error="warn"), []

    def fail(event, state, logger):
        if event.value == "batch_end" and state.timestamp.batch == 2:
            (tmp_path / records.STEPS).unlink()
            (tmp_path / records.STEPS).mkdir()
            recorder.flush()
            found.extend(events(tmp_path))

    with pytest.warns(UserWarning, match=records.STEPS):
        make_trainer(callbacks=[recorder, fail]).fit()

    assert found[-1]["batch"] == 2


def test_many_warnings_are_cut_off(tmp_path):
    log = EventLog(tmp_path)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        log.start(Timestamp())
        for number in range(1500):
            warnings.warn(f"{number} {'x' * 5000}", stacklevel=1)
        log.close()
    log.flush()

    found = [one for one in events(tmp_path) if one["event"] == "warning"]
    assert len(found) == 1000
    assert {len(one["message"]) for one in found} == {2000}


# --- warnings that are shown


def warn(text="odd"):
    warnings.warn(text, stacklevel=1)


def test_warnings_are_received_and_shown_and_the_hook_is_restored():
    before, received = warnings.showwarning, []
    shown = ShownWarnings(lambda *what: received.append(what[:2]))
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        shown.listen()
        shown.listen()
        warn()
        shown.stop()
        shown.stop()
        warn()
    assert warnings.showwarning is before
    assert received == [("UserWarning", "odd")]
    assert len(others) == 2


def test_several_listen_and_end_in_any_order():
    before, received = warnings.showwarning, {"a": 0, "b": 0}

    def count(name):
        return ShownWarnings(lambda *_: received.update({name: received[name] + 1}))

    first, second = count("a"), count("b")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        first.listen()
        second.listen()
        warn("1")
        first.stop()
        warn("2")
        second.stop()
        warn("3")
    assert warnings.showwarning is before
    assert received == {"a": 1, "b": 2}


def test_a_hook_that_was_replaced_meanwhile_stays():
    shown = ShownWarnings(lambda *_: None)
    with warnings.catch_warnings():
        shown.listen()
        warnings.showwarning = print
        shown.stop()
        assert warnings.showwarning is print
