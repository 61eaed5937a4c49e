"""An interrupted run loses no finished batch, and can be resumed in the same process."""

import io
import json
import os
import signal
import textwrap
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from composable import Control, Event
from composable.checkpoint import files
from composable.loggers import InMemoryLogger, JSONLinesLogger, ProgressBarLogger
from tests.support.commands import Command
from tests.support.data import batches
from tests.support.models import same, weights
from tests.support.observers import Asks, Raise, Watch
from tests.support.processes import wait_until
from tests.support.runs import make_trainer, trained


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


STEP = [Event.AFTER_FORWARD, Event.AFTER_BACKWARD, Event.BEFORE_OPTIMIZER_STEP]
ENDINGS = {
    "interrupt": lambda: Raise(KeyboardInterrupt()),
    "error": lambda: Raise(RuntimeError("no disk")),
    "exit": lambda: Raise(SystemExit(3)),
    **{event.value: partial(Raise, KeyboardInterrupt(), event) for event in STEP},
    "stop": lambda: Asks(Event.BATCH_END, 3, Control.STOP),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_interrupted_run_resumes(ending, tmp_path):
    ends = ENDINGS[ending]()
    path, memory = tmp_path / "metrics.jsonl", InMemoryLogger()
    bar = ProgressBarLogger(stream=io.StringIO())
    loggers = [JSONLinesLogger(path, flush_interval=1000), memory, bar]
    trainer = make_trainer(callbacks=[ends], loggers=loggers)
    generator = torch.get_rng_state()

    with nullcontext() if ending == "stop" else pytest.raises(type(ends.error)):
        trainer.fit()
    assert trainer.state.timestamp.batch == 4
    assert [line["batch"] for line in lines(path)] == [1, 2, 3, 4]
    assert torch.equal(torch.get_rng_state(), generator)
    trainer.fit()

    assert same(weights(trainer.state.model), trained())
    assert [line["batch"] for line in lines(path)] == [1, 2, 3, 4, 5, 6]
    assert [t.batch for t, _ in memory.records] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("event", [Event.EVAL_START, Event.EVAL_BATCH_START, Event.EVAL_END])
@pytest.mark.parametrize("interval", ["1ep", "2ba"])
def test_interrupted_evaluation_repeats_neither_batches_nor_scheduler_steps(event, interval):
    def run(*callbacks):
        seen = Watch(
            Event.BATCH_START,
            Event.ITERATION_END,
            read=lambda state: (state.timestamp, state.optimizers[0].param_groups[0]["lr"]),
        )
        trainer = make_trainer(
            eval_dataloader=batches(12),
            eval_interval=interval,
            schedulers=partial(StepLR, step_size=1, gamma=0.5),
            iteration_length="1ep",
            max_duration="3ep",
            callbacks=[seen, *callbacks],
        )
        if callbacks:
            with pytest.raises(KeyboardInterrupt):
                trainer.fit()
            assert trainer.state.model.training
            assert torch.is_grad_enabled()
        trainer.fit()
        return [(event, now.epoch, now.batch, rate) for event, (now, rate) in seen.seen]

    batch = 3 if interval == "1ep" else 2
    assert run(Raise(KeyboardInterrupt(), event, batch)) == run()


def test_progress_bar_is_closed():
    stream = io.StringIO()
    bar = ProgressBarLogger(style="bar", stream=stream, refresh_seconds=0)
    shown = Watch(Event.BATCH_START, read=lambda state: bar._bar)
    trainer = make_trainer(callbacks=[shown, Raise(KeyboardInterrupt())], loggers=[bar])

    with pytest.raises(KeyboardInterrupt):
        trainer.fit()

    assert bar._bar is None
    assert shown.values[-1].disable  # closed now, and not when it is collected
    assert stream.getvalue().endswith("\n")  # the prompt does not follow the bar


SCRIPT = """
    import os, pathlib, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from composable import Callback
    from composable.loggers import JSONLinesLogger
    from tests.support.runs import make_trainer

    os.setsid()  # the workers are in the group of a terminal's foreground process
    folder = pathlib.Path.cwd()

    class Slow(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 5:
                (folder / "started").touch()
            time.sleep(0.01)

        def close(self):
            print("closed", flush=True)

    if __name__ == "__main__":
        data = TensorDataset(torch.zeros(1000, 4), torch.zeros(1000).long())
        trainer = make_trainer(
            train_dataloader=DataLoader(data, batch_size=2, num_workers=1),
            max_duration="1000ep",
            callbacks=[Slow()],
            loggers=[JSONLinesLogger(folder / "metrics.jsonl", flush_interval=7)],
            save_folder=folder / "run",
        )
        try:
            trainer.fit()
        except KeyboardInterrupt:
            print("interrupted after", trainer.state.timestamp.batch, flush=True)
        print("batches then:", trainer.fit(duration="3ba").timestamp.batch, flush=True)
        raise KeyboardInterrupt
"""


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_in_a_process_with_workers(tmp_path):
    run = Command(tmp_path, textwrap.dedent(SCRIPT))
    wait_until(lambda: (tmp_path / "started").exists() or not run.is_alive())
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    status, out, err = run.finish()

    assert status == 1, err
    assert err.endswith("KeyboardInterrupt\n")
    assert "finishing this batch and saving a checkpoint" in err
    closed, interrupted, closed_again, then = out.splitlines()
    assert (closed, closed_again) == ("closed", "closed")
    done = int(interrupted.removeprefix("interrupted after "))
    assert then == f"batches then: {done + 3}"
    logged = [line["batch"] for line in lines(tmp_path / "metrics.jsonl")]
    assert logged == list(range(1, done + 4))
    whole, broken = files.find(tmp_path / "run")
    assert [found.manifest.batch for found in whole] == [done + 3, done]
    assert not broken
