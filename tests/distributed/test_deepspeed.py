"""The configuration of DeepSpeed and the Trainer's arguments; `make deepspeed` trains with both."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from composable import Precision, State
from composable.algorithms import EMA, SAM, SWA, GradientClipping, LayerFreezing, MixUp
from composable.checkpoint.errors import MismatchError
from composable.core.algorithm import Algorithm
from composable.distributed import DDP, DeepSpeed, Processes
from composable.engines.deepspeed import Zero, start_engine
from composable.trainer.options import TrainerOptions

RUN = {"precision": Precision(), "processes": 2, "batch_size": 64, "grad_accum": 2}


def test_empty_configuration_is_completed():
    config = DeepSpeed().complete(**RUN)
    assert config["train_micro_batch_size_per_gpu"] == 16
    assert config["zero_optimization"] == {"stage": 0}
    assert config["bf16"] == {"enabled": False}


def test_given_settings_are_kept():
    given = {"zero_optimization": {"stage": 2, "overlap_comm": False}, "gradient_clipping": 0.5}
    sizes = {"train_batch_size": 64, "gradient_accumulation_steps": "auto"}
    config = DeepSpeed(config={**given, **sizes}).complete(**RUN)
    assert {name: config[name] for name in given} == given


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"train_batch_size": 32}, r"\['train_batch_size'\]=32 .*is 64"),
        ({"train_micro_batch_size_per_gpu": 64}, r"gpu'\]=64 .*is 16"),
        ({"gradient_accumulation_steps": 1}, r"steps'\]=1 .*is 2"),
        ({"optimizer": {"type": "Adam"}}, "pass optimizers="),
        ({"scheduler": {"type": "WarmupLR"}}, "pass schedulers="),
        ({"fp16": {"enabled": True}}, "use {'bf16'"),
        ({"torch_autocast": {"enabled": True}}, "pass precision='bf16'"),
        ({"managed_gradient_accumulation": True}, "the Trainer determines when a step"),
        ({"zero_optimization": {"stage": 4}}, r"\['stage'\]=4 must be 0, 1, 2 or 3"),
    ],
)
def test_contradiction_is_an_error(config, message):
    with pytest.raises(ValueError, match=message):
        DeepSpeed(config=config).complete(**RUN)


def test_disabled_settings_are_no_contradiction():
    assert not DeepSpeed(config={"fp16": {"enabled": False}, "amp": {"enabled": False}}).bf16


@pytest.mark.parametrize(
    ("given", "config", "chosen"),
    [
        ("fp32", {}, "fp32"),
        ("fp32", {"bf16": {"enabled": True}}, "bf16"),
        ("bf16", {}, "bf16"),
        ("bf16", {"bf16": {"enabled": False}}, None),
        ("amp_bf16", {}, None),
        ("fp16", {}, None),
    ],
)
def test_precision_is_that_of_either(given, config, chosen):
    strategy, precision = DeepSpeed(config=config), Precision.of(given)
    if chosen is None:
        with pytest.raises(ValueError, match=f"precision='{given}'"):
            strategy.precision(precision)
    else:
        assert strategy.precision(precision).name == chosen


class Rated(Algorithm):
    writes = frozenset({"lr_override"})


@pytest.mark.parametrize(
    ("algorithm", "refused"),
    [
        (MixUp(0.2), ()),
        (EMA("3ba"), (3,)),
        (SWA(), (3,)),
        (SWA(schedule_swa_lr=True, swa_lr=0.05), (0, 1, 2, 3)),
        (GradientClipping("norm", 1.0), (0, 1, 2, 3)),
        (SAM(), (0, 1, 2, 3)),
        (LayerFreezing(), (0, 1, 2, 3)),
        (Rated(), (0, 1, 2, 3)),
    ],
    ids=lambda value: value.name if isinstance(value, Algorithm) else None,
)
def test_algorithms_that_the_engine_replaces_are_refused(algorithm, refused):
    for stage in range(4):
        strategy = DeepSpeed(config={"zero_optimization": {"stage": stage}})
        if stage in refused:
            with pytest.raises(ValueError, match=algorithm.name):
                strategy.check_algorithm(algorithm)
        else:
            strategy.check_algorithm(algorithm)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parallel": DDP(shards=4)}, "exclude each other"),
        ({"compile": True}, "compile=True cannot be combined"),
        ({"microbatch_size": "auto"}, "use grad_accum"),
        ({"nonfinite_loss": "skip"}, "cannot drop gradients"),
        ({"precision": "amp_fp16"}, "must be 'fp32' or 'bf16'"),
        (
            {
                "load_best_at_end": True,
                "save_folder": "run",
                "save_best": "eval/loss",
                "eval_dataloader": [(torch.zeros(1, 2), torch.zeros(1))],
                "deepspeed_config": {"zero_optimization": {"stage": 3}},
            },
            "cannot be combined with stage 3",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_argument_that_contradicts_deepspeed_is_an_error(arguments, message, monkeypatch):
    monkeypatch.setattr(Processes, "current", lambda: Processes(0, 2))
    with pytest.raises(ValueError, match=message):
        TrainerOptions(nn.Linear(2, 2), **{"deepspeed_config": {}, **arguments})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("ds.json", "='ds.json' must be a mapping"),
        ({"zero_optimization": 2}, r"\['zero_optimization'\]=2 must be a mapping"),
    ],
)
def test_configuration_of_another_type_is_an_error(config, message):
    with pytest.raises(TypeError, match=f"deepspeed_config.*{message}"):
        TrainerOptions(nn.Linear(2, 2), deepspeed_config=config)


def test_missing_package_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    model = nn.Linear(2, 2)
    optimizer = partial(torch.optim.SGD, lr=0.1)(model.parameters())
    with pytest.raises(ImportError, match=r'pip install "composable\[deepspeed\]"'):
        start_engine(model, optimizer, {})


class Engine(Zero):
    """One with stage 2, and the first of two parts of six weights."""

    def __init__(self):
        super().__init__()
        self.engine = SimpleNamespace(
            zero_optimization_stage=lambda: 2,
            optimizer=SimpleNamespace(single_partition_of_fp32_groups=[torch.zeros(3)]),
        )


COUNTERS = {"global_steps": 1, "global_samples": 2, "micro_steps": 1, "skipped_steps": 0}
SAVED = {"stage": 2, "processes": 2, "partitions": [torch.arange(6.0)], "counters": COUNTERS}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"processes": 4}, "engine/processes is 4, and 2 in this run"),
        ({"stage": 1}, "engine/stage is 1, and 2 in this run"),
        ({"partitions": [torch.zeros(8)]}, r"shapes \[\[8\]\], and this run has \[\[6\]\]"),
    ],
)
def test_state_of_another_engine_is_an_error(changed, message, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(MismatchError, match=message):
        Engine().check({"engine": {**SAVED, **changed}}, "run/ba1")


def test_checkpoint_without_an_engine_is_an_error():
    with pytest.raises(MismatchError, match="saved without deepspeed_config"):
        Engine().check({}, "run/ba1")


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_restores_its_part(rank, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    engine = Engine()
    state = {0: {"exp_avg": torch.arange(6.0), "step": torch.tensor(4.0)}}
    saved = {"engine": SAVED, "optimizers": [{"state": state}]}
    with engine.restoring(saved, "run/ba1") as tree:
        own = tree["optimizers"][0]["state"][0]
        assert own["exp_avg"].tolist() == [3 * rank, 3 * rank + 1, 3 * rank + 2]
        assert own["step"] == 4
    (partition,) = engine.engine.optimizer.single_partition_of_fp32_groups
    assert torch.equal(partition, own["exp_avg"])
    assert engine.engine.global_samples == 2


def test_sparse_gradients_are_refused():
    state = State(nn.Embedding(3, 2, sparse=True))

    with pytest.raises(ValueError, match="DeepSpeed does not support sparse gradients; use sparse"):
        Zero.prepare(None, state, None)
