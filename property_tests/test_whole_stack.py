"""Law: a changed model survives copies, skipped blocks, nested tensors, errors and adapters."""

import copy
import io
import itertools
import pickle
import re
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable.utils.reproducibility import seed_context
from property_tests.test_surgeries import TOGETHER, net
from tests.functional.test_surgeries import OWN
from tests.support import campaign, hugging_face
from tests.support.surgery import filled
from tests.support.tensors import randn, seeded

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore::composable.functional.NoEffectWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),
]

ADDED = ("ngrams", "smear_", "skip_", "value_", "attention_changes")
TEXT = {
    "alibi": partial(F.alibi, max_sequence_length=16),
    "attention_output_gate": F.attention_output_gate,
    "checkpoint_activations": F.checkpoint_activations,
    "exclusive_self_attention": partial(F.exclusive_self_attention, learned=True),
    "factorize": partial(F.factorize, min_features=4, latent_features=2),
    "gated_linear_units": lambda model: F.gated_linear_units(model, generator=seeded()),
    "gyro_dropout": partial(F.gyro_dropout, iters_per_epoch=8, max_epoch=2),
    "low_precision_layernorm": partial(F.low_precision_layernorm, precision=torch.bfloat16),
    "ngram_embeddings": partial(F.ngram_embeddings, rows=8),
    "partial_key_offset": F.partial_key_offset,
    "qk_norm": F.qk_norm,
    "rotary": F.rotary,
    "skip_connections": partial(F.skip_connections, sources="all"),
    "sliding_window": partial(F.sliding_window, window=4),
    "smear": partial(F.smear, channels=4),
    "softcap_head": partial(F.softcap_head, cap=2.0),
    "split_head": F.split_head,
    "squared_relu": F.squared_relu,
    "stochastic_depth": partial(F.stochastic_depth, drop_rate=0.6, drop_distribution="uniform"),
    "value_embeddings": partial(F.value_embeddings, channels=4),
    "value_residual": F.value_residual,
}
ON_IMAGES = sorted(TOGETHER.keys() - {"softcap_head", "weight_standardization"})  # no pickles
REFUSED = {
    "factorize": {"lm_head"},
    "gated_linear_units": {"c_fc"},
    "ngram_embeddings": {"wte"},
    "rotary": {"c_attn"},
    "smear": {"wte"},
    "softcap_head": {"lm_head"},
    "value_embeddings": {"c_attn", "wte"},
    "value_residual": {"c_attn"},
}
ONCE = ("gyro_dropout", "value_embeddings", "value_residual")  # they refuse a second call
APART = {
    frozenset({"alibi", "rotary"}),  # both replace the positions
    *(frozenset({"checkpoint_activations", one}) for one in ONCE),
}
PAIRS = [pair for pair in itertools.permutations(TEXT, 2) if frozenset(pair) not in APART]
ON_ONE_LAYER = [
    ("ngram_embeddings", "smear"),
    ("skip_connections", "stochastic_depth"),
    ("alibi", "qk_norm"),
    ("value_embeddings", "value_residual"),
    ("rotary", "value_residual"),
    ("split_head", "softcap_head"),
]
STACKS = [*ON_ONE_LAYER, *campaign.drawn(PAIRS, 6)]
LAYERS = 3


def text_model(*names):
    """Return a GPT-2 that was changed, with parameters that act."""
    model = hugging_face.build("gpt2", num_hidden_layers=LAYERS, tie_word_embeddings=False)
    for name in names:
        model = TEXT[name](model)
    return filled(model, *ADDED)


def logits(model, ids=None, seed=1, **options):
    with seed_context(seed):
        return model(hugging_face.tokens(6) if ids is None else ids, **options).logits


def copies(model):
    """Return copies of a model, one by each way."""
    file = io.BytesIO()
    torch.save(copy.deepcopy(model), file)
    file.seek(0)
    yield torch.load(file, weights_only=False)
    yield copy.deepcopy(pickle.loads(pickle.dumps(model)))


def test_every_surgery_is_in_the_tables():
    known = {name.partition("(")[0] for name in OWN}
    assert known <= {name.partition("(")[0] for name in (*TEXT, *TOGETHER)}


def image_model(*names):
    """Return a convolutional model that was changed."""
    model = net()
    for name in names:
        model = TOGETHER[name](model)
    return model.eval()


OF_IMAGES = campaign.drawn(itertools.permutations(ON_IMAGES, 2), 8)


@pytest.mark.parametrize("names", [*STACKS, *OF_IMAGES], ids="-".join)
def test_models_of_two_changes_are_copied_and_saved_whole(names):
    """Law of stacks: A model with two changes of a layer is copied, pickled and saved whole."""
    x = randn(6, 4, 17, 17)
    if names in OF_IMAGES:
        model, call = image_model(*names), lambda model: model(x)
    else:
        model, call = text_model(*names), logits

    for other in copies(model):
        assert [type(one) for one in other.modules()] == [type(one) for one in model.modules()]
        assert torch.equal(call(other), call(model))


# --- calls ---


class Stopped(Exception):
    pass


def stop(*_):
    raise Stopped


@contextmanager
def skipping(model, dropped):
    """Skip blocks of a GPT-2 in its calls, as an early exit does."""
    base, blocks = model.transformer, model.transformer.h
    base.h = nn.ModuleList(one for i, one in enumerate(blocks) if i not in dropped)
    try:
        yield base.h
    finally:
        base.h = blocks


@pytest.mark.parametrize("names", [*((one,) for one in TEXT), *STACKS], ids="-".join)
def test_a_call_depends_on_no_earlier_call(names):
    """Law of stacks: A call gives what it would give alone, whatever blocks and calls came before.

    Also if an earlier one raised, or was called on documents.
    """
    plain, draw = text_model(*names).train(), torch.Generator().manual_seed(0)
    used = copy.deepcopy(plain)
    for step, dropped in enumerate([(LAYERS - 1,), (0, 1), (0,), ()]):
        ids = torch.randint(1, hugging_face.WORDS, (2, 6), generator=draw)
        alone, found = copy.deepcopy(plain), []
        alone.load_state_dict(used.state_dict())  # the count of steps of some layers
        for model in (alone, used):
            model.zero_grad()
            with skipping(model, dropped), torch.set_grad_enabled(step != 1):
                outputs = logits(model, ids, seed=step)
                if outputs.requires_grad:
                    outputs.square().mean().backward()
            found.append([outputs, *(p.grad for p in model.parameters() if p.grad is not None)])
        assert_close(*found, rtol=0, atol=0)
        with suppress(Stopped), skipping(used, (step % LAYERS,)) as blocks:
            blocks[-1].ln_1.register_forward_pre_hook(stop)
            logits(used, ids, attention_mask=(ids > 8).long())
        blocks[-1].ln_1._forward_pre_hooks.popitem()


@pytest.mark.parametrize("name", TEXT)
def test_a_call_within_a_call_changes_nothing_or_is_refused(name):
    """Law of stacks: A call of the model within its own call changes neither, or is refused."""
    model, ids, todo, found = text_model(name).eval(), hugging_face.tokens(6), [], []
    inner, outer = logits(model, ids[:, :4]), logits(model, ids)

    def call(*_):
        if todo:
            todo.pop()
            found.append(logits(model, ids[:, :4]))

    for place in ("wte", "h.1", "h.2.ln_1"):
        model.transformer.get_submodule(place).register_forward_pre_hook(call)
        todo[:], found[:] = [1, 1], []
        try:
            found.append(logits(model, ids))
        except RuntimeError as error:
            assert "called again within this call: call it before" in str(error)  # noqa: PT017
        else:
            assert_close(found, [inner, inner, outer], rtol=0, atol=0)
        todo.clear()
        assert_close(logits(model, ids), outer, rtol=0, atol=0)


def test_values_are_mixed_with_the_first_ones_that_are_computed():
    model, ids = text_model("value_residual"), hugging_face.tokens(6)
    layer, seen = model.transformer.h[1].attn.c_attn, []
    layer.value_residual.register_forward_hook(lambda _, args, out: seen.append((*args, out)))
    for dropped in ((), (0,)):
        with skipping(model, dropped):
            logits(model, ids)

    assert [torch.equal(values, mixed) for values, mixed in seen] == [False, True]


def test_blocks_add_the_inputs_that_a_skipped_block_returns():
    model = text_model("skip_connections")
    two = hugging_face.build("gpt2", num_hidden_layers=LAYERS, tie_word_embeddings=False)
    scales = [model.transformer.h[i].skip_scales.detach() for i in (1, 2)]
    seen = []
    model.transformer.h[2].ln_1.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with skipping(model, (0,)):
        logits(model)
    h = two.transformer.drop(
        two.transformer.wte(hugging_face.tokens(6)) + two.transformer.wpe.weight[:6]
    )
    first = two.transformer.h[1](scales[0].sum() * h)
    assert_close(seen[0], scales[1][0] * first + (scales[1][1] + scales[1][2]) * h)


# --- nested tensors ---

ENCODERS = {
    "squared_relu": F.squared_relu,
    "skip_connections": partial(F.skip_connections, sources="all"),
    "stochastic_depth": partial(F.stochastic_depth, target=nn.TransformerEncoderLayer),
    "gyro_dropout": TEXT["gyro_dropout"],
    "factorize": TEXT["factorize"],
}
TWO = campaign.drawn(itertools.permutations(ENCODERS, 2), 6)


@pytest.mark.parametrize("names", [*((one,) for one in ENCODERS), *TWO], ids="-".join)
def test_encoders_with_padding_compute_the_same_without_gradients(names):
    """Law of stacks: A changed `nn.TransformerEncoder` takes padding in training and evaluation."""
    with seed_context(0):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 3)
    for name in names:
        model = ENCODERS[name](model)
    filled(model, *ADDED).eval()
    x, padding = randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True

    expected = model(x, src_key_padding_mask=padding)
    with torch.no_grad():
        found = model(x, src_key_padding_mask=padding)
    assert_close(found[~padding], expected[~padding].detach())
    assert nn.TransformerEncoder(layer, 3).use_nested_tensor


# --- adapters ---


def adapted(model, layer):
    peft = pytest.importorskip("peft")
    with seed_context(0):
        config = peft.LoraConfig(r=2, target_modules=[layer], init_lora_weights=False)
        return peft.get_peft_model(model, config).eval()


class Refused(Exception):
    pass


@contextmanager
def translated():
    try:
        yield
    except (TypeError, ValueError) as error:
        if not re.search("adapter|get_peft_model|Target module|base_layer", str(error)):
            raise
        raise Refused from error


@pytest.mark.parametrize("name", TEXT)
def test_adapters_of_changed_models_are_merged_or_refused(name):
    """Law of stacks: A changed model with adapters gives the same outputs merged, or is refused."""
    layers, kept = {"c_fc", "lm_head", *REFUSED.get(name, ())}, set()
    for layer, change_first in itertools.product(layers, (True, False)):
        with suppress(Refused), translated():
            model = text_model(name) if change_first else adapted(text_model(), layer)
            model = adapted(model, layer) if change_first else TEXT[name](model)
            before = logits(filled(model, *ADDED).eval())
            assert_close(logits(model.merge_and_unload()), before, rtol=0.02, atol=0.02)
            kept.add(layer)

    assert kept == layers - REFUSED.get(name, set())
