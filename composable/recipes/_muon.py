"""The optimizer of the recipes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from composable.optim import Muon


def muon_factory(**options: Any) -> Callable[..., Muon]:
    """Return a function that builds Muon with updates of AdamW's size.

    Args:
        options: Arguments of `Muon`.

    Raises:
        TypeError: An option is of the wrong type.
        ValueError: A number is out of range.
    """
    options = {"adjust_lr_fn": "match_rms_adamw", **options}
    Muon([torch.zeros(1, 1)], **options)  # checks the options
    return partial(Muon, **options)
