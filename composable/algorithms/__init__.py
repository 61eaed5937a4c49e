"""Algorithms: each runs one function of `composable.functional` at its place in training."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.algorithms.alibi import Alibi as Alibi
    from composable.algorithms.alternating_flip import AlternatingFlip as AlternatingFlip
    from composable.algorithms.attention_output_gate import (
        AttentionOutputGate as AttentionOutputGate,
    )
    from composable.algorithms.augmix import AugMix as AugMix
    from composable.algorithms.blurpool import BlurPool as BlurPool
    from composable.algorithms.channels_last import ChannelsLast as ChannelsLast
    from composable.algorithms.colout import ColOut as ColOut
    from composable.algorithms.cutmix import CutMix as CutMix
    from composable.algorithms.cutout import CutOut as CutOut
    from composable.algorithms.dropout import Dropout as Dropout
    from composable.algorithms.ema import EMA as EMA
    from composable.algorithms.exclusive_self_attention import (
        ExclusiveSelfAttention as ExclusiveSelfAttention,
    )
    from composable.algorithms.factorize import Factorize as Factorize
    from composable.algorithms.fixres import FixRes as FixRes
    from composable.algorithms.gated_linear_units import GatedLinearUnits as GatedLinearUnits
    from composable.algorithms.ghost_batchnorm import GhostBatchNorm as GhostBatchNorm
    from composable.algorithms.gradient_clipping import GradientClipping as GradientClipping
    from composable.algorithms.gyro_dropout import GyroDropout as GyroDropout
    from composable.algorithms.initialize_convolutions import (
        InitializeConvolutions as InitializeConvolutions,
    )
    from composable.algorithms.initialize_projections import (
        InitializeProjections as InitializeProjections,
    )
    from composable.algorithms.label_smoothing import LabelSmoothing as LabelSmoothing
    from composable.algorithms.layer_freezing import LayerFreezing as LayerFreezing
    from composable.algorithms.low_precision_groupnorm import (
        LowPrecisionGroupNorm as LowPrecisionGroupNorm,
    )
    from composable.algorithms.low_precision_layernorm import (
        LowPrecisionLayerNorm as LowPrecisionLayerNorm,
    )
    from composable.algorithms.mixup import MixUp as MixUp
    from composable.algorithms.ngram_embeddings import NGramEmbeddings as NGramEmbeddings
    from composable.algorithms.no_op_model import NoOpModel as NoOpModel
    from composable.algorithms.paired_augment import PairedAugment as PairedAugment
    from composable.algorithms.partial_key_offset import PartialKeyOffset as PartialKeyOffset
    from composable.algorithms.prefix_tokens import PrefixTokens as PrefixTokens
    from composable.algorithms.progressive_resizing import (
        ProgressiveResizing as ProgressiveResizing,
    )
    from composable.algorithms.proxy_filter import ProxyFilter as ProxyFilter
    from composable.algorithms.qk_norm import QKNorm as QKNorm
    from composable.algorithms.randaugment import RandAugment as RandAugment
    from composable.algorithms.random_translation import RandomTranslation as RandomTranslation
    from composable.algorithms.rotary import Rotary as Rotary
    from composable.algorithms.sam import SAM as SAM
    from composable.algorithms.selective_backprop import SelectiveBackprop as SelectiveBackprop
    from composable.algorithms.seq_length_warmup import SeqLengthWarmup as SeqLengthWarmup
    from composable.algorithms.skip_connections import SkipConnections as SkipConnections
    from composable.algorithms.smear import Smear as Smear
    from composable.algorithms.snapshot_distillation import (
        SnapshotDistillation as SnapshotDistillation,
    )
    from composable.algorithms.softcap_logits import SoftcapLogits as SoftcapLogits
    from composable.algorithms.split_head import SplitHead as SplitHead
    from composable.algorithms.squared_relu import SquaredReLUs as SquaredReLUs
    from composable.algorithms.squeeze_excite import SqueezeExcite as SqueezeExcite
    from composable.algorithms.stochastic_depth import StochasticDepth as StochasticDepth
    from composable.algorithms.swa import SWA as SWA
    from composable.algorithms.tta import TTA as TTA
    from composable.algorithms.value_embeddings import ValueEmbeddings as ValueEmbeddings
    from composable.algorithms.weight_standardization import (
        WeightStandardization as WeightStandardization,
    )
    from composable.algorithms.whitened_first_layer import WhitenedFirstLayer as WhitenedFirstLayer
    from composable.algorithms.whole_loss import WholeLoss as WholeLoss
    from composable.algorithms.window_warmup import WindowWarmup as WindowWarmup
else:
    export_lazily(__name__)
