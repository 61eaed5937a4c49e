"""The methods as pure functions: tensors or a module in, tensors or a module out."""

from ._blur_layers import (
    BlurConv1d,
    BlurConv2d,
    BlurConv3d,
    BlurMaxPool1d,
    BlurMaxPool2d,
    BlurMaxPool3d,
    blur,
)
from ._residual_blocks import ResidualBlock
from ._surgery import with_tensors
from ._warnings import NoEffectWarning
from .blurpool import blurpool
from .channels_last import channels_last
from .clip_gradients import clip_gradients
from .ema import ema, ema_smoothing
from .ghost_batchnorm import (
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    GhostBatchNorm3d,
    ghost_batchnorm,
)
from .gyro_dropout import GyroDropoutLayer, gyro_dropout
from .low_precision_groupnorm import LowPrecisionGroupNorm, low_precision_groupnorm
from .low_precision_layernorm import LowPrecisionLayerNorm, low_precision_layernorm
from .mixed import Mixed, MixedTargets
from .mixup import MixupDraw, apply_mixup, draw_mixup, mixup
from .no_op_model import IdleModel, no_op_model
from .select_using_loss import apply_selection, draw_selection, select_using_loss, should_select
from .smooth_labels import smooth_labels
from .squeeze_excite import SqueezeExcitation, squeeze_excite
from .stochastic_depth import scale_drop_rates, stochastic_depth
from .weight_standardization import (
    StandardizedWeight,
    standardize_weight,
    weight_standardization,
)

__all__ = [
    "BlurConv1d",
    "BlurConv2d",
    "BlurConv3d",
    "BlurMaxPool1d",
    "BlurMaxPool2d",
    "BlurMaxPool3d",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "GyroDropoutLayer",
    "IdleModel",
    "LowPrecisionGroupNorm",
    "LowPrecisionLayerNorm",
    "Mixed",
    "MixedTargets",
    "MixupDraw",
    "NoEffectWarning",
    "ResidualBlock",
    "SqueezeExcitation",
    "StandardizedWeight",
    "apply_mixup",
    "apply_selection",
    "blur",
    "blurpool",
    "channels_last",
    "clip_gradients",
    "draw_mixup",
    "draw_selection",
    "ema",
    "ema_smoothing",
    "ghost_batchnorm",
    "gyro_dropout",
    "low_precision_groupnorm",
    "low_precision_layernorm",
    "mixup",
    "no_op_model",
    "scale_drop_rates",
    "select_using_loss",
    "should_select",
    "smooth_labels",
    "squeeze_excite",
    "standardize_weight",
    "stochastic_depth",
    "weight_standardization",
    "with_tensors",
]
