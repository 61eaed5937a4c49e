"""What the tests and the cases of surgeries share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from composable.functional import register_gated_linear_units
from tests.support.arguments import token_ids
from tests.support.cases import FunctionCase
from tests.support.models import language_model

ATTENTION = "self-attention.* of the classes .*Attention.*"
FEED_FORWARD = "feed-forward blocks of the classes .*FeedForward.*"
HEAD = "what get_output_embeddings.* returns, or an nn.Linear"
POSITIONS = "position embeddings and attention of the classes .*Attention.*"
TOKENS = "the nn.Embedding of the tokens"


class FeedForward(nn.Module):
    """A feed-forward block whose activation is a function."""

    def __init__(self, lazy: bool = False) -> None:
        super().__init__()
        self.act = torch.tanh
        self.up = nn.LazyLinear(6) if lazy else nn.Linear(4, 6)
        self.down = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        outputs: Tensor = self.down(self.act(self.up(x)))
        return outputs


register_gated_linear_units(FeedForward, linear="up", activation="act")


def of_language_model(function: Callable[..., Any], *options: Any, **more: Any) -> FunctionCase:
    """Return the case of a surgery on a language model."""

    def build(size: int) -> tuple[nn.Module]:
        return (language_model(one_by_one=True),)

    return FunctionCase(function, *options, arguments=build, inputs=token_ids, **more)


def filled(model: nn.Module, *names: str) -> nn.Module:
    """Draw the parameters with one of these in their names, such as those that a method added."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(one in name for one in names):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model
