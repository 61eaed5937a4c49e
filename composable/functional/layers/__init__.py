"""Layers and blocks that methods insert into models."""

from .attention_bias import alibi_bias, alibi_slopes
from .blur import (
    BlurConv1d,
    BlurConv2d,
    BlurConv3d,
    BlurMaxPool1d,
    BlurMaxPool2d,
    BlurMaxPool3d,
    blur,
)
from .factorized import FactorizedLayer
from .residual import ResidualBlock

__all__ = [
    "BlurConv1d",
    "BlurConv2d",
    "BlurConv3d",
    "BlurMaxPool1d",
    "BlurMaxPool2d",
    "BlurMaxPool3d",
    "FactorizedLayer",
    "ResidualBlock",
    "alibi_bias",
    "alibi_slopes",
    "blur",
]
