"""The laws of a model that does nothing."""

import torch
from torch import nn

from composable.functional import no_op_model


def test_output_is_a_scalar_for_any_inputs():
    model = no_op_model(nn.Linear(3, 4))

    assert model(torch.rand(2, 3)).shape == ()
    assert torch.equal(model({"input_ids": [1]}, attention_mask=None), model())


def test_output_is_a_loss_with_gradients():
    model = no_op_model(nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    model.loss(model(torch.rand(2, 3)), batch=None).backward()
    optimizer.step()

    assert model.weight == 0.5


def test_dtype_and_mode_are_those_of_the_model():
    model = no_op_model(nn.Linear(3, 4).double().eval())

    assert model.weight.dtype == torch.float64
    assert not model.training
    assert no_op_model(nn.Embedding(3, 4).to(torch.float16)).weight.dtype == torch.float16
