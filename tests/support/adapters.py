"""Small Llamas with adapters of PEFT, and batches for them."""

from typing import Any

import torch
from torch import Tensor, nn

from composable.utils.reproducibility import preserve_rng
from tests.support.hugging_face import WORDS, llama

LENGTH = 12


def with_lora(model: nn.Module | None = None, **options: Any) -> Any:
    """Add LoRA to every linear layer of a model, by default of a Llama; the same at each call."""
    import peft  # takes seconds, and is optional

    from composable.models import lora_config

    with preserve_rng():
        torch.default_generator.manual_seed(1)
        return peft.get_peft_model(model or llama(), lora_config(rank=2, alpha=4, **options))


def text(count: int = 4) -> list[dict[str, Tensor]]:
    """Return batches of four texts without padding."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, WORDS, (count, 4, LENGTH), generator=generator)
    return [{"input_ids": one, "labels": one} for one in ids]


def adapters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of the adapters."""
    return {name: one for name, one in model.named_parameters() if "lora_" in name}


def base(model: nn.Module) -> dict[str, Tensor]:
    """Return all other parameters."""
    return {name: one for name, one in model.named_parameters() if "lora_" not in name}
