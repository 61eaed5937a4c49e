"""Runs with DeepSpeed on two processes. `make deepspeed` installs it and runs this file."""

import json
import os

import pytest

from tests.distributed.test_launch import launch

SCRIPT = '''
import json, os, sys
from functools import partial

import torch
from torch import nn

from composable import Trainer
from composable.algorithms import EMA, GradientClipping, MixUp
from composable.checkpoint import find
from composable.loggers import InMemoryLogger


def train(algorithms=(), **options):
    """Train on batches of which the fourth is smaller, and return the Trainer and the losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    drawn = torch.Generator().manual_seed(1)
    sizes = (32, 32, 32, 22, 32)
    data = [
        (torch.randn(n, 32, generator=drawn), torch.randint(10, (n,), generator=drawn))
        for n in sizes
    ]
    memory = InMemoryLogger()
    trainer = Trainer(
        model,
        train_dataloader=data,
        eval_dataloader=data[:2],
        loss_fn=nn.functional.cross_entropy,
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
try:
    trainer.save_checkpoint("whole")
except ValueError as error:
    found["whole"] = str(error)
if found["rank"] == 0:
    print("FOUND", json.dumps(found))
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    (folder / "train.py").write_text(SCRIPT)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    done = launch(folder, "-n", 2, "train.py", limit=400)
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("FOUND ")]
    print(line)
    return json.loads(line.removeprefix("FOUND "))


@pytest.mark.parametrize("stage", range(4))
def test_losses_are_those_of_data_parallelism(stage, found):
    for name in ("plain", "grad_accum", "clipped", "averaged"):
        if f"{name} {stage}" in found:
            assert found[f"{name} {stage}"] < 1e-5, name
    assert found[f"clipping {stage}"] > 1e-3


@pytest.mark.parametrize("stage", range(4))
def test_bfloat16_trains(stage, found):
    assert found[f"bf16 {stage}"] < 0.2


def test_weights_are_saved_and_a_whole_checkpoint_is_an_error(found):
    assert found["saved"] > 0
    assert found["predicted"] == [4, 10]
    assert "needs weights_only=True" in found["whole"]
