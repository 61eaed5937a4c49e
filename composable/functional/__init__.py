"""Training methods as pure functions of tensors or modules."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from . import images as images
    from ._surgery import with_tensors as with_tensors
    from ._warnings import ImageRangeWarning as ImageRangeWarning
    from ._warnings import NoEffectWarning as NoEffectWarning
    from .alibi import alibi as alibi
    from .alibi import register_alibi as register_alibi
    from .alternating_flip import alternating_flip as alternating_flip
    from .alternating_flip import apply_alternating_flip as apply_alternating_flip
    from .alternating_flip import draw_alternating_flip as draw_alternating_flip
    from .augmix import AugMixDraw as AugMixDraw
    from .augmix import apply_augmix as apply_augmix
    from .augmix import augmix as augmix
    from .augmix import draw_augmix as draw_augmix
    from .batch_norm_statistics import batch_norm_statistics as batch_norm_statistics
    from .batch_norm_statistics import (
        recompute_batch_norm_statistics as recompute_batch_norm_statistics,
    )
    from .batch_norm_statistics import reset_batch_norm_statistics as reset_batch_norm_statistics
    from .blurpool import blurpool as blurpool
    from .channels_last import channels_last as channels_last
    from .clip_gradients import clip_gradients as clip_gradients
    from .colout import ColOutDraw as ColOutDraw
    from .colout import apply_colout as apply_colout
    from .colout import colout as colout
    from .colout import draw_colout as draw_colout
    from .cutmix import CutMixDraw as CutMixDraw
    from .cutmix import apply_cutmix as apply_cutmix
    from .cutmix import cutmix as cutmix
    from .cutmix import draw_cutmix as draw_cutmix
    from .cutout import apply_cutout as apply_cutout
    from .cutout import cutout as cutout
    from .cutout import draw_cutout as draw_cutout
    from .ema import ema as ema
    from .ema import ema_smoothing as ema_smoothing
    from .factorize import factorize as factorize
    from .fixres import fixres as fixres
    from .fixres import fixres_scale as fixres_scale
    from .frozen_layers import FrozenLayers as FrozenLayers
    from .frozen_layers import frozen_layers as frozen_layers
    from .gated_linear_units import gated_linear_units as gated_linear_units
    from .gated_linear_units import register_gated_linear_units as register_gated_linear_units
    from .ghost_batchnorm import GhostBatchNorm1d as GhostBatchNorm1d
    from .ghost_batchnorm import GhostBatchNorm2d as GhostBatchNorm2d
    from .ghost_batchnorm import GhostBatchNorm3d as GhostBatchNorm3d
    from .ghost_batchnorm import ghost_batchnorm as ghost_batchnorm
    from .gyro_dropout import GyroDropoutLayer as GyroDropoutLayer
    from .gyro_dropout import gyro_dropout as gyro_dropout
    from .jensen_shannon_loss import jensen_shannon_loss as jensen_shannon_loss
    from .layers import BlurConv1d as BlurConv1d
    from .layers import BlurConv2d as BlurConv2d
    from .layers import BlurConv3d as BlurConv3d
    from .layers import BlurMaxPool1d as BlurMaxPool1d
    from .layers import BlurMaxPool2d as BlurMaxPool2d
    from .layers import BlurMaxPool3d as BlurMaxPool3d
    from .layers import FactorizedLayer as FactorizedLayer
    from .layers import ResidualBlock as ResidualBlock
    from .layers import Rotation as Rotation
    from .layers import alibi_bias as alibi_bias
    from .layers import alibi_slopes as alibi_slopes
    from .layers import blur as blur
    from .layers import rotary_embedding as rotary_embedding
    from .layers import rotary_tables as rotary_tables
    from .layers import rotate_pairs as rotate_pairs
    from .linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
    from .low_precision_groupnorm import LowPrecisionGroupNorm as LowPrecisionGroupNorm
    from .low_precision_groupnorm import low_precision_groupnorm as low_precision_groupnorm
    from .low_precision_layernorm import LowPrecisionLayerNorm as LowPrecisionLayerNorm
    from .low_precision_layernorm import LowPrecisionRMSNorm as LowPrecisionRMSNorm
    from .low_precision_layernorm import low_precision_layernorm as low_precision_layernorm
    from .mixed import MixedBatch as MixedBatch
    from .mixed import MixedTargets as MixedTargets
    from .mixup import MixUpDraw as MixUpDraw
    from .mixup import apply_mixup as apply_mixup
    from .mixup import draw_mixup as draw_mixup
    from .mixup import mixup as mixup
    from .no_op_model import IdleModel as IdleModel
    from .no_op_model import no_op_model as no_op_model
    from .orthogonalize import orthogonalize as orthogonalize
    from .pack_documents import cumulative_lengths as cumulative_lengths
    from .pack_documents import document_mask as document_mask
    from .pack_documents import pack_documents as pack_documents
    from .pack_documents import pack_lengths as pack_lengths
    from .randaugment import RandAugmentDraw as RandAugmentDraw
    from .randaugment import apply_randaugment as apply_randaugment
    from .randaugment import draw_randaugment as draw_randaugment
    from .randaugment import randaugment as randaugment
    from .resize_batch import apply_crop as apply_crop
    from .resize_batch import draw_crop as draw_crop
    from .resize_batch import progressive_scale as progressive_scale
    from .resize_batch import resize_batch as resize_batch
    from .resize_batch import scaled_size as scaled_size
    from .resized import ResizedBatch as ResizedBatch
    from .rotary import register_rotary as register_rotary
    from .rotary import rotary as rotary
    from .sam_perturbation import sam_perturbation as sam_perturbation
    from .schedule_free import schedule_free_average as schedule_free_average
    from .schedule_free import schedule_free_step as schedule_free_step
    from .select_using_loss import apply_selection as apply_selection
    from .select_using_loss import draw_selection as draw_selection
    from .select_using_loss import select_using_loss as select_using_loss
    from .select_using_loss import should_select as should_select
    from .set_sequence_length import sequence_length as sequence_length
    from .set_sequence_length import set_sequence_length as set_sequence_length
    from .set_sequence_length import warmed_up_length as warmed_up_length
    from .smooth_labels import smooth_labels as smooth_labels
    from .squeeze_excite import SqueezeExcitation as SqueezeExcitation
    from .squeeze_excite import squeeze_excite as squeeze_excite
    from .stochastic_depth import scale_drop_rates as scale_drop_rates
    from .stochastic_depth import stochastic_depth as stochastic_depth
    from .swa import swa as swa
    from .warmed_up_batch_size import warmed_up_batch_size as warmed_up_batch_size
    from .weight_standardization import StandardizedWeight as StandardizedWeight
    from .weight_standardization import standardize_weight as standardize_weight
    from .weight_standardization import weight_standardization as weight_standardization
    from .whiten_first_layer import whiten_first_layer as whiten_first_layer
    from .whiten_first_layer import whitening_filters as whitening_filters
else:
    export_lazily(__name__)
