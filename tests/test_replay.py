"""A recorded run is replayed batch by batch; what differs is named, and nothing is written."""

import copy
import hashlib
import json
import os
import runpy
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from composable import Callback, LoggerDestination, Trainer, register_global_callback, replay
from composable.algorithms import EMA, MixUp
from composable.callbacks import CheckpointSaver, UnsavedCheckpointWarning
from composable.checkpoint import files
from composable.cli import main
from composable.data.order import ReplayedBatchesWarning
from composable.loggers import InMemoryLogger, JSONLinesLogger
from composable.optim import cosine
from composable.replay import ReplayError
from composable.runs import RunRecorder, records
from composable.runs import recorder as run_recorder
from tests.support.runs import batches, mlp, shuffling_loader, stream, trainer

REPOSITORY = Path(__file__).resolve().parent.parent


def build(folder, loader=None, **changes):
    """Build a run of three epochs of five batches, saved every four, with much randomness."""
    options = {
        "algorithms": [MixUp(), EMA(half_life="4ba")],
        "schedulers": cosine(),
        "eval_dataloader": batches(),
        "max_duration": "3ep",
        "save_folder": folder,
        "save_interval": "4ba",
        "check_effects": False,
        **changes,
    }
    return trainer(mlp(dropout=0.3), shuffling_loader(18) if loader is None else loader, **options)


def contents(folder):
    """Return the hash of every file below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def edit_line(folder, batch, /, **changes):
    """Change what a line of steps.jsonl says of a batch."""
    path = folder / records.STEPS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (line,) = [one for one in lines if one["batch"] == batch and "loss" in one]
    line.update(changes)
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))


def edit_record(folder, **changes):
    path = folder / records.RUN
    body = json.loads(path.read_text())
    body["records"][-1].update(changes)
    path.write_text(json.dumps(body))


class Breaks(Callback):
    """Ends a run in the middle of a step."""

    def __init__(self, batch):
        self.batch = batch

    def after_train_batch(self, state, logger):
        if state.timestamp.batch == self.batch:
            raise RuntimeError("the machine is gone")


class Nudges(Callback):
    """Changes one weight by one bit, after a batch."""

    def __init__(self, batch, name="3.weight"):
        self.batch, self.weight = batch, name

    def after_zero_grad(self, state, logger):
        if state.timestamp.batch == self.batch:
            with torch.no_grad():
                weight = dict(state.model.named_parameters())[self.weight].view(-1)
                weight[0] = torch.nextafter(weight[0], torch.tensor(torch.inf))


# --- the same ---


def test_every_batch_of_a_random_run_is_replayed_to_the_bit_and_nothing_is_written(tmp_path):
    build(tmp_path).fit()
    steps, before = records.read_steps(tmp_path), contents(tmp_path)

    reports = [replay(lambda: build(tmp_path).fit(), tmp_path, batch=k) for k in range(15)]

    assert all(report.same and not report.changes for report in reports)
    assert [report.loss for report in reports] == [steps.trained[k]["loss"] for k in range(15)]
    assert reports[3].start == "the beginning"
    assert [reports[k].start for k in (4, 7, 8)] == [
        "checkpoint ep0-ba4",
        "checkpoint ep0-ba4",
        "checkpoint ep1-ba8",
    ]
    assert str(reports[6]).endswith(": bit-identical")
    assert contents(tmp_path) == before


def test_a_recorded_loss_is_that_of_the_batch_and_a_rate_is_the_one_used(tmp_path):
    losses, rates = [], []

    def look(event, state, logger):
        if event.value == "before_optimizer_step":
            losses.append(state.loss.item())
            rates.append(state.optimizers[0].param_groups[0]["lr"])

    build(tmp_path, callbacks=[look]).fit()
    trained = records.read_steps(tmp_path).trained

    assert [float.fromhex(one["loss"]) for one in trained.values()] == losses
    assert [float.fromhex(one["lr"]) for one in trained.values()] == rates
    assert list(trained) == list(range(15))


def test_losses_become_numbers_at_saves_and_not_at_steps(tmp_path, monkeypatch):
    sizes, real = [], run_recorder.to_numbers
    monkeypatch.setattr(
        run_recorder, "to_numbers", lambda held: sizes.append(len(r := list(held))) or real(r)
    )
    build(tmp_path, eval_dataloader=None, save_interval="7ba").fit()
    assert sizes == [7, 7, 1]


def test_without_a_seed_the_drawn_one_is_used_again(tmp_path):
    build(tmp_path, seed=None).fit()
    assert replay(lambda: build(tmp_path, seed=None).fit(), tmp_path, batch=2).same


def test_a_run_of_several_fits_is_replayed(tmp_path):
    def train():
        run = build(tmp_path, max_duration=None)
        for duration in ("7ba", "1ep", "2ba"):
            run.fit(duration=duration)

    train()
    last = max(records.read_steps(tmp_path).trained)
    assert last == 11
    assert [replay(train, tmp_path, batch=k).same for k in (2, 5, 7, 8, 11)] == [True] * 5


def test_a_batch_that_was_skipped_after_a_rollback_is_skipped_in_a_replay(tmp_path):
    data = batches(24)
    data[2][0][0, 0] = float("nan")

    def train():
        build(tmp_path, data, nonfinite_loss="rollback", save_interval="1ba").fit()

    with pytest.warns(UserWarning, match="the batch is skipped"):
        train()
    assert records.read_steps(tmp_path).trained[2] == {"loss": None, "skipped": True}
    with pytest.warns(UserWarning, match="the batch is skipped"):
        reports = [replay(train, tmp_path, batch=k) for k in (2, 3)]
    assert [one.same for one in reports] == [True, True]
    assert "no loss" in str(reports[0])


def test_a_run_that_was_resumed_is_replayed_from_both_of_its_parts(tmp_path):
    with pytest.raises(RuntimeError):
        build(tmp_path, callbacks=[Breaks(6)]).fit()
    build(tmp_path, autoresume=True).fit()

    for k in (1, 4, 6, 14):
        assert replay(lambda: build(tmp_path, autoresume=True).fit(), tmp_path, batch=k).same


# --- different ---


def test_an_edited_loss_is_found_and_no_tensor_is_blamed(tmp_path):
    build(tmp_path).fit()
    edit_line(tmp_path, 5, loss="0x1.8p-1")

    assert replay(lambda: build(tmp_path).fit(), tmp_path, batch=4).same
    report = replay(lambda: build(tmp_path).fit(), tmp_path, batch=7)

    assert not report.same
    assert (report.difference.batch, report.difference.what) == (5, "loss")
    assert report.difference.first == "0x1.8p-1"
    assert report.tensor == "none: all tensors equal those of checkpoint ep1-ba8"
    assert "batch 5: loss: recorded 0x1.8p-1 (0.75)" in str(report)


def test_changed_data_is_found_at_its_batch_and_the_tensor_is_named(tmp_path):
    build(tmp_path, batches(20), algorithms=()).fit()
    changed = batches(20)
    changed[1][0][0, 0] += 1e-3  # batches 1, 6 and 11

    report = replay(lambda: build(tmp_path, changed, algorithms=()).fit(), tmp_path, batch=7)

    assert (report.difference.batch, report.difference.what) == (6, "loss")
    assert report.tensor.startswith("state/model/weights/0.bias at checkpoint ep1-ba8 (max abs")


def test_where_no_later_checkpoint_was_kept_the_step_alone_is_named(tmp_path):
    build(tmp_path, save_interval="14ba", max_duration="14ba").fit()
    files_before = contents(tmp_path)
    edit_line(tmp_path, 13, loss="0x1p+0")
    for path in (tmp_path / "ep2-ba14").iterdir():
        path.unlink()

    report = replay(lambda: build(tmp_path, max_duration="14ba").fit(), tmp_path, batch=13)

    assert (report.difference.batch, report.tensor) == (13, None)
    assert "first tensor known to differ: none" in str(report)
    assert files_before


def test_digests_name_the_tensor_at_the_step_itself(tmp_path):
    def train(*callbacks):
        build(tmp_path, callbacks=[RunRecorder(tmp_path, weights=True), *callbacks]).fit()

    train()
    assert replay(train, tmp_path, batch=9).same
    report = replay(lambda: train(Nudges(8)), tmp_path, batch=9)

    assert (report.difference.batch, report.difference.what) == (8, "weights/3.weight")
    assert report.tensor == "weights/3.weight after batch 8"


def test_another_learning_rate_is_named_as_such(tmp_path):
    build(tmp_path).fit()
    options = {"schedulers": cosine(warmup="2ba")}
    report = replay(lambda: build(tmp_path, **options).fit(), tmp_path, batch=1)

    assert (report.difference.batch, report.difference.what) == (0, "lr")
    assert any(change.startswith("schedulers: ") for change in report.changes)


def test_what_may_explain_a_difference_is_said(tmp_path):
    build(tmp_path).fit()
    edit_record(tmp_path, num_threads=99, versions={"torch": "1.0", "python": "2.7"})

    report = replay(lambda: build(tmp_path).fit(), tmp_path, batch=5)

    assert report.same
    assert f"num_threads: 99 -> {torch.get_num_threads()}" in report.changes
    assert f"versions/torch: 1.0 -> {torch.__version__}" in report.changes


# --- what can't be replayed ---


def test_a_trainer_that_was_built_before_the_replay_writes_nothing(tmp_path):
    build(tmp_path).fit()
    trainer, before = build(tmp_path, save_overwrite=True), contents(tmp_path)

    with pytest.raises(RuntimeError, match="build the Trainer in the function that is replayed"):
        replay(trainer.fit, tmp_path, batch=1)

    assert contents(tmp_path) == before
    assert trainer.fit().timestamp.epoch == 3


def test_a_run_without_a_trainer_of_its_folder_is_an_error(tmp_path):
    build(tmp_path / "a").fit()

    with pytest.raises(ReplayError, match="no Trainer with save_folder"):
        replay(lambda: build(tmp_path / "b", max_duration="1ba").fit(), tmp_path / "a", batch=1)

    assert not (tmp_path / "b").exists()


def test_a_batch_that_was_not_recorded_is_refused(tmp_path):
    build(tmp_path, max_duration="6ba").fit()
    with pytest.raises(ReplayError, match=r"no record of batch 6: it has batches 0 to 5"):
        replay(lambda: None, tmp_path, batch=6)


def test_training_that_ends_too_early_is_said(tmp_path):
    build(tmp_path, schedulers=None).fit()
    with pytest.raises(ReplayError, match=r"ended before batch 3, after batch 1"):
        replay(
            lambda: build(tmp_path, max_duration="2ba", schedulers=None).fit(), tmp_path, batch=3
        )


def test_an_error_of_the_script_comes_through(tmp_path):
    build(tmp_path).fit()
    with pytest.raises(RuntimeError, match="the machine is gone"):
        replay(lambda: build(tmp_path, callbacks=[Breaks(5)]).fit(), tmp_path, batch=6)


# --- nothing is written ---


def test_a_replay_writes_no_metrics_no_checkpoints_and_no_other_run(tmp_path, capsys):
    folder, other, memory = tmp_path / "run", tmp_path / "other", []

    class Memory(LoggerDestination):
        def log_metrics(self, metrics, timestamp):
            memory.append(metrics)

    def train():
        first = build(other, max_duration="2ba", schedulers=None)
        first.fit()
        logger = JSONLinesLogger(tmp_path / "metrics.jsonl", overwrite=True)
        run = build(
            folder, loggers=[logger, Memory()], save_num_checkpoints_to_keep=1, progress_bar=True
        )
        run.fit(duration="6ba")
        run.save_checkpoint(tmp_path / "mine", overwrite=True)
        run.fit(duration="5ba")

    train()
    before, logged = contents(tmp_path), len(memory)
    capsys.readouterr()
    assert replay(train, folder, batch=10).same
    assert (contents(tmp_path), len(memory)) == (before, logged)
    assert capsys.readouterr() == ("", "")


def own_callbacks(folder):
    """Build callbacks and loggers that write into separate folders, by how they are added."""
    return {
        "callbacks": [
            CheckpointSaver(folder / "saver", save_interval="2ba"),
            RunRecorder(folder / "recorder", weights=True),
        ],
        "loggers": [JSONLinesLogger(folder / "loggers.jsonl"), InMemoryLogger()],
        "added": [
            CheckpointSaver(folder / "added", save_interval="3ba"),
            JSONLinesLogger(folder / "added.jsonl"),
            InMemoryLogger(),
        ],
        "global": [InMemoryLogger(), JSONLinesLogger(folder / "global.jsonl")],
    }


def fit_with(own, folder, **options):
    """Train with these callbacks."""
    with ExitStack() as stack:
        for one in own["global"]:
            stack.callback(register_global_callback(one).remove)
        run = build(folder, callbacks=own["callbacks"], loggers=own["loggers"], **options)
        for one in own["added"]:
            run.add_callback(one)
        run.fit()


def fields(own):
    """Return the values of all fields of the callbacks."""
    return [copy.copy(vars(one)) for several in own.values() for one in several]


def test_a_replay_does_not_change_the_callbacks_of_the_user(tmp_path):
    recorded, run = tmp_path / "recorded", tmp_path / "recorded" / "recorder"
    fit_with(own_callbacks(recorded), run)
    own, before = own_callbacks(tmp_path / "new"), contents(recorded)
    own["callbacks"][1].folder = run
    expected = fields(own)

    report = replay(lambda: fit_with(own, run), run, batch=6)

    assert report.same
    assert fields(own) == expected
    assert contents(recorded) == before
    assert not (tmp_path / "new").exists()


def test_a_trainer_that_is_built_after_a_replay_writes_again(tmp_path):
    build(tmp_path / "run").fit()
    own = own_callbacks(tmp_path / "new")

    def train():
        fit_with(own, tmp_path / "new" / "run")
        build(tmp_path / "run").fit()

    assert replay(train, tmp_path / "run", batch=2).same
    assert not (tmp_path / "new").exists()
    fit_with(own, tmp_path / "new" / "run")

    written = {path.name for path in (tmp_path / "new").iterdir()}
    assert written == {
        *("saver", "recorder", "added", "run"),
        *("loggers.jsonl", "added.jsonl", "global.jsonl"),
    }
    assert all(len(one.records) > 15 for one in (own["loggers"][1], own["added"][2]))
    assert len(own["global"][0].records) > 15


# --- the record ---


def test_a_run_that_was_cut_off_has_the_steps_of_one_that_never_stopped(tmp_path):
    build(tmp_path / "whole").fit()
    with pytest.raises(RuntimeError):
        build(tmp_path / "cut", callbacks=[Breaks(6)]).fit()
    assert max(records.read_steps(tmp_path / "cut").trained) == 5
    build(tmp_path / "cut", autoresume=True).fit()

    whole, cut = ((tmp_path / one / records.STEPS).read_bytes() for one in ("whole", "cut"))
    assert cut == whole
    found = records.read_records(tmp_path / "cut")
    assert [one["batch"] for one in found] == [0, 4]
    assert found[0]["id"] == found[1]["id"]
    assert not (tmp_path / "cut" / "steps.1.jsonl").exists()


def test_evaluation_alone_leaves_the_record_as_it_is(tmp_path):
    build(tmp_path).fit()
    before = contents(tmp_path)
    build(tmp_path, load_path=tmp_path / "ep1-ba8").eval()
    assert contents(tmp_path) == before


def test_another_run_in_the_folder_keeps_the_steps_of_the_first(tmp_path):
    build(tmp_path).fit()
    first = (tmp_path / records.STEPS).read_bytes()
    build(tmp_path, save_overwrite=True, seed=18).fit()

    assert (tmp_path / "steps.1.jsonl").read_bytes() == first
    assert (tmp_path / records.STEPS).read_bytes() != first
    assert [one["seed"] for one in records.read_records(tmp_path)] == [17, 18]


def test_a_run_that_goes_on_in_another_folder_begins_a_record_there(tmp_path):
    build(tmp_path / "a").fit()
    build(tmp_path / "b", load_path=tmp_path / "a" / "ep1-ba8").fit()

    assert list(records.read_steps(tmp_path / "b").trained) == list(range(8, 15))

    def train():
        build(tmp_path / "b", load_path=tmp_path / "a" / "ep1-ba8").fit()

    assert replay(train, tmp_path / "b", batch=9).same


def test_a_record_that_cannot_be_written_ends_the_run_or_warns(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=r"cannot be (created|written)"):
        build(tmp_path / "file" / "run").fit()
    with pytest.warns(UnsavedCheckpointWarning, match="run record cannot be written"):
        Trainer(
            mlp(),
            train_dataloader=batches(),
            loss_fn=torch.nn.functional.cross_entropy,
            optimizers=lambda p: torch.optim.SGD(p, lr=0.1),
            max_duration="1ep",
            callbacks=[RunRecorder(tmp_path / "file", on_error="warn")],
            progress_bar=False,
        ).fit()


def test_a_loader_of_unknown_length_is_replayed(tmp_path):
    build(tmp_path, stream(20)).fit()
    with pytest.warns(ReplayedBatchesWarning):
        assert replay(lambda: build(tmp_path, stream(20)).fit(), tmp_path, batch=9).same


# --- the command ---

SCRIPT = """
import sys
from pathlib import Path
from beside import width
from tests.support.runs import adam, mlp, shuffling_loader, trainer
from composable.algorithms import MixUp

if __name__ == "__main__":
    with Path("called.txt").open("a") as file:
        file.write(sys.argv[1] + " ")
    trainer(
        mlp(dropout=0.2),
        shuffling_loader(18),
        algorithms=[MixUp(alpha=float(sys.argv[1]))],
        optimizers=adam,
        save_folder="runs/a",
        save_interval="4ba",
        loss_mean_over=width,
    ).fit()
    print("after")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Run a script that trains into runs/a, from a folder other than its own."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside.py").write_text("width = 'examples'\n")
    path = tmp_path / "code" / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "0.2"])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    runpy.run_path(str(path), run_name="__main__")
    monkeypatch.delitem(sys.modules, "beside")
    return path


def test_the_command_runs_the_recorded_script_and_says_so(script, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path / "code")
    capsys.readouterr()
    before = list(sys.path), list(sys.argv), contents(tmp_path / "runs")

    assert main(["replay", "../runs/a", "--batch", "6"]) == 0

    out = capsys.readouterr().out
    assert f"running {script} 0.2\n     in {tmp_path}" in out
    assert "batch 6: loss 0x1." in out
    assert ": bit-identical\n" in out
    assert "after" not in out
    assert (tmp_path / "called.txt").read_text() == "0.2 0.2 "
    assert (list(sys.path), list(sys.argv), contents(tmp_path / "runs")) == before
    assert Path.cwd() == tmp_path / "code"


def test_other_arguments_are_those_after_the_dashes(script, tmp_path, capsys):
    assert main(["replay", "runs/a", "--batch", "1", "--", "0.9"]) == 1
    out = capsys.readouterr().out
    assert "first divergence: batch 0: loss: recorded 0x" in out
    assert "algorithms/MixUp: MixUp(alpha=0.2" in out


def test_a_changed_script_is_refused_unless_asked_for(script, tmp_path, capsys):
    script.write_text(script.read_text() + "\n# changed\n")
    before = (tmp_path / "called.txt").read_text()

    assert main(["replay", "runs/a", "--batch", "1"]) == 2
    assert "has changed since it wrote" in capsys.readouterr().err
    assert (tmp_path / "called.txt").read_text() == before

    assert main(["replay", "runs/a", "--batch", "1", "--changed"]) == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "run.json").unlink(), "contains no run.json"),
        (lambda run: (run / "run.json").write_text("{"), "run.json is damaged, invalid JSON"),
        (lambda run: (run / "run.json").write_text("[]"), "is not the record of a run"),
        (lambda run: (run / "steps.jsonl").unlink(), "contains no steps.jsonl"),
        (lambda run: edit_record(run, script=None), "was not written by a script"),
        (lambda run: edit_record(run, arguments=[1]), "was not written by a script"),
        (lambda run: edit_record(run, script="/nowhere/train.py"), "cannot be read"),
        (lambda run: edit_record(run, cwd="/nowhere"), "is not a directory"),
        (lambda run: edit_record(run, batch=-1), "without a batch number"),
        (lambda run: edit_record(run, batch=9), "has no record of the run that trained on batch 1"),
        (lambda run: edit_line(run, 2, batch=3), "line 4: batch 3 is recorded twice"),
    ],
)
def test_a_damaged_folder_is_said_and_no_script_is_run(script, tmp_path, capsys, damage, message):
    before = (tmp_path / "called.txt").read_text()
    damage(tmp_path / "runs" / "a")

    assert main(["replay", "runs/a", "--batch", "1"]) == 2

    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("composable: ")
    assert (tmp_path / "called.txt").read_text() == before


def test_a_damaged_checkpoint_is_skipped_for_an_older_one(script, tmp_path, capsys):
    path = tmp_path / "runs" / "a" / "ep0-ba4" / files.STATE
    path.write_text(path.read_text()[:-1])
    with pytest.warns(UserWarning, match="is skipped, because it is damaged"):
        assert main(["replay", "runs/a", "--batch", "6"]) == 0
    assert "from the beginning" in capsys.readouterr().out


def test_the_installed_command_replays_in_a_process_of_its_own(script, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "composable", "replay", "runs/a", "--batch", "5"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "from checkpoint ep0-ba4" in done.stdout
    assert "bit-identical" in done.stdout
