"""What `fit` prints at its end."""

import io
import re
import sys
import time
import warnings
from types import SimpleNamespace

import pytest
import torch

from composable import Callback, Control, Event
from composable._support.printable import format_duration
from composable.callbacks import CheckpointSaver
from composable.distributed import Processes
from composable.loggers import ProgressBarLogger
from composable.trainer import summary
from tests.support.data import batches
from tests.support.observers import Asks, Raise
from tests.support.runs import make_trainer


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Set the width of the terminal, so that no line is wrapped."""
    monkeypatch.setenv("COLUMNS", "999")


def test_lines_are_wrapped_at_words_and_paths_are_not_broken(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")

    lines = printed(capsys, eval_dataloader=batches([4]), save_folder=tmp_path / ("x" * 80))

    assert all(len(line) <= 60 for line in lines if "xxx" not in line)
    assert any(line.strip() == f"{tmp_path}/{'x' * 80}/ep2-ba6" for line in lines)


@pytest.mark.parametrize("notebook", [False, True])
def test_summary_is_not_an_error_in_a_notebook(notebook, capsys, monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    if notebook:
        monkeypatch.setattr(sys, "stderr", stream())
    callbacks = ProgressBarLogger(style="lines", stream=io.StringIO())

    make_trainer(progress_bar=True, loggers=callbacks).fit()

    out, error = capsys.readouterr()
    assert ("Trained Linear" in out) is notebook
    assert ("Trained Linear" in error) is not notebook


def test_bar_in_a_notebook_is_drawn_twice_a_second():
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    bar = ProgressBarLogger(stream=stream)
    make_trainer(loggers=[bar], max_duration="1ba").fit()
    assert bar._pause == 0.5


def printed(capsys, **options):
    """Train with a progress bar, and return the lines below the bar."""
    make_trainer(progress_bar=True, **options).fit()
    return last_lines(capsys)


def last_lines(capsys):
    lines = capsys.readouterr().err.splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith("Trained ")] or [len(lines)]
    return lines[first:]


SECONDS = r"[\d.e-]+ s"


class Slow(list):
    """Batches, each of which takes a while."""

    def __iter__(self):
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index):
        time.sleep(0.05)
        return super().__getitem__(index)


def test_summary_says_where_the_time_went(capsys, tmp_path):
    both = {"train_dataloader": Slow(batches(12)), "eval_dataloader": Slow(batches([4]))}
    line = printed(capsys, **both, save_folder=tmp_path)[0]

    found = re.search(rf"with ({SECONDS}) for data, evaluation ({SECONDS}), checkpoints ", line)
    data, evaluation = (float(one.removesuffix(" s")) for one in found.groups())
    assert data >= 2 * 3 * 0.05
    assert evaluation >= 2 * 0.05
    quick = {"train_dataloader": batches(3), "eval_dataloader": None}
    assert "evaluation" not in printed(capsys, **quick)[0]


def test_summary_has_durations_results_and_the_next_step(capsys):
    shows = warnings.showwarning
    lines = printed(capsys, eval_dataloader=batches([4]))

    assert warnings.showwarning is shows
    assert re.fullmatch(
        r"Trained Linear: 2 epochs, 6 batches, 24 samples in [\d.]+ s "
        rf"\(training {SECONDS}( with {SECONDS} for data)?(, (evaluation|checkpoints) {SECONDS})*, "
        r"[\d.,]+ batches/s, [\d.,]+ samples/s\)\.",
        lines[0],
    )
    assert re.fullmatch(r"  last: loss/train [\d.]+, metrics/eval/loss [\d.]+", lines[1])
    assert lines[2:] == [
        "  next: trainer.save_checkpoint(path); nothing was saved without a save_folder"
    ]


def test_summary_of_a_saved_run_names_its_checkpoints(capsys, tmp_path):
    lines = printed(
        capsys,
        eval_dataloader=batches([4]),
        save_folder=tmp_path,
        save_best="loss",
        save_best_mode="max",
        load_best_at_end=True,
    )

    assert re.fullmatch(
        rf"  best: metrics/eval/loss [\d.]+, saved in {tmp_path}/ep[12]-ba[36]; its weights are "
        "loaded",
        lines[2],
    )
    assert lines[3] == f"  last checkpoint: {tmp_path}/ep2-ba6"
    assert lines[4] == f"  next: composable report {tmp_path}"


def test_summary_tells_of_warnings_and_skipped_batches(capsys):
    class Warns(Callback):
        def batch_end(self, state, logger):
            warnings.warn(f"batch {state.timestamp.batch}", FutureWarning, stacklevel=1)

    def inputs():
        first, *rest = batches(12)
        return [(first[0] * torch.nan, first[1]), *rest]

    with pytest.warns(Warning, match=r"batch|finite"):
        lines = printed(
            capsys, loader=inputs(), nonfinite_loss="skip", max_duration="1ep", callbacks=Warns
        )

    assert "  batches skipped because their loss was not finite: 1" in lines
    assert "  4 warnings: FutureWarning (3), NonFiniteLossWarning (1)" in lines


def test_summary_of_a_part_of_a_run(capsys):
    trainer = make_trainer(
        progress_bar=True,
        count_tokens=lambda batch: 3,
        max_duration="9ep",
        callbacks=Asks(Event.BATCH_END, 3, Control.STOP),
    )
    trainer.fit()
    stopped = last_lines(capsys)[0]
    trainer.fit(duration="1ba")
    continued = last_lines(capsys)[0]

    assert "1 epoch, 4 batches, 16 samples, 12 tokens in" in stopped
    assert stopped.endswith("tokens/s). It stopped before max_duration=9ep.")
    assert "Trained Linear: 1 batch, 4 samples, 3 tokens in" in continued
    assert continued.endswith("/s).")


def test_next_command_reads_what_the_run_has_written(capsys, tmp_path):
    def last(**options):
        return printed(capsys, **options)[-1]

    saved, never = CheckpointSaver(tmp_path), CheckpointSaver(tmp_path, save_interval=None)

    assert last(callbacks=never) == f"  next: Trainer(..., load_path='{tmp_path}') resumes the run"
    assert last(callbacks=saved) == f"  next: composable checkpoint inspect {tmp_path}/ep2-ba6"
    assert last(save_folder=tmp_path / "a") == f"  next: composable report {tmp_path}/a"


@pytest.mark.parametrize("quiet", ["progress_bar", "rank", "error"])
def test_quiet_runs_print_no_summary(quiet, capsys, monkeypatch):
    options = {"progress_bar": quiet != "progress_bar"}
    if quiet == "rank":
        second = Processes(rank=1, size=2)
        monkeypatch.setattr(summary, "Processes", SimpleNamespace(current=lambda: second))
    if quiet == "error":
        with pytest.raises(ValueError, match="mine"):
            make_trainer(callbacks=Raise(ValueError("mine")), **options).fit()
    else:
        make_trainer(**options).fit()

    assert "Trained" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.01234, "0.0123 s"), (59.96, "60 s"), (61.9, "1 min 2 s"), (7384, "2 h 3 min")],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text
