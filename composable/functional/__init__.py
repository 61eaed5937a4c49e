"""The methods as pure functions: tensors or a module in, tensors or a module out."""

from . import images
from ._blur_layers import (
    BlurConv1d,
    BlurConv2d,
    BlurConv3d,
    BlurMaxPool1d,
    BlurMaxPool2d,
    BlurMaxPool3d,
    blur,
)
from ._surgery import with_tensors
from ._warnings import NoEffectWarning
from .augmix import AugMixDraw, apply_augmix, augmix, draw_augmix
from .blurpool import blurpool
from .clip_gradients import clip_gradients
from .ema import ema, ema_smoothing
from .jensen_shannon_loss import jensen_shannon_loss
from .mixed import Mixed, MixedTargets
from .mixup import MixupDraw, apply_mixup, draw_mixup, mixup
from .randaugment import RandAugmentDraw, apply_randaugment, draw_randaugment, randaugment
from .select_using_loss import apply_selection, draw_selection, select_using_loss, should_select
from .smooth_labels import smooth_labels

__all__ = [
    "AugMixDraw",
    "BlurConv1d",
    "BlurConv2d",
    "BlurConv3d",
    "BlurMaxPool1d",
    "BlurMaxPool2d",
    "BlurMaxPool3d",
    "Mixed",
    "MixedTargets",
    "MixupDraw",
    "NoEffectWarning",
    "RandAugmentDraw",
    "apply_augmix",
    "apply_mixup",
    "apply_randaugment",
    "apply_selection",
    "augmix",
    "blur",
    "blurpool",
    "clip_gradients",
    "draw_augmix",
    "draw_mixup",
    "draw_randaugment",
    "draw_selection",
    "ema",
    "ema_smoothing",
    "images",
    "jensen_shannon_loss",
    "mixup",
    "randaugment",
    "select_using_loss",
    "should_select",
    "smooth_labels",
    "with_tensors",
]
