"""`torch.export` of the model that each surgery returns."""

import pytest
import torch
from torch.testing import assert_close

from tests.functional.test_surgeries import OWN, run


@pytest.mark.compile
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("training", [False, True])
def test_export_computes_the_same(name, training):
    surgery = OWN[name]
    model, x = surgery.operate(surgery.build()).train(training), surgery.inputs()
    exported = torch.export.export(model, (x,)).module()

    if not (training and "stochastic" in name):  # the draws of a graph are in another order
        assert_close(run(exported, x), run(model, x))
    assert exported.state_dict().keys() >= model.state_dict().keys()
