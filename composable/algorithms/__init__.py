"""Algorithms: each runs one function of `composable.functional` at its place in training."""

from composable.algorithms.alibi import Alibi
from composable.algorithms.augmix import AugMix
from composable.algorithms.blurpool import BlurPool
from composable.algorithms.channels_last import ChannelsLast
from composable.algorithms.colout import ColOut
from composable.algorithms.cutmix import CutMix
from composable.algorithms.cutout import CutOut
from composable.algorithms.ema import EMA
from composable.algorithms.factorize import Factorize
from composable.algorithms.gated_linear_units import GatedLinearUnits
from composable.algorithms.ghost_batchnorm import GhostBatchNorm
from composable.algorithms.gradient_clipping import GradientClipping
from composable.algorithms.gyro_dropout import GyroDropout
from composable.algorithms.label_smoothing import LabelSmoothing
from composable.algorithms.layer_freezing import LayerFreezing
from composable.algorithms.low_precision_groupnorm import LowPrecisionGroupNorm
from composable.algorithms.low_precision_layernorm import LowPrecisionLayerNorm
from composable.algorithms.mixup import MixUp
from composable.algorithms.no_op_model import NoOpModel
from composable.algorithms.progressive_resizing import ProgressiveResizing
from composable.algorithms.randaugment import RandAugment
from composable.algorithms.sam import SAM
from composable.algorithms.selective_backprop import SelectiveBackprop
from composable.algorithms.seq_length_warmup import SeqLengthWarmup
from composable.algorithms.squeeze_excite import SqueezeExcite
from composable.algorithms.stochastic_depth import StochasticDepth
from composable.algorithms.swa import SWA
from composable.algorithms.weight_standardization import WeightStandardization

__all__ = [
    "EMA",
    "SAM",
    "SWA",
    "Alibi",
    "AugMix",
    "BlurPool",
    "ChannelsLast",
    "ColOut",
    "CutMix",
    "CutOut",
    "Factorize",
    "GatedLinearUnits",
    "GhostBatchNorm",
    "GradientClipping",
    "GyroDropout",
    "LabelSmoothing",
    "LayerFreezing",
    "LowPrecisionGroupNorm",
    "LowPrecisionLayerNorm",
    "MixUp",
    "NoOpModel",
    "ProgressiveResizing",
    "RandAugment",
    "SelectiveBackprop",
    "SeqLengthWarmup",
    "SqueezeExcite",
    "StochasticDepth",
    "WeightStandardization",
]
