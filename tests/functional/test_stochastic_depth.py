"""Stochastic depth: which layers are dropped, how often, and the result in evaluation."""

import copy
import pickle
from contextlib import nullcontext
from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable import Event, State, chain
from composable.algorithms import EMA, StochasticDepth
from composable.integrations import adapt_loop
from tests.support import hugging_face
from tests.support.data import batches
from tests.support.models import CLASSES, same, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, sgd
from tests.support.tensors import randn


class Block(nn.Module):
    """x + f(x)."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x)


class Net(nn.Module):
    """What the blocks of residual nets below share."""

    def __init__(self, downsample=None):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.downsample = downsample

    def residual(self, x):
        return self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))

    def shortcut(self, x):
        return x if self.downsample is None else self.downsample(x)


class OfTorchvision(Net):
    """A block as torchvision's `BasicBlock`: relu(s(x) + f(x))."""

    def forward(self, x):
        out = self.residual(x)
        out += self.shortcut(x)
        return self.relu(out)


class OfTimm(Net):
    """A block as timm's, with an attention over channels after its last normalisation."""

    def __init__(self, downsample=None):
        super().__init__(downsample)
        self.act2, self.se, self.drop_path = nn.ReLU(inplace=True), nn.Sigmoid(), None
        del self.relu

    def residual(self, x):
        return self.se(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))

    def forward(self, x):
        return self.act2(self.residual(x) + self.shortcut(x))


for kind, module in [(OfTorchvision, "torchvision.models.resnet"), (OfTimm, "timm.models.resnet")]:
    kind.__module__, kind.__qualname__ = module, "BasicBlock"

METHODS = pytest.mark.parametrize("method", ["block", "sample"])
NETS = pytest.mark.parametrize("kind", [OfTorchvision, OfTimm])


def block_of(kind, shortcut=None):
    downsample = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)) if shortcut else None
    return kind(downsample)


def rates(model):
    held = (getattr(module, "dropping", None) for module in model.modules())
    return [how.rate for how in held if how is not None]


@pytest.mark.parametrize(
    ("distribution", "expected"), [("linear", [0.1, 0.2, 0.3, 0.4]), ("uniform", [0.4] * 4)]
)
def test_rates_grow_with_the_depth_or_are_uniform(distribution, expected):
    shared = Block()
    model = nn.Sequential(shared, nn.Sequential(Block(), Block()), Block(), shared)

    new = F.stochastic_depth(model, target=Block, drop_rate=0.4, drop_distribution=distribution)

    assert rates(new) == pytest.approx(expected)


@NETS
@METHODS
@pytest.mark.parametrize("shortcut", [None, "convolution"])
def test_known_blocks_match_the_formula(kind, shortcut, method):
    block, x = block_of(kind, shortcut), randn(3, 4, 5, 5)
    before, dropped = x.clone(), torch.relu(copy.deepcopy(block).shortcut(x))

    always = F.stochastic_depth(block, method=method, drop_rate=1.0)

    assert_close(always(x), dropped)
    assert torch.equal(x, before)
    assert (method == "block") == (always.bn2.num_batches_tracked == 0)  # isn't even computed
    assert not shortcut or always.downsample[1].num_batches_tracked == 1
    new = F.stochastic_depth(block.eval(), method=method, drop_rate=0.3)
    again = F.ghost_batchnorm(copy.deepcopy(new), ghost_batch_size=2)
    expected = torch.relu(block.shortcut(x) + 0.7 * block.residual(x))
    assert_close([new(x), again(x)], [expected] * 2)
    assert isinstance(new, kind)
    pickle.dumps(new.dropping)  # the module of the class doesn't exist here


@METHODS
def test_evaluation_returns_the_mean_of_training(method):
    block, x = Block().double(), randn(1, 4, dtype=torch.float64)
    new = F.stochastic_depth(block, target=Block, method=method, drop_rate=0.4)

    mean = torch.stack([new(x) for _ in range(4000)]).mean(0)

    assert_close(new.eval()(x), x + 0.6 * block.linear(x))
    assert_close(mean, new.eval()(x), atol=0.05, rtol=0)


def test_drop_rate_of_zero_returns_the_model():
    model = nn.Sequential(Block(), block_of(OfTorchvision))

    for options in ({"target": Block}, {"target": [Block, OfTorchvision]}, {}):
        assert F.stochastic_depth(model, drop_rate=0, **options) is model


@METHODS
@pytest.mark.parametrize(
    ("build", "x"), [(Block, randn(3, 4)), (partial(block_of, OfTorchvision), randn(3, 4, 5, 5))]
)
def test_scale_of_zero_computes_what_the_block_did(build, x, method):
    block = build()
    model = F.stochastic_depth(block, target=type(block), method=method, drop_rate=1.0)

    new = F.scale_drop_rates(model, 0.0)

    for mode in (False, True):
        assert torch.equal(copy.deepcopy(new).train(mode)(x), copy.deepcopy(block).train(mode)(x))


def test_scale_is_relative_to_the_original_rates_of_the_selected_classes():
    class Other(Block):
        pass

    model = F.stochastic_depth(nn.Sequential(Other(), Block()), target=Other, drop_rate=0.5)
    half = F.stochastic_depth(F.scale_drop_rates(model, 0.5), target=Block, drop_rate=0.4)

    assert rates(model) == [0.5]
    assert rates(half) == [0.25, 0.4]
    assert rates(F.scale_drop_rates(half, 1.0)) == [0.5, 0.4]
    assert rates(F.scale_drop_rates(half, 0.5, target=Block)) == [0.25, 0.2]
    assert F.scale_drop_rates(half, 0.5, target=[Other]) is half
    assert next(half.parameters()) is next(model.parameters())


@pytest.mark.parametrize("extra", [False, True])
def test_takes_a_description_of_a_block(extra):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch = nn.Linear(4, 2)

        def forward(self, x, factor=1.0):
            return torch.tanh(x[..., :2] + factor * self.branch(x))

    block, x = Scaled(), randn(3, 4)
    description = F.ResidualBlock(
        Scaled,
        shortcut=lambda block, x: torch.tanh(x[..., :2]),
        residual=(lambda block: block.branch) if extra else None,
    )
    new = F.stochastic_depth(block, target=description, drop_rate=0.3)
    always = F.stochastic_depth(block, target=description, drop_rate=1.0)

    inside = torch.tanh(x[..., :2] + 2 * 0.7 * block.branch(x))
    around = 0.3 * torch.tanh(x[..., :2]) + 0.7 * block(x, factor=2.0)
    assert_close(new.eval()(x, factor=2.0), inside if extra else around)
    assert torch.equal(always(x, 2.0), torch.tanh(x[..., :2]))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x, ValueError, r"Other must return .* its shortcut \(3, 4\), not \(3, 8\)"),
        (lambda x: (x, None), TypeError, "Other must return a tensor .* not a tuple"),
    ],
)
def test_rejects_blocks_that_are_no_sum_with_their_inputs(change, error, message):
    class Other(nn.Linear):
        def forward(self, x):
            return change(super().forward(x))

    new = F.stochastic_depth(Other(4, 8), target=Other, drop_rate=1e-9)
    with pytest.raises(error, match=f"{message}.* target=ResidualBlock"):
        new(randn(3, 4))


@pytest.mark.parametrize("kind", [Block, OfTorchvision])
def test_blocks_and_examples_are_dropped_independently_under_vmap(kind):
    block = kind()
    if kind is OfTorchvision:  # whose statistics an ensemble can't share
        block.bn1.eval(), block.bn2.eval()
    x = randn(20, 2, *(4,) * (1 if kind is Block else 3))
    kept, dropped = (
        F.stochastic_depth(block, target=kind, drop_rate=rate)(x.flatten(0, 1))
        for rate in (0.0, 1.0)
    )

    for method in ("block", "sample"):
        new = F.stochastic_depth(block, target=kind, drop_rate=0.5, method=method)
        outputs = torch.func.vmap(new, randomness="different")(x).flatten(0, 1)

        is_kept, is_dropped = (
            torch.isclose(outputs, one, atol=1e-6).flatten(1).all(1).view(20, 2)
            for one in (kept, dropped)
        )
        assert (is_kept ^ is_dropped).all()
        assert 0 < is_kept.sum() < 40
        assert (is_kept[:, 0] == is_kept[:, 1]).all() == (method == "block")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@METHODS
def test_torch_encoder_ignores_padding_in_evaluation(method):
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
    new = F.stochastic_depth(encoder, target=nn.TransformerEncoderLayer, method=method).eval()
    x, padding = randn(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])

    expected = new(x, src_key_padding_mask=padding)
    with torch.no_grad():  # then a plain encoder would nest the sequences
        outputs = new(x, src_key_padding_mask=padding)

    assert_close(outputs[~padding], expected[~padding])


@METHODS
def test_outputs_under_autocast_have_the_dtype_of_the_block(method):
    class Summed(Block):
        def forward(self, x):
            return super().forward(x).float()

    block = Summed()
    new, x = F.stochastic_depth(block, target=Summed, method=method), randn(3, 4).bfloat16()

    with torch.autocast("cpu", torch.bfloat16):
        expected, outputs = block(x), new.eval()(x)
        shortcut = x.float()

    assert outputs.dtype is torch.float32
    assert_close(outputs, torch.lerp(shortcut, expected, 0.8))


SIZES = {"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 12}
WORDS = {**SIZES, "intermediate_size": 16, "vocab_size": hugging_face.WORDS}
IMAGES = {"image_size": 8, "patch_size": 2}
SEQUENCES = {
    f"{part}_{name}": value
    for part in ("encoder", "decoder")
    for name, value in {"layers": 2, "attention_heads": 3, "ffn_dim": 16}.items()
} | {"d_model": 12, "vocab_size": hugging_face.WORDS}
T5 = {"d_model": 12, "d_kv": 4, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": 0}
SWIN = {
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [2, 2],
    "drop_path_rate": 0.0,
    "window_size": 2,
}
FAMILIES = {
    "BertModel": (WORDS, ["input_ids"], 2),
    "GPT2Model": (WORDS, ["input_ids"], 2),
    "GemmaForCausalLM": (WORDS | {"num_key_value_heads": 1, "head_dim": 4}, ["input_ids"], 2),
    "PhiForCausalLM": (WORDS, ["input_ids"], 2),
    "ViTModel": (SIZES | IMAGES, ["pixel_values"], 2),
    "CLIPVisionModel": (SIZES | IMAGES, ["pixel_values"], 2),
    "SwinModel": (SWIN | IMAGES, ["pixel_values"], 3),
    "BartModel": (SEQUENCES, ["input_ids", "decoder_input_ids"], 4),
    "WhisperModel": (
        SEQUENCES | {"num_mel_bins": 8, "max_source_positions": 4, "decoder_start_token_id": 0},
        ["input_features", "decoder_input_ids"],
        4,
    ),
    "T5Model": (T5, ["input_ids", "decoder_input_ids"], 4),
}


def batch_of(inputs):
    """Return a batch with these entries."""
    made = {"pixel_values": randn(2, 3, 8, 8), "input_features": randn(2, 8, 8)}
    return {one: made.get(one, hugging_face.tokens(4)) for one in inputs}


def first_call(model, name, batch):
    """Return the inputs and the outputs of a block in a call of its model."""
    seen = []
    block = model.get_submodule(name)
    hook = block.register_forward_hook(lambda _, args, outputs: seen.append((args[0], outputs)))
    model(**batch)
    hook.remove()
    hidden, outputs = seen[0]
    return hidden, (outputs[0] if isinstance(outputs, tuple) else outputs)


@METHODS
@pytest.mark.parametrize("name", FAMILIES)
def test_layers_of_more_families(name, method):
    pytest.importorskip("transformers")
    options, inputs, count = FAMILIES[name]
    model = hugging_face.build_class(name, **options)
    batch = batch_of(inputs)
    options = {"method": method, "drop_distribution": "uniform"}
    half, always = (F.stochastic_depth(model, drop_rate=rate, **options) for rate in (0.5, 1.0))
    blocks = [name for name, one in half.named_modules() if hasattr(one, "dropping")]

    hidden, outputs = first_call(model, blocks[0], batch)
    assert len(blocks) == count
    assert_close(first_call(half, blocks[0], batch)[1], torch.lerp(hidden, outputs, 0.5))
    for training in (True, False):
        assert_close(*first_call(always.train(training), blocks[-1], batch))
    assert_close(F.scale_drop_rates(half, 0.0)(**batch)[0], model(**batch)[0])


def test_dropped_block_of_t5_gives_its_biases_to_the_others():
    pytest.importorskip("transformers")
    model = hugging_face.build_class("T5EncoderModel", **T5)
    new = F.stochastic_depth(model, drop_rate=1.0, drop_distribution="uniform").train()
    seen = []
    new.encoder.block[1].register_forward_pre_hook(lambda _, args: seen.append(args[2]))

    new(hugging_face.tokens(4))
    assert seen[0].unique().numel() > 1


# --- the algorithm ---


def residual():
    return seeded(lambda: nn.Sequential(Block(), Block(), nn.Linear(4, CLASSES)))


def rate(state):
    return state.model[1].dropping.rate


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize("warmup", ["0.5dur", 0.5, "5ba", "1ep"])
def test_warm_up_reaches_the_drop_rate(method, warmup):
    watch = Watch(Event.BEFORE_FORWARD, read=rate)
    algorithm = StochasticDepth(target=Block, method=method, drop_rate=0.4, drop_warmup=warmup)

    final = make_trainer(
        residual(),
        train_dataloader=batches([2] * 5),
        algorithms=[algorithm, EMA("1ba")],
        callbacks=[watch],
    ).fit()

    assert watch.values[:5] == pytest.approx([0, 0.08, 0.16, 0.24, 0.32])
    assert watch.values[5:] == [0.4] * 5
    assert rate(final) == 0.4


def test_two_instances_have_warm_ups_of_their_own():
    class Other(Block):
        pass

    model = seeded(lambda: nn.Sequential(Other(), Block(), nn.Linear(4, CLASSES)))
    watch = Watch(
        Event.BEFORE_FORWARD,
        read=lambda state: [block.dropping.rate for block in state.model[:2]],
    )
    warming = StochasticDepth(target=Other, drop_rate=0.4, drop_warmup="4ba")
    at_once = StochasticDepth(target=Block, drop_rate=0.5, name="AtOnce")

    make_trainer(model, algorithms=chain(warming, at_once), callbacks=[watch]).fit()

    assert [one for one, _ in watch.values] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4])
    assert {other for _, other in watch.values} == {0.5}


def test_warm_up_makes_a_hundred_models_at_most():
    algorithm = StochasticDepth(target=Block, drop_warmup="1000ba")
    state = algorithm(Event.INIT, State(residual()))
    models = set()
    for batch in range(1200):
        now = attrs.evolve(state.timestamp, batch=batch)
        state = algorithm(Event.BATCH_START, state.evolve(timestamp=now))
        models.add(state.model[1].dropping.scale)

    assert len(models) == 101


def test_step_of_a_warm_up_can_be_replayed():
    algorithm = StochasticDepth(target=Block, drop_rate=0.5, drop_warmup="1dur")
    plain = partial(torch.optim.SGD, lr=0.1)  # its state is not that of an earlier step
    seen = Watch(Event.AFTER_DATALOADER, read=lambda state: (state, weights(state.model)))
    trainer = make_trainer(residual(), optimizers=plain, algorithms=[algorithm], callbacks=[seen])
    trainer.fit()

    state, before = seen.values[3]
    state.model.load_state_dict(before)
    again = trainer.train_batch(state)

    assert same(weights(again.model), seen.values[4][1])


@pytest.mark.parametrize("warmup", [0.0, "1ep"])
def test_external_loop_rejects_a_warm_up(warmup):
    algorithm, model = StochasticDepth(target=Block, drop_warmup=warmup), residual()
    t = adapt_loop(
        [algorithm],
        model,
        sgd(model.parameters()),
        loss_fn=nn.functional.cross_entropy,
        max_duration="2ep",
        seed=1,
    )
    steps = t.epoch(batches(12))
    next(steps)

    message = r"replaced the model .* pass drop_warmup=0.0"
    with pytest.raises(RuntimeError, match=message) if warmup else nullcontext():
        next(steps)
