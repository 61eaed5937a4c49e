"""What holds for every surgery: a new model that shares, and the original that stays."""

import copy
import importlib.util
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.testing import assert_close

import composable.functional as F
from composable._support.tree import tensors_of
from tests.support import hugging_face
from tests.support.models import Attention, ProjectedAttention
from tests.support.tensors import seeded

NEVER = r"(?!)"


class Surgery(NamedTuple):
    """A surgery, a model that it changes, an input, and what it looks for.

    `removed`, `renamed` and `added` are patterns of names in the state dict: parameters that only
    the original has, those that the new model has by another name, and new tensors.
    """

    operate: Callable[[nn.Module], nn.Module]
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    sought: str
    lazy: Callable[[], nn.Module] | None = None
    removed: str = NEVER
    renamed: str = NEVER
    added: str = NEVER


def generator():
    return seeded()


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

squeeze_excite = partial(F.squeeze_excite, latent_channels=2, min_channels=4)
gyro_dropout = partial(F.gyro_dropout, sigma=8, tau=2, iters_per_epoch=8, max_epoch=2)
factorize = partial(F.factorize, min_channels=4, latent_channels=2)
ghost_batchnorm = partial(F.ghost_batchnorm, ghost_batch_size=2)
blurpool = partial(F.blurpool, min_channels=4)
gated_linear_units = partial(F.gated_linear_units, gated_layer_bias=True)

SURGERIES = {
    "ghost_batchnorm": Surgery(
        ghost_batchnorm,
        conv_net,
        images,
        "BatchNorm1d, BatchNorm2d and BatchNorm3d",
        nn.LazyBatchNorm2d,
    ),
    "blurpool": Surgery(
        blurpool,
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.MaxPool2d(2)),
        images,
        "at least 4 input channels or MaxPool1d",
        lambda: nn.LazyConv2d(4, 3, stride=2),
    ),
    "weight_standardization": Surgery(
        F.weight_standardization,
        conv_net,
        images,
        "Conv1d, Conv2d and Conv3d",
        lambda: nn.LazyConv2d(4, 3),
        renamed=r"0\.weight",
        added=r"0\.parametrizations\.weight\.original",
    ),
    "squeeze_excite": Surgery(
        lambda model: squeeze_excite(model, generator=generator()),
        conv_net,
        images,
        "Conv1d, Conv2d and Conv3d with at least 4",
        lambda: nn.LazyConv2d(4, 3),
        added=r"0\.squeeze_excite\.(squeeze|excite)",
    ),
    "factorize": Surgery(
        factorize,
        conv_net,
        images,
        "Conv1d, Conv2d and Conv3d with at least 4",
        lambda: nn.LazyConv2d(4, 3),
        removed=r"0\.weight",
        renamed=r"0\.bias",
        added=r"0\.(reduce\.weight|expand\.(weight|bias))",
    ),
    "gyro_dropout": Surgery(
        lambda model: gyro_dropout(model, generator=generator()),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.Dropout(0.1), nn.ReLU()),
        images,
        "Dropout",
        added=r"1\.(seed|steps)",
    ),
    "alibi": Surgery(
        partial(F.alibi, max_sequence_length=9),
        lambda: nn.Sequential(Attention(4), nn.ReLU(), Attention(4)),
        texts,
        "position embeddings and attention of the classes .*Attention.*",
    ),
    "rotary": Surgery(
        F.rotary,
        lambda: nn.Sequential(Attention(4), nn.ReLU(), Attention(4)),
        texts,
        "position embeddings and attention of the classes .*Attention.*",
    ),
    **{
        name: Surgery(
            change,
            lambda: nn.Sequential(Attention(4), nn.ReLU(), Attention(4)),
            texts,
            "self-attention.* of the classes .*Attention.*",
            added=rf".\.attention_changes\.{name}\..*",
        )
        for name, change in {
            "qk_norm": F.qk_norm,
            "attention_output_gate": partial(F.attention_output_gate, channels=2),
            "exclusive_self_attention": partial(F.exclusive_self_attention, learned=True),
            "sliding_window": partial(F.sliding_window, window=2),
            "partial_key_offset": partial(F.partial_key_offset, every=1),
        }.items()
    },
    "ngram_embeddings": Surgery(
        partial(F.ngram_embeddings, rows=8),
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)),
        lambda: torch.randint(9, (2, 5), generator=generator()),
        "the nn.Embedding of the tokens",
        added=r"0\.ngrams\.weight",
    ),
    "skip_connections": Surgery(
        partial(F.skip_connections, target=FeedForward, sources="all"),
        lambda: nn.Sequential(FeedForward(), FeedForward(), FeedForward()),
        texts,
        "stacks of blocks of the classes .*FeedForward.*",
        added=r"\d\.skip_scales",
    ),
    "smear": Surgery(
        partial(F.smear, channels=4),
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)),
        lambda: torch.randint(9, (2, 5), generator=generator()),
        "the nn.Embedding of the tokens",
        added=r"0\.smear_(gate|scale)",
    ),
    "value_embeddings": Surgery(
        partial(F.value_embeddings, channels=4),
        lambda: nn.Sequential(nn.Embedding(9, 4), ProjectedAttention(4)),
        lambda: torch.randint(9, (2, 5), generator=generator()),
        "the nn.Embedding of the tokens",
        added=r"1\.qkv\.value_embedding\.(table|gate)",
    ),
    "value_residual": Surgery(
        F.value_residual,
        lambda: nn.Sequential(ProjectedAttention(4), nn.ReLU(), ProjectedAttention(4)),
        texts,
        "two layers of values or more, in attention of the classes .*ProjectedAttention",
        added=r"2\.qkv\.value_residual\.scales",
    ),
    "split_head": Surgery(
        F.split_head,
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)),
        lambda: torch.randint(9, (2, 5), generator=generator()),
        "a token embedding, and a head",
        removed=r"1\.weight",
        added=r"1\.weight",
    ),
    "squared_relu": Surgery(
        F.squared_relu,
        lambda: nn.Sequential(FeedForward(), nn.ReLU(), FeedForward()),
        texts,
        "feed-forward blocks of the classes .*FeedForward.*",
    ),
    "softcap_head": Surgery(
        F.softcap_head,
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)),
        lambda: torch.randint(9, (2, 5), generator=generator()),
        "what get_output_embeddings.* returns, or an nn.Linear",
    ),
    "gated_linear_units": Surgery(
        lambda model: gated_linear_units(model, generator=generator()),
        lambda: nn.Sequential(FeedForward(), nn.ReLU(), FeedForward()),
        texts,
        "feed-forward blocks of the classes .*FeedForward.*",
        lambda: FeedForward(lazy=True),
        added=r".\.up\.non_gated\.weight",
    ),
}
for method in ("block", "sample"):
    SURGERIES[f"stochastic_depth by {method}"] = Surgery(
        partial(F.stochastic_depth, target=Block, method=method, drop_rate=0.5),
        lambda: nn.Sequential(Block(), nn.ReLU(), Block()),
        images,
        "blocks of the classes .*Block",
    )
for operate, norm, sought in [
    (F.low_precision_layernorm, partial(nn.LayerNorm, 3), "LayerNorm"),
    (F.low_precision_groupnorm, partial(nn.GroupNorm, 2, 4), "GroupNorm"),
]:
    SURGERIES[operate.__name__] = Surgery(
        partial(operate, precision=torch.bfloat16),
        lambda norm=norm: nn.Sequential(nn.Conv2d(4, 4, 3), norm(), nn.ReLU()),
        images,
        sought,
    )

OWN = dict(SURGERIES)
FITTED = {"factorize"}  # which needs the values of the weights
if importlib.util.find_spec("transformers") is not None:
    for family in hugging_face.FAMILIES:
        build = partial(hugging_face.build, family)
        tokens = partial(hugging_face.tokens, 6)
        SURGERIES[f"alibi of {family}"] = Surgery(
            partial(F.alibi, max_sequence_length=16),
            build,
            tokens,
            "position embeddings and attention of the classes .*BertSelfAttention",
            removed=r".*(wpe|position_embeddings)\.weight",
        )
        SURGERIES[f"ngram_embeddings of {family}"] = Surgery(
            partial(F.ngram_embeddings, rows=8),
            build,
            tokens,
            "the nn.Embedding of the tokens",
            added=r".*(wte|word_embeddings)\.ngrams\.weight",
        )
        SURGERIES[f"softcap_head of {family}"] = Surgery(
            F.softcap_head, build, tokens, "what get_output_embeddings.* returns, or an nn.Linear"
        )
        if family == "gpt2":
            SURGERIES["rotary of gpt2"] = Surgery(
                F.rotary,
                build,
                tokens,
                "position embeddings and attention of the classes .*GPT2Attention",
                removed=r".*wpe\.weight",
            )
        if family not in ("gpt2", "bert"):
            continue
        SURGERIES[f"gated_linear_units of {family}"] = Surgery(
            lambda model: gated_linear_units(model, generator=generator()),
            build,
            tokens,
            "feed-forward blocks of the classes .*BertIntermediate.*GPT2MLP",
            added=r".*\.non_gated\.weight",
        )
        SURGERIES[f"stochastic_depth of {family}"] = Surgery(
            partial(F.stochastic_depth, drop_rate=0.5),
            build,
            tokens,
            "torchvision.models.resnet.BasicBlock, .*GPT2Block",
        )


@pytest.fixture(params=SURGERIES)
def surgery(request):
    return SURGERIES[request.param]


@pytest.fixture(params=OWN)
def own(request):
    return OWN[request.param]


def run(model, inputs):
    """Call a model with the global generator where it was."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return next(tensors_of(model(inputs)))


def test_original_is_not_modified(surgery):
    model, x = surgery.build(), surgery.inputs()
    text, before = repr(model), {k: v.clone() for k, v in model.state_dict().items()}
    versions = [p._version for p in model.parameters()]
    expected = run(copy.deepcopy(model), x)

    new = surgery.operate(model)
    outputs = run(new, x)

    assert new is not model
    assert surgery.operate(new) is new
    assert repr(model) == text
    assert not torch.equal(outputs, expected) or repr(new) != text
    assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert versions == [p._version for p in model.parameters()]
    assert torch.equal(run(model, x), expected)


def test_parameters_and_their_names_are_shared(surgery):
    model = surgery.build()
    old = model.state_dict(keep_vars=True)

    new = surgery.operate(model).state_dict(keep_vars=True)

    held = {id(tensor) for tensor in new.values()}
    parameters = {name for name in old if isinstance(old[name], nn.Parameter)}
    removed = {name for name in old if re.fullmatch(surgery.removed, name)}
    renamed = {name for name in old if re.fullmatch(surgery.renamed, name)}
    added = {name for name in new if re.fullmatch(surgery.added, name)}
    assert new.keys() == (old.keys() - removed - renamed) | added
    assert removed == {name for name in parameters if id(old[name]) not in held}
    assert all(new[name] is old[name] for name in parameters - removed - renamed)


def test_hooks_and_modes_are_kept(own):
    model, calls = own.build(), []
    modules = dict(model.named_modules())
    for name, module in modules.items():
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
        module.train(name.endswith("1"))  # from the root down: some train, and some don't

    run(model, own.inputs())
    expected = list(calls)
    calls.clear()
    new = own.operate(model)
    run(new, own.inputs())

    kept = {name: module for name, module in new.named_modules() if name in modules}
    assert calls == expected
    assert all(module.training is modules[name].training for name, module in kept.items())


def test_shared_module_stays_shared(surgery):
    layer = surgery.build()
    new = surgery.operate(nn.ModuleList([layer, nn.Identity(), layer]))

    assert new[0] is new[2]


@pytest.mark.parametrize("name", sorted(OWN.keys() - FITTED))
def test_new_tensors_are_on_the_device_of_the_model(name):
    new = OWN[name].operate(OWN[name].build().to("meta"))

    assert {t.device.type for t in new.state_dict().values()} == {"meta"}


def test_new_model_can_be_copied_and_pickled(surgery):
    model, x = surgery.operate(surgery.build()).eval(), surgery.inputs()
    copied = [copy.deepcopy(model)]
    if not any(hasattr(module, "parametrizations") for module in model.modules()):
        copied.append(pickle.loads(pickle.dumps(model)))  # torch refuses parametrized ones

    for other in copied:
        assert torch.equal(run(other, x), run(model, x))


def test_warns_if_nothing_is_replaced(surgery):
    model = nn.Sequential(nn.Tanh())
    with pytest.warns(F.NoEffectWarning, match=f"found nothing to .*{surgery.sought}"):
        assert surgery.operate(model) is model


def in_place(model):
    model.compile(backend="eager")
    return model


def wrapped(name, model):
    """Wrap a model in a class of this name."""
    return type(name, (nn.Sequential,), {})(model)


REFUSED = {
    "compiled": partial(torch.compile, backend="eager"),
    "compiled in place": in_place,
    "DistributedDataParallel": partial(wrapped, "DistributedDataParallel"),
    "FullyShardedDataParallel": partial(wrapped, "FullyShardedDataParallel"),
    "FSDPModule": partial(wrapped, "FSDPModule"),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("how", REFUSED)
def test_rejects_compiled_or_wrapped_model(own, how, inside):
    model = REFUSED[how](own.build())
    message = (
        r"must not be compiled yet.* and compile it afterwards"
        if "compiled" in how
        else f"wrapped in {how}.* before wrapping it"
    )
    with pytest.raises(ValueError, match=message):
        own.operate(nn.Sequential(model) if inside else model)


@pytest.mark.parametrize("name", [name for name, one in OWN.items() if one.lazy])
def test_rejects_lazy_layer(name):
    with pytest.raises(ValueError, match=r"0\S* is lazy .* call the model once on a batch"):
        OWN[name].operate(nn.Sequential(OWN[name].lazy()))


# --- subclasses, and layers built by hand ---


def scaled(kind):
    """Derive a class from a layer, with a forward method of its own."""

    class Scaled(kind):
        def forward(self, x):
            return 10 * super().forward(x)

    return Scaled


def named(kind):
    """Derive a class from a layer, which inherits its forward method."""
    return type("Named", (kind,), {})


PLAIN = [
    (ghost_batchnorm, nn.BatchNorm2d, (4,), True),
    (F.low_precision_layernorm, nn.LayerNorm, (5,), True),
    (F.low_precision_groupnorm, nn.GroupNorm, (2, 4), True),
    (gyro_dropout, nn.Dropout, (), True),
    (partial(factorize, min_features=1, latent_features=1), nn.Linear, (5, 5), False),
    (factorize, nn.Conv2d, (4, 4, 3), False),
]


@pytest.mark.parametrize(("operate", "kind", "arguments", "replaces_named"), PLAIN)
def test_subclass_with_its_own_forward_is_not_replaced(operate, kind, arguments, replaces_named):
    kinds = [kind, scaled(kind), named(kind)]

    new = operate(nn.Sequential(*(one(*arguments) for one in kinds)))

    changed = [type(layer) is not one for layer, one in zip(new, kinds, strict=True)]
    assert changed == [True, False, replaces_named]
    assert isinstance(new[2], kinds[2]) or operate is gyro_dropout


@pytest.mark.parametrize(
    ("operate", "expected"),
    [
        (blurpool, lambda new, conv, x: conv(F.blur(x))),
        (squeeze_excite, lambda new, conv, x: new.squeeze_excite(conv(x))),
        (
            F.weight_standardization,
            lambda new, conv, x: (
                10 * conv2d(x, F.standardize_weight(conv.weight), conv.bias, stride=2)
            ),
        ),
    ],
)
def test_subclass_of_a_convolution_keeps_its_forward(operate, expected):
    conv, x = scaled(nn.Conv2d)(4, 4, 3, stride=2), images()

    new = operate(conv)

    assert isinstance(new, type(conv))
    assert_close(new(x), expected(new, conv, x))


LOW = {"precision": torch.bfloat16}
BY_HAND = [
    (ghost_batchnorm, nn.BatchNorm2d(4), F.GhostBatchNorm2d(4, ghost_batch_size=2)),
    (blurpool, nn.Conv2d(4, 4, 3, stride=2), F.BlurConv2d(4, 4, 3, stride=2)),
    (blurpool, nn.MaxPool2d(2), F.BlurMaxPool2d(2)),
    (
        partial(F.low_precision_layernorm, **LOW),
        nn.LayerNorm(5),
        F.LowPrecisionLayerNormLayer(5, **LOW),
    ),
    (
        partial(F.low_precision_groupnorm, **LOW),
        nn.GroupNorm(2, 4),
        F.LowPrecisionGroupNormLayer(2, 4, **LOW),
    ),
]


@pytest.mark.parametrize(("operate", "layer", "by_hand"), BY_HAND)
def test_layer_built_by_hand_equals_that_of_the_surgery(operate, layer, by_hand):
    new = operate(layer)
    by_hand.load_state_dict(new.state_dict())

    assert torch.equal(by_hand(images()), new(images()))
    assert repr(by_hand) == repr(new) != repr(layer)
