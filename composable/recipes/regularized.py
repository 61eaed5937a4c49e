"""A recipe for many epochs over little data."""

from functools import partial
from typing import Any

import torch

from composable._support.checks import check_range
from composable.algorithms import Dropout, StochasticDepth
from composable.optim import by_role, linear
from composable.recipes.recipe import Recipe


def strong_regularization(
    *,
    lr: float = 1e-3,
    weight_decay: float = 1.0,
    dropout: float = 0.1,
    layer_drop: float = 0.05,
    blocks: Any = None,
    warmup: str = "0.05dur",
) -> Recipe:
    """Return strong weight decay, dropout and layer drop, for many epochs over little data.

    AdamW shrinks weights by `lr * weight_decay` in each step, ten times as much or more as by its
    usual decay of 0.01 to 0.1, and leaves norms and biases alone. All dropouts of the model get the
    rate `dropout`. Residual blocks are dropped at a rate that grows with depth, up to `layer_drop`.
    The learning rate rises over `warmup` and falls linearly to 0.

    The best decay depends on the learning rate, by which it is multiplied, and on the number of
    epochs: tune both, over factors of 3. A model that does not overfit trains worse with it.

    Args:
        lr: The learning rate of AdamW.
        weight_decay: The decoupled weight decay of matrices and embeddings, 0 or more.
        dropout: The rate of all dropouts of the model, in [0, 1). 0 leaves the model's rates.
        layer_drop: The drop rate of the last residual block, in [0, 1]. 0 drops none.
        blocks: The residual blocks: a class, a `ResidualBlock`, or several of these, as for
            `StochasticDepth`. None for all known blocks.
        warmup: The length of the warm-up, such as "1ep".

    Returns:
        The algorithms, the optimizer and the schedule.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Sources: Kim, Kotha, Liang and Hashimoto, "Pre-training under infinite compute", 2025,
    https://arxiv.org/abs/2509.14786, whose best decay is 30 times the usual one; Huang et al.,
    "Deep Networks with Stochastic Depth", ECCV 2016, https://arxiv.org/abs/1603.09382.

    Example:
        >>> from composable.recipes import strong_regularization
        >>> strong_regularization(layer_drop=0).algorithms
        (Dropout(p=0.1),)
    """
    check_range("lr", lr, 0, float("inf"), ends="()")
    check_range("weight_decay", weight_decay, 0, float("inf"), ends="[)")
    check_range("dropout", dropout, 0, 1, ends="[)")
    check_range("layer_drop", layer_drop, 0, 1)
    depth = StochasticDepth(blocks, drop_rate=layer_drop, drop_distribution="linear")
    algorithms = [*([Dropout(dropout)] if dropout else []), *([depth] if layer_drop else [])]
    adamw = partial(torch.optim.AdamW, lr=lr, weight_decay=weight_decay)
    optimizer = by_role({"norms_and_biases": {"weight_decay": 0.0}}, adamw)
    return Recipe(algorithms, optimizer, linear(warmup=warmup))
