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
from .colout import ColoutDraw, apply_colout, colout, draw_colout
from .cutmix import CutmixDraw, apply_cutmix, cutmix, draw_cutmix
from .cutout import apply_cutout, cutout, draw_cutout
from .ema import ema, ema_smoothing
from .jensen_shannon_loss import jensen_shannon_loss
from .mixed import Mixed, MixedTargets
from .mixup import MixupDraw, apply_mixup, draw_mixup, mixup
from .randaugment import RandAugmentDraw, apply_randaugment, draw_randaugment, randaugment
from .resize_batch import (
    apply_crop,
    draw_crop,
    progressive_scale,
    resize_batch,
    scaled_size,
)
from .resized import Resized
from .select_using_loss import apply_selection, draw_selection, select_using_loss, should_select
from .set_sequence_length import set_sequence_length, warmed_up_length
from .smooth_labels import smooth_labels

__all__ = [
    "AugMixDraw",
    "BlurConv1d",
    "BlurConv2d",
    "BlurConv3d",
    "BlurMaxPool1d",
    "BlurMaxPool2d",
    "BlurMaxPool3d",
    "ColoutDraw",
    "CutmixDraw",
    "Mixed",
    "MixedTargets",
    "MixupDraw",
    "NoEffectWarning",
    "RandAugmentDraw",
    "Resized",
    "apply_augmix",
    "apply_colout",
    "apply_crop",
    "apply_cutmix",
    "apply_cutout",
    "apply_mixup",
    "apply_randaugment",
    "apply_selection",
    "augmix",
    "blur",
    "blurpool",
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
    "images",
    "jensen_shannon_loss",
    "mixup",
    "progressive_scale",
    "randaugment",
    "resize_batch",
    "scaled_size",
    "select_using_loss",
    "set_sequence_length",
    "should_select",
    "smooth_labels",
    "warmed_up_length",
    "with_tensors",
]
