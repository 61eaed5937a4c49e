"""What holds for every surgery: a new model that shares, and the original that stays."""

import copy
import importlib.util
import inspect
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
from composable.testing.problems import image_batch
from composable.utils.reproducibility import preserve_rng, seed_context
from tests.support import hugging_face
from tests.support.campaign import each_once
from tests.support.cases import NEVER, all_function_cases
from tests.support.surgery import HEAD, POSITIONS, TOKENS, filled
from tests.support.tensors import seeded


class Surgery(NamedTuple):
    """A surgery, a model that it changes, an input, and what it looks for: see `FunctionCase`."""

    operate: Callable[[nn.Module], nn.Module]
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    sought: str
    lazy: Callable[[], nn.Module] | None = None
    removed: str = NEVER
    renamed: str = NEVER
    added: str = NEVER

    @classmethod
    def of(cls, case):
        """Return that of a case."""
        draws = "generator" in inspect.signature(case.function).parameters

        def operate(model):
            return case.bound(model, **({"generator": seeded()} if draws else {}))

        def build():
            with seed_context(0):
                return case.valid()["model"]

        def inputs():
            with seed_context(0):
                return case.inputs(6) if case.inputs else image_batch(6)[0]

        patterns = case.removed, case.renamed, case.added
        return cls(operate, build, inputs, case.sought, case.lazy, *patterns)


def images():
    return torch.randn(6, 4, 5, 5, generator=seeded())


gyro_dropout = partial(F.gyro_dropout, sigma=8, tau=2, iters_per_epoch=8, max_epoch=2)
gated_linear_units = partial(F.gated_linear_units, gated_layer_bias=True)
squeeze_excite = partial(F.squeeze_excite, latent_channels=2, min_channels=4)
factorize = partial(F.factorize, min_channels=4, latent_channels=2)
ghost_batchnorm = partial(F.ghost_batchnorm, ghost_batch_size=2)
blurpool = partial(F.blurpool, min_channels=4)

OWN = {repr(one): Surgery.of(one) for _, one in all_function_cases() if one.sought}
SURGERIES = dict(OWN)
FITTED = {"factorize"}  # which needs the values of the weights


def of_transformers(family):
    """Yield the names of surgeries, what each does and looks for, and patterns of the names."""
    places = {"removed": r".*(wpe|position_embeddings)\.weight"}
    ngrams = {"added": r".*(wte|word_embeddings)\.ngrams\.weight"}
    yield "alibi", partial(F.alibi, max_sequence_length=16), POSITIONS, places
    yield "ngram_embeddings", partial(F.ngram_embeddings, rows=8), TOKENS, ngrams
    yield "softcap_head", F.softcap_head, HEAD, {}
    yield "rotary", F.rotary, POSITIONS, places
    if family in ("gpt2", "bert"):
        yield (
            "gated_linear_units",
            lambda model: gated_linear_units(model, generator=seeded()),
            "feed-forward blocks of the classes .*BertIntermediate.*GPT2MLP",
            {"added": r".*\.non_gated\.weight"},
        )
        sought = "torchvision.models.resnet.BasicBlock, .*GPT2Block"
        yield "stochastic_depth", partial(F.stochastic_depth, drop_rate=0.5), sought, {}


if importlib.util.find_spec("transformers") is not None:
    for family in hugging_face.FAMILIES:
        model = partial(hugging_face.build, family), partial(hugging_face.tokens, 6)
        for name, change, sought, patterns in of_transformers(family):
            SURGERIES[f"{name} of {family}"] = Surgery(change, *model, sought, **patterns)


@pytest.fixture(params=SURGERIES)
def surgery(request):
    return SURGERIES[request.param]


@pytest.fixture(params=OWN)
def own(request):
    return OWN[request.param]


def run(model, inputs):
    """Call a model with the global generator where it was."""
    with preserve_rng():
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
    relaid = outputs.stride() != expected.stride()
    assert relaid or not torch.equal(outputs, expected) or repr(new) != text
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
    left_out = [name for name in kept if type(kept[name]) is nn.Identity]
    assert calls == [name for name in expected if name not in left_out]
    modes = [(kept[name].training, modules[name].training) for name in kept.keys() - {*left_out}]
    assert all(now is before for now, before in modes)


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


# --- exported programs, and graphs of layers that keep tensors ---


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
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    for inputs in (x, x.flip(-1)):  # nothing is left of an earlier call
        assert_close(compiled(inputs), model(inputs))


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
