"""Several processes continue from a checkpoint of another trainer as one process does."""

import warnings

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.data import DataLoader

from composable import Trainer
from composable.distributed import DDP, FSDP2
from composable.resume import ForeignCheckpointWarning
from tests.integrations.foreign_runs import Case, accelerate, composer, data, path_of
from tests.support.processes import run

CASE = Case("AdamW with two groups")


def continue_run(path, parallel):
    """Take two steps from a checkpoint, and return the weights."""
    from composable.distributed.starting import join_processes

    join_processes()
    warnings.simplefilter("ignore", ForeignCheckpointWarning)
    net = CASE.net()
    optimizer, scheduler = CASE.parts(net)
    trainer = Trainer(
        net,
        train_dataloader=DataLoader(data(), 4),
        loss_fn=cross_entropy,
        optimizers=optimizer,
        schedulers=scheduler,
        step_schedulers_every_batch=True,
        max_duration="9ba",
        device="cpu",
        progress_bar=False,
        parallel=parallel,
        load_path=path,
    )
    trainer.fit()
    weights = trainer.state.model.state_dict()
    whole = {n: getattr(one, "full_tensor", lambda one=one: one)() for n, one in weights.items()}
    return {name: one.tolist() for name, one in whole.items()}


@pytest.mark.parametrize("parallel", [DDP(), FSDP2()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("library", [accelerate, composer], ids=lambda one: one.__name__)
def test_processes_take_the_steps_of_one(library, parallel, tmp_path):
    seen = library(CASE, tmp_path)

    for found in run(continue_run, 2, path_of(library, tmp_path, 7), parallel):
        for name, value in found.items():  # the sums of the processes are rounded differently
            assert_close(torch.tensor(value), seen[8][name])
