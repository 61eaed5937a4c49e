"""Initial values of models on the meta device."""

from functools import partial

import pytest
import torch
from torch import nn

from composable.algorithms import BlurPool, SqueezeExcite
from composable.core.key import Key
from composable.distributed import FSDP2
from composable.engines.initialization import Initialization, has_meta_tensors
from tests.support.data import batches
from tests.support.meta_runs import Network, Scaled
from tests.support.models import conv_net
from tests.support.runs import make_trainer

CPU = torch.device("cpu")


def on_meta(build):
    with torch.device("meta"):
        return build()


def filled(build, parts=lambda model: [model], **options):
    model = on_meta(build)
    initialization = Initialization(model, Key(3), CPU, **options)
    for part in parts(model):
        initialization.fill(part)
    return model, initialization


def test_values_do_not_depend_on_the_parts_in_which_a_model_is_filled():
    whole, _ = filled(Network)
    parts, _ = filled(Network, lambda model: [model.blocks[1], model.blocks[0], model])
    assert not has_meta_tensors(whole)
    values, others = whole.state_dict(), parts.state_dict()
    for name, one in values.items():
        assert torch.equal(one, others[name]), name
    assert 0.005 < values["blocks.0.last.weight"].std() < 0.02  # set by the block
    assert 0.05 < values["blocks.0.first.weight"].std() < 0.2
    assert not torch.equal(values["blocks.0.first.weight"], values["blocks.1.first.weight"])


def test_parts_share_their_memory_if_they_are_not_kept():
    model, _ = filled(Network, lambda model: [model.blocks[1], model.blocks[0]], reuse=True)
    first, second = (block.first.weight for block in model.blocks)
    assert first.data_ptr() == second.data_ptr()


def test_tied_parameters_stay_tied_and_options_are_kept():
    def build():
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
        model[1].weight = model[0].weight
        model[0].weight.requires_grad_(False)
        model[0].weight.decays = False
        return model

    model, _ = filled(build)
    assert model[0].weight is model[1].weight
    assert not model[0].weight.requires_grad
    assert model[0].weight.decays is False


def test_what_nothing_sets_is_named():
    class Masked(Scaled):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
            self.register_buffer("phases", torch.zeros(3, dtype=torch.complex64))

    _, initialization = filled(lambda: nn.Sequential(nn.Linear(8, 8), Masked()))
    names = ["scale", "offsets", "mask", "phases"]
    assert initialization.unset == dict.fromkeys((f"1.{name}" for name in names), "Masked")


def test_values_that_are_there_are_kept():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0] = nn.Linear(2, 2)
    before = model[0].weight.clone()
    Initialization(model, Key(3), CPU, lambda module: nn.init.zeros_(module.weight)).fill(model)
    assert torch.equal(model[0].weight, before)
    assert not model[1].weight.any()


def test_given_weight_of_a_module_is_not_drawn_again():
    model = on_meta(lambda: nn.Sequential(nn.Linear(2, 2)))
    model[0].weight = nn.Parameter(torch.ones(2, 2))
    initialization = Initialization(model, Key(3), CPU)
    initialization.fill(model)
    assert model[0].weight.all()
    assert initialization.unset == {"0.bias": "Linear"}


@pytest.mark.parametrize("algorithm", [BlurPool(), SqueezeExcite(min_channels=2)], ids=repr)
def test_algorithms_replace_layers_of_a_model_on_the_meta_device(algorithm):
    trainer = make_trainer(
        on_meta(conv_net), batches(12, images=True), algorithms=[algorithm], parallel=FSDP2()
    )
    assert not has_meta_tensors(trainer.state.model)
    trainer.fit()
    assert torch.isfinite(trainer.state.loss)


def test_optimizers_have_the_parameters_that_are_trained():
    optimizers = partial(torch.optim.SGD, lr=0.1)
    trainer = make_trainer(on_meta(conv_net), optimizers=optimizers)
    (optimizer,) = trainer.state.optimizers
    own = [p for group in optimizer.param_groups for p in group["params"]]
    assert set(own) == set(trainer.state.model.parameters())


def test_modules_that_share_a_parameter_are_wrapped_together():
    embedding, head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Linear(4, 4), head)
    assert FSDP2().wrapped(model) == [model[1]]
    with pytest.raises(ValueError, match="selects a module that shares a parameter"):
        FSDP2(wrap=[nn.Linear]).wrapped(model)
