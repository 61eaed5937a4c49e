"""Runs of 1, 2 and 4 processes, compared with one another."""

import inspect
import re
import shutil
from functools import partial
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    ActivationCheckpointing,
    BlurPool,
    CutOut,
    GradientClipping,
    LabelSmoothing,
    MixUp,
)
from composable.distributed import DDP, FSDP2, starting
from composable.optim import (
    AdamWScheduleFree,
    Muon,
    with_cautious_weight_decay,
    with_ema_nesterov,
    with_lookahead,
    with_momentum_warmup,
)
from tests.support import parallel_requests as requests
from tests.support import parallel_runs as runs
from tests.support.campaign import drawn, each_once
from tests.support.processes import Failed, attempt, by_options, run
from tests.support.runs import make_trainer

METHODS = [
    MixUp(0.2),
    LabelSmoothing(0.1),
    GradientClipping("norm", 1.0),
    EMA("3ba"),
    BlurPool(),
    SAM(0.05),
    CutOut(1, 0.3),
]
fit = partial(by_options, runs.fit)


def wrapped_muon(parameters):
    optimizer = with_momentum_warmup(Muon(parameters, lr=0.01, dtype=torch.float64), num_steps=5)
    optimizer = with_lookahead(with_cautious_weight_decay(optimizer), interval=2)
    return with_ema_nesterov(optimizer, decay=0.5)


def compared(size, of_one=MappingProxyType({}), **options):
    """Run with one process and with several, and return both."""
    (alone,) = run(fit, 1, {**options, **of_one})
    several = run(fit, size, options)
    for one in several[1:]:
        assert one["weights"] == several[0]["weights"]
        assert one["memory"] == several[0]["memory"]
        assert one["metrics"] == several[0]["metrics"]
    return alone, several[0]


EXACT = {
    "methods": {"algorithms": METHODS},
    "ragged": {"count": 33},  # the last batch has one example, for four shards
    "microbatches": {"grad_accum": 2},
    "batches": {"accumulate_batches": 2, "count": 49},
    "noise": {"kind": "noisy"},
    "wrappers": {"optimizers": wrapped_muon},
    "workers": {"kind": "workers"},
    "stream": {"kind": "stream"},
    "list": {"kind": "list"},
    "bfloat16": {"precision": "amp_bf16", "algorithms": METHODS[:4]},
    "swa": {"algorithms": [SWA("0.5dur")]},
    "muon": {"optimizers": partial(Muon, lr=0.01)},
}


@pytest.mark.parametrize("name", EXACT)
def test_runs_of_any_number_of_processes_have_the_same_bits(name):
    alone, several = compared(4 if name in ("methods", "ragged") else 2, **EXACT[name])
    assert several == alone
    assert len(alone["losses"]) == alone["batch"]


# --- to rounding ---

OF_SHARDED = {
    "model": runs.plain_net,
    "algorithms": [EMA("2ba"), SAM(0.05), GradientClipping("norm", 1.0)],
    "optimizers": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
}
WHOLE = {"parallel": DDP(shards=4)}
RAGGED = {**OF_SHARDED, "count": 33, "parallel": FSDP2(shards=4)}
SHARDED = {
    "fsdp": (2, RAGGED, WHOLE),
    "hsdp": (4, {**RAGGED, "parallel": FSDP2(shards=4, replicas=2)}, WHOLE),
    "microbatches": (2, {**RAGGED, "grad_accum": 2}, WHOLE),
}
# SGD: Adam turns rounding errors of gradients that should be 0 into steps.
FAST = {**WHOLE, "algorithms": METHODS, "optimizers": partial(torch.optim.SGD, lr=0.1)}
TOKENS = {
    "parallel": DDP(shards=2),
    "model": runs.plain_net,
    "kind": "ignored",
    "loss_fn": runs.token_loss,
    "loss_mean_over": "tokens",
    "metrics": {},
}
# Muon computes in bfloat16: in a deeper model, rounding errors of gradients grow to 1e-4.
SHALLOW = {"model": runs.linear_net, "count": 32, "parallel": FSDP2()}
ROUNDED = {
    "fast": (2, FAST, {}),
    "divided": (
        2,
        {"parallel": DDP(), "kind": "divided", "count": 48, "model": runs.plain_net},
        {},
    ),
    "tokens": (2, TOKENS, {}),
    **{name: SHARDED[name] for name in drawn(SHARDED, 2)},
    **{
        kind.__name__: (2, {**SHALLOW, "optimizers": partial(kind, lr=0.01)}, WHOLE)
        for kind in (AdamWScheduleFree, Muon)
    },
}
"""The number of processes, the options of their run, and those that differ in one process."""


@pytest.mark.parametrize("name", ROUNDED)
def test_losses_of_any_number_of_processes_are_equal_to_rounding(name):
    size, options, of_one = ROUNDED[name]
    alone, several = compared(size, of_one, **options)
    assert several["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert several["sample"] == alone["sample"]
    tolerance = 1e-4 if name in SHARDED else 1e-3
    assert several["metrics"]["eval"] == pytest.approx(alone["metrics"]["eval"], rel=tolerance)


def test_processes_of_unequal_loaders_train_on_all_batches():
    first, _ = run(fit, 2, {"kind": "uneven", "count": 10, "batch_size": 4, **LOCAL})
    assert first["batch"] == 6  # 3 batches of rank 0 in each of 2 epochs, and 2 of rank 1
    assert first["sample"] == 2 * (10 + 8)


LOCAL = {"parallel": DDP(data="local"), "model": runs.plain_net}


def test_stream_is_divided_and_each_process_resumes_at_its_own_position(tmp_path):
    options = {"kind": "shards", "parallel": DDP(), "model": runs.plain_net}
    whole = run(fit, 2, options)[0]
    assert (whole["batch"], whole["sample"]) == (6, 88)
    options["folder"] = str(tmp_path / "run")
    run(fit, 2, {**options, "callbacks": [runs.SignalAt(1, rank=1)]})
    resumed = run(fit, 2, options)[0]
    assert resumed["weights"] == whole["weights"]
    assert resumed["sample"] == whole["sample"]


AGAIN = [
    *((FSDP2(shards=4), parts) for parts in drawn([{}, {"grad_accum": 2}], 1)),
    (FSDP2(shards=4, reshard_after_forward=False), {}),
    (DDP(shards=4), {}),
    (DDP(shards=4, exact=True), {}),
]


@pytest.mark.parametrize(("strategy", "parts"), AGAIN)
def test_runs_with_activation_checkpointing_have_the_same_bits(strategy, parts):
    options = {"max_duration": "1ep", "parallel": strategy, **parts}
    kept, again = (
        run(fit, 2, {**options, "algorithms": algorithms})[0]
        for algorithms in ([], [ActivationCheckpointing()])
    )
    assert again["weights"] == kept["weights"]  # with the running statistics of batch norm
    assert again["metrics"] == kept["metrics"]


def test_sharded_model_ends_with_the_best_weights(tmp_path):
    options = {**OF_SHARDED, "save_best": "loss", "save_best_mode": "max", "max_duration": "2ep"}
    options |= {"load_best_at_end": True, "algorithms": [EMA("2ba")]}
    copies = {"parallel": DDP(shards=2), "folder": str(tmp_path / "copies")}
    parts = {"parallel": FSDP2(), "folder": str(tmp_path / "parts")}
    (alone,) = run(fit, 1, {**options, **copies})
    both = run(fit, 2, {**options, **parts})
    (last,) = run(fit, 1, {**OF_SHARDED, "algorithms": [EMA("2ba")], "parallel": DDP(shards=2)})
    for one in both:
        assert one["size"] == pytest.approx(alone["size"], rel=1e-5)
    assert alone["size"] != pytest.approx(last["size"], rel=1e-5)


# In float64, as rounding errors of gradients grow in bfloat16.
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(OF_SHARDED["optimizers"], marks=pytest.mark.campaign),
        pytest.param(partial(Muon, lr=0.01, dtype=torch.float64), marks=pytest.mark.campaign),
        partial(Muon, lr=0.01, dtype=torch.float64, neuron_beta2=0.9, slow_momentum=0.98),
        wrapped_muon,
    ],
)
def test_sharded_run_resumes_on_one_process_and_on_two(optimizer, tmp_path):
    of_sharded = {**OF_SHARDED, "optimizers": optimizer}
    options = {**of_sharded, "folder": str(tmp_path / "run")}
    (whole,) = run(fit, 1, {**of_sharded, "parallel": DDP(shards=2)})
    stop = {"callbacks": [runs.SignalAt(2, rank=0)], "parallel": FSDP2()}
    assert {one["ended"] for one in run(fit, 2, {**options, **stop})} == {"preempted"}
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copied = {**options, "folder": str(tmp_path / "copy"), "parallel": DDP()}
    for resumed in (run(fit, 2, {**options, "parallel": FSDP2()})[0], run(fit, 1, copied)[0]):
        assert resumed["loss"] == pytest.approx(whole["loss"], rel=1e-5)
        assert resumed["metrics"]["eval"] == pytest.approx(whole["metrics"]["eval"], rel=1e-4)
        assert (resumed["batch"], resumed["sample"]) == (whole["batch"], whole["sample"])


# --- agreement ---


def test_request_of_one_rank_is_one_of_all_whatever_its_event(tmp_path):
    ends = {**requests.STOPS, "function": 1, "evaluate": requests.WHOLE, "save": requests.WHOLE}
    assert run(requests.fit_each, 2, str(tmp_path)) == [ends, ends]


@pytest.mark.parametrize("kind", ["map", "stateful"])
def test_signal_of_one_rank_ends_all_after_the_same_batch_and_the_run_resumes(kind, tmp_path):
    whole = run(fit, 1, {"kind": kind})[0]
    options = {"kind": kind, "folder": str(tmp_path / "run")}
    first = run(fit, 2, {**options, "callbacks": [runs.SignalAt(2, rank=1)]})
    assert [(one["ended"], one["batch"]) for one in first] == [("preempted", 3)] * 2
    resumed = run(fit, 4, {**options, "parallel": DDP(exact=True)})
    assert {one["batch"] for one in resumed} == {whole["batch"]}
    for name in ("weights", "memory", "metrics", "sample", "loss"):
        assert resumed[0][name] == whole[name]


@pytest.mark.parametrize(
    ("parallel", "loss_fn"),
    each_once(
        [DDP(shards=4, exact=True), FSDP2(shards=4)], [runs.weighted, runs.RootInEvaluation()]
    ),
)
def test_loss_over_class_weights_is_the_same_on_several_processes(parallel, loss_fn):
    options = {"model": runs.plain_net, "loss_fn": loss_fn, "max_duration": "1ep", "count": 45}
    options["optimizers"] = partial(torch.optim.SGD, lr=0.1)

    (alone,) = run(fit, 1, {**options, "parallel": DDP(shards=1)})
    several = run(fit, 2, {**options, "parallel": parallel, "grad_accum": 2})[0]

    assert several["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    found, expected = (dict(one["metrics"]["eval"]) for one in (several, alone))
    assert found == pytest.approx(expected, rel=1e-4)


def test_loss_that_is_nan_on_one_rank_is_reported_on_all():
    failed = attempt(fit, 2, {"loss_fn": runs.nan_on_rank_1})
    assert [one.kind for one in failed] == ["NonFiniteLossError"] * 2
    assert failed[0].message == failed[1].message


FAILURES = {
    "callback": ({"callbacks": [runs.FailAt(2, rank=1)]}, "OSError: the disk is gone"),
    "data": ({"kind": "breaks"}, "ValueError: image 30 is damaged"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_error_of_one_rank_is_raised_on_all(name):
    options, text = FAILURES[name]
    first, second = attempt(fit, 2, options)
    assert text in repr(second)
    assert repr(first) == f"ProcessError: rank 1 failed: {text}" or text in repr(first)
    assert isinstance(first, Failed)


DIFFERENT = {
    "parameters": {"different": "model"},
    "seed": {"different": "seed"},
    "hyperparameters": {"different": "lr"},
    "algorithms": {"different": "algorithms"},
    "savers": {"different": "savers"},
    "dataset": {"different": "dataset"},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_runs_that_differ_between_ranks_are_refused(what):
    for one in attempt(fit, 2, DIFFERENT[what]):
        assert one.kind == "ProcessError", one.text
        assert re.match(rf"{what}.* is .* on rank 0 \(.*\), and .* on rank 1 \(", one.message)


@pytest.mark.parametrize(
    ("parallel", "size", "message"),
    [
        (DDP(shards=3), 2, "shards=3 must be a multiple of the number of processes, which is 2"),
        (DDP(exact=True), 3, "a power of two, and this run has 3"),
        (FSDP2(replicas=2), 3, "replicas=2 must divide the number of processes, which is 3"),
        (FSDP2(wrap=[nn.LSTM]), 2, "selects no module of Sequential"),
    ],
)
def test_number_of_shards_that_does_not_fit_is_refused(parallel, size, message):
    for one in attempt(fit, size, {"parallel": parallel}):
        assert one.kind == "ValueError"
        assert message in one.message


def divide_before(parallel):
    """Build a Trainer with a model whose parameters are divided already."""
    starting.join_processes()
    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(nn.Sequential(nn.Linear(4, 4)), mesh, {"0": ColwiseParallel()})
    make_trainer(model=model, parallel=parallel)


def test_model_that_is_divided_already_is_refused():
    for parallel in (None, "ddp", FSDP2()):
        for one in attempt(divide_before, 2, parallel):
            assert (one.kind, one.message[:41]) == (
                "ValueError",
                "model has parameters that are a DTensor a",
            )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 0}, "shards=0 must be"),
        ({"shards": 6, "exact": True}, "shards=6 must be a power of two"),
        ({"exact": 1}, "exact=1 must be"),
        ({"data": "mine"}, "data='mine' must be one of"),
        ({"timeout": 0}, "timeout=0 must be"),
        ({"timeout": "1min"}, "timeout='1min' must be"),
        ({"bucket_cap_mb": 0}, "bucket_cap_mb=0 must be"),
        ({"comm_hook": "bf16"}, "comm_hook='bf16' must be a function"),
        ({"exact": True, "bucket_cap_mb": 1}, "exact=True .* omit bucket_cap_mb"),
        ({"replicas": 0}, "replicas=0 must be"),
        ({"offload": "cpu"}, "offload='cpu' must be"),
        ({"mixed_precision": "bf16"}, "mixed_precision='bf16' must be"),
        ({"wrap": "blocks"}, "wrap='blocks' must be types"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    strategy = DDP if arguments.keys() <= set(inspect.signature(DDP).parameters) else FSDP2
    with pytest.raises((ValueError, TypeError), match=message):
        strategy(**arguments)


@pytest.mark.parametrize("parallel", ["fsdp", 2, DDP])
def test_rejects_unknown_strategies(parallel):
    with pytest.raises((ValueError, TypeError), match="must be 'ddp', or a strategy"):
        make_trainer(parallel=parallel)


def test_fsdp_chooses_the_items_of_lists_and_what_is_asked_for():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.ModuleList([nn.Linear(2, 2)]))
    first, _, (second,) = model
    assert FSDP2().wrapped(model) == [second, first]
    assert FSDP2(wrap=[nn.Linear]).wrapped(model) == [second, first]
    assert FSDP2(wrap=lambda module: module is second).wrapped(model) == [second]
    with pytest.raises(ValueError, match="selects no module of Sequential"):
        FSDP2(wrap=[nn.Conv2d]).wrapped(model)


def test_every_process_ends_with_the_best_weights(tmp_path):
    options = {"save_best": "loss", "save_best_mode": "max", "max_duration": "2ep"}
    (last,) = run(fit, 1, {**options, "folder": str(tmp_path / "last")})
    options["load_best_at_end"] = True
    (alone,) = run(fit, 1, {**options, "folder": str(tmp_path / "alone")})
    both = run(fit, 2, {**options, "folder": str(tmp_path / "both")})

    assert {one["weights"] for one in both} == {alone["weights"]}
    assert alone["weights"] != last["weights"]


fit_with_slow_writes = partial(by_options, runs.fit_with_slow_writes)


@pytest.mark.parametrize(
    ("strategy", "background"), [(DDP(), False), (FSDP2(), False), (DDP(), True)]
)
def test_checkpoint_is_there_on_every_process_when_it_is_said_to_be(strategy, background, tmp_path):
    options = {"folder": str(tmp_path / "run"), "parallel": strategy, "max_duration": "1ep"}

    for found, at_end in run(
        fit_with_slow_writes, 2, {**options, "save_in_background": background}
    ):
        assert background or found == list(range(1, len(found) + 1))
        assert at_end == len(found) > 0
