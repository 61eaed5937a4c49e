"""The Trainer's arguments for saving and loading."""

import json
import re
import shutil
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from composable import Callback, Control, Event, State
from composable.algorithms import EMA, BlurPool, MixUp
from composable.callbacks import CheckpointSaver, EarlyStopper, UnsavedCheckpointWarning
from composable.checkpoint import (
    CheckpointExistsError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    UnsavableError,
    UnwritableCheckpointError,
    files,
    pack,
)
from composable.metrics import accuracy
from composable.trainer.resume import BrokenCheckpointWarning, ChangedRunWarning
from tests.support.runs import conv_net
from tests.support.tiny import Ask, Watch, batches, linear, make_trainer, same, weights


def saved(folder):
    """Return the names of the whole checkpoints in a folder, the oldest first."""
    whole, broken = files.find(folder)
    assert not broken
    return [found.path.name for found in reversed(whole)]


def named(folder):
    """List the checkpoints in a folder, and not the record of the run."""
    names = (path.name for path in folder.iterdir() if path.is_dir())
    return sorted(name for name in names if not name.startswith("."))


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
def test_a_run_is_saved_at_its_interval_and_at_its_end(interval, names, tmp_path):
    make_trainer(save_folder=tmp_path / "a" / "b", save_interval=interval).fit()

    assert named(tmp_path / "a" / "b") == names


def test_a_run_that_was_saved_at_its_end_is_not_saved_again(tmp_path):
    seen = Watch(Event.AFTER_SAVE, read=lambda state: state.timestamp.batch)

    make_trainer(save_folder=tmp_path, callbacks=[seen], eval_dataloader=batches([4])).fit()

    assert seen.values == [3, 6]


def test_a_callback_that_asks_has_the_run_saved(tmp_path):
    asks = Ask(Control.SAVE, Event.BATCH_END, 2)

    make_trainer(save_folder=tmp_path, save_interval=None, callbacks=[asks]).fit()

    assert saved(tmp_path) == ["ep0-ba2"]


def test_names_have_the_time(tmp_path):
    make_trainer(
        save_folder=tmp_path,
        save_filename="{iteration}-{epoch}-{batch}-{sample}-{token}",
        count_tokens=lambda batch: 7,
        max_duration="1ep",
    ).fit()

    assert named(tmp_path) == ["0-1-3-12-21"]


def test_the_newest_are_kept(tmp_path):
    make_trainer(save_folder=tmp_path, save_interval="1ba", save_num_checkpoints_to_keep=2).fit()

    assert saved(tmp_path) == ["ep1-ba6", "ep2-ba6"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_run_that_goes_on_keeps_as_many(tmp_path):
    options = {"save_folder": tmp_path, "save_interval": "1ba", "save_num_checkpoints_to_keep": 2}
    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=[Breaks(4)], **options).fit()
    assert saved(tmp_path) == ["ep1-ba4"] or saved(tmp_path) == ["ep0-ba3", "ep1-ba4"]

    make_trainer(autoresume=True, **options).fit()

    assert saved(tmp_path) == ["ep1-ba6", "ep2-ba6"]


class Breaks(Callback):
    """Ends a run after the save of a batch."""

    def __init__(self, batch):
        self.batch = batch

    def after_save(self, state, logger):
        if state.timestamp.batch == self.batch:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("mode", "best"), [("max", "ep2-ba6"), ("min", "ep3-ba9")])
def test_the_best_is_kept_beside_the_newest(mode, best, tmp_path):
    scores = iter([0.3, 0.9, 0.1, 0.5, 0.4])

    def score(outputs, targets):
        return torch.full((len(targets),), next(scores))

    options = {"save_num_checkpoints_to_keep": 1, "save_interval": "1ep"}
    make_trainer(
        eval_dataloader=batches([4]),
        metrics={"score": score},
        max_duration="5ep",
        save_folder=tmp_path,
        save_best="eval/score",
        save_best_mode=mode,
        **options,
    ).fit()

    assert saved(tmp_path) == sorted([best, "ep5-ba15"])


def test_a_better_evaluation_is_saved_whatever_the_interval(tmp_path):
    scores = iter([0.1, 0.3, 0.2])

    def score(outputs, targets):
        return torch.full((len(targets),), next(scores))

    make_trainer(
        eval_dataloader=batches([4]),
        metrics={"score": score},
        eval_interval="2ba",
        save_folder=tmp_path,
        save_interval="100ep",
        save_best="eval/score",
    ).fit()

    assert saved(tmp_path) == ["ep0-ba2", "ep1-ba4", "ep2-ba6"]


def test_several_savers_have_folders_of_their_own(tmp_path):
    make_trainer(
        callbacks=[
            CheckpointSaver(tmp_path / "often", save_interval="2ba", num_checkpoints_to_keep=1),
            CheckpointSaver(tmp_path / "rarely", save_interval="2ep"),
        ]
    ).fit()

    assert saved(tmp_path / "often") == ["ep1-ba6"]  # nothing was trained on after that
    assert saved(tmp_path / "rarely") == ["ep2-ba6"]


def test_saving_in_the_background_saves_the_moment(tmp_path, monkeypatch):
    write = files.write

    def slowly(*args, **kwargs):
        time.sleep(0.05)
        return write(*args, **kwargs)

    make_trainer(save_folder=tmp_path / "at once", save_interval="2ba").fit()
    monkeypatch.setattr(files, "write", slowly)
    make_trainer(save_folder=tmp_path / "later", save_interval="2ba", save_in_background=True).fit()

    assert saved(tmp_path / "later") == saved(tmp_path / "at once")
    for name in saved(tmp_path / "later"):
        now = files.read(tmp_path / "at once" / name).tensors
        then = files.read(tmp_path / "later" / name).tensors
        assert same(now, then)


# --- other runs, and what is narrowed ---


def test_a_folder_of_another_run_is_refused_before_training(tmp_path):
    make_trainer(save_folder=tmp_path).fit()

    with pytest.raises(CheckpointExistsError, match=r"has checkpoints of another run.*autoresume"):
        make_trainer(save_folder=tmp_path)

    make_trainer(save_folder=tmp_path, save_overwrite=True).fit()
    assert saved(tmp_path) == ["ep1-ba3", "ep2-ba6"]


def test_weights_can_be_saved_and_loaded_alone(tmp_path):
    done = make_trainer(save_folder=tmp_path, save_weights_only=True).fit()

    with pytest.raises(
        MismatchError, match="cannot be used to resume; pass load_weights_only=True"
    ):
        make_trainer(load_path=tmp_path / "ep2-ba6")
    other = make_trainer(linear(5), load_path=tmp_path, load_weights_only=True)

    assert same(weights(other.state.model), weights(done.model))
    assert other.state.timestamp.batch == 0
    assert other.fit().timestamp.batch == 6


def test_foreign_weights_can_be_loaded(tmp_path):
    torch.save(linear(5).state_dict(), tmp_path / "weights.pt")

    trainer = make_trainer(load_path=tmp_path / "weights.pt", load_weights_only=True)

    assert same(weights(trainer.state.model), weights(linear(5)))


def test_what_is_left_out_can_be_left_as_it_is(tmp_path):
    options = {"algorithms": [EMA("2ba")], "max_duration": "1ep"}
    make_trainer(save_folder=tmp_path, save_ignore_keys=["memory/*", "optimizers"], **options).fit()

    with pytest.raises(
        MismatchError, match="cannot be used to resume; pass load_weights_only=True"
    ):
        make_trainer(load_path=tmp_path / "ep1-ba3", **options)
    with pytest.raises(MissingCheckpointError, match="or a folder with a complete one"):
        make_trainer(load_path=tmp_path, **options)
    with pytest.raises(MismatchError, match="has no optimizers"):
        make_trainer(load_path=tmp_path / "ep1-ba3", load_ignore_keys=["memory/*"], **options)
    again = make_trainer(
        load_path=tmp_path / "ep1-ba3", load_ignore_keys=["memory/*", "optimizers"], **options
    )

    assert again.state.timestamp.batch == 3
    assert not again.state.memory


def test_what_is_not_to_be_loaded_stays(tmp_path):
    make_trainer(save_folder=tmp_path, max_duration="1ep").fit()
    fresh = linear(5)

    again = make_trainer(
        linear(5), load_path=tmp_path, load_ignore_keys=["model/weights/bias"], max_duration="1ep"
    )

    assert torch.equal(again.state.model.bias, fresh.bias)
    assert not torch.equal(again.state.model.weight, fresh.weight)


# --- resuming ---


def test_autoresume_begins_where_there_is_nothing(tmp_path):
    trainer = make_trainer(save_folder=tmp_path / "new", autoresume=True)

    assert trainer.fit().timestamp.batch == 6


def test_a_run_that_was_over_is_over(tmp_path):
    options = {"save_folder": tmp_path, "eval_dataloader": batches([4])}
    done = make_trainer(**options).fit()
    seen = Watch()

    again = make_trainer(autoresume=True, callbacks=[seen], **options)
    state = again.fit()

    assert same(weights(state.model), weights(done.model))
    assert Event.FIT_END in dict(seen.seen)
    assert not {Event.BATCH_START, Event.EVAL_START} & dict(seen.seen).keys()
    assert again.fit(duration="1ep").timestamp.batch == 9


def test_a_longer_run_goes_on(tmp_path):
    make_trainer(save_folder=tmp_path, max_duration="1ep").fit()

    with pytest.warns(ChangedRunWarning, match="requested_duration: 1ep -> 2ep"):
        trainer = make_trainer(save_folder=tmp_path, max_duration="2ep", autoresume=True)

    assert trainer.fit().timestamp.batch == 6


def test_another_set_of_algorithms_is_told(tmp_path):
    make_trainer(save_folder=tmp_path, max_duration="1ep").fit()

    with pytest.warns(ChangedRunWarning, match="algorithms: {} -> {'EMA'"):
        make_trainer(load_path=tmp_path, max_duration="1ep", algorithms=[EMA("2ba")])


def test_the_seed_is_that_of_the_run(tmp_path):
    make_trainer(save_folder=tmp_path, seed=5).fit()

    assert make_trainer(load_path=tmp_path, seed=None).state.key.seed == 5
    with pytest.raises(ValueError, match="seed=17 differs from the seed 5 of the run to resume"):
        make_trainer(load_path=tmp_path, seed=17)


def damage(checkpoint):
    path = checkpoint / "tensors.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_a_broken_checkpoint_is_passed_over_with_a_warning(tmp_path):
    make_trainer(save_folder=tmp_path, save_interval="2ba").fit()
    damage(tmp_path / "ep2-ba6")
    (tmp_path / "ep1-ba6" / "state.json").write_text("{")

    with pytest.warns(BrokenCheckpointWarning) as told:
        trainer = make_trainer(save_folder=tmp_path, save_interval="2ba", autoresume=True)

    assert trainer.state.timestamp.batch == 4
    assert {"ep2-ba6" in str(w.message) for w in told} == {True, False}


def test_a_broken_checkpoint_that_was_named_is_an_error(tmp_path):
    make_trainer(save_folder=tmp_path).fit()
    damage(tmp_path / "ep2-ba6")

    with pytest.raises(DamagedCheckpointError, match=r"ep2-ba6.*tensors\.safetensors is damaged"):
        make_trainer(load_path=tmp_path / "ep2-ba6")


def test_a_path_with_nothing_is_an_error(tmp_path):
    with pytest.raises(MissingCheckpointError, match="load_path="):
        make_trainer(load_path=tmp_path / "nothing")


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
def test_another_run_is_refused_and_nothing_is_loaded(changes, message, tmp_path):
    make_trainer(save_folder=tmp_path).fit()
    made = {name: make() for name, make in changes.items()}
    model = made.pop("model", None) or linear(5)
    before = weights(model)

    with pytest.raises(MismatchError, match=message):
        make_trainer(model, load_path=tmp_path, **made)

    assert same(weights(model), before)


STATES = [
    ({"state": {}}, "was not written by a Trainer"),
    ({"run": {}, "state": {}}, "is damaged: it has no timestamp"),
    ({"run": {}, "state": [1, 2]}, "is damaged: its state is a list"),
    ({"run": {}, "state": {"timestamp": 3}}, "is damaged: timestamp is a int, not Timestamp"),
    ({"run": {}, "state": {"code": "import os"}}, "is damaged: unknown entry 'code'"),
]


@pytest.mark.parametrize(("tree", "message"), STATES)
def test_a_checkpoint_of_anything_but_a_run_is_an_error(tree, message, tmp_path):
    tensors, data = pack(tree)
    data["on_device"] = []
    files.write(tmp_path / "c", tensors, data, info={"complete": True})

    with pytest.raises((DamagedCheckpointError, MismatchError), match=message):
        make_trainer(load_path=tmp_path / "c")


@pytest.mark.parametrize("on_device", [None, 3, "model", [["model"]], ["nothing"]])
def test_a_forged_list_of_tensors_on_a_gpu_is_an_error(on_device, tmp_path):
    trainer = make_trainer()
    tensors, data = pack({"run": {"id": "a"}, "state": trainer._saving.capture(False)})
    data["on_device"] = on_device
    files.write(tmp_path / "c", tensors, data, info={"complete": True})

    with pytest.raises(DamagedCheckpointError, match="on_device does not name its tensors"):
        make_trainer(load_path=tmp_path / "c")


FORGED = [
    ("previous_timestamp", None),
    ("optimizers", [{"state": {}, "param_groups": [{"params": "x"}]}]),
    ("optimizers", [None]),
    ("progress", {}),
    ("progress", {"num_fits": "many"}),
    ("rates", {}),
    ("data", {"generators": 3}),
    ("evaluation", {"last_run": 3}),
    ("guard", {"skipped_batches": None}),
    ("microbatches", 3),
    ("requests", {"pending": "all"}),
    ("model", {}),
    ("model", {"weights": 3, "buffers": {}}),
    ("memory", {"EMA": 3}),
    ("metrics", {"eval": 3}),
    ("callbacks", {"EarlyStopper": {"other": 1}}),
]


@pytest.mark.filterwarnings("ignore::composable.trainer.resume.ChangedRunWarning")
@pytest.mark.parametrize(("part", "value"), FORGED)
def test_a_forged_state_is_a_named_error_or_another_state(part, value, tmp_path):
    trainer = make_trainer()
    trainer.fit()
    tree = {**trainer._saving.capture(False), part: value}
    tensors, data = pack({"run": {"id": "a"}, "state": tree})
    data["on_device"] = []
    files.write(tmp_path / "c", tensors, data, info={"complete": True})

    errors = (DamagedCheckpointError, MismatchError)
    plain = part in ("memory", "metrics")
    with nullcontext() if plain else pytest.raises(errors, match=re.escape(str(tmp_path / "c"))):
        make_trainer(load_path=tmp_path / "c", callbacks=[EarlyStopper("loss")])


def test_state_of_two_callbacks_of_one_class_is_kept_apart(tmp_path):
    def stoppers():
        return [
            EarlyStopper("accuracy", patience="9ep"),
            EarlyStopper("loss", patience="9ep"),
        ]

    options = {
        "eval_dataloader": batches([4]),
        "metrics": {"accuracy": accuracy},
        "save_folder": tmp_path,
        "autoresume": True,
    }
    first = stoppers()
    make_trainer(callbacks=first, **options).fit()
    second = stoppers()
    make_trainer(callbacks=second, **options)

    assert [one.state_dict() for one in second] == [one.state_dict() for one in first]
    assert first[0].state_dict() != first[1].state_dict()


def test_a_callback_that_is_added_later_gets_what_it_remembered(tmp_path):
    options = {"eval_dataloader": batches([4]), "save_folder": tmp_path, "autoresume": True}
    make_trainer(callbacks=[EarlyStopper("loss")], **options).fit()
    trainer = make_trainer(**options)

    added = trainer.add_callback(EarlyStopper("loss"))

    assert added.state_dict()["best"] is not None


def test_surgery_is_done_again_before_the_weights_are_put_back(tmp_path):
    data = [(torch.randn(4, 2, 8, 8), torch.randint(3, (4,))) for _ in range(3)]
    options = {
        "train_dataloader": data,
        "algorithms": [BlurPool(min_channels=0)],
        "save_folder": tmp_path,
        "autoresume": True,
    }
    done = make_trainer(conv_net(), **options).fit()

    again = make_trainer(conv_net(seed=5), **options)

    assert same(weights(again.state.model), weights(done.model))


# --- by hand ---


def test_a_run_can_be_saved_by_hand_between_fits(tmp_path):
    plain = make_trainer()
    plain.fit()
    trainer = make_trainer(max_duration="1ep")
    trainer.fit()
    path = trainer.save_checkpoint(tmp_path / "by" / "hand")
    with pytest.raises(CheckpointExistsError):
        trainer.save_checkpoint(path)
    trainer.save_checkpoint(path, overwrite=True)

    again = make_trainer(load_path=path, max_duration="1ep")
    again.fit(duration="1ep")

    assert same(weights(again.state.model), weights(plain.state.model))


def test_save_checkpoint_in_the_middle_of_a_batch_is_an_error(tmp_path):
    class Saves(Callback):
        def after_forward(self, state, logger):
            trainer.save_checkpoint(tmp_path / "c")

    trainer = make_trainer(callbacks=[Saves()])

    with pytest.raises(RuntimeError, match=r"return Control\.SAVE from a callback"):
        trainer.fit()


# --- what can go wrong ---


def unwritable(*args, **kwargs):
    raise UnwritableCheckpointError("no space left")


def test_a_checkpoint_that_can_not_be_written_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "write", unwritable)

    with pytest.raises(UnwritableCheckpointError, match="no space left"):
        make_trainer(save_folder=tmp_path).fit()


@pytest.mark.parametrize("background", [False, True])
def test_or_the_run_goes_on_with_a_warning(background, tmp_path, monkeypatch):
    options = {"save_folder": tmp_path, "save_interval": "2ba", "save_num_checkpoints_to_keep": 1}
    write, count = files.write, 0

    def sometimes(*args, **kwargs):
        nonlocal count
        count += 1
        return unwritable() if count in (2, 3) else write(*args, **kwargs)

    monkeypatch.setattr(files, "write", sometimes)
    seen = Watch(Event.BATCH_END, read=lambda state: saved(tmp_path))

    with pytest.warns(UnsavedCheckpointWarning, match="training continues: no space left"):
        make_trainer(
            save_error="warn", save_in_background=background, callbacks=[seen], **options
        ).fit()

    first = 3 + background  # the batch after the first checkpoint is sure to be on the disk
    assert all(seen.values[first:])  # the last good one is never gone, and none is broken
    assert saved(tmp_path) == ["ep2-ba6"]


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoint_that_was_not_written_takes_nobodys_place(background, tmp_path, monkeypatch):
    write, count = files.write, 0

    def sometimes(*args, **kwargs):
        nonlocal count
        count += 1
        return unwritable() if count == 2 else write(*args, **kwargs)

    monkeypatch.setattr(files, "write", sometimes)

    with pytest.warns(UnsavedCheckpointWarning):
        make_trainer(
            save_folder=tmp_path,
            save_interval="2ba",
            save_num_checkpoints_to_keep=2,
            save_error="warn",
            save_in_background=background,
            max_duration="6ba",
            train_dataloader=batches([4] * 9),
        ).fit()

    assert saved(tmp_path) == ["ep0-ba2", "ep0-ba6"]


@pytest.mark.parametrize("background", [False, True])
def test_a_folder_that_vanishes_is_not_made_again(background, tmp_path):
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


def test_memory_that_can_not_be_saved_is_named(tmp_path):
    def remembers(event, state: State):
        return state.remember("mine", {"when": object()})

    with pytest.raises(UnsavableError, match="state/memory/mine/when has type object"):
        make_trainer(algorithms=[remembers], save_folder=tmp_path).fit()


def test_a_checkpoint_says_what_the_run_was(tmp_path):
    make_trainer(save_folder=tmp_path, algorithms=[MixUp(0.3)], max_duration="1ep").fit()

    run = json.loads((tmp_path / "ep1-ba3" / "state.json").read_text())["run"]

    assert run["seed"] == 17
    assert run["algorithms"]["MixUp"].startswith("MixUp(alpha=0.3")
    assert run["versions"]["torch"] == torch.__version__
    assert run["optimizers"] == ["SGD"]
    assert {"platform", "commit", "command", "num_threads", "device"} <= run.keys()


# --- arguments ---

BAD = [
    ({"save_interval": "0ba"}, ValueError, "save_interval='0ba' must be greater than 0"),
    ({"save_filename": "last"}, ValueError, "must be unique for each checkpoint"),
    ({"save_filename": "{run}-{batch}"}, ValueError, "no fields other than {epoch}, {batch}"),
    ({"save_filename": "a/{batch}"}, ValueError, "must be a name, not a path"),
    ({"save_filename": 3}, TypeError, "filename=3 must be a str"),
    ({"save_num_checkpoints_to_keep": 0}, ValueError, "must be a positive integer"),
    ({"save_overwrite": 1}, TypeError, "overwrite=1 must be True or False"),
    ({"save_error": "ignore"}, ValueError, "on_error='ignore' must be one of 'raise', 'warn'"),
    ({"save_best": "accuracy"}, ValueError, "such as 'eval/accuracy'"),
    ({"save_best_mode": "best"}, ValueError, "mode='best' must be 'min', 'max' or None"),
    ({"save_ignore_keys": [3]}, TypeError, "must be a list of patterns"),
    ({"load_ignore_keys": 3}, TypeError, "load_ignore_keys=3 must be a list of patterns"),
    (
        {"autoresume": True, "save_weights_only": True},
        ValueError,
        "only a complete checkpoint can be",
    ),
    ({"autoresume": 1}, TypeError, "autoresume=1 must be True or False"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_arguments_are_checked(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        make_trainer(save_folder=tmp_path, **options)


def test_resuming_needs_a_folder():
    with pytest.raises(ValueError, match="autoresume=True needs a save_folder"):
        make_trainer(autoresume=True)


@pytest.mark.parametrize("options", [{"save_interval": "2ep"}, {"save_best": "eval/loss"}])
def test_arguments_of_saving_need_a_folder(options):
    with pytest.raises(ValueError, match="needs a save_folder"):
        make_trainer(**options)
