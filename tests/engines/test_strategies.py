"""A strategy names its engine, a derived one is run by the same, and nothing asks which it is."""

import ast
from functools import partial

import attrs
import pytest
import torch
from torch import nn

from composable import Callback
from composable.algorithms import EMA, MixUp, WholeLoss
from composable.callbacks import CheckpointSaver, ExportForInference, GradientNoise
from composable.core.destination import LoggerDestination
from composable.distributed import DDP, FSDP2, DeepSpeed, Processes
from composable.distributed.strategies import Strategy
from composable.engines.build import engine_type
from composable.engines.ddp import Replicated
from composable.engines.engine import Engine
from composable.engines.exact import Exact
from composable.engines.fsdp2 import Sharded
from composable.loggers import JSONLinesLogger
from composable.replay import DryRunOptions
from composable.runs.recorder import RunRecorder
from composable.trainer.options import TrainerOptions
from tests.support import fake_deepspeed, parallel_messages, parallel_runs
from tests.support.cases import ROOT
from tests.support.processes import attempt, by_options, run
from tests.support.runs import make_trainer

ONE, TWO = Processes(), Processes(0, 2)


@attrs.frozen
class Sharding(FSDP2):
    """A strategy that a user has derived."""


@pytest.mark.parametrize(
    ("strategy", "processes", "shards", "engine"),
    [
        (DDP(), ONE, 1, Engine),
        (DDP(), ONE, 2, Replicated),
        (DDP(), TWO, 2, Replicated),
        (DDP(exact=True), TWO, 2, Exact),
        (DDP(exact=True), ONE, 4, Exact),
        (FSDP2(), TWO, 2, Sharded),
        (FSDP2(), ONE, 4, Replicated),
        (FSDP2(), ONE, 1, Engine),
        (Sharding(), TWO, 4, Sharded),
    ],
)
def test_engine_of_a_strategy(strategy, processes, shards, engine):
    assert engine_type(strategy, processes, shards) is engine


def test_a_run_of_one_process_has_the_engine_that_adds_nothing():
    assert type(make_trainer()._run.engine) is Engine


def test_a_replay_keeps_the_strategy_that_deepspeed_config_is_short_for():
    options = TrainerOptions(nn.Linear(2, 2), deepspeed_config={"bf16": {"enabled": True}})
    assert DryRunOptions.of(options).parallel == options.parallel


def test_steps_that_an_engine_cannot_undo_are_not_tried(monkeypatch):
    monkeypatch.setattr(Engine, "can_undo", False)
    trainer = make_trainer()
    with pytest.raises(ValueError, match="cannot restore the parts"):
        trainer.check()


# --- the rule that nothing asks which engine a run has ---


def derived(base):
    """Return the names of all classes of the package that are derived from a class."""
    found = base.__subclasses__()
    own = {one.__name__ for one in found if one.__module__.startswith("composable.")}
    return own.union(*map(derived, found))


def classes_asked_for(path):
    """Return the names in the second arguments of `isinstance` and `issubclass`."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    asking = (one for one in calls if getattr(one.func, "id", "") in ("isinstance", "issubclass"))
    return {name for one in asking for name in map(ast.unparse, ast.walk(one.args[1]))}


def files(*folders):
    return [path for folder in folders for path in (ROOT / "composable" / folder).rglob("*.py")]


def test_nothing_outside_of_engines_asks_for_an_engine_or_a_strategy():
    kinds = derived(Engine) | derived(Strategy)
    assert {one.__name__ for one in (Sharded, Replicated, FSDP2, DeepSpeed)} <= kinds
    outside = [one for one in files(".") if one.parent.name != "engines"]
    assert {one.name for one in outside if kinds & classes_asked_for(one)} == set()


def test_the_trainer_asks_for_no_callback_by_its_class():
    kinds = derived(Callback) - {LoggerDestination.__name__}
    assert {CheckpointSaver.__name__, RunRecorder.__name__, JSONLinesLogger.__name__} <= kinds
    assert {one.name for one in files("trainer") if kinds & classes_asked_for(one)} == set()


def test_no_part_of_a_run_asks_whether_parameters_are_sharded():
    rooms = files("trainer", "resume", "plan", "callbacks", "loggers", "runs", "data", "optim")
    assert {one.name for one in rooms if "is_sharded" in one.read_text()} == set()


@pytest.mark.parametrize("callback", [GradientNoise("1ba"), ExportForInference("model.pt2")])
def test_callbacks_that_need_all_parameters_refuse_sharded_ones(callback, monkeypatch):
    monkeypatch.setattr(Engine, "check_whole", Sharded.check_whole)
    trainer = make_trainer(callbacks=[callback])
    with pytest.raises(ValueError, match=f"{callback.name} can.*parameters are (sharded|divided)"):
        trainer.fit()


fit = partial(by_options, parallel_runs.fit)
fit_counting = partial(by_options, parallel_messages.fit_counting)


def test_a_strategy_derived_from_fsdp2_shards_the_model():
    options = {
        "kind": "list",
        "model": parallel_runs.plain_net,
        "optimizers": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        "eval_dataloader": None,
        "metrics": {},
        "count": 32,
        "max_duration": "1ep",
    }
    found, expected = (
        run(fit_counting, 2, {**options, "parallel": strategy})[0]
        for strategy in (Sharding(), FSDP2())
    )
    assert found["messages"]["reduce_scatter_base"] > 0
    assert found["messages"] == expected["messages"]
    assert found["losses"] == expected["losses"]


def test_every_process_names_a_weight_that_is_not_finite_in_the_part_of_one():
    options = {"model": parallel_runs.broken_net, "parallel": FSDP2(), "eval_dataloader": None}
    for failed in attempt(fit, 2, {**options, "metrics": {}}):
        assert failed.kind == "NonFiniteLossError"
        assert "weights of the model were not finite when training began" in failed.message


# --- an engine that owns gradients and steps, as that of DeepSpeed does ---


fit_with_deepspeed = partial(by_options, fake_deepspeed.fit)


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_is_that_of_ddp_and_is_resumed(size, tmp_path):
    options = {
        "model": parallel_runs.plain_net,
        "grad_accum": 2,
        "loss_mean_over": "examples",
        "algorithms": [MixUp(), EMA(half_life="2ba")],
    }
    expected = run(fit, size, {**options, "parallel": DDP(shards=2)})[0]
    whole = run(fit_with_deepspeed, size, options)
    stopping = {"callbacks": [parallel_runs.SignalAt(4, 0)], "folder": str(tmp_path)}
    stopped = run(fit_with_deepspeed, size, {**options, **stopping})[0]
    resumed = run(fit_with_deepspeed, size, {**options, "folder": str(tmp_path)})
    assert whole[0]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert stopped["ended"] == "preempted"
    assert {one["weights"] for one in (*whole, *resumed)} == {whole[0]["weights"]}


def test_the_loss_of_the_whole_is_that_of_ddp():
    options = {"model": parallel_runs.plain_net, "grad_accum": 2, "algorithms": [WholeLoss()]}

    expected = run(fit, 2, {**options, "parallel": DDP(shards=2)})[0]

    found, other = run(fit_with_deepspeed, 2, options)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["weights"] == other["weights"]
