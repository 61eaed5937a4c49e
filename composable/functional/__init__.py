"""Training methods as pure functions of tensors or modules."""

from . import images
from ._surgery import with_tensors
from ._warnings import NoEffectWarning
from .alibi import alibi, register_alibi
from .augmix import AugMixDraw, apply_augmix, augmix, draw_augmix
from .batch_norm_statistics import (
    batch_norm_statistics,
    recompute_batch_norm_statistics,
    reset_batch_norm_statistics,
)
from .blurpool import blurpool
from .channels_last import channels_last
from .clip_gradients import clip_gradients
from .colout import ColOutDraw, apply_colout, colout, draw_colout
from .cutmix import CutMixDraw, apply_cutmix, cutmix, draw_cutmix
from .cutout import apply_cutout, cutout, draw_cutout
from .ema import ema, ema_smoothing
from .factorize import factorize
from .frozen_layers import FrozenLayers, frozen_layers
from .gated_linear_units import gated_linear_units, register_gated_linear_units
from .ghost_batchnorm import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d, ghost_batchnorm
from .gyro_dropout import GyroDropoutLayer, gyro_dropout
from .jensen_shannon_loss import jensen_shannon_loss
from .layers import (
    BlurConv1d,
    BlurConv2d,
    BlurConv3d,
    BlurMaxPool1d,
    BlurMaxPool2d,
    BlurMaxPool3d,
    FactorizedLayer,
    ResidualBlock,
    alibi_bias,
    alibi_slopes,
    blur,
)
from .low_precision_groupnorm import LowPrecisionGroupNorm, low_precision_groupnorm
from .low_precision_layernorm import LowPrecisionLayerNorm, low_precision_layernorm
from .mixed import MixedBatch, MixedTargets
from .mixup import MixUpDraw, apply_mixup, draw_mixup, mixup
from .no_op_model import IdleModel, no_op_model
from .randaugment import RandAugmentDraw, apply_randaugment, draw_randaugment, randaugment
from .resize_batch import apply_crop, draw_crop, progressive_scale, resize_batch, scaled_size
from .resized import ResizedBatch
from .sam_perturbation import sam_perturbation
from .select_using_loss import apply_selection, draw_selection, select_using_loss, should_select
from .set_sequence_length import sequence_length, set_sequence_length, warmed_up_length
from .smooth_labels import smooth_labels
from .squeeze_excite import SqueezeExcitation, squeeze_excite
from .stochastic_depth import scale_drop_rates, stochastic_depth
from .swa import swa
from .weight_standardization import StandardizedWeight, standardize_weight, weight_standardization

__all__ = [
    "AugMixDraw",
    "BlurConv1d",
    "BlurConv2d",
    "BlurConv3d",
    "BlurMaxPool1d",
    "BlurMaxPool2d",
    "BlurMaxPool3d",
    "ColOutDraw",
    "CutMixDraw",
    "FactorizedLayer",
    "FrozenLayers",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "GyroDropoutLayer",
    "IdleModel",
    "LowPrecisionGroupNorm",
    "LowPrecisionLayerNorm",
    "MixUpDraw",
    "MixedBatch",
    "MixedTargets",
    "NoEffectWarning",
    "RandAugmentDraw",
    "ResidualBlock",
    "ResizedBatch",
    "SqueezeExcitation",
    "StandardizedWeight",
    "alibi",
    "alibi_bias",
    "alibi_slopes",
    "apply_augmix",
    "apply_colout",
    "apply_crop",
    "apply_cutmix",
    "apply_cutout",
    "apply_mixup",
    "apply_randaugment",
    "apply_selection",
    "augmix",
    "batch_norm_statistics",
    "blur",
    "blurpool",
    "channels_last",
    "clip_gradients",
    "colout",
    "cutmix",
    "cutout",
    "draw_augmix",
    "draw_colout",
    "draw_crop",
    "draw_cutmix",
    "draw_cutout",
    "draw_mixup",
    "draw_randaugment",
    "draw_selection",
    "ema",
    "ema_smoothing",
    "factorize",
    "frozen_layers",
    "gated_linear_units",
    "ghost_batchnorm",
    "gyro_dropout",
    "images",
    "jensen_shannon_loss",
    "low_precision_groupnorm",
    "low_precision_layernorm",
    "mixup",
    "no_op_model",
    "progressive_scale",
    "randaugment",
    "recompute_batch_norm_statistics",
    "register_alibi",
    "register_gated_linear_units",
    "reset_batch_norm_statistics",
    "resize_batch",
    "sam_perturbation",
    "scale_drop_rates",
    "scaled_size",
    "select_using_loss",
    "sequence_length",
    "set_sequence_length",
    "should_select",
    "smooth_labels",
    "squeeze_excite",
    "standardize_weight",
    "stochastic_depth",
    "swa",
    "warmed_up_length",
    "weight_standardization",
    "with_tensors",
]
