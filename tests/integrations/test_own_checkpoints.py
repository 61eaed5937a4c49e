"""Checkpoints of an own loop: what they have, when they are saved, what is kept, and errors."""

import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from composable.algorithms import EMA, MixUp
from composable.callbacks import CheckpointSaver
from composable.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    MismatchError,
    UnsavableError,
    files,
)
from composable.cli import main
from composable.distributed.signals import Preempted
from composable.integrations import adapt_loop
from composable.resume.lock import FolderInUseError
from tests.integrations.table import SGD
from tests.support.commands import Command
from tests.support.data import batches, shuffling_loader
from tests.support.models import mlp, same, weights
from tests.support.own_run import KilledError, OwnRun, equal
from tests.support.processes import wait_until
from tests.support.runs import make_trainer

ALGORITHMS = [MixUp(), EMA("2ba")]


def begin(algorithms=ALGORITHMS, model=None, **options):
    model = mlp() if model is None else model
    optimizer = SGD(model.parameters())
    options = {"loss_fn": cross_entropy, "seed": 17, **options}
    return adapt_loop(algorithms, model, optimizer, **options), optimizer


def step(t, optimizer, inputs):
    t.loss(t.model(inputs)).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(t, optimizer, loader, epochs=2, then=lambda: None):
    for _ in range(t.state.timestamp.epoch, epochs):
        for inputs, _ in t.epoch(loader):
            step(t, optimizer, inputs)
            then()


def names(folder):
    return sorted(found.path.name for found in files.find(folder)[0])


# --- save and resume


def test_saving_changes_nothing(tmp_path):
    run = OwnRun("generator")

    saved, rarely = run.train(tmp_path / "a"), attrs.evolve(run, save_interval="3ep")

    assert equal(saved, rarely.train(tmp_path / "b"))


def test_resume_of_an_empty_folder_starts_at_the_beginning(tmp_path):
    t, _ = begin()

    assert not t.resume(tmp_path / "none")
    assert t.state.timestamp.batch == 0
    assert t.checkpoints.saver.folder == tmp_path / "none"


@pytest.mark.parametrize(
    ("ignored", "saves"), [((), True), ("optimizers", False), (["optimizers"], False)]
)
def test_one_checkpoint_is_resumed_from_by_its_path(tmp_path, ignored, saves):
    t, optimizer = begin()
    paths = []
    train(t, optimizer, batches(), then=lambda: paths.append(t.save(tmp_path / "a")))
    folder = tmp_path / "b" if saves else None
    u, other = begin(save_folder=folder)

    assert u.resume(paths[1], load_ignore_keys=ignored)
    assert u.state.timestamp.batch == 2
    assert not saves or u.checkpoints.saver.folder == folder
    assert bool(other.state_dict()["state"]) is not bool(ignored)


def test_an_epoch_that_was_left_ends_with_the_save(tmp_path):
    t, optimizer = begin()
    for inputs, _ in t.epoch(batches()):
        step(t, optimizer, inputs)
        break
    t.save(tmp_path)
    u, _ = begin()
    u.resume(tmp_path)

    assert (u.state.timestamp.epoch, u.state.timestamp.batch_in_epoch) == (1, 0)


def test_a_loop_that_failed_is_saved_within_its_epoch(tmp_path):
    t, optimizer = begin()
    try:
        train(t, optimizer, batches(), then=lambda: 1 / 0)
    except ZeroDivisionError:
        t.save(tmp_path)
    u, other = begin()
    u.resume(tmp_path)
    assert u.state.timestamp.batch_in_epoch == 1

    train(u, other, batches())
    v, third = begin()
    train(v, third, batches())
    assert same(weights(u.model), weights(v.model))


def test_what_a_script_draws_before_its_first_epoch_is_the_same_after_a_resume(tmp_path):
    def draws():
        torch.manual_seed(0)
        t, optimizer = begin(save_folder=tmp_path, autoresume=True)
        drawn = torch.randperm(9).tolist()  # as to split the data
        train(t, optimizer, batches(), t.state.timestamp.epoch + 1)
        return drawn

    assert draws() == draws() == draws()


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_is_saved_whose_step_a_scaler_skipped(tmp_path, first):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    t, optimizer = begin(extra={"scaler": scaler})
    for inputs, _ in t.epoch(batches()):
        if first:
            optimizer.zero_grad()
        scaler.scale(t.loss(t.model(inputs)) * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
        if not first:
            optimizer.zero_grad()
        t.save(tmp_path)

    assert names(tmp_path) == ["ep0-ba1", "ep0-ba2", "ep0-ba3"]


class WeightedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, outputs, targets):
        return cross_entropy(outputs * self.weight, targets)


def test_the_parameters_of_a_loss_are_saved(tmp_path):
    t, loss = begin_with_loss(WeightedLoss(), lambda loss: {"loss_fn": loss})
    train(t, t.state.optimizers[0], batches(), 1)
    t.save(tmp_path)
    u, other = begin_with_loss(WeightedLoss(), lambda loss: {"loss_fn": loss})
    u.resume(tmp_path)

    assert not torch.equal(loss.weight, torch.ones(3))
    assert torch.equal(loss.weight, other.weight)


def begin_with_loss(loss, options):
    model = mlp()
    optimizer = SGD([*model.parameters(), *loss.parameters()])
    options = {"loss_fn": cross_entropy, **options(loss)}
    return adapt_loop([], model, optimizer, seed=1, **options), loss


def test_parameters_that_would_be_lost_are_refused(tmp_path):
    t, _ = begin_with_loss(WeightedLoss(), lambda _: {})
    with pytest.raises(UnsavableError, match=r"t\.save\(folder\): 1 parameters .* \[3\]"):
        t.save(tmp_path / "a")
    t, _ = begin_with_loss(WeightedLoss(), lambda loss: {"extra": {"loss": loss}})
    assert t.save(tmp_path / "b").is_dir()


def test_random_numbers_continue_after_the_last_batch(tmp_path):
    def draw_after_epoch():
        torch.rand(3)  # as the iterators of other loaders do
        t, optimizer = begin(save_folder=tmp_path, autoresume=True)
        epoch = iter(t.epoch(batches()))
        torch.rand(3)
        for inputs, _ in epoch:
            step(t, optimizer, inputs)
        return torch.rand(3)

    torch.manual_seed(1)
    first, again = draw_after_epoch(), draw_after_epoch()
    assert torch.equal(first, again)


# --- what is kept, and the best


def test_a_second_folder_has_all_that_is_saved_there_and_the_first_goes_on(tmp_path):
    saver = CheckpointSaver(tmp_path / "a", save_interval="1ba", num_checkpoints_to_keep=1)
    t, optimizer = begin(save_folder=saver)
    train(t, optimizer, batches(), 1, then=lambda: t.save(tmp_path / "b"))

    assert names(tmp_path / "a") == ["ep0-ba3"]
    assert names(tmp_path / "b") == ["ep0-ba1", "ep0-ba2", "ep0-ba3"]


@pytest.mark.parametrize("kind", [torch.tensor, np.float32, np.float64])
def test_results_are_numbers_of_any_kind(tmp_path, kind):
    t, _ = begin(save_folder=CheckpointSaver(tmp_path, metric="accuracy"))
    t.save(metrics={"accuracy": kind(0.5)})

    assert t.best.value == 0.5
    with pytest.raises(TypeError, match=r"t\.save\(folder\): metrics=.*'high'"):
        t.save(metrics={"accuracy": "high"})


def test_old_checkpoints_are_deleted_and_the_best_is_kept(tmp_path):
    saver = partial(CheckpointSaver, tmp_path, num_checkpoints_to_keep=1, metric="accuracy")
    t, optimizer = begin(save_folder=saver())
    for epoch, accuracy in enumerate([0.1, 0.7, 0.3, 0.2]):
        train(t, optimizer, batches(), epoch + 1)
        t.save(metrics={"accuracy": accuracy})

    assert names(tmp_path) == ["ep2-ba6", "ep4-ba12"]
    assert (t.best.checkpoint.name, t.best.value) == ("ep2-ba6", 0.7)
    u, _ = begin(save_folder=saver(), autoresume=True)
    assert (u.best.checkpoint.name, u.best.value) == ("ep2-ba6", 0.7)
    train(u, u.state.optimizers[0], batches(), 5)
    u.save(metrics={"accuracy": 0.1})
    assert names(tmp_path) == ["ep2-ba6", "ep5-ba15"]


def test_a_path_saves_every_epoch(tmp_path):
    t, optimizer = begin(save_folder=tmp_path)
    train(t, optimizer, batches())

    assert names(tmp_path) == ["ep0-ba3", "ep1-ba6"]


def test_checkpoints_are_inspected_and_their_weights_are_loaded(tmp_path, capsys):
    t, optimizer = begin()
    train(t, optimizer, batches())
    path = t.save(tmp_path)

    trainer = make_trainer(mlp(), load_path=path, load_weights_only=True)
    with t.evaluating():
        assert same(weights(trainer.state.model), weights(t.model))
    main(["checkpoint", "inspect", str(path)])
    assert "MixUp" in capsys.readouterr().out


# --- the user's own values


def test_own_values_and_objects_are_restored_in_place(tmp_path):
    def values():
        return {"step": 0, "seen": [], "teacher": mlp(), "scaler": torch.amp.GradScaler("cpu")}

    own = values()
    t, optimizer = begin(extra=own)
    own["step"], own["seen"] = 3, [torch.ones(2)]
    with torch.no_grad():
        own["teacher"][0].weight.fill_(2.0)
    own["new"] = {"a": (1, None)}
    train(t, optimizer, batches(), 1)
    t.save(tmp_path)
    other = values()
    teacher = other["teacher"]
    u, _ = begin(extra=other)
    u.resume(tmp_path)

    assert u.extra is other
    assert other["teacher"] is teacher
    assert (other["step"], other["new"]) == (3, {"a": (1, None)})
    assert torch.equal(other["seen"][0], torch.ones(2))
    assert same(weights(teacher), weights(own["teacher"]))


def test_an_adapter_of_another_optimizer_is_saved_with_its_model(tmp_path):
    def run(folder, stop=None):
        t, optimizer = begin([EMA("2ba")])
        u, other = begin([EMA("3ba")], model=mlp())
        t.extra.update(u=u, model=u.model, optimizer=other)
        t.resume(folder)
        for _ in range(t.state.timestamp.epoch, 2):
            for i, (inputs, _) in enumerate(t.epoch(batches(), others=[u])):
                if i == stop:
                    return None
                (t.loss(t.model(inputs)) + u.loss(u.model(inputs))).backward()
                for one in (optimizer, other):
                    one.step()
                    one.zero_grad()
                t.save(folder)
        with u.evaluating():
            return weights(u.model), u.state.timestamp.batch

    assert run(tmp_path / "a", stop=1) is None
    ours, expected = run(tmp_path / "a"), run(tmp_path / "b")
    assert same(ours[0], expected[0])
    assert ours[1] == expected[1]


# --- signals and kills

SCRIPT = """
import sys, time, torch
from composable.integrations import adapt_loop
model = torch.nn.Linear(4, 3)
torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
optimizer = torch.optim.Adam(model.parameters())
t = adapt_loop([], model, optimizer, loss_fn=torch.nn.functional.cross_entropy, seed=1,
               save_folder=sys.argv[1], autoresume=True)
data = [(torch.ones(2, 4) * i, torch.tensor([i % 3, 1])) for i in range(8)]
for epoch in range(t.state.timestamp.epoch, 3):
    for inputs, _ in t.epoch(data):
        t.loss(model(inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(t.state.timestamp.batch, flush=True)
        time.sleep(float(sys.argv[2]))
print(model.weight.sum().item(), flush=True)
"""


def test_a_signal_saves_and_ends_the_loop(tmp_path):
    def start(name, seconds):
        (folder := tmp_path / name).mkdir(exist_ok=True)
        arguments = ["", str(folder / "saves"), str(seconds)]
        return Command(folder, f"import sys\nsys.argv = {arguments}\n{SCRIPT}")

    process = start("a", 0.2)
    wait_until(lambda: "2" in process.output(1).split())
    os.kill(process.pid, signal.SIGTERM)
    status, _, errors = process.finish()
    assert status == 143, errors
    assert "saving a checkpoint" in errors
    (saved,) = names(tmp_path / "a/saves")
    assert saved.startswith("ep0-ba")
    again, whole = (start(name, 0).finish()[1].split() for name in "ab")
    assert again[-1] == whole[-1]
    assert len(again) < len(whole)


@pytest.mark.parametrize(
    ("number", "error"), [("SIGTERM", Preempted), ("SIGINT", KeyboardInterrupt)]
)
def test_a_signal_raises_in_the_loop(tmp_path, number, error):
    t, optimizer = begin(save_folder=tmp_path)
    with pytest.raises(error):
        train(t, optimizer, batches(), then=lambda: os.kill(os.getpid(), getattr(signal, number)))

    assert names(tmp_path) == ["ep0-ba1"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_damaged_checkpoint_is_skipped(tmp_path):
    run = OwnRun()
    with pytest.raises(KilledError):
        run.train(tmp_path, ("step", 4))
    newest = max(tmp_path.glob("ep*"), key=lambda one: one.stat().st_mtime)
    file = next(newest.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    with pytest.warns(UserWarning, match="is damaged"):
        ours = run.train(tmp_path)
    assert equal(ours, run.train(tmp_path / "other"))


# --- errors


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("call", ["t.save(folder)", "t.state_dict()"])
def test_a_state_within_a_step_or_an_evaluation_is_not_saved(tmp_path, call, number):
    t, optimizer = begin()
    save = t.state_dict if call == "t.state_dict()" else lambda: t.save(tmp_path)
    for i, (inputs, _) in enumerate(t.epoch(batches(16), accumulate_batches=number), 1):
        loss = t.loss(t.model(inputs))
        with pytest.raises(RuntimeError, match=rf"{re.escape(call)} was called in the middle of a"):
            save()
        loss.backward()
        with pytest.raises(RuntimeError, match="in the middle of a batch"):
            save()
        if i % number == 0:
            optimizer.step()
            with t.evaluating(), pytest.raises(RuntimeError, match=f"{re.escape(call)} .* evaluat"):
                save()
            optimizer.zero_grad()


def test_a_save_without_a_folder_and_a_resume_in_an_epoch_are_refused(tmp_path):
    t, _ = begin()
    with pytest.raises(ValueError, match=r"t\.save\(\) needs a folder"):
        t.save()
    for _ in t.epoch(batches()):
        with pytest.raises(RuntimeError, match=r"t\.resume\(folder\) was called during an epoch"):
            t.resume(tmp_path)
        break
    with pytest.raises(TypeError, match="load_ignore_keys=3 must be"):
        t.resume(tmp_path / "none", load_ignore_keys=3)
    with pytest.raises(ValueError, match="autoresume=True needs a save_folder"):
        begin(autoresume=True)


@pytest.mark.parametrize("given", [True, False])
def test_a_folder_of_another_run_is_refused(tmp_path, given):
    t, _ = begin()
    t.save(tmp_path)
    u, other = begin(**({"save_folder": tmp_path} if given else {}))

    with pytest.raises(CheckpointExistsError, match=r"t\.save\(folder\): .*t\.resume\(folder\)"):
        train(u, other, batches(), then=lambda: u.save(tmp_path))
    assert names(tmp_path) == ["ep0-ba0"]


def test_a_checkpoint_of_another_loop_leaves_this_one_as_it_was(tmp_path):
    t, optimizer = begin()
    train(t, optimizer, batches(), 1)
    t.save(tmp_path)
    wider = nn.Sequential(nn.Flatten(), nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
    for model, extra, text in (
        (wider, {}, "has shape"),
        (mlp(), {"scaler": torch.amp.GradScaler("cpu")}, "scaler must be objects with a state"),
    ):
        u, _ = begin(model=model, extra=extra)
        before = weights(u.model), dict(extra), u.state
        with pytest.raises(MismatchError, match=rf"t\.resume\(.*{text}") as error:
            u.resume(tmp_path)
        assert "load_weights_only" not in str(error.value)
        assert same(weights(u.model), before[0])
        assert (u.extra, u.state) == before[1:]


def test_checkpoints_of_the_trainer_and_of_loops_are_told_apart(tmp_path):
    trainer = make_trainer(mlp(), save_folder=tmp_path / "a", max_duration="1ep")
    trainer.fit()
    t, _ = begin()
    with pytest.raises(MismatchError, match="another kind of loop"):
        t.resume(tmp_path / "a")
    t.save(tmp_path / "b")
    with pytest.raises(MismatchError, match=r"another kind of loop.*t\.resume"):
        make_trainer(mlp(), load_path=tmp_path / "b")


class Failing:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise RuntimeError("failed")


def test_an_object_that_fails_to_load_leaves_the_others_as_they_were(tmp_path):
    def extra():
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        return {"teacher": mlp(), "scaler": scaler, "z": Failing()}

    own = extra()
    t, _ = begin(extra=own)
    torch.nn.init.ones_(own["teacher"][0].weight)
    own["scaler"].update(2.0)
    t.save(tmp_path)
    other = extra()
    u, _ = begin(extra=other)
    before = weights(other["teacher"])
    with pytest.raises(MismatchError, match=r"t\.resume\(.*extra/z.*failed.*Build the loop"):
        u.resume(tmp_path)

    assert same(weights(other["teacher"]), before)
    assert other["scaler"].get_scale() == 8.0


def test_another_loader_within_an_epoch_is_refused(tmp_path):
    t, optimizer = begin()
    train(t, optimizer, batches(), 1, then=lambda: t.save(tmp_path))
    u, _ = begin()
    u.resume(tmp_path / "ep0-ba1")
    with pytest.raises(MismatchError, match=r"t\.epoch\(loader\).*accumulate_batches=1.* 2 and"):
        next(iter(u.epoch(batches(), accumulate_batches=2)))


def test_the_position_is_kept_until_an_epoch_begins_with_its_loader(tmp_path):
    def loader():
        generator = torch.Generator().manual_seed(3)
        return DataLoader(shuffling_loader(16).dataset, 4, shuffle=True, generator=generator)

    def train_from(t, optimizer, stop=9):
        for inputs, _ in t.epoch(loader()):
            step(t, optimizer, inputs)
            if t.state.timestamp.batch == stop:
                t.save(tmp_path)

    t, optimizer = begin()
    train_from(t, optimizer, 1)
    u, other = begin()
    u.resume(tmp_path)
    with pytest.raises(MismatchError, match=r"t\.epoch\(loader\)"):
        next(iter(u.epoch(batches(16))))
    train_from(u, other)

    assert same(weights(t.model), weights(u.model))


@pytest.mark.parametrize("ends", [lambda t, _: t.finish(), lambda t, folder: t.resume(folder)])
def test_an_error_of_a_background_save_is_raised(tmp_path, ends):
    t, optimizer = begin(save_folder=CheckpointSaver(tmp_path / "a", background=True))
    (tmp_path / "a").mkdir()
    train(t, optimizer, batches(), 1, then=lambda: shutil.rmtree(tmp_path / "a", True))
    with pytest.raises(CheckpointError, match=r"t\.save\(folder\): .*cannot be written"):
        ends(t, tmp_path / "b")


@pytest.mark.parametrize(
    ("extra", "text"),
    [({"path": Path()}, ".*extra/values/path"), ({1: 2}, "extra has the name 1")],
)
def test_values_that_cannot_be_saved_are_named(tmp_path, extra, text):
    t, _ = begin(extra=extra)
    with pytest.raises(UnsavableError, match=rf"t\.save\(folder\): {text}"):
        t.save(tmp_path)
    assert names(tmp_path) == []
    with pytest.raises(TypeError, match=r"extra=\[1\] must be a dictionary"):
        begin(extra=[1])


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path):
    imports = "import time, pathlib\nfrom composable.resume.lock import RunLock\n"
    held = "lock = RunLock(pathlib.Path())\nlock.acquire()\nprint('locked', flush=True)\n"
    process = Command(tmp_path, imports + held + "time.sleep(600)")
    wait_until(lambda: process.output(1))
    t, _ = begin()
    with pytest.raises(FolderInUseError, match=r"t\.save\(folder\): .*is in use"):
        t.save(tmp_path)
    process.kill()
