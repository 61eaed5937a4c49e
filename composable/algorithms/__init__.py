"""The methods as algorithms: when each function runs in a training loop."""

from composable.algorithms.blurpool import BlurPool
from composable.algorithms.ema import EMA
from composable.algorithms.ghost_batchnorm import GhostBatchNorm
from composable.algorithms.gradient_clipping import GradientClipping
from composable.algorithms.label_smoothing import LabelSmoothing
from composable.algorithms.mixup import MixUp
from composable.algorithms.selective_backprop import SelectiveBackprop
from composable.algorithms.squeeze_excite import SqueezeExcite
from composable.algorithms.weight_standardization import WeightStandardization

__all__ = [
    "EMA",
    "BlurPool",
    "GhostBatchNorm",
    "GradientClipping",
    "LabelSmoothing",
    "MixUp",
    "SelectiveBackprop",
    "SqueezeExcite",
    "WeightStandardization",
]
