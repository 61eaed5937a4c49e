"""The parts of a run: each saves and restores itself, and the schema of a checkpoint is theirs."""

from functools import partial
from itertools import product

import attrs
import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from typing_extensions import TypedDict

from composable import Control, Time
from composable.algorithms import EMA
from composable.checkpoint import DamagedCheckpointError, MismatchError
from composable.checkpoint.tree import pack, unpack
from composable.core.stateful import Count
from composable.resume.parts import ENGINE, Parts
from composable.trainer.evaluated_weights import BestWeights
from composable.trainer.run import Run
from tests.support.campaign import drawn
from tests.support.data import batches, shuffling_loader
from tests.support.models import linear, same, weights
from tests.support.outcomes import differences
from tests.support.runs import make_trainer

PARTS = (
    *("rates", "data", "evaluation", "guard", "loss_scaler", "loss_shares", "microbatches"),
    *("progress", "requests", "weights"),
)


def build():
    """Build a Trainer whose parts all have state."""
    loader = shuffling_loader(12, generator=torch.Generator().manual_seed(3))
    loader.dataset.tensors[0][5] = torch.nan
    return make_trainer(
        linear(),
        loader,
        eval_dataloader=batches(12),
        schedulers=partial(StepLR, step_size=1),
        microbatch_size="auto",
        precision="amp_fp16",
        nonfinite_loss="skip",
        check_effects=False,
    )


@pytest.fixture
def trainer():
    trainer = build()
    with pytest.warns(UserWarning, match="the batch is skipped"):
        trainer.fit(duration="5ba")
    run = trainer._run
    run.guard.skipped_batches.add(7)
    run.guard._consecutive = {"generator": 2}
    run.dispatcher.request(Control.SAVE)
    run.progress.fit_in_progress = True
    kept = {name: tensor + 1 for name, tensor in weights(run.state.model).items()}
    run.weights.best = BestWeights(model=kept, loss_fn={}, averages={}, memory={})
    run.loss_shares.unit = 8.0
    run.microbatches.size = 2
    return trainer


@pytest.fixture
def run(trainer):
    return trainer._run


@pytest.fixture
def parts(trainer):
    return trainer._checkpoints.parts(trainer.state)


def through_a_file(tree):
    """Pack and unpack a tree, as a checkpoint does."""
    return unpack(*pack(tree))


@pytest.mark.parametrize("name", PARTS)
def test_part_restores_its_state(name, run):
    saved = through_a_file(run.parts[name].state_dict())
    part = build()._run.parts[name]
    assert differences(saved, part.state_dict())  # there is something to restore

    part.load_state_dict(saved)

    assert differences(saved, through_a_file(part.state_dict())) == []


def test_state_of_the_parts(run):
    saved = {name: part.state_dict() for name, part in run.parts.items()}

    assert saved["guard"] == {
        "num_skipped": run.guard.num_skipped,
        "num_rollbacks": 0,
        "skipped_batches": [7],
        "consecutive": {"generator": 2},
    }
    assert saved["progress"] == {
        "requested_duration": Time.parse("2ep"),
        "num_fits": 1,
        "fit_in_progress": True,
        "calls": ["5ba"],
        "of_call": True,
    }
    assert saved["evaluation"] == {"last_run": {"eval": 5}}
    assert saved["microbatches"] == {"size": 2}
    assert saved["requests"] == {"pending": Control.SAVE.value}


def test_what_is_captured_has_the_declared_structure(run, parts):
    captured = parts.capture()

    assert captured.keys() == parts.structure.keys() - {ENGINE}
    parts.check(through_a_file(captured), "ep1")
    with pytest.raises(DamagedCheckpointError, match="ep1 is damaged: unknown entry 'code'"):
        parts.check({**through_a_file(captured), "code": "import os"}, "ep1")
    assert tuple(run.parts) == PARTS
    assert {"requests"} == run.parts.keys() - {field.name for field in attrs.fields(Run)}


class SizeState(TypedDict):
    size: Count


class OtherSize:
    """A part that has another size than the saved one."""

    def __init__(self, error):
        self.error = error

    def state_dict(self) -> SizeState:
        return {"size": 2}

    def load_state_dict(self, state):
        raise self.error(f"size is {state['size']}, and that of this run is 2.")


@pytest.mark.parametrize(
    ("size", "given", "error", "message"),
    [
        (3, MismatchError, MismatchError, "state/mine/size is 3, and that of this run is 2"),
        (3, KeyError, MismatchError, "state/mine cannot be restored: KeyError: 'size is 3"),
        ("3", KeyError, DamagedCheckpointError, "state/mine/size is '3', and must be a non-neg"),
        (3, torch.OutOfMemoryError, torch.OutOfMemoryError, "^size is 3"),
    ],
)
def test_the_error_of_a_part_names_its_entry(size, given, error, message):
    own, saved = Parts({"mine": OtherSize(given)}), {"mine": {"size": size}}

    def load():
        own.check(saved, "ep1")
        own.restore(saved, "ep1")

    with pytest.raises(error, match=message):
        load()


WRONG = {
    "guard": ({"num_skipped": True}, "guard/num_skipped is True, and must be a non-negative int"),
    "progress": ({"calls": ["1ep", 2]}, "progress/calls/1 is 2, and must be a string or None"),
    "evaluation": ({"last_run": [1]}, "evaluation/last_run is a list, and must be a dictionary"),
    "microbatches": ({"other": 1}, r"microbatches has the unknown entries \['other'\]"),
    "data": ({"first_batch": {"epoch": 0}}, "data/first_batch/step is missing"),
    "weights": ({"best": 3}, "weights/best is 3, and must be a dictionary or None"),
    "loss_scaler": ({"scale": -1.0}, "loss_scaler/scale is -1.0, and must be a positive number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_structure_of_a_part_is_checked(name, run, parts):
    changed, message = WRONG[name]
    whole = through_a_file(parts.capture())
    saved = {**whole, name: {**whole[name], **changed}}

    with pytest.raises(DamagedCheckpointError, match=f"ep1: state/{message}"):
        parts.check(saved, "ep1")


SPLITS = [{}, {"grad_accum": 2}, {"microbatch_size": 3}, {"microbatch_size": "auto"}]


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
@pytest.mark.parametrize(("before", "after"), drawn(product(SPLITS, SPLITS), 6), ids=str)
def test_run_resumes_with_other_microbatches(before, after, tmp_path):
    options = {"train_dataloader": shuffling_loader(12), "algorithms": [EMA("2ba")]}
    make_trainer(save_folder=tmp_path, save_interval="2ba", **before, **options).fit()
    path = tmp_path / "ep0-ba2"

    resumed = make_trainer(load_path=path, **after, **options)
    expected = make_trainer(load_path=path, load_ignore_keys=["microbatches"], **after, **options)

    assert resumed.state.timestamp.batch == 2
    assert resumed.fit().timestamp.batch == 6
    assert same(weights(resumed.state.model), weights(expected.fit().model))
