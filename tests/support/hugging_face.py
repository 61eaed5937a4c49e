"""Small models of Hugging Face, with random weights that are large enough to matter."""

import torch
from torch import Tensor, nn

TABLE, HEADS, WIDTH, WORDS = 8, 3, 12, 17
FAMILIES = ("gpt2", "bert", "roberta", "bert as a decoder")


def build(family: str, implementation: str = "sdpa", **options: object) -> nn.Module:
    """Build a model of two layers, the same at each call, in evaluation mode."""
    import transformers  # takes seconds, and is optional

    sizes = {
        "vocab_size": WORDS,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "hidden_size": WIDTH,
        "max_position_embeddings": TABLE,
        "initializer_range": 0.5,
        "attn_implementation": implementation,
        "pad_token_id": 0,
        "n_inner" if family == "gpt2" else "intermediate_size": 16,
        **options,
    }
    if family == "gpt2":
        kind = transformers.GPT2LMHeadModel
        config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
    elif family == "roberta":
        kind, config = transformers.RobertaForMaskedLM, transformers.RobertaConfig(**sizes)
    elif family == "bert":
        kind, config = transformers.BertForMaskedLM, transformers.BertConfig(**sizes)
    elif family == "bert as a classifier":
        kind = transformers.BertForSequenceClassification
        config = transformers.BertConfig(**sizes)
    else:
        kind = transformers.BertLMHeadModel
        config = transformers.BertConfig(is_decoder=True, **sizes)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return kind(config).eval()


def layers(model: nn.Module) -> list[nn.Module]:
    """Return the transformer layers of a model."""
    base = model.base_model
    return list(base.h if hasattr(base, "h") else base.encoder.layer)


def tokens(length: int = 20, batch: int = 2) -> Tensor:
    """Return token ids without padding."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, WORDS, (batch, length), generator=generator)
