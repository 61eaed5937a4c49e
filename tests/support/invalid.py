"""Invalid values, by kind of argument: what every function and algorithm must refuse by name."""

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import torch
from torch import nn

Invalid = Mapping[str, tuple[Any, ...]]
"""Invalid values, by the name of the argument."""

NO_TENSOR = (3, "x", None, [1.0])
NO_TENSORS = (3, "x", None, [torch.zeros(2)], {"weight": 3})
NO_GRADS = (3, "x", None, {1}, {"weight": 3})
NO_MODEL = (3, None, nn.Linear, lambda x: x)
NO_GENERATOR = (3, "x", True)
NO_FLAG = (1, 0, "yes", None)
NO_DRAW = (3, None, (torch.zeros(2),))
NO_IMAGES = (*NO_TENSOR, torch.zeros(4))
NO_FLOAT_IMAGES = (*NO_IMAGES, torch.zeros(4, 3, 8, 8).long())
NO_DENSE_TARGETS = (3, "x", [1.0])
NO_SIZE = (3, None, "xy", (), (4, 2.5), (4, -1))
NO_BLOCK = (3, "Block", nn.Linear(1, 1), [3])
NO_CLASS = (3, None, nn.Linear(1, 1), int, "Attention")
NO_DEVICE = ("nowhere", 2.5)
NO_FLOAT_DTYPE = ("float32", 3, torch.int64)
NO_LOW_PRECISION = (torch.float32, torch.int8, "bfloat16", 16)
NO_LATENT = (0, -1, 0.0, 1.5, nan, "3", None, True)
NO_DEPTH = (-2, 0, 2.5, nan, "3", None)
NO_TIME = ("soon", "3", -1, 2.5, None)
NO_INTERVAL = ("soon", "3", -1, 1.5, "0ba", "1sp", "0.1dur")
NO_NAME = (3, "", b"x")
NO_CHANNEL_VALUES = (3, "x", (0.5, "x"), ())


def no_count(low: int) -> tuple[Any, ...]:
    """No integer from `low` on."""
    return (low - 1, 2.5, nan, "3", None, True)


def no_number(*outside: float) -> tuple[Any, ...]:
    """No number, or one of these, which are out of range."""
    return (*outside, nan, "0.5", None, True)


def no_word() -> tuple[Any, ...]:
    """Neither one of the words that are allowed, nor a word at all."""
    return ("nothing", "", 3, None, ["norm"])


NO_INDICES: Invalid = {
    "indices": (*NO_TENSOR, torch.zeros(4), torch.zeros(4).bool()),
    "epoch": no_count(0),
    "seed": no_count(0),
    "index_key": (0.5, True, ["index"]),
}
"""For draws by the index of an example and the epoch."""

NO_SHARE = no_number(-0.1, 1.1, inf, -inf)
NO_PROBABILITY_BELOW_ONE = no_number(-0.1, 1.0, 1.1, inf)
NO_POSITIVE = no_number(0, -1, inf, -inf)
NO_SCALE = no_number(0, -0.1, 1.1, inf)

BY_NAME: Invalid = {
    "after": NO_TENSORS,
    "alpha": NO_POSITIVE,
    "anneal_strategy": no_word(),
    "augmentations": no_word(),
    "average": NO_TENSORS,
    "batch_size": no_count(0),
    "before": NO_TENSORS,
    "channels": no_count(1),
    "class_dim": (0, 2, True, "1"),
    "clipping_type": no_word(),
    "current": NO_TENSORS,
    "draw": NO_DRAW,
    "drop_distribution": no_word(),
    "dtype": NO_FLOAT_DTYPE,
    "elapsed": no_number(-0.1, -inf),
    "generator": NO_GENERATOR,
    "ignore_index": (None, 0.5, True),
    "images": NO_FLOAT_IMAGES,
    "inputs": NO_TENSOR,
    "interval": no_count(1),
    "mean": NO_CHANNEL_VALUES,
    "method": no_word(),
    "min_channels": no_count(0),
    "mode": no_word(),
    "model": NO_MODEL,
    "p": NO_PROBABILITY_BELOW_ONE,
    "past": no_count(0),
    "precision": NO_LOW_PRECISION,
    "reduction": no_word(),
    "severity": no_number(-1, 11, inf),
    "size": NO_SIZE,
    "size_increment": no_count(1),
    "std": NO_CHANNEL_VALUES,
    "target": (3, nn.Linear),
    "targets": NO_TENSOR,
}
"""Invalid values of arguments, unless a case says otherwise; those of flags are known by type."""
