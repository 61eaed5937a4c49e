"""Fine-tuning with low-rank adapters, which PEFT adds to a model."""

from functools import partial
from math import inf

import torch

from composable._support.checks import check_range
from composable.algorithms import GradientClipping
from composable.optim import linear
from composable.recipes.recipe import Recipe


def lora(
    *,
    full_lr: float,
    factor: float = 10.0,
    weight_decay: float = 0.0,
    warmup: str = "0.05dur",
) -> Recipe:
    """Return AdamW at ten times the rate of full fine-tuning, for a model with LoRA.

    Add the adapters first, to every linear layer:
    `peft.get_peft_model(model, composable.models.lora_config())`. The weights of the model are
    frozen, so that neither the optimizer nor the weight decay changes them. Gradients are clipped.
    The learning rate rises during the warm-up and falls linearly to 0.

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
