"""Functions that make PyTorch schedulers, as schedulers=."""

import copy
from functools import partial
from traceback import format_exception

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, StepLR

from composable import Timestamp
from composable.optim import cosine, per_group
from tests.support.models import linear
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


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (lambda o: StepLR(o, 1), "schedulers contains .* name its first parameter 'optimizer'"),
        (lambda clock: "0.5", "schedulers contains .* returned '0.5' instead of a number"),
        ([lambda clock: 1.0, lambda clock: None], "schedulers contains .* returned None"),
        (per_group({"head": lambda clock: []}, default=cosine()), "schedulers contains"),
        (lambda clock: len(3), "has no len"),
    ],
)
def test_a_function_that_fails_in_fit_fails_in_the_constructor(given, error):
    def groups(parameters):
        return SGD([{"params": [*parameters], "name": "head"}], lr=0.1)

    with pytest.raises(TypeError, match=error) as caught:
        make_trainer(optimizers=groups, schedulers=given)
    assert "schedulers" in "".join(format_exception(caught.value))


def test_a_schedule_is_tried_without_a_trace():
    seen = []
    model = linear()
    optimizer = SGD(model.parameters(), lr=torch.tensor(0.1), weight_decay=0.1)
    before = copy.deepcopy(optimizer.state_dict())

    make_trainer(
        model, optimizers=optimizer, schedulers=lambda clock: seen.append(clock.timestamp) or 0.5
    )

    assert seen == [Timestamp()]
    assert optimizer.state_dict() == before
