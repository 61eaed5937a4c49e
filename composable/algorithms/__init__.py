"""Algorithms: each runs one function of `composable.functional` at its place in training."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from .activation_checkpointing import ActivationCheckpointing as ActivationCheckpointing
    from .alibi import Alibi as Alibi
    from .alternating_flip import AlternatingFlip as AlternatingFlip
    from .attention_output_gate import AttentionOutputGate as AttentionOutputGate
    from .augmix import AugMix as AugMix
    from .blurpool import BlurPool as BlurPool
    from .channels_last import ChannelsLast as ChannelsLast
    from .colout import ColOut as ColOut
    from .cutmix import CutMix as CutMix
    from .cutout import CutOut as CutOut
    from .dropout import Dropout as Dropout
    from .ema import EMA as EMA
    from .exclusive_self_attention import ExclusiveSelfAttention as ExclusiveSelfAttention
    from .factorize import Factorize as Factorize
    from .fixres import FixRes as FixRes
    from .gated_linear_units import GatedLinearUnits as GatedLinearUnits
    from .ghost_batchnorm import GhostBatchNorm as GhostBatchNorm
    from .gradient_clipping import GradientClipping as GradientClipping
    from .gyro_dropout import GyroDropout as GyroDropout
    from .initialize_convolutions import InitializeConvolutions as InitializeConvolutions
    from .initialize_projections import InitializeProjections as InitializeProjections
    from .label_smoothing import LabelSmoothing as LabelSmoothing
    from .layer_freezing import LayerFreezing as LayerFreezing
    from .low_precision_groupnorm import LowPrecisionGroupNorm as LowPrecisionGroupNorm
    from .low_precision_layernorm import LowPrecisionLayerNorm as LowPrecisionLayerNorm
    from .mixup import MixUp as MixUp
    from .ngram_embeddings import NGramEmbeddings as NGramEmbeddings
    from .no_op_model import NoOpModel as NoOpModel
    from .paired_augment import PairedAugment as PairedAugment
    from .partial_key_offset import PartialKeyOffset as PartialKeyOffset
    from .prefix_tokens import PrefixTokens as PrefixTokens
    from .progressive_resizing import ProgressiveResizing as ProgressiveResizing
    from .proxy_filter import ProxyFilter as ProxyFilter
    from .qk_norm import QKNorm as QKNorm
    from .randaugment import RandAugment as RandAugment
    from .random_translation import RandomTranslation as RandomTranslation
    from .rotary import Rotary as Rotary
    from .sam import SAM as SAM
    from .selective_backprop import SelectiveBackprop as SelectiveBackprop
    from .seq_length_warmup import SeqLengthWarmup as SeqLengthWarmup
    from .skip_connections import SkipConnections as SkipConnections
    from .smear import Smear as Smear
    from .snapshot_distillation import SnapshotDistillation as SnapshotDistillation
    from .softcap_logits import SoftcapLogits as SoftcapLogits
    from .split_head import SplitHead as SplitHead
    from .squared_relu import SquaredReLUs as SquaredReLUs
    from .squeeze_excite import SqueezeExcite as SqueezeExcite
    from .stochastic_depth import StochasticDepth as StochasticDepth
    from .swa import SWA as SWA
    from .swa import NothingAveragedWarning as NothingAveragedWarning
    from .tta import TTA as TTA
    from .value_embeddings import ValueEmbeddings as ValueEmbeddings
    from .value_residual import ValueResidual as ValueResidual
    from .weight_standardization import WeightStandardization as WeightStandardization
    from .whitened_first_layer import WhitenedFirstLayer as WhitenedFirstLayer
    from .whole_loss import WholeLoss as WholeLoss
    from .window_warmup import WindowWarmup as WindowWarmup
else:
    export_lazily(__name__)
