"""Training methods as pure functions of tensors or modules."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable._support.surgery import with_tensors as with_tensors
    from composable._support.warn import ImageRangeWarning as ImageRangeWarning
    from composable._support.warn import NoEffectWarning as NoEffectWarning
    from composable.functional import images as images
    from composable.functional.alibi import alibi as alibi
    from composable.functional.alibi import register_alibi as register_alibi
    from composable.functional.alternating_flip import alternating_flip as alternating_flip
    from composable.functional.alternating_flip import (
        apply_alternating_flip as apply_alternating_flip,
    )
    from composable.functional.alternating_flip import (
        draw_alternating_flip as draw_alternating_flip,
    )
    from composable.functional.attention_output_gate import (
        attention_output_gate as attention_output_gate,
    )
    from composable.functional.augmix import AugMixDraw as AugMixDraw
    from composable.functional.augmix import apply_augmix as apply_augmix
    from composable.functional.augmix import augmix as augmix
    from composable.functional.augmix import draw_augmix as draw_augmix
    from composable.functional.batch_norm_statistics import (
        batch_norm_statistics as batch_norm_statistics,
    )
    from composable.functional.batch_norm_statistics import (
        recompute_batch_norm_statistics as recompute_batch_norm_statistics,
    )
    from composable.functional.batch_norm_statistics import (
        reset_batch_norm_statistics as reset_batch_norm_statistics,
    )
    from composable.functional.blurpool import blurpool as blurpool
    from composable.functional.cached_gradients import WholeGradients as WholeGradients
    from composable.functional.cached_gradients import cached_gradients as cached_gradients
    from composable.functional.cautious_weight_decay import (
        cautious_weight_decay as cautious_weight_decay,
    )
    from composable.functional.channels_last import channels_last as channels_last
    from composable.functional.clip_gradients import clip_gradients as clip_gradients
    from composable.functional.colout import ColOutDraw as ColOutDraw
    from composable.functional.colout import apply_colout as apply_colout
    from composable.functional.colout import colout as colout
    from composable.functional.colout import draw_colout as draw_colout
    from composable.functional.cutmix import CutMixDraw as CutMixDraw
    from composable.functional.cutmix import apply_cutmix as apply_cutmix
    from composable.functional.cutmix import cutmix as cutmix
    from composable.functional.cutmix import draw_cutmix as draw_cutmix
    from composable.functional.cutout import apply_cutout as apply_cutout
    from composable.functional.cutout import cutout as cutout
    from composable.functional.cutout import draw_cutout as draw_cutout
    from composable.functional.distillation_loss import distillation_loss as distillation_loss
    from composable.functional.ema import ema as ema
    from composable.functional.ema import ema_smoothing as ema_smoothing
    from composable.functional.ema_nesterov import ema_nesterov_step as ema_nesterov_step
    from composable.functional.ensembles import average_probabilities as average_probabilities
    from composable.functional.ensembles import mixture_weights as mixture_weights
    from composable.functional.exclusive_self_attention import (
        exclusive_self_attention as exclusive_self_attention,
    )
    from composable.functional.factorize import factorize as factorize
    from composable.functional.factorize_layer import factorize_layer as factorize_layer
    from composable.functional.fixres import fixres as fixres
    from composable.functional.fixres import fixres_scale as fixres_scale
    from composable.functional.frozen_layers import FrozenLayers as FrozenLayers
    from composable.functional.frozen_layers import frozen_layers as frozen_layers
    from composable.functional.gated_linear_units import gated_linear_units as gated_linear_units
    from composable.functional.gated_linear_units import (
        register_gated_linear_units as register_gated_linear_units,
    )
    from composable.functional.ghost_batchnorm import GhostBatchNorm1d as GhostBatchNorm1d
    from composable.functional.ghost_batchnorm import GhostBatchNorm2d as GhostBatchNorm2d
    from composable.functional.ghost_batchnorm import GhostBatchNorm3d as GhostBatchNorm3d
    from composable.functional.ghost_batchnorm import ghost_batchnorm as ghost_batchnorm
    from composable.functional.group_by_length import group_by_length as group_by_length
    from composable.functional.gyro_dropout import GyroDropoutLayer as GyroDropoutLayer
    from composable.functional.gyro_dropout import gyro_dropout as gyro_dropout
    from composable.functional.infobatch import Pruning as Pruning
    from composable.functional.infobatch import apply_infobatch as apply_infobatch
    from composable.functional.infobatch import draw_infobatch as draw_infobatch
    from composable.functional.infobatch import infobatch as infobatch
    from composable.functional.initialize_convolutions import (
        initialize_convolutions as initialize_convolutions,
    )
    from composable.functional.initialize_projections import (
        initialize_projections as initialize_projections,
    )
    from composable.functional.jensen_shannon_loss import jensen_shannon_loss as jensen_shannon_loss
    from composable.functional.layers import BlurConv1d as BlurConv1d
    from composable.functional.layers import BlurConv2d as BlurConv2d
    from composable.functional.layers import BlurConv3d as BlurConv3d
    from composable.functional.layers import BlurMaxPool1d as BlurMaxPool1d
    from composable.functional.layers import BlurMaxPool2d as BlurMaxPool2d
    from composable.functional.layers import BlurMaxPool3d as BlurMaxPool3d
    from composable.functional.layers import FactorizedLayer as FactorizedLayer
    from composable.functional.layers import NGramEmbedding as NGramEmbedding
    from composable.functional.layers import ResidualBlock as ResidualBlock
    from composable.functional.layers import Rotation as Rotation
    from composable.functional.layers import SquaredReLU as SquaredReLU
    from composable.functional.layers import alibi_bias as alibi_bias
    from composable.functional.layers import alibi_slopes as alibi_slopes
    from composable.functional.layers import blur as blur
    from composable.functional.layers import embed_ngrams as embed_ngrams
    from composable.functional.layers import hash_ngrams as hash_ngrams
    from composable.functional.layers import rotary_embedding as rotary_embedding
    from composable.functional.layers import rotary_tables as rotary_tables
    from composable.functional.layers import rotate_pairs as rotate_pairs
    from composable.functional.layers import smear_tokens as smear_tokens
    from composable.functional.linear_cross_entropy import (
        linear_cross_entropy as linear_cross_entropy,
    )
    from composable.functional.low_precision_groupnorm import (
        LowPrecisionGroupNormLayer as LowPrecisionGroupNormLayer,
    )
    from composable.functional.low_precision_groupnorm import (
        low_precision_groupnorm as low_precision_groupnorm,
    )
    from composable.functional.low_precision_layernorm import (
        LowPrecisionLayerNormLayer as LowPrecisionLayerNormLayer,
    )
    from composable.functional.low_precision_layernorm import (
        LowPrecisionRMSNormLayer as LowPrecisionRMSNormLayer,
    )
    from composable.functional.low_precision_layernorm import (
        low_precision_layernorm as low_precision_layernorm,
    )
    from composable.functional.mixed import MixedBatch as MixedBatch
    from composable.functional.mixed import MixedTargets as MixedTargets
    from composable.functional.mixup import MixUpDraw as MixUpDraw
    from composable.functional.mixup import apply_mixup as apply_mixup
    from composable.functional.mixup import draw_mixup as draw_mixup
    from composable.functional.mixup import mixup as mixup
    from composable.functional.ngram_embeddings import ngram_embeddings as ngram_embeddings
    from composable.functional.no_op_model import IdleModel as IdleModel
    from composable.functional.no_op_model import no_op_model as no_op_model
    from composable.functional.orthogonalize import orthogonalize as orthogonalize
    from composable.functional.pack_documents import cumulative_lengths as cumulative_lengths
    from composable.functional.pack_documents import document_mask as document_mask
    from composable.functional.pack_documents import pack_documents as pack_documents
    from composable.functional.pack_documents import pack_lengths as pack_lengths
    from composable.functional.paired_augment import draw_paired_augment as draw_paired_augment
    from composable.functional.paired_augment import paired_augment as paired_augment
    from composable.functional.partial_key_offset import partial_key_offset as partial_key_offset
    from composable.functional.polar_express_coefficients import (
        polar_express_coefficients as polar_express_coefficients,
    )
    from composable.functional.prefix_tokens import prefix_targets as prefix_targets
    from composable.functional.prefix_tokens import prefix_token_loss as prefix_token_loss
    from composable.functional.prefix_tokens import prefix_tokens as prefix_tokens
    from composable.functional.projections import register_projections as register_projections
    from composable.functional.qk_norm import qk_norm as qk_norm
    from composable.functional.randaugment import RandAugmentDraw as RandAugmentDraw
    from composable.functional.randaugment import apply_randaugment as apply_randaugment
    from composable.functional.randaugment import draw_randaugment as draw_randaugment
    from composable.functional.randaugment import randaugment as randaugment
    from composable.functional.random_translation import (
        apply_random_translation as apply_random_translation,
    )
    from composable.functional.random_translation import (
        draw_random_translation as draw_random_translation,
    )
    from composable.functional.random_translation import random_translation as random_translation
    from composable.functional.register_attention import register_attention as register_attention
    from composable.functional.replace_modules import Replacement as Replacement
    from composable.functional.replace_modules import replace_modules as replace_modules
    from composable.functional.resize_batch import apply_crop as apply_crop
    from composable.functional.resize_batch import draw_crop as draw_crop
    from composable.functional.resize_batch import progressive_scale as progressive_scale
    from composable.functional.resize_batch import resize_batch as resize_batch
    from composable.functional.resize_batch import scaled_size as scaled_size
    from composable.functional.resized import ResizedBatch as ResizedBatch
    from composable.functional.rotary import register_rotary as register_rotary
    from composable.functional.rotary import rotary as rotary
    from composable.functional.sam_perturbation import sam_perturbation as sam_perturbation
    from composable.functional.schedule_free import schedule_free_average as schedule_free_average
    from composable.functional.schedule_free import schedule_free_step as schedule_free_step
    from composable.functional.select_highest import select_highest as select_highest
    from composable.functional.select_using_loss import apply_selection as apply_selection
    from composable.functional.select_using_loss import draw_selection as draw_selection
    from composable.functional.select_using_loss import select_using_loss as select_using_loss
    from composable.functional.select_using_loss import should_select as should_select
    from composable.functional.set_dropout import set_dropout as set_dropout
    from composable.functional.set_sequence_length import sequence_length as sequence_length
    from composable.functional.set_sequence_length import set_sequence_length as set_sequence_length
    from composable.functional.set_sequence_length import warmed_up_length as warmed_up_length
    from composable.functional.skip_connections import skip_connections as skip_connections
    from composable.functional.sliding_window import sliding_window as sliding_window
    from composable.functional.sliding_window import warmed_up_window as warmed_up_window
    from composable.functional.smear import smear as smear
    from composable.functional.smooth_labels import smooth_labels as smooth_labels
    from composable.functional.softcap_logits import softcap_head as softcap_head
    from composable.functional.softcap_logits import softcap_logits as softcap_logits
    from composable.functional.split_head import split_head as split_head
    from composable.functional.split_head import tie_gradients as tie_gradients
    from composable.functional.squared_relu import squared_relu as squared_relu
    from composable.functional.squeeze_excite import SqueezeExcitation as SqueezeExcitation
    from composable.functional.squeeze_excite import squeeze_excite as squeeze_excite
    from composable.functional.stochastic_depth import scale_drop_rates as scale_drop_rates
    from composable.functional.stochastic_depth import stochastic_depth as stochastic_depth
    from composable.functional.swa import swa as swa
    from composable.functional.tta import average_tta as average_tta
    from composable.functional.tta import tta as tta
    from composable.functional.tta import tta_views as tta_views
    from composable.functional.value_embeddings import value_embeddings as value_embeddings
    from composable.functional.value_residual import value_residual as value_residual
    from composable.functional.warmed_up_batch_size import (
        warmed_up_batch_size as warmed_up_batch_size,
    )
    from composable.functional.warmed_up_momentum import warmed_up_momentum as warmed_up_momentum
    from composable.functional.weight_standardization import (
        StandardizedWeight as StandardizedWeight,
    )
    from composable.functional.weight_standardization import (
        standardize_weight as standardize_weight,
    )
    from composable.functional.weight_standardization import (
        weight_standardization as weight_standardization,
    )
    from composable.functional.whiten_first_layer import whiten_first_layer as whiten_first_layer
    from composable.functional.whiten_first_layer import whitening_filters as whitening_filters
else:
    export_lazily(__name__)
