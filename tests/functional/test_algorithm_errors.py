"""An algorithm and its function raise the same error for the same invalid argument."""

from functools import partial

import pytest
import torch
from torch import nn

import composable.algorithms as A
import composable.functional as F
from composable.algorithms._validators import at_least, boolean, in_range, one_of

NET = nn.Sequential(nn.Linear(2, 2))
IMAGES, LABELS = torch.zeros(2, 3, 8, 8), torch.arange(2)
GYRO = partial(F.gyro_dropout, NET, iters_per_epoch=1, max_epoch=1)
LENGTH = partial(F.set_sequence_length, {"input_ids": torch.zeros(2, 4)}, 2)
SCALE = partial(F.progressive_scale, 0.5)
SELECT = partial(F.should_select, 0.5, 0)
SMOOTH = partial(F.smooth_labels, LABELS, num_classes=2)
WEIGHTS = ({"w": IMAGES}, {"w": IMAGES})

BAD_NUMBERS = (-1, 2, "0.5", None, True, float("nan"))
BAD_COUNTS = (-1, 0.5, "4", None, True)
BAD_FLAGS = (1, None, "yes")

CASES = [
    (A.Alibi, partial(F.alibi, NET), "max_sequence_length", (0, *BAD_COUNTS)),
    (A.AugMix, partial(F.augmix, IMAGES), "severity", (-1, 11, "3", None)),
    (A.AugMix, partial(F.augmix, IMAGES), "depth", (0, -2, 1.0, True)),
    (A.AugMix, partial(F.augmix, IMAGES), "width", (0, *BAD_COUNTS)),
    (A.AugMix, partial(F.augmix, IMAGES), "augmentations", ("some", None)),
    (A.BlurPool, partial(F.blurpool, NET), "replace_convs", BAD_FLAGS),
    (A.BlurPool, partial(F.blurpool, NET), "min_channels", BAD_COUNTS),
    (A.ColOut, partial(F.colout, IMAGES), "p_row", (1, *BAD_NUMBERS)),
    (A.CutMix, partial(F.cutmix, IMAGES, LABELS), "alpha", (0, float("inf"), "1", True)),
    (A.CutMix, partial(F.cutmix, IMAGES, LABELS), "per_sample", BAD_FLAGS),
    (A.CutOut, partial(F.cutout, IMAGES), "length", (-1, 1.5, float("inf"), "a", None)),
    (A.CutOut, partial(F.cutout, IMAGES), "num_holes", BAD_COUNTS),
    (A.Factorize, partial(F.factorize, NET), "latent_channels", (0, 0.0, 2.0, "4", True)),
    (A.Factorize, partial(F.factorize, NET), "min_features", BAD_COUNTS),
    (A.GatedLinearUnits, partial(F.gated_linear_units, NET), "act_fn", ("gelu", nn.GELU)),
    (A.GatedLinearUnits, partial(F.gated_linear_units, NET), "gated_layer_bias", BAD_FLAGS),
    (A.GhostBatchNorm, partial(F.ghost_batchnorm, NET), "ghost_batch_size", (0, *BAD_COUNTS)),
    (A.GyroDropout, GYRO, "p", (1, *BAD_NUMBERS)),
    (A.GyroDropout, GYRO, "sigma", (0, *BAD_COUNTS)),
    (A.GyroDropout, GYRO, "tau", (0, 257, *BAD_COUNTS)),
    (A.LabelSmoothing, SMOOTH, "smoothing", BAD_NUMBERS),
    (A.LayerFreezing, partial(F.frozen_layers, NET, elapsed=0.5), "freeze_level", BAD_NUMBERS),
    (A.LowPrecisionGroupNorm, partial(F.low_precision_groupnorm, NET), "precision", ("bf16", 16)),
    (
        A.LowPrecisionLayerNorm,
        partial(F.low_precision_layernorm, NET),
        "precision",
        (torch.float32, torch.int8),
    ),
    (A.MixUp, partial(F.mixup, IMAGES, LABELS), "alpha", (0, -0.2, float("inf"), "0.2", True)),
    (A.ProgressiveResizing, SCALE, "initial_scale", (0, *BAD_NUMBERS)),
    (A.ProgressiveResizing, SCALE, "delay_fraction", (0.9, *BAD_NUMBERS)),
    (
        A.ProgressiveResizing,
        partial(F.resize_batch, IMAGES, scale_factor=0.5),
        "mode",
        ("zoom", None),
    ),
    (A.RandAugment, partial(F.randaugment, IMAGES), "depth", BAD_COUNTS),
    (A.SAM, partial(F.sam_perturbation, *WEIGHTS), "rho", (-1, float("inf"), "1", None)),
    (A.SAM, partial(F.sam_perturbation, *WEIGHTS), "epsilon", (0, -1, None)),
    (A.SelectiveBackprop, SELECT, "start", (-1, 2, "0.5", None, float("nan"))),
    (A.SelectiveBackprop, SELECT, "end", (0.4, *BAD_NUMBERS)),
    (A.SelectiveBackprop, SELECT, "interrupt", BAD_COUNTS),
    (A.SelectiveBackprop, partial(F.select_using_loss, torch.zeros(2)), "keep", (0, *BAD_NUMBERS)),
    (A.SeqLengthWarmup, partial(F.warmed_up_length, 0.5), "duration", BAD_NUMBERS),
    (A.SeqLengthWarmup, partial(F.warmed_up_length, 0.5), "max_seq_length", (7, *BAD_COUNTS)),
    (A.SeqLengthWarmup, LENGTH, "truncate", BAD_FLAGS),
    (A.SqueezeExcite, partial(F.squeeze_excite, NET), "latent_channels", (0, 2.5, "4", True)),
    (A.StochasticDepth, partial(F.stochastic_depth, NET), "target", ("Block", int)),
    (A.StochasticDepth, partial(F.stochastic_depth, NET), "drop_distribution", ("x", None)),
    (
        A.WeightStandardization,
        partial(F.weight_standardization, NET),
        "n_last_layers_ignore",
        BAD_COUNTS,
    ),
]


def error_of(function, argument, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**{argument: value})
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "function", "argument", "values"),
    CASES,
    ids=[f"{algorithm.__name__}-{argument}" for algorithm, _, argument, _ in CASES],
)
def test_an_algorithm_and_its_function_raise_the_same_error(
    unchecked, algorithm, function, argument, values
):
    for value in values:
        error = error_of(algorithm, argument, value)

        assert error == error_of(function, argument, value)
        assert error[1].startswith((f"{argument}=", "delay_fraction="))
        assert " must " in error[1]
        assert error[1].endswith(".")


@pytest.mark.parametrize("validator", [in_range(0), at_least(0), boolean, one_of("a", "b")])
def test_a_validator_names_its_field(validator):
    class Field:
        name = "rate"

    with pytest.raises((TypeError, ValueError), match=r"^rate='c' must be "):
        validator(None, Field, "c")
