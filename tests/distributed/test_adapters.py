"""Adapters of PEFT on two processes: those of one, also in the folder that they leave."""

from functools import partial

import peft
import pytest
import torch

from composable.algorithms import EMA
from composable.distributed import DDP, FSDP2
from composable.optim import Muon
from tests.support.adapters import adapters, base, text, with_lora
from tests.support.hugging_face import llama
from tests.support.processes import run
from tests.support.runs import make_trainer


def train(folder, **options):
    trainer = make_trainer(
        with_lora(),
        text(),
        loss_fn=None,
        optimizers=partial(Muon, lr=0.01, dtype=torch.float32),
        algorithms=[EMA("2ba")],
        max_duration="1ep",
        **options,
    )
    trainer.fit()
    trainer.export_weights(folder)
    return trainer


def leave(folder, parallel):
    """Train and export on each process, and return what is averaged."""
    from composable.distributed.starting import join_processes

    join_processes()
    return sorted(train(folder, parallel=parallel).state.averages["EMA"])


@pytest.mark.parametrize("parallel", [DDP(shards=2), FSDP2(shards=2)], ids=["DDP", "FSDP2"])
def test_adapters_of_two_processes_are_those_of_one(parallel, tmp_path):
    first, second = run(leave, 2, str(tmp_path / "two"), parallel)

    one = train(str(tmp_path / "one"))
    assert first == second == sorted(one.state.averages["EMA"])
    loaded = peft.PeftModel.from_pretrained(llama(), tmp_path / "two")
    for name, value in adapters(one.state.model).items():
        torch.testing.assert_close(adapters(loaded)[name].detach(), value.detach())
    assert all(torch.equal(p, base(with_lora())[name]) for name, p in base(one.state.model).items())
