"""The methods as algorithms: when each function runs in a training loop."""

from composable.algorithms.augmix import AugMix
from composable.algorithms.blurpool import BlurPool
from composable.algorithms.colout import ColOut
from composable.algorithms.cutmix import CutMix
from composable.algorithms.cutout import CutOut
from composable.algorithms.ema import EMA
from composable.algorithms.gradient_clipping import GradientClipping
from composable.algorithms.label_smoothing import LabelSmoothing
from composable.algorithms.mixup import MixUp
from composable.algorithms.progressive_resizing import ProgressiveResizing
from composable.algorithms.randaugment import RandAugment
from composable.algorithms.selective_backprop import SelectiveBackprop
from composable.algorithms.seq_length_warmup import SeqLengthWarmup

__all__ = [
    "EMA",
    "AugMix",
    "BlurPool",
    "ColOut",
    "CutMix",
    "CutOut",
    "GradientClipping",
    "LabelSmoothing",
    "MixUp",
    "ProgressiveResizing",
    "RandAugment",
    "SelectiveBackprop",
    "SeqLengthWarmup",
]
