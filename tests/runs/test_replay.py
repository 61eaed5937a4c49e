"""A recorded run is replayed batch by batch; differences are named, and nothing is written."""

import copy
import hashlib
import json
import runpy
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from composable import Callback, Event, LoggerDestination, register_global_callback, replay
from composable.algorithms import EMA, MixUp
from composable.callbacks import CheckpointSaver, UnsavedCheckpointWarning
from composable.checkpoint.manifest import STATE
from composable.cli import main
from composable.data.order import ReplayedBatchesWarning
from composable.loggers import InMemoryLogger, JSONLinesLogger
from composable.optim import cosine
from composable.replay import ReplayError, _Script
from composable.runs import RunRecorder, records
from composable.runs import recorder as run_recorder
from composable.runs.environment import hash_file
from tests.support.commands import Command
from tests.support.data import batches, shuffling_loader, stream
from tests.support.models import mlp
from tests.support.observers import Raise
from tests.support.runs import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:Cosine is measured in epochs")  # of a stream


def build(folder, loader=None, **changes):
    """Build a run of three epochs of five batches, saved every four, with much randomness."""
    options = {
        "algorithms": [MixUp(), EMA(half_life="1ba")],
        "schedulers": cosine(),
        "eval_dataloader": batches(),
        "max_duration": "3ep",
        "save_folder": folder,
        "save_interval": "4ba",
        "check_effects": False,
        **changes,
    }
    return make_trainer(
        mlp(dropout=0.3), shuffling_loader(18) if loader is None else loader, **options
    )


def replayed(folder, batch, *loader, **changes):
    """Replay a batch, in a run that `build` builds."""
    return replay(lambda: build(folder, *loader, **changes).fit(), folder, batch=batch)


def contents(folder):
    """Return the hash of every file below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def edit_line(folder, batch, /, **changes):
    """Change the record of a batch in steps.jsonl."""
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


def breaks(batch):
    """Interrupt a run in the middle of a step."""
    return Raise(RuntimeError("the machine is gone"), Event.AFTER_TRAIN_BATCH, batch)


class Nudges(Callback):
    """Changes one weight by one bit, after a batch."""

    def __init__(self, batch, name="3.weight"):
        self.batch, self.weight = batch, name

    def after_zero_grad(self, state, logger):
        if state.timestamp.batch == self.batch:
            with torch.no_grad():
                weight = dict(state.model.named_parameters())[self.weight].view(-1)
                weight[0] = torch.nextafter(weight[0], torch.tensor(torch.inf))


# --- runs that are replayed without a difference ---


def test_every_batch_is_replayed_bit_for_bit_and_nothing_is_written(tmp_path):
    build(tmp_path).fit()
    steps, before = records.read_steps(tmp_path), contents(tmp_path)

    reports = [replayed(tmp_path, k) for k in range(15)]

    assert all(report.same and not report.changes for report in reports)
    assert [report.loss for report in reports] == [steps.trained[k]["loss"] for k in range(15)]
    assert reports[3].start == "the beginning"
    assert [reports[k].start for k in (4, 7)] == ["checkpoint ep0-ba4"] * 2
    assert reports[8].start == "checkpoint ep1-ba8"
    assert str(reports[6]).endswith(": bit-identical")
    assert contents(tmp_path) == before


def test_records_the_loss_of_the_batch_and_the_rate_in_use(tmp_path):
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


def test_losses_are_read_from_the_device_at_saves_and_not_at_steps(tmp_path, monkeypatch):
    sizes, real = [], run_recorder.to_numbers
    monkeypatch.setattr(
        run_recorder, "to_numbers", lambda held: sizes.append(len(r := list(held))) or real(r)
    )
    build(tmp_path, eval_dataloader=None, save_interval="7ba").fit()
    assert sizes == [7, 7, 1]


def fit_in_parts(folder):
    run = build(folder, max_duration=None)
    for duration in ("7ba", "1ep", "2ba"):
        run.fit(duration=duration)


def fit_from_another_folder(folder):
    if not (folder.parent / "first").exists():
        build(folder.parent / "first").fit()
    build(folder, load_path=folder.parent / "first" / "ep1-ba8").fit()


@pytest.mark.parametrize(
    ("train", "recorded", "replayed"),
    [
        (lambda folder: build(folder, seed=None).fit(), range(15), [2]),
        (lambda folder: build(folder, stream(20)).fit(), range(15), [9]),
        (lambda folder: build(folder, accumulate_batches=2).fit(), range(9), [5]),
        (fit_in_parts, range(12), [2, 5, 7, 8, 11]),
        (fit_from_another_folder, range(8, 15), [9]),
    ],
)
@pytest.mark.filterwarnings("ignore::composable.data.ReplayedBatchesWarning")
def test_every_kind_of_run_is_replayed(tmp_path, train, recorded, replayed):
    folder = tmp_path / "run"
    train(folder)

    assert list(records.read_steps(folder).trained) == list(recorded)
    assert all(replay(lambda: train(folder), folder, batch=k).same for k in replayed)


def test_a_stream_is_replayed_with_a_warning(tmp_path):
    build(tmp_path, stream(20)).fit()
    with pytest.warns(ReplayedBatchesWarning):
        assert replayed(tmp_path, 9, stream(20)).same


def test_a_batch_that_was_skipped_after_a_rollback_is_skipped_in_a_replay(tmp_path):
    data = batches(24)
    data[2][0][0, 0] = float("nan")
    options = {"nonfinite_loss": "rollback", "save_interval": "1ba"}

    with pytest.warns(UserWarning, match="the batch is skipped"):
        build(tmp_path, data, **options).fit()
    assert records.read_steps(tmp_path).trained[2] == {"loss": None, "skipped": True}
    with pytest.warns(UserWarning, match="the batch is skipped"):
        reports = [replayed(tmp_path, k, data, **options) for k in (2, 3)]
    assert [one.same for one in reports] == [True, True]
    assert "no loss" in str(reports[0])


def test_the_record_of_a_resumed_run_is_that_of_an_uninterrupted_one(tmp_path):
    build(tmp_path / "whole").fit()
    cut = tmp_path / "cut"
    with pytest.raises(RuntimeError):
        build(cut, callbacks=breaks(6)).fit()
    assert max(records.read_steps(cut).trained) == 5
    build(cut, autoresume=True).fit()

    assert (cut / records.STEPS).read_bytes() == (tmp_path / "whole" / records.STEPS).read_bytes()
    first, second = records.read_records(cut)
    assert (first["batch"], second["batch"]) == (0, 4)
    assert first["id"] == second["id"]
    assert not (cut / "steps.1.jsonl").exists()
    assert all(replayed(cut, k, autoresume=True).same for k in (1, 4, 6, 14))


# --- differences ---


def test_an_edited_loss_is_found_without_a_tensor(tmp_path):
    build(tmp_path).fit()
    edit_line(tmp_path, 5, loss="0x1.8p-1")
    edit_record(tmp_path, num_threads=99, versions={"torch": "1.0", "python": "2.7"})

    before = replayed(tmp_path, 4)
    report = replayed(tmp_path, 7)

    assert before.same
    assert f"num_threads: 99 -> {torch.get_num_threads()}" in before.changes
    assert f"versions/torch: 1.0 -> {torch.__version__}" in before.changes
    assert not report.same
    assert (report.difference.batch, report.difference.what) == (5, "loss")
    assert report.difference.first == "0x1.8p-1"
    assert report.tensor == "none: all tensors equal checkpoint ep1-ba8"
    assert "batch 5: loss: recorded 0x1.8p-1 (0.75)" in str(report)

    for path in tmp_path.glob("ep1-ba8/*"):
        path.unlink()
    for path in tmp_path.glob("ep[23]-*/*"):
        path.unlink()
    report = replayed(tmp_path, 7)

    assert (report.difference.batch, report.tensor) == (5, None)
    assert "first tensor known to differ: none" in str(report)


def test_changed_data_is_found_at_its_batch_with_the_tensor(tmp_path):
    build(tmp_path, batches(20), algorithms=()).fit()
    changed = batches(20)
    changed[1][0][0, 0] += 1e-3  # batches 1, 6 and 11

    report = replayed(tmp_path, 7, changed, algorithms=())

    assert (report.difference.batch, report.difference.what) == (6, "loss")
    assert report.tensor.startswith("model.0.bias at checkpoint ep1-ba8 (max abs")


def test_digests_name_the_tensor_at_the_step_itself(tmp_path):
    def train(*callbacks):
        build(tmp_path, callbacks=[RunRecorder(tmp_path, weights=True), *callbacks]).fit()

    train()
    assert replay(train, tmp_path, batch=9).same
    report = replay(lambda: train(Nudges(8)), tmp_path, batch=9)

    assert (report.difference.batch, report.difference.what) == (8, "weights/3.weight")
    assert report.tensor == "weights/3.weight after batch 8"


def test_a_changed_learning_rate_is_named(tmp_path):
    build(tmp_path).fit()
    report = replayed(tmp_path, 1, schedulers=cosine(warmup="2ba"))

    assert (report.difference.batch, report.difference.what) == (0, "lr")
    assert any(change.startswith("schedulers: ") for change in report.changes)


# --- errors ---


def test_a_trainer_that_was_built_before_the_replay_writes_nothing(tmp_path):
    build(tmp_path).fit()
    trainer, before = build(tmp_path, save_overwrite=True), contents(tmp_path)

    with pytest.raises(RuntimeError, match="build the Trainer in the function that is replayed"):
        replay(trainer.fit, tmp_path, batch=1)

    assert contents(tmp_path) == before
    assert trainer.fit().timestamp.epoch == 3


@pytest.mark.parametrize(
    ("train", "batch", "error", "message"),
    [
        (lambda f: build(f / "b").fit(), 1, ReplayError, "no Trainer with save_folder"),
        (lambda f: None, 15, ReplayError, "no record of batch 15: it has batches 0 to 14"),
        (
            lambda f: build(f, max_duration="2ba", schedulers=None).fit(),
            *(3, ReplayError, "ended before batch 3, after batch 1"),
        ),
        (lambda f: build(f, callbacks=breaks(5)).fit(), 6, RuntimeError, "the machine is gone"),
    ],
)
def test_training_that_cannot_be_replayed_is_an_error(tmp_path, train, batch, error, message):
    build(tmp_path, schedulers=None).fit()
    before = contents(tmp_path)

    with pytest.raises(error, match=message):
        replay(lambda: train(tmp_path), tmp_path, batch=batch)

    assert contents(tmp_path) == before


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


def test_evaluation_does_not_change_the_record(tmp_path):
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


def test_a_record_that_cannot_be_written_is_an_error_or_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=r"cannot be (created|written)"):
        build(tmp_path / "file" / "run").fit()
    with pytest.warns(UnsavedCheckpointWarning, match="run record cannot be written"):
        make_trainer(callbacks=[RunRecorder(tmp_path / "file", on_error="warn")]).fit()


# --- the command ---

SCRIPT = """
import sys
from pathlib import Path
from beside import width
from tests.support.data import shuffling_loader
from tests.support.models import mlp
from tests.support.runs import adam, make_trainer
from composable.algorithms import MixUp

if __name__ == "__main__":
    with Path("called.txt").open("a") as file:
        file.write(sys.argv[1] + " ")
    make_trainer(
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


def called():
    """Return the arguments of all runs of the script."""
    return (Path(sys.argv[0]).parents[1] / "called.txt").read_text()


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


def test_the_command_runs_the_recorded_script(script, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path / "code")
    capsys.readouterr()
    before = list(sys.path), list(sys.argv), contents(tmp_path / "runs")

    assert main(["replay", "../runs/a", "--batch", "6"]) == 0

    out = capsys.readouterr().out
    assert f"running {script} 0.2\n     in {tmp_path}" in out
    assert "batch 6: loss 0x1." in out
    assert ": bit-identical\n" in out
    assert "after" not in out
    assert called() == "0.2 0.2 "
    assert (list(sys.path), list(sys.argv), contents(tmp_path / "runs")) == before
    assert Path.cwd() == tmp_path / "code"


def test_the_command_passes_the_arguments_after_the_dashes(script, capsys):
    assert main(["replay", "runs/a", "--batch", "1", "--", "0.9"]) == 1
    out = capsys.readouterr().out
    assert "first divergence: batch 0: loss: recorded 0x" in out
    assert "algorithms/MixUp: MixUp(alpha=0.2" in out


def change_script(run):
    script = run.parents[1] / "code" / "train.py"
    script.write_text(script.read_text() + "\n# changed\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_script, "has changed since it wrote"),
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
def test_a_damaged_folder_or_changed_script_is_an_error(script, tmp_path, capsys, damage, message):
    damage(tmp_path / "runs" / "a")

    assert main(["replay", "runs/a", "--batch", "1"]) == 2

    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("composable: ")
    assert called() == "0.2 "  # no script was run
    if damage is change_script:
        assert main(["replay", "runs/a", "--batch", "1", "--changed"]) == 0


def test_a_damaged_checkpoint_is_skipped_for_an_older_one(script, tmp_path, capsys):
    path = tmp_path / "runs" / "a" / "ep0-ba4" / STATE
    path.write_text(path.read_text()[:-1])
    with pytest.warns(UserWarning, match="is skipped, because it is damaged"):
        assert main(["replay", "runs/a", "--batch", "6"]) == 0
    assert "from the beginning" in capsys.readouterr().out


def test_the_command_replays_in_a_process_of_its_own(script, tmp_path):
    arguments = ["replay", "runs/a", "--batch", "5"]
    status, printed, errors = Command(tmp_path, arguments).finish()
    assert (status, errors) == (0, "")
    assert "from checkpoint ep0-ba4" in printed
    assert "bit-identical" in printed


# --- what a replay runs and prints, whatever a record says ---


@pytest.fixture
def folders(tmp_path):
    for name in ("named", "other"):
        (tmp_path / name).mkdir()
        text = f"open({str(tmp_path / name / 'ran')!r}, 'w').close()"
        (tmp_path / name / "replayed_module.py").write_text(text)
    return tmp_path


def recorded(folders, cwd, *arguments):
    path = folders / "named" / "replayed_module.py"
    digest = hash_file(path)
    return _Script(str(path), digest, "replayed_module", list(arguments), str(folders / cwd))


def test_runs_the_module_that_is_the_named_script(folders):
    recorded(folders, "named").run()

    assert (folders / "named" / "ran").exists()


def test_rejects_a_module_that_is_another_file(folders):
    with pytest.raises(ReplayError, match=r"replayed_module is .*other.*, and not the recorded"):
        recorded(folders, "other").run()

    assert not (folders / "other" / "ran").exists()


def test_prints_the_command_without_control_characters(folders):
    text = str(recorded(folders, "named", "\x1b[2J", "a b"))

    assert text.startswith("python -m replayed_module '\\x1b[2J' 'a b' (")
