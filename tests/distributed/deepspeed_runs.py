"""Runs with DeepSpeed on two processes. `make deepspeed` installs it and runs this file."""

import json
import os
import subprocess
import sys

import pytest

from tests.distributed.test_launch import launch
from tests.support.cases import ROOT

HEAD = '''
import json, os
from functools import partial

import torch
from torch import nn

from composable import Trainer
from composable.algorithms import EMA, GradientClipping, MixUp
from composable.checkpoint import CheckpointError, find, load_weights, verify
from composable.loggers import InMemoryLogger
from composable.optim import cosine


def network(width=64, dropout=0.0):
    torch.manual_seed(0)
    first, last = nn.Linear(32, width), nn.Linear(width, 10)
    return nn.Sequential(first, nn.Dropout(dropout), nn.ReLU(), last)


def train(algorithms=(), model=None, **options):
    """Train on batches of which the fourth is smaller, and return the Trainer and the losses."""
    drawn = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(n, 32, generator=drawn), torch.randint(10, (n,), generator=drawn))
        for n in (32, 32, 32, 22, 32)
    ]
    memory = InMemoryLogger()
    trainer = Trainer(
        network() if model is None else model,
        train_dataloader=data,
        eval_dataloader=data[:2],
        loss_fn=nn.functional.cross_entropy,
        loss_mean_over="examples",
        optimizers=partial(torch.optim.AdamW, lr=1e-2),
        max_duration="2ep",
        algorithms=[MixUp(0.2), *algorithms],
        loggers=[memory],
        seed=3,
        progress_bar=False,
        **options,
    )
    trainer.fit()
    losses = [m["loss/train"] for _, m in memory.records if "loss/train" in m]
    return trainer, losses, trainer.state.metrics["eval"]["loss"]
'''

COMPARED = """
found = {"rank": int(os.environ["RANK"])}
plain = train(parallel="ddp")
clipped = train([GradientClipping("norm", 0.1)], parallel="ddp")
averaged = train([EMA("3ba")], parallel="ddp")
bf16 = train(parallel="ddp", precision="amp_bf16")


def difference(a, b):
    return max(abs(x - y) for x, y in zip([*a[1], a[2]], [*b[1], b[2]], strict=True))


for stage in range(4):
    zero = {"zero_optimization": {"stage": stage}}
    cases = {
        "plain": (plain, train(deepspeed_config=zero)),
        "grad_accum": (plain, train(deepspeed_config=zero, grad_accum=2)),
        "clipped": (clipped, train(deepspeed_config={**zero, "gradient_clipping": 0.1})),
        "bf16": (bf16, train(deepspeed_config=zero, precision="bf16")),
    }
    if stage < 3:
        cases["averaged"] = averaged, train([EMA("3ba")], deepspeed_config=zero)
    found[f"clipping {stage}"] = difference(plain, cases["clipped"][1])
    for name, (expected, result) in cases.items():
        found[f"{name} {stage}"] = difference(expected, result)

trainer, _, _ = train(
    deepspeed_config={"zero_optimization": {"stage": 2}},
    save_folder="run",
    save_weights_only=True,
)
outputs = trainer.predict([(torch.ones(4, 32), torch.zeros(4))])
found["predicted"] = list(outputs[0].shape)
found["saved"] = len(find("run")[0])
if found["rank"] == 0:
    print("FOUND", json.dumps(found))
"""


def run_script(folder, script):
    """Run a script in two processes, and return what it has found."""
    (folder / "train.py").write_text(HEAD + script)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    done = launch(folder, "-n", 2, "train.py", limit=400)
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("FOUND ")]
    print(line)
    return json.loads(line.removeprefix("FOUND "))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_script(tmp_path_factory.mktemp("deepspeed"), COMPARED)


@pytest.mark.parametrize("stage", range(4))
def test_losses_are_those_of_data_parallelism(stage, found):
    for name in ("plain", "grad_accum", "clipped", "averaged"):
        if f"{name} {stage}" in found:
            assert found[f"{name} {stage}"] < 1e-5, name
    assert found[f"clipping {stage}"] > 1e-3


@pytest.mark.parametrize("stage", range(4))
def test_bfloat16_trains(stage, found):
    assert found[f"bf16 {stage}"] < 0.2


def test_weights_alone_are_saved(found):
    assert found["saved"] > 0
    assert found["predicted"] == [4, 10]


RESUMED = """
def final_state(trainer):
    tree = trainer._checkpoints.capture(False)
    values = list(tree["model"]["weights"].values())
    values += [getattr(p, "to_local", lambda p=p: p)() for p in tree["engine"]["partitions"]]
    for state in tree["optimizers"][0]["state"].values():
        values += [getattr(v, "to_local", lambda v=v: v)() for v in state.values()]
    return [v.clone() for v in values], tree["engine"]["counters"]


found = {}
rank = int(os.environ["RANK"])
cases = {
    "0": ({}, {}),
    "1": ({"stage": 1}, {}),
    "1 bf16": ({"stage": 1}, {"precision": "bf16"}),
    "2": ({"stage": 2}, {}),
    "2 bf16": ({"stage": 2}, {"precision": "bf16"}),
    "3": ({"stage": 3}, {}),
    "3 divided": ({"stage": 3, "stage3_param_persistence_threshold": 0}, {}),
    "3 bf16": ({"stage": 3, "stage3_param_persistence_threshold": 0}, {"precision": "bf16"}),
}
for name, (zero, options) in cases.items():
    folder = "run " + name
    options = {"deepspeed_config": {"zero_optimization": zero}, **options}

    def trained(**more):
        return train(model=network(63, 0.1), schedulers=cosine(), **options, **more)[:2]

    plain, expected = trained()
    saving, same = trained(save_folder=folder, save_interval="3ba")
    resumed, rest = trained(load_path=folder + "/ep0-ba3")
    (a, counters), (b, others) = final_state(saving), final_state(resumed)
    c, _ = final_state(plain)
    found[name] = {
        "losses": same == expected and rest[-7:] == expected[3:],
        "state": all(map(torch.equal, a, b)) and len(a) == len(b) and counters == others,
        "unchanged": all(map(torch.equal, a, c)),
    }
    if rank == 0:
        verify(folder + "/ep0-ba3")
        found[name]["files"] = len(list(os.scandir(folder + "/ep0-ba3")))
        loaded = load_weights(network(63, 0.1), folder + "/ep2-ba10", key="state/model/weights")
try:
    options = {"deepspeed_config": {"zero_optimization": {"stage": 1}}}
    trained(load_path="run 2/ep0-ba3")
except CheckpointError as error:
    found["stage"] = str(error)
if rank == 0:
    print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    return run_script(tmp_path_factory.mktemp("resumed"), RESUMED)


@pytest.mark.parametrize("stage", ["0", "1", "1 bf16", "2", "2 bf16", "3", "3 divided", "3 bf16"])
def test_resumed_run_has_the_bits_of_an_uninterrupted_one(stage, resumed):
    result = resumed[stage]
    assert result["losses"]
    assert result["state"]
    assert result["unchanged"]
    assert result["files"] == (3 if stage == "0" else 5)


def test_another_stage_is_an_error(resumed):
    assert "state/engine/stage is 2, and 1 in this run" in resumed["stage"]


ALONE = """
found = {}
for stage in range(4):
    zero = {"zero_optimization": {"stage": stage}}
    for name, options in {"plain": {}, "grad_accum": {"grad_accum": 2}}.items():
        _, expected, _ = train(**options)
        _, losses, _ = train(deepspeed_config=zero, **options)
        found[f"{name} {stage}"] = losses == expected
print("FOUND", json.dumps(found))
"""


def test_one_process_has_the_losses_of_a_run_without_deepspeed(tmp_path):
    (tmp_path / "alone.py").write_text(HEAD + ALONE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "alone.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("FOUND ")]
    assert set(json.loads(line.removeprefix("FOUND ")).values()) == {True}
