"""Low-rank adapters, which PEFT adds to a model."""

from typing import Any

from composable._support.checks import checked, minimum, within
from composable._support.extras import needs


@checked(rank=minimum(1), alpha=within(0, ends="()"))
def lora_config(*, rank: int = 16, alpha: float = 32, **options: Any) -> Any:
    """Return PEFT's configuration of LoRA for every linear layer of a model but its head.

    Args:
        rank: The rank of the adapters, at least 1. More data needs more.
        alpha: The scale of the adapters, above 0: their product is multiplied by `alpha / rank`, so
            that the learning rate need not change with the rank.
        options: Further arguments of `peft.LoraConfig`. `task_type="SEQ_CLS"` also trains the new
            head of a classifier.

    Raises:
        ModuleNotFoundError: PEFT is not installed.
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Sources: as of `composable.recipes.lora`.

    Example:
        >>> from composable.models import lora_config
        >>> config = lora_config(rank=8)
        >>> config.r, config.lora_alpha, config.target_modules
        (8, 32, 'all-linear')
    """
    for peft_name, name in (("r", "rank"), ("lora_alpha", "alpha")):
        if peft_name in options:
            raise TypeError(
                f"{peft_name}={options[peft_name]!r} is named {name} here: pass {name}=."
            )
    with needs("lora_config", "finetuning"):
        from peft import LoraConfig  # on use: it is slow to import
    return LoraConfig(**{"target_modules": "all-linear", **options}, r=rank, lora_alpha=alpha)
