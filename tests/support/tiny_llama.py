"""A small Llama of Hugging Face, with random weights that are large enough to matter."""

import torch
from torch import nn

from tests.support.hugging_face import WIDTH, WORDS


def llama(**options: object) -> nn.Module:
    """Build a model of two layers, without tied weights, whose positions are relative."""
    import transformers  # takes seconds, and is optional

    sizes = {
        "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 3, "initializer_range": 0.5, "pad_token_id": 0, "eos_token_id": 0,
        **options,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
