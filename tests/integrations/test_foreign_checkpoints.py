"""A run that continues from another trainer's checkpoint takes the other trainer's next steps."""

import warnings

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Trainer
from composable.resume import ForeignCheckpointWarning
from tests.integrations.foreign_runs import (
    EPOCH,
    SAVED,
    Case,
    accelerate,
    batches,
    composer,
    huggingface,
    lightning,
    path_of,
)

LIBRARIES = [lightning, huggingface, accelerate, composer]
CASES = [
    Case(),
    Case("Adam", "cosine"),
    Case("Adam", "none"),
    Case("AdamW with two groups", "LambdaLR"),
    Case("AdamW with two groups", "StepLR", every_epoch=True),
    Case("SGD with momentum", "warm-up"),
    Case("SGD with momentum", "StepLR", every_epoch=True),
]
PAIRS = [
    (library, case)
    for library in LIBRARIES
    for case in CASES
    # Hugging Face steps schedulers after each batch, and Accelerate saves no time.
    if not (case.every_epoch and library in (huggingface, accelerate))
]
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*treespec, LeafSpec",
    "ignore:.*`pin_memory`",
)


def continued(case, path, **options):
    """Build a Trainer that continues from a checkpoint."""
    net = case.net()
    optimizer, scheduler = case.parts(net)
    defaults = {
        "train_dataloader": batches(),
        "loss_fn": cross_entropy,
        "optimizers": optimizer,
        "schedulers": scheduler,
        "step_schedulers_every_batch": not case.every_epoch,
        "max_duration": "4ep",
        "load_path": path,
        "progress_bar": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForeignCheckpointWarning)
        return Trainer(net, **{**defaults, **options})


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize(("library", "case"), PAIRS, ids=str)
def test_the_next_steps_are_the_other_trainers(library, case, tmp_path):
    seen = library(case, tmp_path)

    for step in SAVED:
        trainer = continued(case, path_of(library, tmp_path, step))
        now = trainer.state.timestamp
        assert (now.batch, now.epoch, now.batch_in_epoch) == (step, *divmod(step, EPOCH))
        assert equal(trainer.state.model.state_dict(), seen[step - 1])
        for later in range(step, step + 3):
            trainer.fit(duration="1ba")
            assert equal(trainer.state.model.state_dict(), seen[later]), (step, later)
