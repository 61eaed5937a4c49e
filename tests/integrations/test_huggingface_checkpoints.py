"""Sealed checkpoints of Hugging Face's Trainer, and trainings that continue from them."""

import errno

import pytest
import transformers

from composable.checkpoint import DamagedCheckpointError, MissingCheckpointError, atomic
from composable.checkpoint.errors import BrokenCheckpointWarning, UnwritableCheckpointError
from composable.checkpoint.sealing import SEAL, seal, verify_seal
from composable.integrations.huggingface import (
    LoopAdapterCallback,
    SafeCheckpointCallback,
    latest_checkpoint,
)
from tests.checkpoint.faulty_os import FaultyOS
from tests.integrations.huggingface_loop import start
from tests.integrations.loops import row, trained
from tests.support.models import same, weights

RUN = row("EMA", keyed=True, epochs=2, evaluates=False)
SAVES = {"save_strategy": "steps", "save_steps": 1}
FILES = {"model.safetensors": b"weights", "state/rank0.pt": b"rank", "empty": b""}


def folder_of(root, step, content=FILES):
    folder = root / f"checkpoint-{step}"
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    seal(folder)
    return folder


def names(root):
    return sorted(path.name for path in root.iterdir())


def begin(root, keep=None, changes=None, **options):
    callbacks = [SafeCheckpointCallback(keep)]
    changes = SAVES if changes is None else changes
    return start(RUN, root, changes=changes, **{"callbacks": callbacks, **options})


@pytest.mark.parametrize("name", [*FILES, SEAL])
@pytest.mark.parametrize("change", ["other", "longer", "missing"])
def test_damage_is_named_and_the_checkpoint_before_is_used(tmp_path, name, change):
    before, folder = folder_of(tmp_path, 8), folder_of(tmp_path, 16)
    assert latest_checkpoint(tmp_path) == str(folder)
    path = folder / name
    data = path.read_bytes()
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(data + b" " if change == "longer" or not data else b"?" + data[1:])

    with pytest.raises((DamagedCheckpointError, MissingCheckpointError), match=path.name):
        verify_seal(folder)
    with pytest.warns(BrokenCheckpointWarning, match="checkpoint-16"):
        assert latest_checkpoint(tmp_path) == str(before)
    sealed = change != "missing" or name != SEAL
    assert names(tmp_path) == ["checkpoint-16" + ".damaged-1" * sealed, "checkpoint-8"]


def test_there_is_no_checkpoint_without_a_seal(tmp_path):
    assert latest_checkpoint(tmp_path / "none") is None
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-3").touch()
    with pytest.warns(BrokenCheckpointWarning, match="not written to its end"):
        assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("at", range(5))
def test_no_seal_is_written_where_a_file_is_not_on_disk(tmp_path, monkeypatch, at):
    before = folder_of(tmp_path, 4)
    with monkeypatch.context() as patch:
        error = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(atomic, "os", FaultyOS(at, error, calls={"fsync"}))
        with pytest.raises(UnwritableCheckpointError, match="Free some disk space"):
            folder_of(tmp_path, 6)
    with pytest.warns(BrokenCheckpointWarning, match="not written to its end"):
        assert latest_checkpoint(tmp_path) == str(before)


@pytest.mark.parametrize(
    "changes",
    [{"save_total_limit": 2}, {"save_only_model": True}, {"save_on_each_node": True}],
    ids=str,
)
def test_arguments_that_contradict_the_seal_are_refused(tmp_path, changes):
    _, made = begin(tmp_path, changes={**SAVES, **changes})
    with pytest.raises(ValueError, match=next(iter(changes))):
        made.train()
    with pytest.raises(ValueError, match="keep=0"):
        SafeCheckpointCallback(keep=0)


def test_checkpoints_of_another_training_are_not_resumed_from_later(tmp_path):
    folder_of(tmp_path, 5)
    with pytest.raises(ValueError, match="checkpoint-5 is of a later step"):
        begin(tmp_path)[1].train()


@pytest.mark.parametrize("keep", [None, 1, 2])
def test_the_newest_and_the_best_are_kept(tmp_path, keep):
    def metrics(_):  # the second evaluation is the best
        scores.append(len(scores))
        return {"score": float(scores[-1] == 1)}

    scores = []
    changes = {
        **SAVES,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "score",
    }
    _, made = begin(tmp_path, keep, changes, compute_metrics=metrics)
    made.train()

    kept = {None: range(1, 7), 1: (2, 6), 2: (2, 5, 6)}[keep]
    assert names(tmp_path) == [f"checkpoint-{step}" for step in kept]
    for step in kept:
        verify_seal(tmp_path / f"checkpoint-{step}")


@pytest.mark.filterwarnings("ignore::composable.checkpoint.errors.BrokenCheckpointWarning")
@pytest.mark.parametrize("damaged", [None, "transforms.pt", SEAL])
def test_a_training_continues_from_the_latest_sealed_one(tmp_path, damaged):
    whole = begin(tmp_path / "whole")
    whole[1].train()

    class Stops(transformers.TrainerCallback):
        def on_save(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 4

    t, made = begin(tmp_path, 2, callbacks=[SafeCheckpointCallback(2), Stops()])
    made.train(resume_from_checkpoint=True)  # from the beginning
    assert t.state.timestamp.batch == 4
    if damaged:
        (tmp_path / "checkpoint-4" / damaged).unlink()
    t, made = begin(tmp_path, 2)
    made.train(resume_from_checkpoint=True)

    assert same(weights(t.model), weights(whole[0].model))
    assert all(map(lambda a, b: (a == b).all(), trained(t), trained(whole[0])))


def test_a_given_checkpoint_is_verified(tmp_path):
    begin(tmp_path)[1].train()
    path = tmp_path / "checkpoint-2/model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DamagedCheckpointError, match=r"model\.safetensors"):
        begin(tmp_path / "new")[1].train(str(path.parent))


def test_a_seal_before_the_state_of_the_algorithms_is_refused(tmp_path):
    def made(*order):
        t, trainer = start(RUN, tmp_path, mixin=False, changes=SAVES, callbacks=[])
        for kind in order:
            trainer.add_callback(kind(t) if kind is LoopAdapterCallback else kind())
        return trainer

    with pytest.raises(ValueError, match="let it be the last one"):
        made(SafeCheckpointCallback, LoopAdapterCallback).train()
    (tmp_path / "checkpoint-1" / SEAL).unlink()
    made(LoopAdapterCallback, SafeCheckpointCallback).train()
    verify_seal(tmp_path / "checkpoint-1")


def test_a_checkpoint_that_was_not_written_is_an_error(tmp_path):
    callback = SafeCheckpointCallback()
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True)
    state = transformers.TrainerState(global_step=3)
    with pytest.raises(UnwritableCheckpointError, match="checkpoint-3"):
        callback.on_save(args, state, transformers.TrainerControl())
