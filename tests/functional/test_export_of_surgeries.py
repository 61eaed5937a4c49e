"""`torch.export` of the model that each surgery returns, and graphs of those that keep tensors."""

import pytest
import torch
from torch.testing import assert_close

from tests.functional.test_surgeries import OWN, run
from tests.support.campaign import each_once
from tests.support.surgery import filled


@pytest.mark.compile
@pytest.mark.parametrize(("name", "training"), each_once(list(OWN), [False, True]))
def test_export_computes_the_same(name, training):
    surgery = OWN[name]
    model, x = surgery.operate(surgery.build()).train(training), surgery.inputs()
    exported = torch.export.export(model, (x,)).module()

    if not (training and "stochastic" in name):  # the draws of a graph are in another order
        assert_close(run(exported, x), run(model, x))
    assert exported.state_dict().keys() >= model.state_dict().keys()


@pytest.mark.compile
@pytest.mark.parametrize("name", [name for name in OWN if name.startswith(("skip_", "value_"))])
def test_layers_that_read_earlier_ones_compile_into_one_graph(name):
    surgery = OWN[name]
    model, x = filled(surgery.operate(surgery.build()), "skip_", "value_").eval(), surgery.inputs()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)

    for inputs in (x, x.flip(-1)):  # nothing is left of an earlier call
        assert_close(compiled(inputs), model(inputs))
