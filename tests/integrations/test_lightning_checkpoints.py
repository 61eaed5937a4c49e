"""Lightning's checkpoints in the format of this library, and trainings that continue from them."""

import errno
import inspect
import os
import signal
from functools import partial

import lightning.pytorch as L
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, IterableDataset

from composable.checkpoint import (
    DamagedCheckpointError,
    UnsavableError,
    atomic,
    load_weights,
    read,
    write,
)
from composable.checkpoint.errors import BrokenCheckpointWarning, UnwritableCheckpointError
from composable.distributed import Processes
from composable.integrations.lightning import SafeCheckpointIO, latest_checkpoint
from tests.checkpoint.faulty_os import FaultyOS
from tests.integrations import killed_loops
from tests.integrations.killed_loops import CHECKPOINTS, SCRIPTS, Lightning, adapter
from tests.integrations.table import dense_net
from tests.support.models import same, weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:`.fit.ckpt_path=None.` was called without a model"),
    pytest.mark.filterwarnings("ignore:.fit.ckpt_path=.last.. is set, but there is no last"),
]
TREE = {"state_dict": {"w": torch.arange(3.0)}, "loops": {}, "callbacks": {"a": {"best": None}}}
IO = SafeCheckpointIO()


def save(folder, step, **changes):
    IO.save_checkpoint({**TREE, "global_step": step, **changes}, folder / f"step={step}.ckpt")
    return folder / f"step={step}.ckpt"


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


DAMAGE = {"flipped": flip, "missing": lambda path: path.unlink()}


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_and_the_checkpoint_before_is_used(tmp_path, name, damage):
    before, path = save(tmp_path, 2), save(tmp_path, 4)
    assert latest_checkpoint(tmp_path) == path
    damage(path / name)

    with pytest.raises(DamagedCheckpointError, match=name):
        IO.load_checkpoint(path)
    with pytest.warns(BrokenCheckpointWarning, match="step=4"):
        assert latest_checkpoint(tmp_path) == before
    assert same(IO.load_checkpoint(before)["state_dict"], TREE["state_dict"])


def test_only_checkpoints_to_resume_from_are_the_latest(tmp_path):
    assert latest_checkpoint(tmp_path / "none") is None
    assert latest_checkpoint(tmp_path) is None
    path = save(tmp_path, 2)
    IO.save_checkpoint({"state_dict": {}, "global_step": 3}, tmp_path / "weights.ckpt")
    write(tmp_path / "of-a-trainer", {}, None, info={"batch": 9, "run": "a", "complete": True})
    TorchCheckpointIO().save_checkpoint(TREE, tmp_path / "plain.ckpt")

    assert latest_checkpoint(tmp_path) == path


def test_files_of_lightning_are_read_and_never_executed(tmp_path):
    TorchCheckpointIO().save_checkpoint(TREE, tmp_path / "plain.ckpt")
    TorchCheckpointIO().save_checkpoint({"hyper_parameters": {"net": IO}}, tmp_path / "object.ckpt")

    assert same(IO.load_checkpoint(tmp_path / "plain.ckpt")["state_dict"], TREE["state_dict"])
    with pytest.raises(DamagedCheckpointError, match=r"object\.ckpt"):
        IO.load_checkpoint(tmp_path / "object.ckpt")


def test_fabric_continues_from_the_latest(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[IO])
    module = fabric.setup(dense_net())
    fabric.save(tmp_path / "a", {"model": module, "step": 3})
    state = {"model": fabric.setup(dense_net()), "step": 0}
    torch.nn.init.zeros_(state["model"].module[1].weight)

    fabric.load(latest_checkpoint(tmp_path), state)

    assert state["step"] == 3
    assert same(weights(module), weights(state["model"]))


def test_weights_are_loaded_by_their_key(tmp_path):
    net, other = dense_net(), dense_net()
    torch.nn.init.zeros_(other[1].weight)
    load_weights(other, save(tmp_path, 1, state_dict=net.state_dict()), key="state_dict")
    assert same(weights(net), weights(other))


def test_objects_are_refused_by_their_path(tmp_path):
    with pytest.raises(UnsavableError, match="hyper_parameters/net has type"):
        save(tmp_path, 1, hyper_parameters={"net": dense_net()})
    with pytest.raises(ValueError, match="local path"):
        IO.save_checkpoint(TREE, "s3://bucket/a.ckpt")
    with pytest.raises(ValueError, match="storage_options"):
        IO.save_checkpoint(TREE, tmp_path / "a.ckpt", {})
    with pytest.raises(ValueError, match="map_location"):
        IO.load_checkpoint(tmp_path / "a.ckpt", "cuda")
    assert not any(tmp_path.iterdir())


def test_removed_is_only_a_whole_checkpoint_that_is_not_the_last(tmp_path):
    first, second, third = (save(tmp_path, step) for step in (1, 2, 3))
    (second / "notes.txt").touch()
    other = write(tmp_path / "other", {}, None, info={"run": "another"})
    IO.remove_checkpoint(first)
    assert not first.exists()

    for path in (second, other):
        with pytest.warns(BrokenCheckpointWarning, match="damaged or of another"):
            IO.remove_checkpoint(path)
    IO.remove_checkpoint(third)
    (second / "notes.txt").unlink()
    with pytest.warns(BrokenCheckpointWarning, match="no other one"):
        IO.remove_checkpoint(second)
    assert second.exists()
    assert other.exists()
    assert not third.exists()


def test_a_link_is_replaced_and_removed_without_its_checkpoint(tmp_path):
    path, link = save(tmp_path, 1), tmp_path / "last.ckpt"
    link.symlink_to(path.name)
    IO.save_checkpoint({**TREE, "global_step": 2}, link)
    assert latest_checkpoint(tmp_path) == link
    assert not link.is_symlink()

    (tmp_path / "again.ckpt").symlink_to(path.name)
    IO.remove_checkpoint(tmp_path / "again.ckpt")
    assert path.is_dir()
    assert not (tmp_path / "again.ckpt").is_symlink()


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    path = save(tmp_path, 1)
    with monkeypatch.context() as patch:
        error = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(atomic, "os", FaultyOS(3, error, lasting=True))
        with pytest.raises(UnwritableCheckpointError, match="Free some disk space"):
            save(tmp_path, 2)
    assert latest_checkpoint(tmp_path) == path


# Every option with which ModelCheckpoint deletes or renames; the script asserts after each deletion
# that there is a checkpoint.
RETENTION = [
    ({"every_n_train_steps": 2, "save_top_k": 1}, {"epoch=2-step=14.ckpt"}),
    ({"every_n_train_steps": 4, "save_top_k": 1, "filename": "same"}, {"same.ckpt"}),
    (
        {"every_n_train_steps": 2, "save_top_k": 1, "save_last": "link"},
        {"epoch=2-step=14.ckpt", "last.ckpt"},
    ),
    ({"every_n_train_steps": 6, "save_top_k": 0, "save_last": True}, {"last.ckpt"}),
    ({"monitor": "loss", "save_top_k": 2, "save_last": True}, None),
]


@pytest.mark.parametrize(("options", "names"), RETENTION)
def test_retention_leaves_what_lightning_keeps(tmp_path, options, names):
    whole = Lightning({"every_n_train_steps": 100}).train(tmp_path / "whole")
    script = Lightning(options)
    ended = script.train(tmp_path)
    assert names in (None, {path.name for path in (tmp_path / CHECKPOINTS).iterdir()})

    again = script.train(tmp_path)  # from the last checkpoint, which may be the end

    assert same(whole[0], ended[0])
    assert same(whole[0], again[0])


WITHIN, EACH = "Lightning, a step of several batches", "Lightning"


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        (WITHIN, [2]),
        (WITHIN, [4]),
        (WITHIN, [6]),
        (EACH, [5, 7]),
        (EACH, [10, 12]),
        (EACH, [5, 10]),
    ],
)
def test_a_training_continues_from_any_step_again_and_again(tmp_path, monkeypatch, name, steps):
    class Stop(Exception):
        pass

    def stop(last, _, now):
        if now == last:
            raise Stop

    script = SCRIPTS[name]
    whole = script.train(tmp_path / "whole")
    for step in steps:
        with monkeypatch.context() as patch:
            patch.setattr(killed_loops, "note", partial(stop, step))
            with pytest.raises(Stop):
                script.train(tmp_path)

    for _ in range(2):  # the second one begins at the end
        again = script.train(tmp_path)
        assert again[1] == whole[1]
        assert same(again[0], whole[0])


class Ends(L.Callback):
    """Sends SIGTERM to the process after a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


RARE = {"every_n_train_steps": 100}
ON_EXCEPTION = {"save_on_exception": True}
SAVERS = {
    "callback": lambda folder: (RARE, [OnExceptionCheckpoint(folder / CHECKPOINTS)]),
    "option": lambda folder: ({**RARE, **ON_EXCEPTION}, []),
}
if "save_on_exception" not in inspect.signature(ModelCheckpoint).parameters:  # of Lightning 2.6
    del SAVERS["option"]


@pytest.mark.parametrize("step", [2, 7])
@pytest.mark.parametrize("saver", SAVERS.values(), ids=SAVERS)
def test_a_checkpoint_of_sigterm_continues_to_the_bit(tmp_path, saver, step):
    whole = Lightning(RARE).train(tmp_path / "whole")
    options, callbacks = saver(tmp_path)
    with pytest.raises(SIGTERMException):
        Lightning(options, callbacks=[*callbacks, Ends(step)]).train(tmp_path)
    assert read(latest_checkpoint(tmp_path / CHECKPOINTS)).manifest.batch == step

    assert same(whole[0], Lightning(RARE).train(tmp_path)[0])


def test_what_a_seeded_loader_cannot_do_is_refused(monkeypatch):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    t = adapter(dense_net(), loss_fn=torch.nn.functional.cross_entropy)
    with pytest.raises(ValueError, match="must have a length"):
        t.seeded(DataLoader(Stream()))
    optimizer = torch.optim.SGD(t.model.parameters(), lr=0.1)
    t.follow(optimizer)
    loader = t.seeded(DataLoader(list(zip(torch.ones(2, 128), (0, 1), strict=True))))
    t.start_epoch()
    for batch in loader:
        t.start_batch(batch)
        t.loss(t.state.forward()).backward()
        optimizer.zero_grad()
        t.end_step()
    with pytest.raises(RuntimeError, match="the epoch is at batch 2"):
        next(iter(loader))  # as beside a longer loader
    t.end_epoch()
    monkeypatch.setattr(Processes, "current", lambda: Processes(0, 2))
    monkeypatch.setattr("composable.integrations._refusals.check_agreement", lambda state: None)
    with pytest.raises(ValueError, match="DistributedSampler"):
        next(iter(loader))
