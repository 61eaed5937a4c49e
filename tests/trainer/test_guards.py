"""Losses that are not finite, memory that is full, signals, and workers that die."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from composable import Callback, Event
from composable.checkpoint import files
from composable.loggers import InMemoryLogger
from composable.trainer.guards import NonFiniteLossError, NonFiniteLossWarning
from tests.support.runs import conv_net, examples
from tests.support.tiny import Watch, batches, make_trainer, same, seeded, weights

# --- losses ---


def poisoned(bad=(3,), value=float("nan"), count=8):
    """Return batches of which some have an input that is not finite."""
    data = batches([4] * count)
    for number in bad:
        data[number][0][0, 0] = value
    return data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_before_the_weights_are_touched(value):
    data = poisoned(value=value)
    trainer = make_trainer(train_dataloader=data, max_duration="1ep")
    clean = make_trainer(train_dataloader=data[:3], max_duration="3ba")
    clean.fit()

    with pytest.raises(NonFiniteLossError, match=r"the loss of batch 3 was (nan|-?inf)") as caught:
        trainer.fit()

    assert caught.value.batch == 3
    assert trainer.state.timestamp.batch == 3
    assert same(weights(trainer.state.model), weights(clean.state.model))


@pytest.mark.parametrize("batch", [0, 63, 64, 69])
def test_on_a_gpu_the_loss_is_found_later_and_named_right(batch):
    trainer = make_trainer(train_dataloader=poisoned((batch,), count=70), max_duration="1ep")
    trainer._run.guard.immediate = False

    with pytest.raises(NonFiniteLossError) as caught:
        trainer.fit()

    assert caught.value.batch == batch


def test_on_a_gpu_nothing_is_saved_after_a_loss_that_was_not_finite(tmp_path):
    trainer = make_trainer(
        train_dataloader=poisoned((2,)),
        max_duration="1ep",
        save_folder=tmp_path,
        save_interval="1ba",
    )
    trainer._run.guard.immediate = False

    with pytest.raises(NonFiniteLossError):
        trainer.fit()

    whole, _ = files.find(tmp_path)
    assert [found.manifest.batch for found in whole] == [2, 1]


class Norm(nn.Module):
    """A model with statistics, which a forward pass changes."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.layer(self.norm(inputs))


def test_a_skipped_batch_is_as_if_it_had_not_been_there():
    data, memory = poisoned((3, 5)), InMemoryLogger()
    trainer = make_trainer(
        seeded(Norm),
        train_dataloader=data,
        max_duration="1ep",
        nonfinite_loss="skip",
        loggers=[memory],
    )
    without = make_trainer(
        seeded(Norm),
        train_dataloader=[batch for i, batch in enumerate(data) if i not in (3, 5)],
        max_duration="1ep",
    )
    without.fit()

    with pytest.warns(NonFiniteLossWarning, match="the loss of batch [35] was nan"):
        trainer.fit()

    assert same(weights(trainer.state.model), weights(without.state.model))
    assert trainer.state.timestamp.batch == 8
    assert memory.series("nonfinite/skipped") == [1, 2]
    stamps = [stamp.batch for stamp, values in memory.records if "nonfinite/skipped" in values]
    assert stamps == [3, 5]


def test_what_algorithms_remember_of_a_skipped_batch_is_forgotten():
    def counts(event, state):
        if event is not Event.AFTER_LOSS:
            return state
        return state.remember("counts", state.memory.get("counts", 0) + 1)

    trainer = make_trainer(
        train_dataloader=poisoned((3, 5)),
        max_duration="1ep",
        nonfinite_loss="skip",
        algorithms=[counts],
    )

    with pytest.warns(NonFiniteLossWarning):
        trainer.fit()

    assert trainer.state.memory["counts"] == 6


def test_skipping_ends_where_it_does_not_help():
    trainer = make_trainer(
        train_dataloader=poisoned(range(20), count=20), max_duration="1ep", nonfinite_loss="skip"
    )

    with (
        pytest.warns(NonFiniteLossWarning),
        pytest.raises(NonFiniteLossError, match="losses of 10 consecutive batches were not finite"),
    ):
        trainer.fit()


def test_ignoring_goes_on():
    trainer = make_trainer(train_dataloader=poisoned(), max_duration="1ep", nonfinite_loss="ignore")

    trainer.fit()

    assert trainer.state.timestamp.batch == 8


def test_rolling_back_goes_on_from_the_last_checkpoint_without_the_batch(tmp_path):
    data, memory = poisoned((5,)), InMemoryLogger()
    trainer = make_trainer(
        train_dataloader=data,
        max_duration="1ep",
        nonfinite_loss="rollback",
        save_folder=tmp_path,
        save_interval="2ba",
        loggers=[memory],
    )
    without = make_trainer(
        train_dataloader=[batch for i, batch in enumerate(data) if i != 5], max_duration="1ep"
    )
    without.fit()
    seen = Watch(Event.BATCH_START, read=lambda state: state.timestamp.batch)
    trainer.add_callback(seen)

    with pytest.warns(NonFiniteLossWarning, match="batch 5"):
        trainer.fit()

    assert seen.values == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert same(weights(trainer.state.model), weights(without.state.model))
    assert memory.series("nonfinite/rolled_back") == [1]


def test_a_run_that_rolled_back_goes_on_avoiding_the_batch(tmp_path):
    options = {
        "train_dataloader": poisoned((3,)),
        "max_duration": "2ep",
        "nonfinite_loss": "rollback",
        "save_folder": tmp_path,
        "save_interval": "2ba",
    }

    class Stop(Callback):
        def after_save(self, state, logger):
            if state.timestamp.batch == 6:
                raise KeyboardInterrupt

    with pytest.warns(NonFiniteLossWarning), pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=[Stop()], **options).fit()
    trainer = make_trainer(autoresume=True, **options)

    assert trainer._run.guard.skipped_batches == {3}
    assert trainer._run.guard.num_rollbacks == 1


def test_rolling_back_without_a_checkpoint_says_so(tmp_path):
    trainer = make_trainer(
        train_dataloader=poisoned((0,)), nonfinite_loss="rollback", save_folder=tmp_path
    )

    with pytest.raises(NonFiniteLossError) as caught:
        trainer.fit()

    assert "no checkpoint to roll back to" in "\n".join(caught.value.__notes__)


def test_what_to_do_about_losses_is_one_of_four():
    with pytest.raises(ValueError, match="nonfinite_loss='stop' must be one of 'raise', 'skip'"):
        make_trainer(nonfinite_loss="stop")
    with pytest.raises(ValueError, match="needs a save_folder"):
        make_trainer(nonfinite_loss="rollback")


# --- memory ---


class Small(nn.Module):
    """A model for whose memory more than some examples are too many, in some batches."""

    def __init__(self, model, most, batch=0):
        super().__init__()
        self.model, self.most, self.batch, self.calls = model, most, batch, 0

    def forward(self, inputs):
        outputs = self.model(inputs)
        self.calls += 1
        if len(inputs) > self.most and self.calls > self.batch:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return outputs


def images(count=24, size=8):
    inputs, targets = examples(count, images=True)
    return list(zip(inputs.split(size), targets.split(size), strict=True))


@pytest.mark.parametrize(("most", "size"), [(8, 8), (5, 4), (2, 2), (1, 1)])
def test_halving_trains_as_if_the_size_had_been_given(most, size):
    auto = make_trainer(Small(conv_net(), most), train_dataloader=images(), microbatch_size="auto")
    given = make_trainer(Small(conv_net(), 99), train_dataloader=images(), microbatch_size=size)

    auto.fit()
    given.fit()

    assert same(weights(auto.state.model), weights(given.state.model))


def test_memory_that_runs_out_in_the_middle_of_a_run_has_the_batch_repeated():
    auto = make_trainer(
        Small(conv_net(), 4, batch=4), train_dataloader=images(), microbatch_size="auto"
    )
    seen = Watch(Event.BATCH_END, read=lambda state: state.timestamp.batch)
    auto.add_callback(seen)

    auto.fit()

    assert seen.values == [1, 2, 3, 4, 5, 6]
    assert auto._run.microbatches.size == 4


def test_one_example_that_is_too_large_ends_the_run():
    trainer = make_trainer(Small(conv_net(), 0), train_dataloader=images(), microbatch_size="auto")

    with pytest.raises(torch.OutOfMemoryError) as caught:
        trainer.fit()

    assert "one example does not fit into memory" in "\n".join(caught.value.__notes__)


def test_without_auto_memory_that_runs_out_is_an_error():
    with pytest.raises(torch.OutOfMemoryError):
        make_trainer(Small(conv_net(), 2), train_dataloader=images()).fit()


def test_a_run_goes_on_with_the_size_that_fitted(tmp_path):
    options = {"train_dataloader": images(), "microbatch_size": "auto", "save_folder": tmp_path}
    make_trainer(Small(conv_net(), 2), max_duration="1ep", **options).fit()

    with pytest.warns(UserWarning, match="requested_duration"):
        trainer = make_trainer(Small(conv_net(), 2), max_duration="2ep", autoresume=True, **options)

    assert trainer._run.microbatches.size == 2


# --- signals ---


class Sends(Callback):
    """Sends signals to its own process in the middle of a batch."""

    def __init__(self, number, batch=2, times=1):
        self.number, self.batch, self.times = number, batch, times

    def after_forward(self, state, logger):
        if state.timestamp.batch == self.batch:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
                time.sleep(0.01)


SIGNALS = [
    pytest.param(signal.SIGTERM, SystemExit, id="SIGTERM"),
    pytest.param(signal.SIGINT, KeyboardInterrupt, id="SIGINT"),
]
posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@posix
@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_a_signal_ends_the_run_after_the_batch_which_is_saved(number, error, tmp_path):
    plain = make_trainer()
    plain.fit()
    options = {"save_folder": tmp_path, "save_interval": "1ep"}

    with pytest.raises(error) as caught:
        make_trainer(callbacks=[Sends(number)], **options).fit()

    if error is SystemExit:
        assert caught.value.code == 143
    whole, _ = files.find(tmp_path)
    assert [found.manifest.batch for found in whole] == [3]
    again = make_trainer(callbacks=[Sends(number, -1)], autoresume=True, **options)
    assert same(weights(again.fit().model), weights(plain.state.model))


@posix
@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_a_second_signal_ends_the_run_at_once(number, error, tmp_path):
    trainer = make_trainer(callbacks=[Sends(number, times=2)], save_folder=tmp_path)

    with pytest.raises(error):
        trainer.fit()

    assert trainer.state.timestamp.batch == 2
    assert files.find(tmp_path) == ([], [])


@posix
@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_handlers_are_put_back(number, error):
    def own(number, frame):
        pass

    before = signal.signal(number, own)
    try:
        make_trainer().fit()
        assert signal.getsignal(number) is own
        with pytest.raises(error):
            make_trainer(callbacks=[Sends(number)]).fit()
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, before)


@posix
def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        state = make_trainer(callbacks=[Sends(signal.SIGTERM)]).fit()
    finally:
        signal.signal(signal.SIGTERM, before)

    assert state.timestamp.batch == 6


@posix
def test_a_run_that_was_ended_by_a_signal_goes_on_in_the_same_process():
    plain = make_trainer()
    plain.fit()
    trainer = make_trainer(callbacks=[Sends(signal.SIGTERM)])

    with pytest.raises(SystemExit):
        trainer.fit()
    assert trainer.state.timestamp.batch == 3
    trainer.fit()

    assert same(weights(trainer.state.model), weights(plain.state.model))


@posix
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_worker_takes_no_part_in_signals_but_can_be_ended(number, status):
    ended = []

    class Forks(Callback):
        def batch_start(self, state, logger):
            if state.timestamp.batch:
                return
            ready, told = os.pipe()
            child = os.fork()
            if not child:
                os.write(told, b"!")
                time.sleep(0.5)
                os._exit(0)
            os.read(ready, 1)
            os.kill(child, number)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    state = make_trainer(callbacks=[Forks()]).fit()

    assert ended == [status]
    assert state.timestamp.batch == 6


SCRIPT = """
    import pathlib, sys, time
    import torch
    from composable import Callback, Trainer

    folder = pathlib.Path(sys.argv[1])

    class Slow(Callback):
        def batch_end(self, state, logger):
            (folder / "started").touch()
            time.sleep(0.01)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, i):
            return torch.zeros(4), 0

    if __name__ == "__main__":
        Trainer(
            torch.nn.Linear(4, 3),
            train_dataloader=torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1),
            max_duration="1000ep",
            loss_fn=torch.nn.functional.cross_entropy,
            optimizers=lambda p: torch.optim.SGD(p, lr=0.1),
            callbacks=[Slow()],
            progress_bar=False,
            save_folder=folder / "run",
            device="cpu",
            seed=17,
        ).fit()
"""


@posix
def test_a_process_that_is_terminated_leaves_a_checkpoint_and_no_worker(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    run = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        limit = time.monotonic() + 120
        while not (tmp_path / "started").exists():
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < limit
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()

    assert run.returncode == -signal.SIGINT, err
    assert "finishing this batch and saving a checkpoint" in err
    whole, broken = files.find(tmp_path / "run")
    assert len(whole) == 1
    assert not broken


# --- workers ---


DYING = """
    import os
    import torch
    from composable import Callback
    from tests.support.tiny import linear, make_trainer

    class Dies(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i == 5:
                os._exit(1)
            return torch.zeros(4), 0

    class Closes(Callback):
        def close(self):
            print("closed")

    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Dies(), batch_size=2, num_workers=1)
        make_trainer(linear(), train_dataloader=loader, callbacks=[Closes()]).fit()
"""


def test_a_worker_that_dies_is_explained_and_everything_is_closed(tmp_path):
    # In a process of its own: the signal of a dead worker may come at any line of the test runner.
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(DYING))
    root = str(Path(__file__).parents[2])
    variables = {**os.environ, "PYTHONPATH": root}

    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=variables
    )

    assert ended.returncode == 1
    assert "a worker process of the loader died" in ended.stderr
    assert ended.stdout.split() == ["closed"]
