"""Surgery on a model of no known family: the warning names what was looked for."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Trainer
from composable.functional import NoEffectWarning
from tests.support.cases import all_cases

SURGERIES = {
    case.name: case.algorithm.example
    for case in all_cases()
    if case.algorithm and any(one.sought for one in case.functions)
}


class Unknown(nn.Module):
    """A model without a layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize("name", SURGERIES)
def test_warning_names_what_was_looked_for(name):
    with pytest.warns(NoEffectWarning, match=r"found nothing to replace; it looked for \w+"):
        trainer = Trainer(
            Unknown(),
            train_dataloader=[(torch.ones(2, 3), torch.zeros(2, dtype=torch.long))],
            loss_fn=cross_entropy,
            algorithms=[SURGERIES[name]],
            max_duration="1ba",
            progress_bar=False,
        )

    assert type(trainer.state.model) is Unknown
