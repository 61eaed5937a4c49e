"""A learning rate range test leaves the run as it was."""

from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from composable import algorithms as A
from composable._support.tree import map_tensors
from composable.optim import AdamWScheduleFree, Muon, by_role, cosine, find_lr
from composable.utils.reproducibility import get_rng_state
from tests.support.data import batches
from tests.support.models import conv_net, same
from tests.support.outcomes import differences
from tests.support.runs import make_trainer

OPTIMIZERS = {
    "AdamW": partial(AdamW, lr=0.01),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "tensor rate": lambda p: AdamW(p, lr=torch.tensor(0.01)),
    "schedule-free": partial(AdamWScheduleFree, lr=0.01),
    "by role": by_role(
        {"head": partial(torch.optim.Adagrad, lr=0.1)}, default=partial(Muon, lr=0.01)
    ),
}
ALGORITHMS = {
    "none": (),
    "mixed": (A.MixUp(), A.LabelSmoothing(0.1), A.EMA("2ba")),
    "SAM": (A.SAM(), A.SWA(swa_start="0.2dur", update_interval="1ba")),
    "selected": (A.SelectiveBackprop(start=0.0), A.LayerFreezing(0.0, 1.0)),
}
SCHEDULERS = {"none": None, "cosine": cosine(warmup="1ba"), "torch": partial(StepLR, step_size=1)}


def noisy():
    """Build a model with batch norm and dropout."""
    return nn.Sequential(nn.Dropout(0.2), conv_net())


def loader_of(kind):
    if kind == "list":
        return batches(24, images=True)
    ((inputs, targets),) = batches(24, 24, images=True)
    own = {"generator": torch.Generator().manual_seed(3)} if kind == "own generator" else {}
    return DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True, **own)


def everything(trainer, loader):
    """Return copies of all that a run has."""
    state = trainer.state
    own = getattr(loader, "generator", None)
    found = {
        "model": state.model.state_dict(),
        "modes": [module.training for module in state.model.modules()],
        "gradients": [p.grad for p in state.model.parameters()],
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
        "parts": {
            name: part.state_dict()
            for name, part in trainer._run.parts.items()
            if name not in ("weights", "data")
        },
        "time": [repr(state.timestamp), repr(state.key)],
        "memory": state.memory,
        "averages": state.averages,
        "generators": get_rng_state(),
        "loader": None if own is None else own.get_state(),
    }
    return map_tensors(torch.clone, found)


def equal(ours, theirs):
    if isinstance(ours, torch.Tensor):
        return torch.equal(ours, theirs)
    return repr(ours) == repr(theirs)


@settings(max_examples=10)
@given(
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    algorithms=st.sampled_from(sorted(ALGORITHMS)),
    schedulers=st.sampled_from(sorted(SCHEDULERS)),
    loader=st.sampled_from(["list", "shuffled", "own generator"]),
    precision=st.sampled_from(["fp32", "amp_bf16", "amp_fp16", "bf16"]),
    before=st.sampled_from([0, 3, 8]),
    max_lr=st.sampled_from([0.1, 1e8]),
)
def test_run_is_as_before_and_continues_alike(
    optimizer, algorithms, schedulers, loader, precision, before, max_lr
):
    def run(*, tries):
        data = loader_of(loader)
        trainer = make_trainer(
            noisy(),
            data,
            optimizers=OPTIMIZERS[optimizer],
            algorithms=ALGORITHMS[algorithms],
            schedulers=SCHEDULERS[schedulers] if optimizer != "schedule-free" else None,
            precision=precision,
            max_duration="12ba",
        )
        if before:
            trainer.fit(duration=f"{before}ba")
        if tries:
            had = everything(trainer, data)
            found = find_lr(trainer, max_lr=max_lr, num_steps=9)
            assert not differences(everything(trainer, data), had, equal)
            assert len(set(found.losses)) > 1
        return trainer.fit(duration="4ba")

    tried, untried = run(tries=True), run(tries=False)

    assert same(tried.model.state_dict(), untried.model.state_dict())
