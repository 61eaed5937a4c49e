"""Runs whose steps are tried: functions that several processes import."""

from functools import partial

import torch

from composable import Trainer
from composable.distributed.starting import join_processes
from composable.optim import find_lr
from tests.support.parallel_runs import cross_entropy, images, linear_net


def find_lr_of_two() -> None:
    """Call `find_lr` in a run of several processes."""
    join_processes()
    trainer = Trainer(
        linear_net(),
        train_dataloader=torch.utils.data.DataLoader(images(8), batch_size=4),
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.1),
        parallel="ddp",
        progress_bar=False,
    )
    find_lr(trainer)
