"""What may be wrong with each argument of each function and algorithm, as one table.

A column of mistakes for every kind of argument; `GOOD` has arguments that are right, of which a
test makes one wrong at a time.
"""

from collections.abc import Callable, Mapping
from math import inf, nan
from typing import Any

import torch
from torch import Tensor, nn

import composable.functional as F
from tests.runs import language_model

NO_TENSOR = (3, "x", None, [1.0])
NO_INDICES = NO_TENSOR
NO_TENSORS = (3, "x", None, [torch.zeros(2)], {"weight": 3})
NO_GRADS = (3, "x", None, iter(()), {"weight": 3})
NO_MODEL = (3, None, nn.Linear, lambda x: x)
NO_GENERATOR = (3, "x", True)
NO_FLAG = (1, 0, "yes", None)
NO_DRAW = (3, None, (torch.zeros(2),))
NO_NAME = (3, "", b"x")


def no_count(low: int) -> tuple[Any, ...]:
    """No whole number from `low` on."""
    return (low - 1, 2.5, nan, "3", None, True)


def no_number(*outside: float) -> tuple[Any, ...]:
    """No number, or one of these, which are out of range."""
    return (*outside, nan, "0.5", None, True)


def no_word() -> tuple[Any, ...]:
    """Neither one of the words, nor a word at all."""
    return ("nothing", "", 3, None, ["norm"])


NO_ELAPSED = no_number(-0.1, -inf)
NO_BLOCK = (3, "Block", nn.Linear(1, 1), [3])
NO_SHARE = no_number(-0.1, 1.1, inf, -inf)
NO_POSITIVE = no_number(0, -1, inf, -inf)
NO_SIZE = (3, None, "xy", (), (4, 2.5), (4, -1))


def pictures() -> Tensor:
    return torch.rand(4, 3, 8, 8)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.Dropout()
    )


def drawing(**more: Any) -> dict[str, Any]:
    return {**more, "generator": torch.Generator()}


MIXING = {"alpha": NO_POSITIVE, "per_sample": NO_FLAG, "generator": NO_GENERATOR}
CUTTING = {**MIXING, "uniform_sampling": NO_FLAG}
HOLES = {
    "num_holes": no_count(0),
    "length": no_number(-0.1, -1, inf),
    "uniform_sampling": NO_FLAG,
    "per_sample": NO_FLAG,
    "generator": NO_GENERATOR,
}
LINES = {
    "p_row": no_number(-0.1, 1.0, 1.1, inf),
    "p_col": no_number(-0.1, 1.0, 1.1, inf),
    "generator": NO_GENERATOR,
}
OPERATIONS = {
    "severity": no_number(-1, 11, inf),
    "augmentations": no_word(),
    "generator": NO_GENERATOR,
}
RANDAUGMENT = {**OPERATIONS, "depth": no_count(0)}
AUGMIX = {
    **OPERATIONS,
    "depth": (-2, 0, 2.5, nan, "3", None),
    "width": no_count(1),
    "alpha": NO_POSITIVE,
}
SQUEEZE = {"latent_channels": (0, -1, 0.0, 1.5, nan, "3", None, True), "generator": NO_GENERATOR}

FREEZING = {"freeze_start": NO_SHARE, "freeze_level": NO_SHARE}
NO_LATENT = (0, -1, 0.0, 1.0, 1.5, -0.5, nan, "3", None, True)
PAIRS = {
    "factorize_convs": NO_FLAG,
    "factorize_linears": NO_FLAG,
    "min_channels": no_count(0),
    "latent_channels": NO_LATENT,
    "min_features": no_count(0),
    "latent_features": NO_LATENT,
}
GATES = {
    "act_fn": (3, "gelu", nn.GELU),
    "gated_layer_bias": NO_FLAG,
    "non_gated_layer_bias": NO_FLAG,
}

Good = Callable[[], dict[str, Any]]
Wrong = Mapping[str, tuple[Any, ...]]

FUNCTIONS: dict[str, tuple[Good, Wrong]] = {
    # Batch in, batch out
    "mixup": (
        lambda: drawing(inputs=pictures(), targets=torch.arange(4)),
        {"inputs": NO_TENSOR, "targets": NO_TENSOR, **MIXING},
    ),
    "draw_mixup": (lambda: drawing(batch_size=4), {"batch_size": no_count(0), **MIXING}),
    "apply_mixup": (
        lambda: {
            "inputs": pictures(),
            "targets": torch.arange(4),
            "draw": F.draw_mixup(4),
        },
        {"inputs": NO_TENSOR, "targets": NO_TENSOR, "draw": NO_DRAW},
    ),
    "cutmix": (
        lambda: drawing(inputs=pictures(), targets=torch.arange(4)),
        {"inputs": (*NO_TENSOR, torch.zeros(4)), "targets": NO_TENSOR, **CUTTING},
    ),
    "draw_cutmix": (
        lambda: drawing(batch_size=4, size=(8, 8)),
        {"batch_size": no_count(0), "size": NO_SIZE, **CUTTING},
    ),
    "apply_cutmix": (
        lambda: {
            "inputs": pictures(),
            "targets": torch.arange(4),
            "draw": F.draw_cutmix(4, (8, 8)),
        },
        {"inputs": NO_TENSOR, "targets": NO_TENSOR, "draw": NO_DRAW},
    ),
    "cutout": (
        lambda: drawing(inputs=pictures()),
        {"inputs": (*NO_TENSOR, torch.zeros(4)), **HOLES},
    ),
    "draw_cutout": (
        lambda: drawing(batch_size=4, size=(8, 8)),
        {"batch_size": no_count(0), "size": NO_SIZE, **HOLES},
    ),
    "apply_cutout": (
        lambda: {"inputs": pictures(), "draw": F.draw_cutout(4, (8, 8))},
        {"inputs": NO_TENSOR, "draw": NO_DRAW},
    ),
    "colout": (
        lambda: drawing(inputs=pictures(), targets=pictures()),
        {"inputs": (*NO_TENSOR, torch.zeros(4)), "targets": (3, "x", [1.0]), **LINES},
    ),
    "draw_colout": (lambda: drawing(size=(8, 8)), {"size": NO_SIZE, **LINES}),
    "apply_colout": (
        lambda: {"inputs": pictures(), "targets": None, "draw": F.draw_colout((8, 8))},
        {"inputs": NO_TENSOR, "targets": (3, "x", [1.0]), "draw": NO_DRAW},
    ),
    "randaugment": (
        lambda: drawing(images=pictures()),
        {"images": (*NO_TENSOR, torch.zeros(4), pictures().long()), **RANDAUGMENT},
    ),
    "draw_randaugment": (
        lambda: drawing(batch_size=4),
        {"batch_size": no_count(0), **RANDAUGMENT},
    ),
    "apply_randaugment": (
        lambda: {"images": pictures(), "draw": F.draw_randaugment(4)},
        {"images": NO_TENSOR, "draw": NO_DRAW},
    ),
    "augmix": (
        lambda: drawing(images=pictures()),
        {"images": (*NO_TENSOR, torch.zeros(4), pictures().long()), **AUGMIX},
    ),
    "draw_augmix": (lambda: drawing(batch_size=4), {"batch_size": no_count(0), **AUGMIX}),
    "apply_augmix": (
        lambda: {"images": pictures(), "draw": F.draw_augmix(4)},
        {"images": NO_TENSOR, "draw": NO_DRAW},
    ),
    "jensen_shannon_loss": (
        lambda: {"logits": torch.zeros(4, 3), "others": torch.zeros(4, 3)},
        {"logits": NO_TENSOR, "others": (*NO_TENSOR, torch.zeros(4, 2))},
    ),
    "resize_batch": (
        lambda: drawing(inputs=pictures(), targets=pictures(), scale_factor=0.5),
        {
            "inputs": (*NO_TENSOR, torch.zeros(4)),
            "targets": (3, "x", [1.0]),
            "scale_factor": no_number(0, -0.5, 1.5, inf),
            "mode": no_word(),
            "resize_targets": NO_FLAG,
            "size_increment": no_count(1),
            "generator": NO_GENERATOR,
        },
    ),
    "scaled_size": (
        lambda: {"size": (8, 8), "scale_factor": 0.5, "size_increment": 1},
        {
            "size": NO_SIZE,
            "scale_factor": no_number(0, -0.5, 1.5, inf),
            "size_increment": no_count(1),
        },
    ),
    "draw_crop": (
        lambda: drawing(size=(8, 8), new_size=(4, 4)),
        {"size": NO_SIZE, "new_size": (*NO_SIZE, (9, 4), (4,)), "generator": NO_GENERATOR},
    ),
    "apply_crop": (
        lambda: {
            "tensor": pictures(),
            "new_size": (4, 4),
            "offset": F.draw_crop((8, 8), (4, 4)),
        },
        {"tensor": NO_TENSOR, "new_size": (*NO_SIZE, (9, 4)), "offset": NO_TENSOR},
    ),
    "progressive_scale": (
        lambda: {"elapsed": 0.5},
        {
            "elapsed": NO_ELAPSED,
            "initial_scale": no_number(0, -0.1, 1.1, inf),
            "finetune_fraction": NO_SHARE,
            "delay_fraction": NO_SHARE,
        },
    ),
    "smooth_labels": (
        lambda: {"targets": torch.arange(4), "num_classes": 4},
        {"targets": NO_TENSOR, "smoothing": NO_SHARE, "num_classes": (0, -1, 2.5, "3")},
    ),
    "set_sequence_length": (
        lambda: {"batch": {"input_ids": torch.zeros(2, 8)}, "length": 4},
        {
            "batch": (3, "x", None),
            "length": no_count(1),
            "truncate": NO_FLAG,
            "preserve_end_of_sequence": NO_FLAG,
        },
    ),
    "warmed_up_length": (
        lambda: {"elapsed": 0.1},
        {
            "elapsed": NO_ELAPSED,
            "duration": NO_SHARE,
            "min_seq_length": no_count(1),
            "max_seq_length": no_count(1),
            "step_size": no_count(1),
        },
    ),
    "select_using_loss": (
        lambda: drawing(losses=torch.rand(4)),
        {"losses": NO_TENSOR, "keep": NO_SHARE, "generator": NO_GENERATOR},
    ),
    "draw_selection": (
        lambda: drawing(batch_size=4),
        {"batch_size": no_count(0), "keep": NO_SHARE, "generator": NO_GENERATOR},
    ),
    "apply_selection": (
        lambda: {"losses": torch.rand(4), "draw": F.draw_selection(4)},
        {"losses": NO_TENSOR, "draw": NO_TENSOR},
    ),
    "should_select": (
        lambda: {"elapsed": 0.6, "batch_index": 1},
        {
            "elapsed": NO_ELAPSED,
            "batch_index": no_count(0),
            "start": NO_SHARE,
            "end": NO_SHARE,
            "interrupt": no_count(0),
        },
    ),
    # Module in, module out
    "blurpool": (
        lambda: {"model": net(), "min_channels": 1},
        {
            "model": NO_MODEL,
            "replace_convs": NO_FLAG,
            "replace_maxpools": NO_FLAG,
            "blur_first": NO_FLAG,
            "min_channels": no_count(0),
        },
    ),
    "blur": (
        lambda: {"inputs": pictures()},
        {
            "inputs": (*NO_TENSOR, pictures().long()),
            "stride": (0, -1, 2.5, "2", None, (2,), (0, 1)),
            "padding_mode": no_word(),
        },
    ),
    "channels_last": (lambda: {"model": net()}, {"model": NO_MODEL}),
    "ghost_batchnorm": (
        lambda: {"model": net()},
        {"model": NO_MODEL, "ghost_batch_size": no_count(1)},
    ),
    "gyro_dropout": (
        lambda: drawing(model=net(), iters_per_epoch=4, max_epoch=2),
        {
            "model": NO_MODEL,
            "p": NO_SHARE,
            "sigma": no_count(1),
            "tau": no_count(1),
            "iters_per_epoch": no_count(1),
            "max_epoch": no_count(1),
            "generator": NO_GENERATOR,
        },
    ),
    "low_precision_groupnorm": (
        lambda: {"model": net()},
        {"model": NO_MODEL, "precision": (torch.float32, torch.int8, "bfloat16", 16)},
    ),
    "low_precision_layernorm": (
        lambda: {"model": nn.Sequential(nn.LayerNorm(4))},
        {"model": NO_MODEL, "precision": (torch.float32, torch.int8, "bfloat16", 16)},
    ),
    "no_op_model": (lambda: {"model": net()}, {"model": NO_MODEL}),
    "scale_drop_rates": (
        lambda: {"model": net(), "scale": 0.5},
        {"model": NO_MODEL, "scale": NO_SHARE, "target": NO_BLOCK},
    ),
    "squeeze_excite": (
        lambda: drawing(model=net(), min_channels=1),
        {"model": NO_MODEL, "min_channels": no_count(0), **SQUEEZE},
    ),
    "standardize_weight": (lambda: {"weight": torch.rand(4, 3)}, {"weight": NO_TENSOR}),
    "stochastic_depth": (
        lambda: {"model": nn.Sequential(nn.Identity()), "target": nn.Identity},
        {
            "model": NO_MODEL,
            "target": NO_BLOCK,
            "method": no_word(),
            "drop_rate": NO_SHARE,
            "drop_distribution": no_word(),
        },
    ),
    "weight_standardization": (
        lambda: {"model": net()},
        {"model": NO_MODEL, "n_last_layers_ignore": no_count(0)},
    ),
    "alibi": (
        lambda: {"model": language_model(), "max_sequence_length": 8},
        {"model": NO_MODEL, "max_sequence_length": no_count(1)},
    ),
    "alibi_bias": (
        lambda: {"heads": 2, "length": 3},
        {
            "heads": no_count(1),
            "length": no_count(0),
            "past": no_count(0),
            "device": ("nowhere", 2.5),
            "dtype": ("float32", 3, torch.int64),
        },
    ),
    "alibi_slopes": (
        lambda: {"heads": 2},
        {
            "heads": no_count(1),
            "device": ("nowhere", 2.5),
            "dtype": ("float32", 3, torch.int64),
        },
    ),
    "register_alibi": (
        lambda: {"kinds": "a.class.OfNoOne"},
        {"kinds": (3, None, nn.Linear(1, 1), int)},
    ),
    "batch_norm_statistics": (lambda: {"model": net()}, {"model": NO_MODEL}),
    "reset_batch_norm_statistics": (lambda: {"model": net()}, {"model": NO_MODEL}),
    "recompute_batch_norm_statistics": (
        lambda: {"model": net(), "batches": [pictures()]},
        {"model": NO_MODEL, "batches": (3, None, []), "seen": no_count(0)},
    ),
    "factorize": (
        lambda: {"model": nn.Linear(16, 16), "min_features": 1, "latent_features": 1},
        {"model": NO_MODEL, **PAIRS},
    ),
    "frozen_layers": (
        lambda: {"model": net(), "elapsed": 0.7},
        {
            "model": NO_MODEL,
            "elapsed": NO_SHARE,
            "freeze_start": NO_SHARE,
            "freeze_level": NO_SHARE,
        },
    ),
    "gated_linear_units": (
        lambda: drawing(model=language_model()),
        {"model": NO_MODEL, **GATES, "generator": NO_GENERATOR},
    ),
    "register_gated_linear_units": (
        lambda: {"kind": "a.class.OfNoOne", "linear": "up", "activation": "act"},
        {"kind": (3, None, nn.Linear(1, 1), int), "linear": (3, None), "activation": (3, None)},
    ),
    "sequence_length": (lambda: {"batch": torch.zeros(2, 8)}, {"batch": (3, "x", None, {})}),
    # Parameters and gradients
    "ema": (
        lambda: {
            "average": {"weight": torch.zeros(2)},
            "current": {"weight": torch.ones(2)},
            "smoothing": 0.9,
        },
        {"average": NO_TENSORS, "current": NO_TENSORS, "smoothing": NO_SHARE},
    ),
    "ema_smoothing": (
        lambda: {"half_life": 10.0, "update_interval": 1.0},
        {"half_life": NO_POSITIVE, "update_interval": NO_POSITIVE},
    ),
    "clip_gradients": (
        lambda: {"grads": {"weight": torch.ones(2)}, "threshold": 1.0},
        {
            "grads": NO_GRADS,
            "threshold": no_number(-1.0, -inf),
            "method": no_word(),
            "params": (3, "x", [1.0], {"weight": 3}),
        },
    ),
    "sam_perturbation": (
        lambda: {"params": {"weight": torch.ones(2)}, "grads": {"weight": torch.ones(2)}},
        {
            "params": NO_TENSORS,
            "grads": NO_TENSORS,
            "rho": no_number(-0.1, inf),
            "epsilon": NO_POSITIVE,
        },
    ),
    "swa": (
        lambda: {
            "average": {"weight": torch.zeros(2)},
            "current": {"weight": torch.ones(2)},
            "count": 1,
        },
        {"average": NO_TENSORS, "current": NO_TENSORS, "count": no_count(0)},
    ),
    "with_tensors": (
        lambda: {"model": nn.Linear(1, 1), "tensors": {"bias": torch.zeros(1)}},
        {"model": NO_MODEL, "tensors": NO_TENSORS},
    ),
}
"""By name: arguments that are right, and for each argument what is wrong."""

STRENGTHS = {
    "brightness": "factor",
    "color": "factor",
    "contrast": "factor",
    "posterize": "bits",
    "rotate": "degrees",
    "sharpness": "factor",
    "shear_x": "factor",
    "shear_y": "factor",
    "solarize": "threshold",
    "translate_x": "pixels",
    "translate_y": "pixels",
}

IMAGES: dict[str, tuple[Good, Wrong]] = {
    name: (lambda: {"images": pictures()}, {"images": (*NO_TENSOR, pictures().long())})
    for name in ("autocontrast", "equalize")
} | {
    name: (
        lambda strength=strength: {"images": pictures(), strength: 1.0},
        {"images": (*NO_TENSOR, pictures().long()), strength: (nan, "1", None, torch.zeros(3))},
    )
    for name, strength in STRENGTHS.items()
}

NO_TIME = ("soon", "3", -1, 2.5, None)
NO_VALUES = (3, "x", (0.5, "x"), ())

ALGORITHMS: dict[str, tuple[dict[str, Any], Wrong]] = {
    "Alibi": (
        {"max_sequence_length": 8},
        {
            "max_sequence_length": no_count(1),
            "train_sequence_length_scaling": no_number(0, -0.1, 1.1),
        },
    ),
    "AugMix": (
        {},
        {
            "severity": no_number(-1, 11, inf),
            "depth": (-2, 0, 2.5, nan, "3", None),
            "width": no_count(1),
            "alpha": NO_POSITIVE,
            "augmentations": no_word(),
            "mean": NO_VALUES,
            "std": NO_VALUES,
        },
    ),
    "BlurPool": (
        {},
        {
            "replace_convs": NO_FLAG,
            "replace_maxpools": NO_FLAG,
            "blur_first": NO_FLAG,
            "min_channels": no_count(0),
        },
    ),
    "ChannelsLast": ({}, {}),
    "ColOut": ({}, {"p_row": no_number(-0.1, 1.0, 1.1), "p_col": no_number(-0.1, 1.0, 1.1)}),
    "CutMix": (
        {},
        {
            "alpha": NO_POSITIVE,
            "uniform_sampling": NO_FLAG,
            "interpolate_loss": NO_FLAG,
            "per_sample": NO_FLAG,
        },
    ),
    "CutOut": (
        {},
        {
            "num_holes": no_count(0),
            "length": no_number(-0.1, -1, inf),
            "uniform_sampling": NO_FLAG,
            "per_sample": NO_FLAG,
        },
    ),
    "EMA": (
        {},
        {
            "half_life": ("soon", "3", -1, "0ba", "-1ba"),
            "smoothing": (-0.1, 1.0, 1.1, nan, "x", True),
            "ema_start": NO_TIME,
            "update_interval": ("soon", "3", -1, "0ba"),
        },
    ),
    "Factorize": ({}, PAIRS),
    "GatedLinearUnits": ({}, GATES),
    "GhostBatchNorm": ({}, {"ghost_batch_size": no_count(1)}),
    "GradientClipping": (
        {"clipping_type": "norm", "clipping_threshold": 1.0},
        {"clipping_type": no_word(), "clipping_threshold": no_number(-1.0, -inf)},
    ),
    "GyroDropout": ({}, {"p": NO_SHARE, "sigma": no_count(1), "tau": no_count(1)}),
    "LabelSmoothing": ({}, {"smoothing": NO_SHARE}),
    "LayerFreezing": ({}, FREEZING),
    "LowPrecisionGroupNorm": ({}, {"precision": (torch.float32, "bfloat16", 16)}),
    "LowPrecisionLayerNorm": ({}, {"precision": (torch.float32, "bfloat16", 16)}),
    "MixUp": ({}, {"alpha": NO_POSITIVE, "per_sample": NO_FLAG, "interpolate_loss": NO_FLAG}),
    "NoOpModel": ({}, {}),
    "ProgressiveResizing": (
        {},
        {
            "mode": no_word(),
            "initial_scale": no_number(0, -0.1, 1.1),
            "finetune_fraction": NO_SHARE,
            "delay_fraction": NO_SHARE,
            "size_increment": no_count(1),
            "resize_targets": NO_FLAG,
        },
    ),
    "RandAugment": (
        {},
        {
            "severity": no_number(-1, 11, inf),
            "depth": no_count(0),
            "augmentations": no_word(),
            "mean": NO_VALUES,
            "std": NO_VALUES,
        },
    ),
    "SAM": (
        {},
        {"rho": no_number(-0.1, inf), "epsilon": NO_POSITIVE, "interval": no_count(1)},
    ),
    "SWA": (
        {},
        {
            "swa_start": NO_TIME,
            "swa_end": NO_TIME,
            "update_interval": ("soon", "3", -1, "0ba", None),
            "schedule_swa_lr": NO_FLAG,
            "anneal_strategy": no_word(),
            "anneal_steps": no_count(0),
            "swa_lr": ("x", -0.1, nan, True),
        },
    ),
    "SelectiveBackprop": (
        {},
        {
            "start": NO_SHARE,
            "end": NO_SHARE,
            "keep": NO_SHARE,
            "scale_factor": no_number(0, -1, 1.1),
            "interrupt": no_count(0),
        },
    ),
    "SeqLengthWarmup": (
        {},
        {
            "duration": NO_SHARE,
            "min_seq_length": no_count(1),
            "max_seq_length": no_count(1),
            "step_size": no_count(1),
            "truncate": NO_FLAG,
            "preserve_end_of_sequence": NO_FLAG,
        },
    ),
    "SqueezeExcite": (
        {},
        {"latent_channels": SQUEEZE["latent_channels"], "min_channels": no_count(0)},
    ),
    "StochasticDepth": (
        {},
        {
            "target": (3, "Block", nn.Linear(1, 1), [3]),
            "method": no_word(),
            "drop_rate": NO_SHARE,
            "drop_distribution": no_word(),
            "drop_warmup": NO_TIME,
        },
    ),
    "WeightStandardization": ({}, {"n_last_layers_ignore": no_count(0)}),
}
"""The same for the algorithms, whose other arguments have defaults. `name` is every one's."""
