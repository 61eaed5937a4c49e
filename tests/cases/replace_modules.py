"""Replacement of modules by a rule."""

from torch import nn

import composable.functional as F
from tests.support.cases import Case, FunctionCase


def gelu(name: str, module: nn.Module) -> nn.Module:
    """Replace rectifiers."""
    return nn.GELU() if isinstance(module, nn.ReLU) else module


CASE = Case(
    functions=[
        FunctionCase(
            F.replace_modules,
            arguments={"model": nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "rule": gelu},
            invalid={"rule": (3, None, "ReLU")},
            no_row="its result computes what the rule makes of it",
        )
    ],
)
