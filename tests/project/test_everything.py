"""All methods that go together train together, and the run repeats to the last bit."""

import attrs
import pytest
import torch
from torch.utils.data import Subset

from examples.everything import TASKS, digest, train


@pytest.mark.parametrize(
    ("name", "epochs", "share", "at_least"), [("images", 2, 2, 0.5), ("language", 1, 4, 0.2)]
)
def test_a_run_with_everything_trains_evaluates_and_repeats_in_any_order(
    name, epochs, share, at_least
):
    whole = TASKS[name]
    data = [Subset(part, range(0, len(part), share)) for part in whole.data()]
    task = attrs.evolve(whole, data=lambda: data, batch_size=whole.batch_size // share)
    other = attrs.evolve(task, algorithms=lambda: task.algorithms()[::-1])

    first, second = (train(one, 0, epochs=epochs, bar=False) for one in (task, other))

    assert digest(first) == digest(second)
    assert first.state.metrics["eval"]["accuracy"] > at_least
    with torch.no_grad():
        next(second.state.model.parameters())[0].mul_(1 + 1e-6)
    assert digest(first) != digest(second)  # it tells the last bits apart
