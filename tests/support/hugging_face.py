"""Small models of Hugging Face, with random weights that are large enough to matter."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from composable.utils.reproducibility import preserve_rng

TABLE, HEADS, WIDTH, WORDS = 8, 3, 12, 17
FAMILIES = ("gpt2", "bert", "roberta", "bert as a decoder")
GROUPED = {"num_key_value_heads": 1}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"bos_token_id": 0, "eos_token_id": 0, "n_inner": 16}),
    "bert": ("BertForMaskedLM", {}),
    "bert as a classifier": ("BertForSequenceClassification", {}),
    "bert as a decoder": ("BertLMHeadModel", {"is_decoder": True}),
    "roberta": ("RobertaForMaskedLM", {}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", {}),
    "deberta": ("DebertaForMaskedLM", {"legacy": True, "attn_implementation": "eager"}),
    "distilbert": ("DistilBertForMaskedLM", {"hidden_dim": 16}),
    "llama": ("LlamaForCausalLM", {"eos_token_id": 0, "max_position_embeddings": 2048}),
    "grouped llama": ("LlamaForCausalLM", {"eos_token_id": 0, **GROUPED}),
    "mistral": ("MistralForCausalLM", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": WIDTH // HEADS}),
    "gpt_neox": ("GPTNeoXForCausalLM", {"rotary_pct": 0.5}),
}
"""The class of each family, and options of its own."""


def build(family: str, implementation: str = "sdpa", **options: object) -> nn.Module:
    """Build a model of two layers, the same at each call, in evaluation mode."""
    name, own = KINDS[family]
    sizes = {
        "vocab_size": WORDS,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "hidden_size": WIDTH,
        "max_position_embeddings": TABLE,
        "attn_implementation": implementation,
        **({} if {"n_inner", "hidden_dim"} & own.keys() else {"intermediate_size": 16}),
    }
    return build_class(name, **{**sizes, **own, **options})


def build_class(name: str, **options: object) -> nn.Module:
    """Build a model of a class of Transformers, the same at each call, in evaluation mode."""
    import transformers  # takes seconds, and is optional

    kind = getattr(transformers, name)
    with preserve_rng():
        torch.default_generator.manual_seed(0)
        config = kind.config_class(**{"initializer_range": 0.5, "pad_token_id": 0, **options})
        model: nn.Module = kind(config).eval()
    return model


llama = partial(build, "llama")
"""Without tied weights, with relative positions."""


def layers(model: nn.Module) -> list[nn.Module]:
    """Return the transformer layers of a model."""
    base = model.base_model
    return list(base.h if hasattr(base, "h") else base.encoder.layer)


def tokens(length: int = 20, batch: int = 2) -> Tensor:
    """Return token ids without padding."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, WORDS, (batch, length), generator=generator)


def mask_of(padding: str | None, length: int = 20) -> Tensor | None:
    """Return a mask of two texts, of which the second one is padded on the left or right."""
    if padding is None:
        return None
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, slice(None, 4) if padding == "left" else slice(-4, None)] = 0
    return mask


def cached(outputs: Any) -> dict[str, Any]:
    """Return the cache in the outputs of a model, as the argument of the next call.

    Its name is `past_key_values` before version 5.24 of Transformers.
    """
    name = "cache" if "cache" in outputs else "past_key_values"
    return {name: outputs[name]}


def recompute_layers(model: Any) -> None:
    """Recompute the activations of layers in the backward pass, in any version of Transformers."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


# --- attention ---


def record_calls(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """Return a list to which each call adds a module, its hidden states and its first output."""
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        seen.append((module, (*args, *kwargs.values())[0], outputs[0]))

    for module in modules:
        module.register_forward_hook(keep, with_kwargs=True)
    return seen


QUERIES = {"q_proj": ("k_proj", "v_proj"), "query": ("key", "value"), "q_lin": ("k_lin", "v_lin")}


def projections(attention: Any, hidden: Tensor) -> list[Tensor]:
    """Return queries, keys and values by head, before any rotation."""
    if hasattr(attention, "query_key_value"):
        mixed = attention.query_key_value(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return list(mixed.chunk(3, dim=-1))
    if hasattr(attention, "c_attn"):
        parts = list((hidden @ attention.c_attn.weight + attention.c_attn.bias).split(WIDTH, -1))
    else:
        names = next((one, *others) for one, others in QUERIES.items() if hasattr(attention, one))
        own = [getattr(attention, name) for name in names]
        parts = [linear(hidden, layer.weight, layer.bias) for layer in own]  # before any rotation
    parts = [part.unflatten(-1, (-1, WIDTH // HEADS)) for part in parts]
    for i, norm in enumerate(("q_norm", "k_norm")):
        if hasattr(attention, norm):
            parts[i] = getattr(attention, norm)(parts[i])
    return [part.transpose(1, 2).repeat_interleave(HEADS // part.shape[2], dim=1) for part in parts]


def attend(
    attention: nn.Module,
    hidden: Tensor,
    *,
    causal: bool,
    rotation: Callable[[Tensor], Tensor] = lambda heads: heads,
    bias: Tensor | float = 0.0,
) -> Tensor:
    """Compute attention by its formula, with rotated queries and keys, or with biased scores."""
    query, key, value = projections(attention, hidden)
    scores = rotation(query) @ rotation(key).mT / (WIDTH // HEADS) ** 0.5 + bias
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    for name in ("c_proj", "o_proj", "dense", "out_lin"):
        if hasattr(attention, name):
            output: Tensor = getattr(attention, name)(attended)
            return output
    return attended
