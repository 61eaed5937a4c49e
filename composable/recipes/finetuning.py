"""Fine-tuning with low-rank adapters, which PEFT adds to a model."""

from functools import partial
from math import inf
from typing import Any

import torch

from composable._support.checks import check_count, check_range
from composable.algorithms import GradientClipping
from composable.optim import linear
from composable.recipes.recipe import Recipe

__all__ = ["lora", "lora_config"]


def lora(
    *,
    full_lr: float,
    factor: float = 10.0,
    weight_decay: float = 0.0,
    warmup: str = "0.05dur",
) -> Recipe:
    """Return AdamW at ten times the rate of full fine-tuning, for a model with LoRA.

    Add the adapters first, to every linear layer: `peft.get_peft_model(model, lora_config())`. The
    weights of the model are frozen, so that neither the optimizer nor the weight decay changes
    them. Gradients are clipped. The learning rate rises during the warm-up and falls linearly to 0.

    Args:
        full_lr: The learning rate at which AdamW would train all weights of the model, above 0.
        factor: The learning rate of the adapters relative to it, above 0. The source finds 10, and
            15 in runs of less than about 100 steps.
        weight_decay: The decoupled weight decay of the adapters.
        warmup: The length of the warm-up, such as "100ba".

    Returns:
        The algorithm, the optimizer and the schedule.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Sources: Schulman et al., "LoRA Without Regret", 2025, https://thinkingmachines.ai/blog/lora/;
    Hu et al., "LoRA", ICLR 2022, https://arxiv.org/abs/2106.09685.

    Example:
        >>> from composable.recipes import lora
        >>> recipe = lora(full_lr=1e-4)
        >>> recipe.optimizers([torch.nn.Parameter(torch.zeros(1))]).defaults["lr"]
        0.001
    """
    check_range("full_lr", full_lr, 0, inf, ends="()")
    check_range("factor", factor, 0, inf, ends="()")
    check_range("weight_decay", weight_decay, 0, inf, ends="[)")
    optimizer = partial(torch.optim.AdamW, lr=factor * full_lr, weight_decay=weight_decay)
    return Recipe([GradientClipping("norm", 1.0)], optimizer, linear(warmup=warmup))


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

    Sources: as of `lora`.

    Example:
        >>> from composable.recipes import lora_config
        >>> config = lora_config(rank=8)
        >>> config.r, config.lora_alpha, config.target_modules
        (8, 32, 'all-linear')
    """
    check_count("rank", rank, 1)
    check_range("alpha", alpha, 0, inf, ends="()")
    try:
        from peft import LoraConfig  # on use: it is slow to import, and an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "lora_config requires the package peft, which is not installed: pip install "
            '"composable[finetuning]".'
        ) from error
    return LoraConfig(**{"target_modules": "all-linear", **options}, r=rank, lora_alpha=alpha)
