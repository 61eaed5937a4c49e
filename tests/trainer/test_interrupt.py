"""An interrupted run leaves whole files and closed observers, and can be resumed."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from composable import Callback, Event
from composable.core.destination import LoggerDestination
from composable.loggers import InMemoryLogger, JSONLinesLogger, ProgressBarLogger
from tests.support.tiny import batches, linear, make_trainer, same, weights


class Breaks(Callback):
    """Raises once, at one event of one batch."""

    def __init__(self, error, event=Event.BATCH_START, batch=4):
        self.error, self.event, self.batch = error, event, batch

    def run_event(self, event, state, logger):
        if self.error and event is self.event and state.timestamp.batch == self.batch:
            error, self.error = self.error, None
            raise error


class Closes(Callback):
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


class ClosesToo(LoggerDestination):
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


class FailsToClose(Callback):
    def close(self):
        raise OSError("no disk")


ERRORS = [KeyboardInterrupt(), RuntimeError("no disk"), SystemExit(3)]
EVENTS = [Event.BATCH_START, Event.AFTER_FORWARD, Event.AFTER_BACKWARD, Event.EVAL_BATCH_START]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_the_error_comes_through_and_everything_is_closed_once(error):
    first, last = Closes(), ClosesToo()
    trainer = make_trainer(callbacks=[first, Breaks(error)], loggers=[last])

    with pytest.raises(type(error)) as caught:
        trainer.fit()

    assert caught.value is error
    assert (first.closed, last.closed) == (1, 1)


@pytest.mark.parametrize("action", ["fit", "eval", "predict"])
def test_everything_is_closed_once_at_an_ordinary_end_too(action):
    first, last = Closes(), ClosesToo()
    trainer = make_trainer(callbacks=[first], loggers=[last])

    trainer.fit() if action == "fit" else getattr(trainer, action)(batches())

    assert (first.closed, last.closed) == (1, 1)


def test_one_that_fails_to_close_does_not_keep_the_others_from_it():
    last = ClosesToo()
    trainer = make_trainer(callbacks=[FailsToClose()], loggers=[last])

    with pytest.raises(OSError, match="no disk"):
        trainer.fit()

    assert last.closed == 1
    assert trainer.state.timestamp.batch == 6


def test_the_first_error_is_the_one_that_is_raised():
    last = ClosesToo()
    trainer = make_trainer(
        callbacks=[Breaks(RuntimeError("the first")), FailsToClose()], loggers=[last]
    )

    with (
        pytest.raises(RuntimeError, match="the first"),
        pytest.warns(UserWarning, match="FailsToClose could not be closed: no disk"),
    ):
        trainer.fit()

    assert last.closed == 1


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.value)
@pytest.mark.parametrize("error", ERRORS[:2], ids=lambda e: type(e).__name__)
def test_every_batch_that_was_logged_is_in_the_file(error, event, tmp_path):
    path = tmp_path / "metrics.jsonl"
    batch = 3 if event is Event.EVAL_BATCH_START else 4
    trainer = make_trainer(
        callbacks=[Breaks(error, event, batch)],
        loggers=[JSONLinesLogger(path, flush_interval=1000)],
        eval_dataloader=batches([4]),
    )

    with pytest.raises(type(error)):
        trainer.fit()

    logged = [line["batch"] for line in lines(path) if "loss/train" in line]
    assert logged == list(range(1, batch + 1))


def test_a_metric_that_can_not_be_written_does_not_lose_the_others(tmp_path):
    path = tmp_path / "metrics.jsonl"

    class Odd(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 4:
                logger.log_metrics({"odd": torch.zeros(2)})

    trainer = make_trainer(callbacks=[Odd()], loggers=[JSONLinesLogger(path, flush_interval=1000)])
    with pytest.raises(ValueError, match="metric 'odd' has 2 elements"):
        trainer.fit()

    assert [line["batch"] for line in lines(path)][:3] == [1, 2, 3]


def test_the_progress_bar_is_closed():
    stream = io.StringIO()
    bar = ProgressBarLogger(stream=stream, refresh_seconds=0)
    shown = []

    class Hold(Callback):
        def batch_start(self, state, logger):
            shown.append(bar._bar)

    trainer = make_trainer(callbacks=[Hold(), Breaks(KeyboardInterrupt())], loggers=[bar])

    with pytest.raises(KeyboardInterrupt):
        trainer.fit()

    assert bar._bar is None
    assert shown[-1].disable  # closed now, and not when it is collected
    assert stream.getvalue().endswith("\n")  # the prompt does not follow the bar
    size = len(stream.getvalue())
    time.sleep(0.05)
    assert len(stream.getvalue()) == size


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_interrupted_run_can_go_on(error, tmp_path):
    plain = make_trainer()
    plain.fit()
    path, memory = tmp_path / "metrics.jsonl", InMemoryLogger()
    trainer = make_trainer(
        callbacks=[Breaks(error)],
        loggers=[JSONLinesLogger(path), memory, ProgressBarLogger(stream=io.StringIO())],
    )

    with pytest.raises(type(error)):
        trainer.fit()
    assert trainer.state.timestamp.batch == 4
    trainer.fit()

    assert same(weights(trainer.state.model), weights(plain.state.model))
    assert [line["batch"] for line in lines(path)] == [1, 2, 3, 4, 5, 6]
    assert [t.batch for t, _ in memory.records] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "event", [Event.AFTER_FORWARD, Event.AFTER_BACKWARD, Event.BEFORE_OPTIMIZER_STEP]
)
def test_a_step_that_was_cut_off_before_the_update_is_done_again(event):
    plain = make_trainer()
    plain.fit()
    trainer = make_trainer(callbacks=[Breaks(KeyboardInterrupt(), event)])

    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    trainer.fit()

    assert same(weights(trainer.state.model), weights(plain.state.model))


def test_an_evaluation_that_was_cut_off_leaves_a_model_that_trains():
    model = linear()
    trainer = make_trainer(
        model,
        callbacks=[Breaks(KeyboardInterrupt(), Event.EVAL_BATCH_START, 3)],
        eval_dataloader=batches([4]),
    )

    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert model.training
    assert torch.is_grad_enabled()
    trainer.fit()

    assert trainer.state.timestamp.batch == 6


def test_generators_come_back_after_an_interruption():
    before = torch.get_rng_state()

    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=[Breaks(KeyboardInterrupt())]).fit()

    assert torch.equal(torch.get_rng_state(), before)


SCRIPT = """
    import pathlib, sys, time
    import torch
    from composable import Callback, Trainer
    from composable.loggers import JSONLinesLogger, ProgressBarLogger

    folder = pathlib.Path(sys.argv[1])

    class Slow(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 5:
                (folder / "started").touch()
            time.sleep(0.01)

        def close(self):
            print("closed", flush=True)

    data = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))] * 10
    trainer = Trainer(
        torch.nn.Linear(4, 3),
        train_dataloader=data,
        max_duration="1000ep",
        loss_fn=torch.nn.functional.cross_entropy,
        optimizers=lambda p: torch.optim.SGD(p, lr=0.1),
        callbacks=[Slow()],
        loggers=[JSONLinesLogger(folder / "metrics.jsonl", flush_interval=7)],
        device="cpu",
        seed=17,
    )
    try:
        trainer.fit()
    except KeyboardInterrupt:
        print("interrupted after", trainer.state.timestamp.batch, flush=True)
    print("batches then:", trainer.fit(duration="3ba").timestamp.batch, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_ends_a_run_cleanly(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        limit = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < limit
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()

    assert run.returncode == 0, err
    closed, interrupted, closed_again, then = out.splitlines()
    assert (closed, closed_again) == ("closed", "closed")
    done = int(interrupted.removeprefix("interrupted after "))
    assert then == f"batches then: {done + 3}"
    logged = [line["batch"] for line in lines(tmp_path / "metrics.jsonl")]
    # The current batch may have been logged before its end; all finished ones are logged.
    assert logged[:done] == list(range(1, done + 1))
    assert logged[-3:] == [done + 1, done + 2, done + 3]
    assert "Traceback" not in err
