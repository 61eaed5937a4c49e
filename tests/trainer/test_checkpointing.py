"""The Trainer's arguments for saving and loading."""

import json
import math
import shutil
import time
import warnings
from functools import partial
from itertools import count

import pytest
import torch
from torch import nn

from composable import Callback, Control, Event, Key, State, Timestamp
from composable.algorithms import EMA, MixUp
from composable.callbacks import CheckpointSaver, EarlyStopper, UnsavedCheckpointWarning
from composable.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    UnsavableError,
    UnwritableCheckpointError,
    VersionError,
    files,
    pack,
    write,
    writer,
)
from composable.checkpoint.files import read_outline
from composable.distributed import ProcessError, Processes
from composable.resume import BrokenCheckpointWarning, ChangedRunWarning
from composable.resume.verify import Reader
from tests.checkpoint.sharding import together
from tests.checkpoint.test_files import edit_manifest
from tests.support.data import batches
from tests.support.models import linear, same, weights
from tests.support.observers import Asks, Raise, Watch
from tests.support.runs import make_trainer, trained


def saved(folder):
    """Return the names of the whole checkpoints in a folder, the oldest first."""
    whole, broken = files.find(folder)
    assert not broken
    return [found.path.name for found in reversed(whole)]


# --- when and where ---


@pytest.mark.parametrize(
    ("interval", "names"),
    [
        ("1ep", ["ep1-ba3", "ep2-ba6"]),
        ("2ba", ["ep0-ba2", "ep1-ba4", "ep1-ba6", "ep2-ba6"]),
        ("0.5dur", ["ep0-ba3", "ep1-ba6", "ep2-ba6"]),
        ("10sp", ["ep0-ba3", "ep1-ba5", "ep2-ba6"]),
        (lambda state, event: state.timestamp.batch == 4, ["ep1-ba4", "ep2-ba6"]),
        (None, []),
    ],
    ids=["1ep", "2ba", "0.5dur", "10sp", "function", "None"],
)
def test_checkpoints_of_an_interval_and_at_the_end(interval, names, tmp_path):
    folder = tmp_path / "a" / "b"
    seen = Watch(Event.AFTER_SAVE, read=lambda state: state.timestamp.batch)

    make_trainer(
        save_folder=folder, save_interval=interval, callbacks=[seen], eval_dataloader=batches([4])
    ).fit()

    assert saved(folder) == names
    assert seen.values == [int(name.partition("-ba")[2]) for name in names]  # each once


def test_requested_checkpoint_and_its_filename(tmp_path):
    make_trainer(
        save_folder=tmp_path,
        save_interval=None,
        save_filename="{iteration}-{epoch}-{batch}-{sample}-{token}",
        count_tokens=lambda batch: 7,
        callbacks=[Asks(Event.BATCH_END, 1, Control.SAVE)],
    ).fit()

    assert saved(tmp_path) == ["0-0-2-8-14"]


def test_latest_checkpoints_are_kept_also_after_resuming(tmp_path):
    options = {"save_folder": tmp_path, "save_interval": "1ba", "save_num_checkpoints_to_keep": 2}
    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=[Raise(KeyboardInterrupt(), Event.AFTER_SAVE)], **options).fit()
    assert saved(tmp_path) == ["ep1-ba4"] or saved(tmp_path) == ["ep0-ba3", "ep1-ba4"]

    make_trainer(autoresume=True, **options).fit()

    assert saved(tmp_path) == ["ep1-ba5", "ep2-ba6"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_several_savers_with_their_own_folders(tmp_path):
    make_trainer(
        callbacks=[
            CheckpointSaver(tmp_path / "often", save_interval="2ba", num_checkpoints_to_keep=1),
            CheckpointSaver(tmp_path / "rarely", save_interval="2ep"),
        ]
    ).fit()

    assert saved(tmp_path / "often") == ["ep1-ba6"]  # nothing was trained on after that
    assert saved(tmp_path / "rarely") == ["ep2-ba6"]


def test_checkpoints_written_in_the_background_are_equal(tmp_path, monkeypatch):
    write = writer.write

    def slowly(*args, **kwargs):
        time.sleep(0.02)
        return write(*args, **kwargs)

    make_trainer(save_folder=tmp_path / "at once", save_interval="2ba").fit()
    monkeypatch.setattr(writer, "write", slowly)
    make_trainer(save_folder=tmp_path / "later", save_interval="2ba", save_in_background=True).fit()

    assert saved(tmp_path / "later") == saved(tmp_path / "at once")
    for name in saved(tmp_path / "later"):
        now, then = (files.read(tmp_path / when / name).tensors for when in ("at once", "later"))
        assert same(now, then)


# --- other runs, and what is narrowed ---


def test_folder_of_another_run_is_rejected_before_training(tmp_path):
    make_trainer(save_folder=tmp_path).fit()

    with pytest.raises(CheckpointExistsError, match=r"has checkpoints of another run.*autoresume"):
        make_trainer(save_folder=tmp_path)

    make_trainer(save_folder=tmp_path, save_overwrite=True).fit()
    assert saved(tmp_path) == ["ep1-ba3", "ep2-ba6"]


INCOMPLETE = "cannot be used to resume; pass load_weights_only=True"


def test_weights_can_be_saved_and_loaded_alone(tmp_path):
    done = make_trainer(save_folder=tmp_path, save_weights_only=True).fit()
    torch.save(done.model.state_dict(), tmp_path / "weights.pt")

    with pytest.raises(MismatchError, match=INCOMPLETE):
        make_trainer(load_path=tmp_path / "ep2-ba6")
    for path in (tmp_path, tmp_path / "weights.pt"):
        other = make_trainer(linear(5), load_path=path, load_weights_only=True)
        assert same(weights(other.state.model), weights(done.model))
        assert other.state.timestamp.batch == 0
    assert other.fit().timestamp.batch == 6


def test_ignored_entries_are_not_saved(tmp_path):
    options = {"algorithms": [EMA("2ba")], "max_duration": "1ep"}
    ignored = ["memory/*", "optimizers"]
    make_trainer(save_folder=tmp_path, save_ignore_keys=ignored, **options).fit()
    checkpoint = tmp_path / "ep1-ba3"

    with pytest.raises(MismatchError, match=INCOMPLETE):
        make_trainer(load_path=checkpoint, **options)
    with pytest.raises(MissingCheckpointError, match="or a folder with a complete one"):
        make_trainer(load_path=tmp_path, **options)
    with pytest.raises(MismatchError, match="has no optimizers"):
        make_trainer(load_path=checkpoint, load_ignore_keys=ignored[:1], **options)
    again = make_trainer(load_path=checkpoint, load_ignore_keys=ignored, **options)

    assert again.state.timestamp.batch == 3
    assert not again.state.memory


def test_ignored_entries_are_not_loaded(tmp_path):
    options = {"max_duration": "1ep", "load_ignore_keys": ["model/weights/bias"]}
    make_trainer(save_folder=tmp_path, max_duration="1ep").fit()

    again = make_trainer(linear(5), load_path=tmp_path, **options).state.model

    assert torch.equal(again.bias, linear(5).bias)
    assert not torch.equal(again.weight, linear(5).weight)


# --- resuming ---


def test_resumed_run_that_has_ended_does_not_train(tmp_path):
    options = {"save_folder": tmp_path, "eval_dataloader": batches([4])}
    done = make_trainer(**options).fit()
    seen = Watch()

    again = make_trainer(autoresume=True, callbacks=[seen], **options)
    state = again.fit()

    assert same(weights(state.model), weights(done.model))
    assert Event.FIT_END in dict(seen.seen)
    assert not {Event.BATCH_START, Event.EVAL_START} & dict(seen.seen).keys()
    assert again.fit(duration="1ep").timestamp.batch == 9


def test_seed_of_a_resumed_run(tmp_path):
    make_trainer(save_folder=tmp_path, seed=5).fit()

    assert make_trainer(load_path=tmp_path, seed=None).state.key.seed == 5
    with pytest.raises(ValueError, match="seed=17 differs from the seed 5 of the run to resume"):
        make_trainer(load_path=tmp_path, seed=17)


def damage(checkpoint):
    path = checkpoint / "tensors.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_damaged_checkpoint_is_skipped_with_a_warning(tmp_path):
    make_trainer(save_folder=tmp_path, save_interval="2ba").fit()
    damage(tmp_path / "ep2-ba6")
    (tmp_path / "ep1-ba6" / "state.json").write_text("{")

    with pytest.warns(BrokenCheckpointWarning) as told:
        trainer = make_trainer(save_folder=tmp_path, save_interval="2ba", autoresume=True)

    assert trainer.state.timestamp.batch == 4
    assert {"ep2-ba6" in str(w.message) for w in told} == {True, False}


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("ep2-ba6", DamagedCheckpointError, r"ep2-ba6.*tensors\.safetensors is damaged"),
        ("nothing", MissingCheckpointError, "load_path="),
    ],
)
def test_damaged_or_missing_load_path_is_an_error(name, error, message, tmp_path):
    make_trainer(save_folder=tmp_path).fit()
    damage(tmp_path / "ep2-ba6")

    with pytest.raises(error, match=message):
        make_trainer(load_path=tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": lambda: nn.Linear(4, 3, bias=False)}, "bias is in the file, and the model has"),
        ({"model": lambda: nn.Sequential(linear())}, "0.bias is missing in the file"),
        ({"model": lambda: nn.Linear(4, 5)}, r"has shape \(3, 4\) there and \(5, 4\) here"),
        ({"model": lambda: linear().double()}, "dtype torch.float32 there and torch.float64 here"),
        ({"optimizers": lambda: []}, r"it has 1 optimizers, and this run has 0"),
        (
            {"optimizers": lambda: lambda p: torch.optim.SGD([{"params": [q]} for q in p], 0.1)},
            r"groups of \[2\] parameters there, and of \[1, 1\] here",
        ),
        (
            {"schedulers": lambda: partial(torch.optim.lr_scheduler.StepLR, step_size=1)},
            "it has 0 torch schedulers, and this run has 1",
        ),
    ],
)
def test_checkpoint_of_another_model_or_optimizer_is_rejected_as_a_whole(
    changes, message, tmp_path
):
    make_trainer(save_folder=tmp_path).fit()
    made = {name: make() for name, make in changes.items()}
    model = made.pop("model", None) or linear(5)
    before = weights(model)

    with pytest.raises(MismatchError, match=message):
        make_trainer(model, load_path=tmp_path, **made)

    assert same(weights(model), before)


@pytest.mark.parametrize("argument", ["load_path", "save_folder"])
def test_a_checkpoint_of_an_earlier_format_is_refused(tmp_path, argument):
    trained(save_folder=tmp_path, save_interval="1ep")
    for name in saved(tmp_path):
        edit_manifest(tmp_path / name, {"schema": 1})
    more = {"save_folder": {"autoresume": True}, "load_path": {}}
    with pytest.raises(VersionError, match=r"schema 1, .*: read it with the commit that saved it"):
        make_trainer(**{argument: tmp_path}, **more[argument])


def test_a_checkpoint_holds_its_timestamp_once_and_the_description_as_it_is(tmp_path):
    def unusual(parameters):
        group = {"params": list(parameters), "limit": math.inf, "note": "\udcff"}
        return torch.optim.SGD([group], lr=0.1)

    trainer = make_trainer(optimizers=unusual, save_folder=tmp_path)
    trainer.fit()

    data = json.loads((tmp_path / saved(tmp_path)[-1] / "state.json").read_text())
    assert data["run"]["$json"] == trainer._records.describe(trainer.state)
    assert data.keys() == {"state", "run", "on_device"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChangedRunWarning)
        make_trainer(optimizers=unusual, load_path=tmp_path)


def written(path, tree, on_device=()):
    """Write a checkpoint with valid hashes, whatever it holds."""
    tensors, data = pack(tree)
    data["on_device"] = on_device
    writer.write(path, tensors, data, info={"complete": True})
    return path


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"state": {}}, "was not written by a Trainer"),
        ({"run": {}, "state": {}}, "is damaged: it has no timestamp"),
        ({"run": {}, "state": [1, 2]}, "is damaged: its state is a list"),
        ({"run": {}, "state": {"timestamp": 3}}, "state/timestamp is 3, and must be a Timesta"),
        (
            {"run": {}, "state": {"timestamp": Timestamp(), "key": Key(17), "code": "import os"}},
            "has no averages, callbacks, .*, which save_ignore_keys excluded",
        ),
    ],
)
def test_checkpoint_of_something_else_is_an_error(tree, message, tmp_path):
    with pytest.raises((DamagedCheckpointError, MismatchError), match=message):
        make_trainer(load_path=written(tmp_path / "c", tree))


@pytest.mark.parametrize("on_device", [None, 3, "model", [["model"]], ["nothing"]])
def test_forged_list_of_tensors_on_a_device_is_an_error(on_device, tmp_path):
    tree = {"run": {"id": "a"}, "state": make_trainer()._checkpoints.capture(False)}

    with pytest.raises(DamagedCheckpointError, match="on_device does not name its tensors"):
        make_trainer(load_path=written(tmp_path / "c", tree, on_device))


def test_callback_that_is_added_later_restores_its_state(tmp_path):
    options = {"eval_dataloader": batches([4]), "save_folder": tmp_path, "autoresume": True}
    make_trainer(callbacks=[EarlyStopper("loss")], **options).fit()
    trainer = make_trainer(**options)

    added = trainer.add_callback(EarlyStopper("loss"))

    assert added.state_dict()["best"] is not None


# --- by hand ---


def test_save_checkpoint_between_fits(tmp_path):
    trainer = make_trainer(max_duration="1ep")
    trainer.fit()
    path = trainer.save_checkpoint(tmp_path / "by" / "hand")
    with pytest.raises(CheckpointExistsError):
        trainer.save_checkpoint(path)
    trainer.save_checkpoint(path, overwrite=True)

    again = make_trainer(load_path=path, max_duration="1ep")
    again.fit(duration="1ep")

    assert same(weights(again.state.model), trained())


def test_save_checkpoint_in_the_middle_of_a_batch_is_an_error(tmp_path):
    class Saves(Callback):
        def after_forward(self, state, logger):
            trainer.save_checkpoint(tmp_path / "c")

    trainer = make_trainer(callbacks=[Saves()])

    with pytest.raises(RuntimeError, match=r"return Control\.SAVE from a callback"):
        trainer.fit()


# --- what can go wrong ---


@pytest.fixture
def fail(monkeypatch):
    """Return a function that lets some writes fail, by their number."""
    write, attempts = writer.write, count(1)

    def let_fail(numbers):
        def sometimes(*args, **kwargs):
            if next(attempts) in numbers:
                raise UnwritableCheckpointError("no space left")
            return write(*args, **kwargs)

        monkeypatch.setattr(writer, "write", sometimes)

    return let_fail


def test_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, fail):
    fail([1])

    with pytest.raises(UnwritableCheckpointError, match="no space left"):
        make_trainer(save_folder=tmp_path).fit()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("failing", "keep", "names"),
    [([2, 3], 1, ["ep2-ba6"]), ([3], 3, ["ep0-ba2", "ep1-ba4", "ep2-ba6"])],
)
def test_save_error_warn_continues_and_keeps_earlier_checkpoints(
    failing, keep, names, background, tmp_path, fail
):
    fail(failing)
    seen = Watch(Event.BATCH_END, read=lambda state: saved(tmp_path))
    trainer = make_trainer(
        save_folder=tmp_path,
        save_interval="2ba",
        save_num_checkpoints_to_keep=keep,
        save_error="warn",
        save_in_background=background,
        callbacks=[seen],
    )

    with pytest.warns(UnsavedCheckpointWarning, match="training continues: no space left"):
        trainer.fit()

    first = 3 + background  # the batch after the first checkpoint is sure to be on the disk
    assert all(seen.values[first:])  # the last good one is never gone, and none is broken
    assert saved(tmp_path) == names


@pytest.mark.parametrize("background", [False, True])
def test_deleted_folder_is_not_created_again(background, tmp_path):
    class Vanishes(Callback):
        def epoch_end(self, state, logger):
            if state.timestamp.epoch == 2:
                while (tmp_path / "runs").exists():  # one may be written at this moment
                    shutil.rmtree(tmp_path / "runs", ignore_errors=True)

    trainer = make_trainer(
        save_folder=tmp_path / "runs",
        callbacks=[Vanishes()],
        save_error="warn",
        save_in_background=background,
    )

    with (
        pytest.warns(UnsavedCheckpointWarning, match="run record cannot be written"),
        pytest.warns(UnsavedCheckpointWarning, match="The parent folder must exist"),
    ):
        trainer.fit()

    assert trainer.state.timestamp.batch == 6
    assert not (tmp_path / "runs").exists()


def test_memory_that_cannot_be_saved_is_saved(tmp_path):
    def remembers(event, state: State):
        return state.remember("mine", {"when": object()})

    with pytest.raises(UnsavableError, match="state/memory/mine/when has type object"):
        make_trainer(algorithms=[remembers], save_folder=tmp_path).fit()


def test_checkpoint_records_the_run(tmp_path):
    make_trainer(save_folder=tmp_path, algorithms=[MixUp(0.3)], max_duration="1ep").fit()

    run = json.loads((tmp_path / "ep1-ba3" / "state.json").read_text())["run"]["$json"]

    assert run["seed"] == 17
    assert run["algorithms"]["MixUp"].startswith("MixUp(alpha=0.3")
    assert run["versions"]["torch"] == torch.__version__
    assert run["optimizers"] == ["SGD"]
    assert {"platform", "commit", "command", "num_threads", "device"} <= run.keys()


DAMAGES = {
    "no tensors": lambda path: (path / "tensors.safetensors").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "other bytes": damage,
    "empty": lambda path: [file.unlink() for file in path.iterdir()],
}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("harm", DAMAGES)
def test_a_damaged_checkpoint_is_put_aside_when_the_run_saves_there_again(
    harm, background, tmp_path
):
    def run(duration):
        return make_trainer(
            save_folder=tmp_path,
            save_interval="1ba",
            save_in_background=background,
            autoresume=True,
            max_duration=duration,
        ).fit()

    run("3ba")
    DAMAGES[harm](tmp_path / "ep1-ba3")
    left = {path.name: path.read_bytes() for path in (tmp_path / "ep1-ba3").iterdir()}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        state = run("3ba")
    shown = [str(one.message) for one in told if one.category is BrokenCheckpointWarning]
    assert f"ep1-ba3 is damaged, and was renamed to {tmp_path / 'ep1-ba3.damaged-1'}" in shown[-1]
    again = run("3ba")  # what is aside isn't looked at

    aside = {path.name: path.read_bytes() for path in (tmp_path / "ep1-ba3.damaged-1").iterdir()}
    assert aside == left
    assert saved(tmp_path) == ["ep0-ba1", "ep0-ba2", "ep0-ba3", "ep1-ba3"]
    assert again.timestamp.batch == 3
    assert same(weights(state.model), trained(max_duration="3ba"))


def test_a_folder_of_other_files_in_the_place_of_a_checkpoint_is_not_moved(tmp_path):
    (tmp_path / "ep1-ba3").mkdir()
    (tmp_path / "ep1-ba3" / "notes.txt").write_text("mine")

    with pytest.raises(CheckpointExistsError):
        make_trainer(save_folder=tmp_path, max_duration="3ba").fit()

    assert (tmp_path / "ep1-ba3" / "notes.txt").read_text() == "mine"


# --- checkpoints that the processes of a run read together ---


CPU = torch.device("cpu")


def outcomes(errors):
    """Let processes agree on a function that raises these errors by rank."""

    def agree(processes):
        def function():
            if errors[processes.rank] is not None:
                raise errors[processes.rank]
            return processes.rank

        return Reader(CPU, processes).agree(function)

    return together(len(errors), agree)


def test_all_processes_return_what_they_read():
    assert outcomes([None, None]) == [0, 1]


@pytest.mark.parametrize(
    "errors",
    [
        [None, DamagedCheckpointError("a file is damaged")],
        [MissingCheckpointError("no checkpoint"), None],
        [VersionError("schema 9"), DamagedCheckpointError("a file is damaged")],
    ],
)
def test_all_processes_raise_the_first_error(errors):
    first = next(error for error in errors if error is not None)
    for error in outcomes(errors):
        assert (type(error), str(error)) == (type(first), str(first))


@pytest.mark.parametrize("error", [MissingCheckpointError("no checkpoint"), OSError("no disk")])
def test_checkpoint_that_only_rank_0_can_read_is_not_skipped(error):
    for raised in outcomes([None, error]):
        assert isinstance(raised, ProcessError)
        assert not isinstance(raised, CheckpointError)
        assert str(raised) == f"rank 1 failed: {type(error).__name__}: {error}"


def test_checkpoint_that_is_replaced_before_its_values_are_read_is_refused(tmp_path):
    reader, tensors = Reader(CPU, sharded=True), {"w": torch.ones(3)}
    outline = read_outline(write(tmp_path / "it", tensors, None), Processes())
    assert torch.equal(reader.read_values(outline, {}).tensors["w"], tensors["w"])

    write(tmp_path / "it", {"w": torch.zeros(3)}, None, overwrite=True)
    with pytest.raises(DamagedCheckpointError, match="it was replaced by another checkpoint"):
        reader.read_values(outline, {})
