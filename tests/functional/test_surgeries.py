"""What holds for every surgery: a new module that shares, and an old one that stays."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import composable.functional as F
from composable.utils.reproducibility import seed_context
from tests.support.runs import Attention


class Surgery(NamedTuple):
    """A surgery, a model that it changes, an input, and what it is said to look for."""

    operate: Callable[[nn.Module], nn.Module]
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    sought: str
    lazy: Callable[[], nn.Module] | None = None
    same_keys: bool = True
    same_weights: bool = True


def generator():
    return torch.Generator().manual_seed(0)


def images():
    return torch.randn(6, 4, 5, 5, generator=generator())


def conv_net():
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(4), nn.ReLU()
    )


class Block(nn.Module):
    """A residual block without a final activation."""

    def __init__(self):
        super().__init__()
        self.scale = 2.0  # blocks have attributes of any name
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return x + self.scale * self.conv(x)


def texts():
    return torch.randn(2, 5, 4, generator=generator())


class FeedForward(nn.Module):
    """A feed-forward block whose activation is a function."""

    def __init__(self, lazy=False):
        super().__init__()
        self.act = torch.tanh
        self.up = nn.LazyLinear(6) if lazy else nn.Linear(4, 6)
        self.down = nn.Linear(6, 4)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


F.register_gated_linear_units(FeedForward, linear="up", activation="act")

SURGERIES = {
    "ghost_batchnorm": Surgery(
        lambda model: F.ghost_batchnorm(model, ghost_batch_size=2),
        conv_net,
        images,
        "BatchNorm1d, BatchNorm2d and BatchNorm3d",
        nn.LazyBatchNorm2d,
    ),
    "weight_standardization": Surgery(
        F.weight_standardization,
        conv_net,
        images,
        "Conv1d, Conv2d and Conv3d",
        lambda: nn.LazyConv2d(4, 3),
        same_keys=False,
    ),
    "squeeze_excite": Surgery(
        lambda model: F.squeeze_excite(
            model, latent_channels=2, min_channels=4, generator=generator()
        ),
        conv_net,
        images,
        "Conv1d, Conv2d and Conv3d with at least 4",
        lambda: nn.LazyConv2d(4, 3),
        same_keys=False,
    ),
}
SURGERIES["factorize"] = Surgery(
    lambda model: F.factorize(model, min_channels=4, latent_channels=2),
    conv_net,
    images,
    "Conv1d, Conv2d and Conv3d with at least 4",
    lambda: nn.LazyConv2d(4, 3),
    same_keys=False,
    same_weights=False,
)
SURGERIES["gyro_dropout"] = Surgery(
    lambda model: F.gyro_dropout(
        model, sigma=8, tau=2, iters_per_epoch=8, max_epoch=2, generator=generator()
    ),
    lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.Dropout(0.1), nn.ReLU()),
    images,
    "Dropout",
    same_keys=False,
)
SURGERIES |= {
    f"stochastic_depth by {method}": Surgery(
        partial(F.stochastic_depth, target=Block, method=method, drop_rate=0.5),
        lambda: nn.Sequential(Block(), nn.ReLU(), Block()),
        images,
        "blocks of the classes .*Block",
    )
    for method in ("block", "sample")
}
SURGERIES |= {
    f"low_precision_{name}": Surgery(
        partial(operate, precision=torch.bfloat16),
        lambda norm=norm: nn.Sequential(nn.Conv2d(4, 4, 3), norm(), nn.ReLU()),
        images,
        sought,
    )
    for name, operate, norm, sought in [
        ("layernorm", F.low_precision_layernorm, lambda: nn.LayerNorm(3), "LayerNorm"),
        ("groupnorm", F.low_precision_groupnorm, lambda: nn.GroupNorm(2, 4), "GroupNorm"),
    ]
}
SURGERIES["alibi"] = Surgery(
    partial(F.alibi, max_sequence_length=9),
    lambda: nn.Sequential(Attention(4), nn.ReLU(), Attention(4)),
    texts,
    "position embeddings and attention of the classes .*Attention",
)
SURGERIES["gated_linear_units"] = Surgery(
    lambda model: F.gated_linear_units(model, gated_layer_bias=True, generator=generator()),
    lambda: nn.Sequential(FeedForward(), nn.ReLU(), FeedForward()),
    texts,
    "feed-forward blocks of the classes .*FeedForward",
    lambda: FeedForward(lazy=True),
    same_keys=False,
)


@pytest.fixture(params=SURGERIES)
def surgery(request):
    return SURGERIES[request.param]


def run(model, inputs):
    """Call a model with the global generator where it was."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return model(inputs)


def test_the_original_stays_what_it_was(surgery):
    model, x = surgery.build(), surgery.inputs()
    text, before = repr(model), {k: v.clone() for k, v in model.state_dict().items()}
    versions = [p._version for p in model.parameters()]

    new = surgery.operate(model)
    outputs = run(new, x)

    assert new is not model
    assert repr(model) == text
    assert not torch.equal(outputs, run(copy.deepcopy(model), x)) or repr(new) != text
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert versions == [p._version for p in model.parameters()]


def test_parameters_are_shared(surgery):
    model = surgery.build()
    new = surgery.operate(model)

    held = {id(p) for p in new.parameters()}
    shared = [name for name, p in model.named_parameters() if id(p) in held]
    replaced = [] if surgery.same_weights else ["0.weight"]
    assert shared == [name for name, _ in model.named_parameters() if name not in replaced]


def test_twice_is_once(surgery):
    once = surgery.operate(surgery.build())

    assert surgery.operate(once) is once


def test_modes_and_hooks_stay(surgery):
    model, calls = surgery.build(), []
    modules = dict(model.named_modules())
    for name, module in modules.items():
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
        module.train(name.endswith("1"))  # from the root down: some train, and some don't
    modes = {name: module.training for name, module in modules.items()}

    run(model, surgery.inputs())
    expected = list(calls)
    calls.clear()
    new = surgery.operate(model)
    run(new, surgery.inputs())

    assert calls == expected
    assert {name: m.training for name, m in new.named_modules() if name in modes} == modes


def test_a_layer_in_two_places_stays_one(surgery):
    layer = surgery.build()
    new = surgery.operate(nn.ModuleList([layer, nn.Identity(), layer]))

    assert new[0] is new[2]


def test_state_dicts_load_into_a_model_changed_likewise(surgery):
    model, x = surgery.operate(surgery.build()), surgery.inputs()
    run(model, x)
    fresh = surgery.operate(surgery.build())
    fresh.load_state_dict(model.state_dict())

    assert torch.equal(run(fresh.eval(), x), run(model.eval(), x))
    if surgery.same_keys:
        assert list(fresh.state_dict()) == list(surgery.build().state_dict())


def test_the_new_model_can_be_copied_and_pickled(surgery):
    model, x = surgery.operate(surgery.build()).eval(), surgery.inputs()
    copied = [copy.deepcopy(model)]
    if not any(hasattr(module, "parametrizations") for module in model.modules()):
        copied.append(pickle.loads(pickle.dumps(model)))  # torch refuses parametrized ones

    for other in copied:
        assert torch.equal(run(other, x), run(model, x))


def test_gradients_flow(surgery):
    new = surgery.operate(surgery.build())

    with seed_context(2):
        for _ in range(5):  # so that no block is dropped each time
            inputs = surgery.inputs()
            if inputs.is_floating_point():  # where all are dropped, they are what has a gradient
                inputs.requires_grad_()
            new(inputs).square().sum().backward()

    assert all(p.grad is not None for p in new.parameters())


def test_no_global_generator_moves(surgery, still_generators):
    model = _seeded(surgery.build)

    surgery.operate(model)


def _seeded(build):
    with torch.random.fork_rng():
        return build()


def test_a_model_without_anything_to_replace_is_reported_and_stays(surgery):
    model = nn.Sequential(nn.Tanh())
    with pytest.warns(F.NoEffectWarning, match=f"found nothing to .*{surgery.sought}"):
        assert surgery.operate(model) is model


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_refused(surgery, inside, in_place):
    model = surgery.build()
    if in_place:
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")

    with pytest.raises(ValueError, match=r"must not be compiled yet.* and compile it afterwards"):
        surgery.operate(nn.Sequential(model) if inside else model)


@pytest.mark.parametrize(
    "wrapper", ["DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"]
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_wrapped_model_is_refused(surgery, wrapper, inside):
    class Wrapped(nn.Sequential):
        pass

    Wrapped.__name__ = wrapper
    model = Wrapped(surgery.build())
    with pytest.raises(ValueError, match=f"wrapped in {wrapper}.* before wrapping it"):
        surgery.operate(nn.Sequential(model) if inside else model)


def test_a_lazy_layer_is_refused(surgery):
    if surgery.lazy is not None:
        with pytest.raises(ValueError, match=r"0\S* is lazy .* call the model once on a batch"):
            surgery.operate(nn.Sequential(surgery.lazy()))
