"""Functions that make PyTorch schedulers, as schedulers=."""

from functools import partial

import pytest
from torch.optim.lr_scheduler import ExponentialLR, StepLR

from tests.support.runs import make_trainer


def decay(optimizer, gamma=0.5):
    return ExponentialLR(optimizer, gamma)


@pytest.mark.parametrize(
    "given",
    [
        decay,
        partial(decay, gamma=0.5),
        lambda opt: StepLR(opt, 1, gamma=0.5),
        partial(ExponentialLR, gamma=0.5),
    ],
)
def test_factory_is_called_with_the_optimizer(given):
    (optimizer,) = make_trainer(schedulers=given, max_duration="2ep").fit().optimizers
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2


def test_factory_with_another_parameter_is_named():
    trainer = make_trainer(schedulers=lambda x: StepLR(x, 1))
    with pytest.raises(TypeError, match="name its first parameter 'optimizer'"):
        trainer.fit()


def test_error_of_a_schedule_is_left_alone():
    trainer = make_trainer(schedulers=lambda clock: len(3))
    with pytest.raises(TypeError, match="has no len"):
        trainer.fit()
