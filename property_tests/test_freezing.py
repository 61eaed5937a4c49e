"""Laws of layer freezing."""

from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import composable.functional as F

shares = st.floats(0, 1)


@st.composite
def models(draw):
    """Draw nested modules: some hold parameters, some share them, some are frozen."""
    pool = [nn.Parameter(torch.zeros(1), requires_grad=draw(st.booleans())) for _ in range(6)]

    def module(depth):
        new = nn.Module()
        for i in range(draw(st.integers(0, 2))):
            new.register_parameter(f"p{i}", draw(st.sampled_from(pool)))
        for i in range(draw(st.integers(0, 3)) if depth else 0):
            new.add_module(f"m{i}", module(depth - 1))
        return new

    return module(2)


@given(models(), shares, shares, shares, shares)
def test_frozen_layers_stay_frozen_and_some_always_train(model, start, level, one, other):
    def frozen(elapsed):
        return F.frozen_layers(model, elapsed=elapsed, freeze_start=start, freeze_level=level)

    early, late = (frozen(t) for t in sorted([one, other]))
    trains = [name for name, p in model.named_parameters() if p.requires_grad]

    assert late.layers[: len(early.layers)] == early.layers
    assert late.parameters[: len(early.parameters)] == early.parameters
    assert len(set(late.parameters)) == len(late.parameters)
    assert set(late.parameters) <= {name for name, _ in model.named_parameters()}
    assert not trains or set(trains) - set(late.parameters)
    assert early.layers == () or min(one, other) > start


@given(models(), shares, shares)
def test_frozen_layers_do_not_depend_on_requires_grad(model, one, other):
    frozen = partial(F.frozen_layers, model, freeze_start=0.0)
    before = frozen(elapsed=other)
    for name in frozen(elapsed=one).parameters:
        model.get_parameter(name).requires_grad_(False)

    assert frozen(elapsed=other) == before


@given(models(), shares, shares)
def test_layers_are_frozen_in_order(model, elapsed, level):
    found = F.frozen_layers(model, elapsed=elapsed, freeze_start=0.0, freeze_level=level)
    last = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
    owners = [
        name.rpartition(".")[0]
        for name, p in model.named_parameters(remove_duplicate=False)
        if last[id(p)] == name
    ]
    order = list(dict.fromkeys(owners))

    assert list(found.layers) == order[: len(found.layers)]
