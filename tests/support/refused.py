"""What public callables refuse: the table of the law property_tests/test_refused_arguments.py.

The invalid values of the methods' arguments are in their cases, by kind; the valid arguments of all
callables are in tests/support/calls.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, nan
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adagrad, AdamW, Rprop
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.datapipes.iter import IterableWrapper
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassF1Score

import composable.functional as F
from composable import Clock, Evaluator
from composable.metrics import OfAll, token_accuracy
from composable.optim import (
    AdamWScheduleFree,
    MultiOptimizer,
    by_role,
    cosine,
    cosine_restarts,
    exponential,
    per_group,
    per_option,
    polynomial,
    scaling_rule,
    warmup_stable_decay,
    with_ema_nesterov,
    with_lookahead,
)
from tests.data.loaders import Stream
from tests.support.models import Tied, mlp
from tests.support.runs import make_trainer
from tests.support.tensors import noise, uniform

Row = tuple[str, str, Sequence[Any], str]
FLAG, TIME, MODE, LIST = "True or False", "greater than 0", "'min', 'max' or None", "a list of "
ABOVE, AT_LEAST_0, AT_LEAST_1 = "greater than 0|above 0", "at least 0", "at least 1"
NO_SIZE, NO_NUMBER = (0, -1, 1.5, True), ("1ep", True, None, torch.tensor(1.0), nan)
PAIR_OF_MODELS = [nn.Linear(1, 1), nn.Linear(1, 1)]
WEIGHT, MATRIX = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, 2))
METRIC, COLLECTION = OfAll(torch.add), MetricCollection([MulticlassF1Score(3)])

MUST_BE = "must be|must not be|'10ep'|is out of range: use|invalid time"
OF_TRAINER: Mapping[str, Sequence[Any]] = {
    "model": [3],
    "loss_fn": [3],
    "count_tokens": [3],
    "train_dataloader": [3, "mnist"],
    "eval_dataloader": [3],
    "input_key": [1.5],
    "target_key": [1.5],
    "batch_layout": ["rows"],
    "max_duration": [1.5, "soon", 0, "1dur"],
    "eval_interval": [1.5, "soon", 0],
    "log_interval": [None, "often", "0ba", "1iter"],
    "iteration_length": ["soon", "2ba", 0],
    "grad_accum": [2.0, True, 0],
    "accumulate_batches": [0, -1, 2.0, None],
    "microbatch_size": ["4", -1],
    "loss_mean_over": ["words", 3],
    "nonfinite_loss": ["stop"],
    "seed": [1.5, "17", -1],
    "device": ["tpu", "meta", 1.5],
    "metrics": [["accuracy"], lambda outputs, targets: 0],
    "load_ignore_keys": [3],
}

ROWS: Sequence[Row] = [
    # distributed
    ("Shards", "count", [0, -1, 2.0], ""),
    ("Processes", "size", [0], ""),
    ("DeepSpeed", "config", [0], " config=0 "),
    # callbacks
    ("EarlyStopper", "mode", ["less", "low"], MODE),
    ("EarlyStopper", "min_delta", [-1.0, nan], AT_LEAST_0),
    ("EarlyStopper", "patience", ["3 epochs", "3evals"], ""),
    ("SpeedMonitor", "window_size", NO_SIZE, ""),
    ("SpeedMonitor", "flops_per_batch", ["guess", 0], "'count'|greater than 0"),
    ("SpeedMonitor", "gpu_flops_available", [-1.0], ABOVE),
    ("ExportForInference", "path", ["{run}.pt2"], "may have the fields {epoch} and {batch}"),
    ("ExportForInference", "interval", ["0ba"], TIME),
    ("ExportForInference", "at_end", [1], FLAG),
    ("ExportForInference", "tolerance", [0], ABOVE),
    ("Generate", "prompts", ["a text", []], "must be a list of texts"),
    ("Generate", "prompts", [[1]], "must be a text, or a tensor"),
    ("Generate", "prompts", [["a text"]], "has no tokenizer; pass tokenizer="),
    ("Generate", "interval", ["0ba"], TIME),
    ("Generate", "tokenizer", [1], "a method encode"),
    ("ImageVisualizer", "interval", ["0ba"], TIME),
    ("ImageVisualizer", "mode", ["both"], r"one of \['input', 'segmentation'\]"),
    ("ImageVisualizer", "num_images", [0], AT_LEAST_1),
    ("ImageVisualizer", "channels_last", [1], FLAG),
    ("MemoryMonitor", "interval", ["0ba"], TIME),
    ("MemoryMonitor", "memory_keys", [["a"], {"a": 1}], "a mapping"),
    ("MemorySnapshot", "folder", [1], "a str"),
    ("MemorySnapshot", "skip_batches", [-1], AT_LEAST_0),
    ("MemorySnapshot", "interval", ["0ba"], TIME),
    ("MemorySnapshot", "max_entries", [0], AT_LEAST_1),
    ("OOMObserver", "max_entries", [0], AT_LEAST_1),
    ("OOMObserver", "filename", [""], "name a file"),
    ("Predictions", "interval", ["0ba"], ABOVE),
    ("Predictions", "num_examples", [0], AT_LEAST_1),
    ("Predictions", "describe", [1], "callable|function"),
    ("OptimizerMonitor", "interval", ["0ba", "ten"], ""),
    ("OptimizerMonitor", "per_parameter", [1], FLAG),
    ("ActivationMonitor", "modules", ["x", [1]], LIST + "patterns"),
    ("GradientNoise", "smoothing", [1.0], r"in \[0, 1\)"),
    ("RuntimeEstimator", "skip_batches", [-1], AT_LEAST_0),
    ("SystemMonitor", "interval", ["0sec", "10ba", 10], "in seconds|greater than 0"),
    ("ThresholdStopper", "threshold", [nan, "low"], ""),
    ("ThresholdStopper", "mode", ["up"], MODE),
    ("Printer", "stream", [3], "a text stream"),
    ("PruneTrial", "trial", ["first"], "must be the trial"),
    ("Profiler", "folder", [""], "name"),
    ("Profiler", "wait", [-1, "1ba"], AT_LEAST_0),
    ("Profiler", "warmup", [-1], AT_LEAST_0),
    ("Profiler", "active", [0], AT_LEAST_1),
    ("Profiler", "repeat", [0], AT_LEAST_1 + "; None repeats"),
    ("Profiler", "with_stack", [1], FLAG),
    ("CheckpointSaver", "mode", ["low"], MODE),
    # data
    ("GlobalBatchSampler", "batch_size", [0, True], "a positive integer"),
    ("GlobalBatchSampler", "world_size", [0], ""),
    ("GlobalBatchSampler", "world_size", [3], "batch_size=4 must be a multiple of world_size=3"),
    ("GlobalBatchSampler", "rank", [-1], AT_LEAST_0),
    ("GlobalBatchSampler", "last_batch", ["wrap"], "one of"),
    ("GlobalBatchSampler", "dataset", [0], "has 0 examples"),
    ("BatchSizeWarmupSampler", "min_batch_size", [0], AT_LEAST_1),
    ("BatchSizeWarmupSampler", "min_batch_size", [7], "at most batch_size=4"),
    ("BatchSizeWarmupSampler", "duration", [-1], AT_LEAST_0),
    ("BatchSizeWarmupSampler", "step_size", [0], AT_LEAST_1),
    ("InfoBatchSampler", "last_batch", ["pad"], "'keep' or 'drop'"),
    ("InfoBatch", "sampler", [3], "the InfoBatchSampler"),
    ("InfoBatch", "prune", [1.0], ""),
    ("InfoBatch", "end", [1.5], ""),
    ("InfoBatch", "index_key", [0.5], ""),
    ("seeded_batches", "skip", [-1, 1.0, True, "2"], "a non-negative"),
    ("seeded_batches", "stop", NO_SIZE, AT_LEAST_1),
    ("Evaluator", "batches", NO_SIZE, AT_LEAST_1),
    ("OfAll", "max_bytes", NO_SIZE, AT_LEAST_1),
    ("OfAll", "padding", ["-100", True, nan], "finite"),
    ("Trainer", "eval_batches", NO_SIZE, AT_LEAST_1),
    ("Trainer", "epoch_batches", NO_SIZE, AT_LEAST_1),
    ("LengthGroupedBatchSampler", "lengths", [Stream()], "is an iterable dataset.*map-style"),
    ("LengthGroupedBatchSampler", "window", [0], ""),
    ("PackedDocuments", "documents", [Stream()], r"documents=Stream is an iter.*list\("),
    ("PackedDocuments", "documents", [3], "a list of one-dimensional tensors"),
    ("PackedDocuments", "documents", [[torch.zeros(2)]], r"documents\[0\] must have one dimension"),
    ("PackedDocuments", "length", [0], ""),
    ("PackedDocuments", "packing", ["greedy"], ""),
    ("PackedDocuments", "shuffle", [1], FLAG),
    ("PackedDocuments", "shift_labels", [1], FLAG),
    ("PackedDocuments", "pad_id", [0.5], ""),
    ("PackedDocuments", "ignore_index", [None], ""),
    ("PackedDocuments", "seed", [-1], ""),
    ("PerExample", "dataset", [Stream()], "a map-style dataset"),
    ("PerExample", "dataset", [IterableWrapper([1])], "An iterable dataset yields its examples"),
    ("PerExample", "transform", ["flip"], "a function"),
    ("PerExample", "seed", [-1], ""),
    ("WorkerShard", "dataset", [iter([1]), 3], "an iterable of examples"),
    ("WorkerShard", "batch_size", [0], AT_LEAST_1),
    ("WorkerShard", "transform", [3], "a function"),
    ("Mixture", "loaders", [{"a": DataLoader(IterableWrapper([1]))}], r"loaders\['a'\]="),
    ("Mixture", "loaders", [{"a": [1, 2]}], r"loaders\['a'\]=\[1, 2\]"),
    ("Mixture", "weights", [{"a": 0}], r"weights\['a'\]=0 must be"),
    ("Mixture", "mode", ["random"], ""),
    ("TokenFiles", "paths", ["a.bin"], r"paths='a\.bin' must be a list of files"),
    ("TokenFiles", "paths", [[]], "at least one file"),
    ("TokenFiles", "paths", [[3]], r"paths\[0\]=3 must be a str"),
    ("TokenFiles", "length", [0, -1, 2.0, True], ""),
    ("TokenFiles", "rows", [0, -1, 2.0, True], ""),
    ("write_token_file", "tokens", [[1, 2]], "a tensor"),
    ("write_token_file", "tokens", [torch.ones(2)], r"integers, not torch\.float32"),
    ("write_token_file", "tokens", [torch.ones(2, 2).long()], r"one dimension.*\(2, 2\)"),
    ("write_token_file", "tokens", [torch.ones(0).long()], r"at least one id.*\(0,\)"),
    # times and seeds
    ("Time", "value", [-1], "is negative: a Time is at least 0"),
    ("Time", "value", [1.5], "is not whole, and epochs cannot be split"),
    ("Time", "value", [True, "1"], "an int, a float or a Fraction"),
    ("Time", "unit", ["min"], "is unknown: use one of 'iter', 'ep', 'ba', 'sp'"),
    *(
        (name, "seed", values, message)
        for name in ("Key", "seed_all")
        for values, message in [
            ([-1, 2**64], r"is out of range: use 0 to 2\*\*64 - 1"),
            ([True, 1.0, 1.5, "17", None], r"an integer from 0 to 2\*\*64 - 1"),
        ]
    ),
    ("load_rng_state", "state", [None, {}, {"python": 1}, 17], r"a value of get_rng_state\(\)"),
    # runs
    *(("Trainer", name, values, MUST_BE) for name, values in OF_TRAINER.items()),
    ("Trainer", "precision", ["amp_int8", torch.bfloat16, None], "must be one of 'fp32', 'tf32', "),
    ("Trainer", "precision", ["bf16-mixed"], r"\(this is 'amp_bf16' here\)"),
    ("Trainer", "precision", ["tf32"], "needs an NVIDIA GPU, and device is 'cpu'; use 'fp32'"),
    ("Trainer", "compile", [1, "yes"], "must be True, False, or a mapping"),
    ("Trainer", "compile", [{"mode": 3}], "'mode': 3"),
    ("Trainer", "compile", [{"options": {"speed": 1}}], "speed"),
    ("Trainer", "compile", [{"options": 3}], "'options': 3"),
    ("Trainer", "compile", [{"backend": 3}], "'backend': 3"),
    ("Trainer", "compile", [{"fullgraph": "yes"}], "'fullgraph': 'yes'.*True or False"),
    ("Trainer", "compile", [{"dynamic": 2}], "'dynamic': 2.*True, False or None"),
    ("Precision", "initial_scale", [0.0, inf], ""),
    ("Precision", "growth_factor", [1], ""),
    ("Precision", "backoff_factor", [1.0], ""),
    ("Precision", "growth_interval", [0], ""),
    ("Evaluator", "label", [3], r"label=3 must be a non-empty str, as in Evaluator\('te"),
    # loggers
    ("JSONLinesLogger", "flush_interval", [0, 1.5, "100", None], AT_LEAST_1),
    ("ProgressBarLogger", "bars", [["test"]], r"bars\[0\]='test' must be one of \['train'"),
    ("ProgressBarLogger", "metrics", ["lr", [1]], LIST + "names"),
    ("ProgressBarLogger", "style", ["dots"], r"one of \['bar', 'lines'\]"),
    ("ProgressBarLogger", "refresh_seconds", [-1], AT_LEAST_0),
    ("ConsoleLogger", "metrics", ["lr"], LIST + "names"),
    # models
    ("Classifier", "module", [cross_entropy], "a torch.nn.Module"),
    ("Classifier", "loss_fn", [nn.CrossEntropyLoss], "loss_fn=<class"),
    ("Classifier", "input_key", [None], ""),
    ("AuxiliaryLoss", "loss_fn", [nn.CrossEntropyLoss], "loss_fn=<class"),
    ("AuxiliaryLoss", "weight", ["0.4"], ""),
    ("Detector", "module", [None], ""),
    ("lora_config", "rank", [0], ""),
    ("lora_config", "alpha", [0], ""),
    ("HuggingFaceModel", "model", ["bert-base-uncased"], r"a torch\.nn\.Module"),
    ("OfLoss", "function", [2.0], "a function of the mean loss"),
    # batches
    *(
        ("BatchSpec", key, [None, 1.5, True, [], {"x"}, ["x", None], ("x", True), ()],
         r"an index \(0\), a name .*, set\)")
        for key in ("input_key", "target_key")
    ),
    # optimizers
    ("find_lr", "trainer", [3], "a composable.Trainer"),
    ("find_lr", "min_lr", [0], ""),
    ("find_lr", "max_lr", ["1"], ""),
    ("find_lr", "num_steps", [1], ""),
    ("layerwise_groups", "lr", [-1.0], ""),
    ("layerwise_groups", "decay", [0.0], ""),
    ("layerwise_groups", "model", [3], "a torch.nn.Module"),
    ("layerwise_groups", "model", [nn.ReLU()], "has no parameters"),
    ("layerwise_groups", "layers", ["0"], LIST + "names"),
    ("layerwise_groups", "layers", [[3]], r"layers\[0\]=3 must be a name or"),
    ("layerwise_groups", "layers", [["0", "9"]], r"layers\[1\] has '9', which"),
    ("layerwise_groups", "layers", [["0"]], "lacks the parameter '3.weight'"),
    ("muon_groups", "matrices", [["0.bias"]], "fewer than two dimensions"),
    ("muon_groups", "matrices", [["1.weight"]], "matrices contains '1.weight', which"),
    ("muon_groups", "matrices", ["0.weight"], LIST),
    ("muon_groups", "others", [["x*"]], r"others contains 'x\*', which matches no"),
    ("muon_groups", "stacked", [{"0.weight": 2}], "stacked=.*does not fit '0.weight'"),
    ("muon_groups", "stacked", [{"0.weight": 0}], r"stacked\['0.weight'\]=0"),
    ("Muon", "lr", [-1.0], ""),
    ("Muon", "adamw_lr", ["x"], ""),
    ("Muon", "momentum", [1.0], ""),
    ("Muon", "adjust_lr_fn", ["none"], "'original'"),
    ("Muon", "adamw_betas", [(0.9, 1.0)], r"adamw_betas\[1\]=1.0 must be"),
    ("Muon", "ns_coefficients", [(1, 2)], "three"),
    ("Muon", "ns_coefficients", [[(1, 2)]], r"ns_coefficients\[0\]=\(1, 2\) must be three numbers"),
    ("Muon", "equalize_rows", [1], FLAG),
    ("Muon", "slow_momentum", [1.0], ""),
    ("Muon", "slow_share", [1.5], ""),
    ("Muon", "neuron_beta2", [-0.1], ""),
    ("Muon", "update_floor", [nan], ""),
    ("Muon", "split_attention", ["rows"], "'projections', 'heads'"),
    ("Muon", "process_group", ["world"], ""),
    ("Muon", "dtype", [torch.int8], "a floating-point"),
    ("role_groups", "roles", [["a"]], "a mapping"),
    ("role_groups", "roles", [{"a": ["x"]}], r"roles\['a'\] contains 'x', which mat"),
    ("role_groups", "roles", [{"a": "b"}], r"roles\['a'\]='b' must be a list"),
    ("by_role", "optimizers", [[torch.optim.SGD]], "a mapping of roles"),
    ("by_role", "optimizers", [{"head": torch.optim.SGD}], r"\['head'\]=.* must be a function"),
    ("by_role", "default", [torch.optim.SGD], "a function"),
    ("by_role", "roles", [["a"]], "a mapping"),
    ("MultiOptimizer", "optimizers", [[]], "one or more"),
    ("MultiOptimizer", "optimizers", [[1]], "a list of optimizers, and 1 is not one"),
    *(("RowAdagrad", name, [-1.0], f"^{name}=") for name in ("lr", "eps", "weight_decay")),
    ("SGDScheduleFree", "lr", [-1.0, "x"], ""),
    ("SGDScheduleFree", "momentum", [0.0], ""),
    ("SGDScheduleFree", "warmup_steps", [0.5], "an integer"),
    ("AdamWScheduleFree", "betas", [(0.9, 1.0)], r"betas\[1\]=1.0 must be"),
    ("AdamWScheduleFree", "betas", [0.9], "two numbers"),
    ("AdamWScheduleFree", "eps", [-1.0], ""),
    ("AdamWScheduleFree", "r", [-1], ""),
    ("AdamWScheduleFree", "weight_lr_power", ["2"], ""),
    ("AdamWScheduleFree", "weight_decay", [nan], ""),
    ("with_ema_nesterov", "optimizer", [torch.optim.AdamW], "torch.optim.Optimizer. In the"),
    ("with_ema_nesterov", "decay", [2], ""),
    ("with_ema_nesterov", "lookahead", ["x"], ""),
    ("with_momentum_warmup", "num_steps", [-1], ""),
    ("with_lookahead", "decay", [1.5], ""),
    ("with_lookahead", "interval", [0], ""),
    # schedules
    *(
        (name, argument, NO_NUMBER, rf"{argument}=.* must be (finite|a number\. Pas)")
        for name, argument in [
            *(("constant", "alpha"), ("linear", "alpha_i"), ("linear", "alpha_f")),
            *(("cosine", "alpha_f"), ("step", "gamma")),
        ]
    ),
    ("step", "step_size", ["0ba"], "step_size='0ba' must be positive"),
    ("step", "step_size", ["often"], "invalid time 'often'"),
    ("linear", "duration", ["late"], "invalid time 'late'"),
    ("cosine", "warmup", [1.5], "warmup=1.5: A time must be .* got 1.5"),
    ("constant", "warmup", ["5"], "invalid time '5'"),
    ("StepScheduler", "step_size", ["soon"], ""),
    ("CosineAnnealingScheduler", "t_max", ["soon"], ""),
    ("LinearWithWarmupScheduler", "t_warmup", ["soon"], ""),
    ("CosineAnnealingWarmRestartsScheduler", "t_0", ["0ba"], "pos"),
    ("CosineAnnealingWarmRestartsScheduler", "t_mult", [0.5], ""),
    ("ExponentialScheduler", "decay_period", ["0ep"], "pos"),
    ("multi_step", "milestones", ["0.3dur"], LIST + "times"),
    ("multi_step", "milestones", [["1ep", "x"]], r"milestones\[1\]='x'"),
    ("exponential", "gamma", [-0.5], AT_LEAST_0),
    ("polynomial", "power", [0], ABOVE),
    ("cosine_restarts", "factor", [inf], "finite"),
    ("warmup_stable_decay", "shape", ["round"], "one of 'linear'"),
    ("warmup_stable_decay", "shape", [0, -1.0, inf, nan, True, None, "power"], "a power above 0"),
    ("scale_schedule", "ratio", [0], ""),
    ("scale_schedule", "schedule", [3], "a schedule"),
    ("per_group", "schedules", [[cosine()]], "a mapping of names of groups"),
    ("per_group", "schedules", [{"head": 0.5}], r"schedules\['head'\]=0.5 must be a schedule"),
    ("one_cycle", "pct_start", [1.5], r"in \[0, 1\]"),
    ("one_cycle", "anneal_strategy", ["cosine", 1], "'cos'"),
    ("one_cycle", "div_factor", [0.5], AT_LEAST_1),
    ("per_option", "schedules", [{"lr": 1.0}], r"schedules\['lr'\]=1.0 must be a schedule"),
    ("per_option", "schedules", [{"lr": per_option({})}], r"schedules\['lr'\]=.* a schedule"),
    ("per_option", "schedules", [[cosine()]], "a mapping of options"),
    ("scaling_rule", "size", [3], "a function of a clock"),
    ("scaling_rule", "base", [0], ""),
    ("scaling_rule", "power", [-1.0], ""),
    # the plan
    ("Plan.compile", "loggers", ["stdout"], "loggers contains 'stdout'; pass an instance of"),
    *(("Plan.timeline", "max_duration", [x], "the duration of a") for x in ("0.5dur", "0ep")),
    ("Plan.timeline", "max_duration", ["soon"], "invalid time"),
    ("Plan.timeline", "epoch_length", [0], AT_LEAST_1),
]  # fmt: skip
"""A callable, an argument, invalid values of it, and a pattern of what the message must say."""

TOGETHER: Sequence[tuple[str, Mapping[str, Any], str]] = [
    ("GlobalBatchSampler", {"rank": 2, "world_size": 2}, "rank=2 must be between 0 and 1"),
    ("GlobalBatchSampler", {"dataset": 9, "world_size": 2}, "has 1 examples for 2 processes"),
    (
        "BatchSizeWarmupSampler",
        {"step_size": 1, "world_size": 2},
        "must be a multiple of wo",
    ),
    ("BatchSizeWarmupSampler", {"min_batch_size": 1, "world_size": 2}, "must be a multiple"),
    ("LengthGroupedBatchSampler", {"lengths": 3}, "lengths must be a list of numbers"),
    ("LengthGroupedBatchSampler", {"lengths": ["a"]}, r"pass the length of each example, \[len"),
    ("LengthGroupedBatchSampler", {"lengths": [[1, 2]]}, "lengths must be a list of numbers"),
    ("LengthGroupedBatchSampler", {"lengths": [1.0, nan]}, "lengths must be finite"),
    ("LengthGroupedBatchSampler", {"lengths": []}, "lengths must not be empty"),
    ("LengthGroupedBatchSampler", {"batch_size": 3, "world_size": 2}, "batch_size=3 must be a mul"),
    ("LengthGroupedBatchSampler", {"world_size": 2}, "has 1 examples for 2 processes"),
    ("PackedDocuments", {"documents": []}, "must have at least one document"),
    ("PackedDocuments", {"documents": [torch.zeros(0).long()]}, "at least one token, and all are"),
    ("PackedDocuments", {"documents": [torch.zeros(2, device="meta").long()]}, "be on the CPU"),
    ("Mixture", {"loaders": {}}, "loaders="),
    ("Mixture", {"weights": {"b": 1}}, "only loaders has a and only weights has b"),
    ("Mixture", {"loaders": {"a": DataLoader([])}}, r"loaders\['a'\] has no batch"),
    (
        "Mixture",
        {"loaders": {"a": DataLoader([1], shuffle=True, generator=torch.Generator())}},
        "has a generator",
    ),
    (
        "Mixture",
        {"loaders": {"a": DataLoader(range(4), sampler=DistributedSampler(range(4), 2, 0))}},
        "reads the part of a process",
    ),
    ("write_token_file", {"tokens": torch.tensor([3, 65536])}, "3 to 65536.*from 0 to 65535"),
    ("write_token_file", {"tokens": torch.tensor([-1, 5])}, "ids from -1 to 5"),
    (
        "write_token_file",
        {"tokens": torch.zeros(1).byte().expand(2**31)},
        "at most 2147483647: write several fil",
    ),
    (
        "seeded_batches",
        {"dataloader": [1, 2], "skip": 1, "loader_state": {}},
        "requires a loader with load_state_dict, and list has",
    ),
    (
        "seeded_batches",
        {"dataloader": [1, 2], "generators": [torch.empty(0)]},
        "generators has 1 states, but dataloader has 0",
    ),
    *(
        ("Trainer", {"compile": given}, message)
        for given, message in [
            ({"speed": 1}, r"compile has the options \['speed'\]; it may have mode"),
            ({"mode": "fast"}, "'mode': 'fast'.*default.*max-autotune"),
            ({"mode": "default", "options": {"max_autotune": True}}, "Either mode or"),
            ({"backend": "fast"}, "'backend': 'fast'.*list_backends"),
        ]
    ),
    *(("Time", {"value": value, "unit": "dur"}, "is not finite") for value in (inf, nan)),
    *(
        ("Key.fold", {"data": data}, "data contains .*: a key folds in strings and")
        for data in (1.5, None, (("a",),))
    ),
    ("JSONLinesLogger", {"overwrite": True, "append": True}, "overwrite=True and append=True"),
    ("Generate", {"prompts": torch.zeros(1, 2)}, r"prompts\[0\]=<Tensor> must be a text, or a ten"),
    ("Generate", {"prompts": torch.ones(1, 0).long()}, r"prompts\[0\]=<Tensor> must be a text, or"),
    ("Muon", {"params": [{"params": [], "half": "sgd"}]}, "half='sgd' must be 'muon' or 'adamw'"),
    ("Muon", {"params": [WEIGHT]}, "not a matrix .*pass the model, Muon"),
    ("Muon", {"params": [MATRIX], "split_attention": "heads"}, "needs the model"),
    ("SGDScheduleFree", {"params": [{"params": [WEIGHT], "momentum": 2}]}, "momentum=2 must be"),
    ("role_groups", {"model": Tied(), "roles": {"matrices": ["head.bias"]}}, "fewer than two dim"),
    (
        "role_groups",
        {"model": Tied(), "roles": {"a": ["norm"], "b": ["norm.bias"]}},
        r"roles\['a'\] and roles\['b'\] both contain 'norm.bias'",
    ),
    ("by_role", {"default": None}, r"optimizers\['head'\]=.*pass default="),
    ("MultiOptimizer", {"optimizers": [SGD([WEIGHT])] * 2}, "without parameters in common"),
    ("by_role", {"optimizers": {"heads": torch.optim.SGD}}, "role 'heads', .* one of 'matrices'"),
    ("muon_groups", {"model": Tied(), "matrices": ["tokens.weight"]}, "which is an embedding"),
    ("muon_groups", {"model": Tied(), "matrices": ["head.weight"]}, "tied to 'head.weight'"),
    ("muon_groups", {"others": ["*"]}, "matrices and others both contain '0.weight': pass it in"),
    ("ExportForInference", {"path": "a.pt"}, r"path='.pt' must be one of \['.pt2', '.onnx'\]"),
    ("Ensemble", {"members": []}, "at least one model"),
    ("Ensemble", {"members": nn.Linear(1, 1)}, "members must be a list of modules"),
    ("Ensemble", {"members": [nn.Linear(1, 1), 3]}, r"members\[1\]"),
    ("Ensemble", {"members": PAIR_OF_MODELS, "weights": [1.0]}, "one number for each of the 2"),
    ("Ensemble", {"members": PAIR_OF_MODELS, "weights": [0.0, 0.0]}, "not all 0"),
    ("Ensemble", {"members": PAIR_OF_MODELS, "weights": [-1.0, 2.0]}, "0 or more"),
    ("Ensemble", {"members": PAIR_OF_MODELS, "weights": "ab"}, "weights='ab' must be a list"),
    ("Ensemble", {"members": PAIR_OF_MODELS, "class_dim": 2}, "class_dim=2 must be 1"),
    ("find_lr", {"batches": []}, "batches: the loader returned no batch; check"),
    ("find_lr", {"min_lr": 1.0, "max_lr": 0.1}, "min_lr=1.0 .*max_lr=0.1"),
    ("with_ema_nesterov", {"start": 3, "end": 2}, "start=3 must be at most end=2"),
    ("Trainer", {"train_metrics": {"all": METRIC}}, r"train_metrics\['all'\] is of OfAll, which"),
    ("Trainer", {"train_metrics": 3}, "train_metrics=3 must be a mapping"),
    ("Trainer", {"train_metrics": {"x": COLLECTION}}, "metrics of a collection"),
    (
        "Trainer",
        {"train_metrics": {"x": len}, "eval_dataloader": Evaluator("train", [1])},
        "the label 'train'; rename",
    ),
    (
        "with_ema_nesterov",
        {"optimizer": with_ema_nesterov(SGD([MATRIX]))},
        "SGD has with_ema_nesterov already",
    ),
    ("with_lookahead", {"optimizer": with_lookahead(SGD([MATRIX]))}, "SGD has with_lookahead alr"),
    ("with_momentum_warmup", {"optimizer": AdamWScheduleFree([MATRIX])}, "is schedule-free"),
    ("with_momentum_warmup", {"optimizer": Adagrad([MATRIX])}, "Adagrad has no momentum"),
    ("with_momentum_warmup", {"optimizer": SGD([MATRIX])}, r"start=0\.85 must be at most 0\.0"),
    ("with_cautious_weight_decay", {"optimizer": SGD([MATRIX])}, "no group with a weight_decay ab"),
    (
        "scale_schedule",
        {"schedule": lambda c: 1.0, "scale_warmup": False},
        "scale_warmup=False r",
    ),
]
"""Arguments that are invalid together, or of which the message names a part alone."""

IMAGES = F.images
X, Y = uniform(4, (5, 6)), torch.arange(4)
BYTES, GREY_OR_RGB = noise(4, 3, 5, 5), r"1 or 3 channels for \w+, not 2"
PAIR = F.MixedTargets(Y, Y, torch.ones(4))
DENSE = F.MixedTargets(torch.eye(3), torch.eye(3), torch.tensor(1.0))
DRAW = F.MixUpDraw(torch.tensor([1, 0, 3, 2]), torch.tensor(0.75))
LOSS = F.jensen_shannon_loss
RESIZE = partial(F.resize_batch, scale_factor=0.5, resize_targets=True)
TEXTS = {"input_ids": torch.zeros(3, 7), "attention_mask": torch.zeros(3, 6)}
SHORTEN = partial(F.set_sequence_length, length=2, preserve_end_of_sequence=True)
CLIP = partial(F.clip_gradients, threshold=1.0)
ADAPTIVE = partial(CLIP, method="adaptive")
GRADS = [torch.ones(2), torch.ones(3)]
ADAMW = partial(AdamW, lr=0.1, weight_decay=0.5)
UNDIVIDED = partial(make_trainer, decay_norms_and_biases=False)
START, SECOND = (Clock.at(batch=k, max_duration="8ba") for k in (0, 1))

OF_FUNCTIONS: Sequence[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    # draws of another batch, and targets of another one
    (F.apply_mixup, (X,), r"^apply_mixup\(\) missing 2 required"),
    (F.mixup, (X.byte(), Y), r"floating-point dtype, not torch.uint8; .*\.float\(\) / 255"),
    (F.mixup, ((X, X), Y), "inputs must be a tensor, not a tuple.*apply_mixup"),
    (F.cutmix, ((X, X), Y), "inputs must be a tensor, not a tuple.*apply_cutmix"),
    (F.mixup, (X[0, 0, 0, 0], Y), "must have the same size in dimension 0"),
    *(
        (function, (X, y), "must have the same size in dimension 0")
        for function in (F.mixup, F.cutmix, F.colout)
        for y in (Y[:3], Y[0])
    ),
    (F.apply_mixup, (X, Y, F.draw_mixup(3)), "draw has 3 partners, but inputs has 4 examples"),
    (F.apply_mixup, (X, Y, DRAW._replace(weight=0.5)), "^draw.weight must be a tensor, not a fl"),
    (F.apply_mixup, (X, Y, DRAW._replace(permutation=[1])), "^draw.permutation must be a tensor"),
    (F.apply_cutmix, (X, Y, F.draw_cutmix(3, (5, 6))), "draw has 3 partners, but inputs has 4"),
    (F.apply_cutmix, (Y[:, None], Y, F.draw_cutmix(4, (5, 6))), "draw has a box of 2 dimensions"),
    (F.apply_cutout, (X, F.draw_cutout(3, (5, 6))), "draw has holes for 3 examples, but .* has 4"),
    (F.apply_cutout, (Y[:, None], F.draw_cutout(4, (5, 6))), "does not match inputs of shape"),
    (
        F.apply_random_translation,
        (X, F.draw_random_translation(3, (5, 6))),
        "does not match inputs of shape",
    ),
    (F.apply_colout, (Y[:, None], None, F.draw_colout((5, 6))), "draw has rows and columns, but"),
    (F.apply_colout, (X, None, F.draw_colout((5, 6), batch_size=9)), "draw is for 9 examples, but"),
    (F.apply_colout, (X, None, (1, 2)), "a ColOutDraw, not a tuple; draw_colout returns one"),
    (F.apply_randaugment, (X, F.draw_randaugment(5)), r"draw is for \(5,\) images, but .* has 4"),
    (F.apply_augmix, (X, F.draw_augmix(5)), "draw is for 5 images, but images has 4"),
    (partial(F.alternating_flip, epoch=0), (X, Y[:3]), "and indices and draw"),
    (partial(F.paired_augment, epoch=0), (X, Y[:3], torch.add), r"and indices \[batch\], not"),
    (F.apply_augmix, (X, None), "draw must be an AugMixDraw, not None; draw_augmix returns one"),
    # metrics
    (partial(token_accuracy, shift=True), (torch.eye(2), torch.arange(2)), "for shift=True"),
    # images
    (F.randaugment, (torch.zeros(40, 2, 5, 6),), GREY_OR_RGB + '.*augmentations="safe"'),
    (F.augmix, (torch.zeros(40, 2, 5, 6),), GREY_OR_RGB + '.*augmentations="safe"'),
    (IMAGES.color, (X[:, :2], 1.0), GREY_OR_RGB),
    (IMAGES.contrast, (X[:, :2], 1.0), GREY_OR_RGB),
    *(
        (operation, (BYTES[0],), r"images\[")
        for operation in (IMAGES.equalize, IMAGES.autocontrast)
    ),
    *(
        (operation, (BYTES > 9,), "not torch.bool")
        for operation in (IMAGES.equalize, IMAGES.autocontrast)
    ),
    *((IMAGES.posterize, (BYTES, bits), rf"bits={bits} must be in \[1, 8\]") for bits in (0, 9)),
    *((IMAGES.solarize, (BYTES, to), rf"threshold={to} must be in \[0, 256\]") for to in (-1, 257)),
    *(
        (getattr(IMAGES, name), (BYTES, inf), r"\w+=inf must be .*finite")
        for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y", "color")
    ),
    *(
        (getattr(IMAGES, name), (BYTES, -0.1), "factor=-0.1 must be at least 0")
        for name in ("color", "contrast", "brightness", "sharpness")
    ),
    (
        IMAGES.sharpness,
        (BYTES, torch.ones(3)),
        r"factor must be a number, or have shape \(4,\), .*\(3,",
    ),
    (IMAGES.sharpness, (BYTES, torch.ones(4, 1)), r"factor must be .* not \(4, 1\)"),
    (RESIZE, (X,), r"targets must .* \[batch, ..., 5, 6\].* not None"),
    (RESIZE, (X, Y), r"not \(4,\); use resize_targets=False"),
    (RESIZE, (X, X[0, 0]), r"targets must have .* not \(5, 6\)"),
    (RESIZE, (X[..., None, None], X[..., None, None]), 'spatial dim.* not 4; use mode="crop"'),
    # targets and losses
    (PAIR.soft, (), "num_classes=None must be an integer for targets of class indices"),
    (DENSE.soft, (4,), "num_classes=4 must match"),
    (PAIR.loss, (cross_entropy, torch.zeros(4, 4)), r"one weight per example .*, not shape \(\)"),
    (F.smooth_labels, (Y,), r"num_classes=None.*torch.int64.*outputs.shape\[1\]"),
    (
        partial(F.smooth_labels, num_classes=4),
        (torch.eye(3),),
        "=4 .* the 3 classes .* dimension 1",
    ),
    (F.smooth_labels, (torch.tensor(0.5),), "targets must have a dimension of classes"),
    (LOSS, (torch.zeros(2, 3),), "others must have the logits of at least one"),
    (LOSS, (torch.zeros(2, 3), torch.zeros(2, 4)), r"others\[0\] has \(2, 4\)"),
    (LOSS, (torch.zeros(3), torch.zeros(3)), r"\[batch, classes, ...\], but logits has \(3,\)"),
    (LOSS, (Y[None], Y[None]), "logits must have a floating-point dtype, not torch.int64"),
    (F.select_using_loss, (torch.zeros(()),), r'one loss per example.*reduction="none"'),
    (F.select_highest, (X[0, 0],), r"one loss per example, of shape \[batch\], not \(5, 6\)"),
    (F.apply_selection, (torch.zeros(4, 2), Y), r'one loss per example.*reduction="none"'),
    (partial(F.should_select, start=0.6, end=0.5), (0.5, 0), "start=0.6 must be at most end=0.5"),
    # sequences
    # documents
    (
        F.pack_documents,
        ([torch.tensor([True, False])], 4),
        r"integer dtype, not the shape \(2,\) and torch\.bool",
    ),
    (SHORTEN, ({},), "batch must have sequences.* a dict without tensors"),
    (SHORTEN, ({"y": torch.zeros(3)},), r"batch must have sequences.* it has y: \(3,\)"),
    (SHORTEN, ("text",), "batch must have sequences.* a str without tensors"),
    (SHORTEN, (TEXTS,), r"must come with an attention_mask of shape \(3, 7\)"),
    # named tensors
    *(
        (function, arguments, message)
        for function, first, second in [
            (partial(F.ema, smoothing=0.5), "average", "current"),
            (partial(F.swa, count=3), "average", "current"),
            (F.sam_perturbation, "params", "grads"),
        ]
        for arguments, message in [
            (([X], {"w": X}), f"^{first} must be a mapping of names to tensors, not a list"),
            (({"w": X}, X), f"^{second} must be a mapping of names to tensors, not a Tensor"),
            (({"w": X}, None), f"^{second} must be a mapping of names to tensors, not None"),
            (({"w": 1.0}, {"w": X}), rf"^{first}\['w'\] must be a tensor, not a float"),
            (({"w": X}, {"w": 1}), rf"^{second}\['w'\] must be a tensor, not an int"),
            (({"w": X}, {}), f"only {first} has w and only {second} has none"),
            (({0: X}, {"w": X}), f"only {first} has 0 and only {second} has w"),
            (({f"layer{i}": X for i in range(9)}, {}), "layer0, .*, layer4 and 4 more"),
            (({"w": X}, {"w": X[0]}), r"\['w'\] has shape .*, but .*\['w'\] has \("),
        ]
    ),
    # gradients
    (CLIP, ([None, 1.0],), r"^grads\[1\] must be a tensor, not a float; pass None"),
    (CLIP, ({"w": [X]},), r"^grads\['w'\] must be a tensor, not a list; pass None"),
    (
        partial(CLIP, method="adaptive"),
        ({"w": X.to_sparse()},),
        r"^grads\['w'\] .* torch.sparse_coo",
    ),
    (partial(CLIP, method="value"), ([X.cfloat()],), r"grads\[0\] must be real .*complex64"),
    (CLIP, (nn.Linear(2, 2).parameters(),), r"grads\[0\] must be a gradient, not a parameter"),
    (CLIP, ({"w": WEIGHT},), r"grads\['w'\] must be a gradient"),
    (CLIP, (iter(["a"]),), r"grads\[0\] must be a tensor"),
    (CLIP, ("ab",), "grads must be a tensor, or a mapping.* not a str"),
    (CLIP, (3,), "grads must be a tensor, or a mapping.* not an int"),
    (ADAPTIVE, (GRADS,), 'params=None must be .* method="adaptive"'),
    *(
        (
            partial(ADAPTIVE, params=params),
            (GRADS,),
            rf"\({len(params)}\) and grads \(2\) must have",
        )
        for params in (GRADS[:1], GRADS[::-1], [None] * 2)
    ),
    (partial(ADAPTIVE, params={"v": X}), ({"w": X},), "only params has v and only grads has w"),
    # optimizers and schedules
    (
        by_role({"matrices": partial(SGD, lr=1.0)}),
        (mlp(),),
        "no optimizer has '3.weight', with the role 'head': add an",
    ),
    (by_role({"head": ADAMW}), (mlp().parameters(),), "params=generator must be the model"),
    (MultiOptimizer([SGD([WEIGHT])]).add_param_group, ({},), "call add_param_group of one of its"),
    (
        partial(UNDIVIDED, optimizers=ADAMW([WEIGHT])),
        (),
        "can't divide .* AdamW: pass a function",
    ),
    (
        partial(UNDIVIDED, optimizers=lambda params: Rprop(params)),
        (),
        "needs an optimizer with weight_decay, which Rprop",
    ),
    (per_group({}), (None,), "has a value for each parameter group"),
    (per_option({"lr": cosine()}), (None,), "has a value for each option"),
    (scaling_rule(lambda _: 0, 1), (None,), r"size\(clock\)=0 must be"),
    (
        partial(make_trainer, schedulers=per_option({"betas": cosine()}), optimizers=ADAMW),
        (),
        "'betas', which is .0.9, 0.999. in the parameter group None: use one of 'lr'",
    ),
    (
        partial(make_trainer, schedulers=per_group({}, per_option({"decay": cosine()}))),
        (),
        "'decay', which is None in the parameter group",
    ),
    (warmup_stable_decay("5ba", warmup="4ba"), (START,), "includes both; pass shorter"),
    (warmup_stable_decay("5ba", duration="4ba"), (START,), "includes both; pass shorter"),
    (polynomial(2, duration="4ba", warmup="5ba"), (START,), "'5ba' is longer than dura"),
    # Already in the first batch of the warm-up.
    (exponential(0.5, "2sp", warmup="4ba"), (SECOND,), "warmup='4ba' and period='2sp' can"),
    (cosine_restarts("2sp", warmup="4ba"), (SECOND,), "warmup='4ba' and period='2sp' can"),
]
"""Arguments by position that are valid alone, and not together."""
