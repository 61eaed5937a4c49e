"""Checkpoints with valid hashes whose state is not that of the run: refused, naming the path."""

import shutil
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from composable.algorithms import EMA
from composable.callbacks import EarlyStopper, SpeedMonitor
from composable.checkpoint import CheckpointError, MismatchError
from tests.support.data import batches, examples
from tests.support.forging import forge
from tests.support.models import same, seeded, weights
from tests.support.runs import make_trainer


def two_layers(order=("a", "b")):
    """Build a model whose two layers have the same shape, defined in an order."""
    made = seeded(lambda: {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    return nn.ModuleDict({name: made[name] for name in order})


class InOrder(nn.Module):
    """Applies `a` and then `b`, in whatever order they are defined."""

    def __init__(self, order=("a", "b")):
        super().__init__()
        self.layers = two_layers(order)

    def forward(self, x):
        return self.layers["b"](self.layers["a"](x))


def loader():
    own = torch.Generator().manual_seed(3)
    return DataLoader(TensorDataset(*examples(12)), batch_size=4, shuffle=True, generator=own)


def run(model=None, **changes):
    options = {
        "train_dataloader": loader(),
        "eval_dataloader": batches([4]),
        "optimizers": partial(Adam, lr=0.1),
        "schedulers": partial(StepLR, step_size=1),
        "algorithms": [EMA("1ba")],
        "callbacks": [EarlyStopper("loss", patience="9ep"), SpeedMonitor(2)],
        "check_effects": False,
    }
    return make_trainer(InOrder() if model is None else model, **{**options, **changes})


def entry(state, path):
    """Return the container of an entry, and its key."""
    *parents, key = [int(part) if part.isdigit() else part for part in path.split("/")]
    for parent in parents:
        state = state[parent]
    return state, key


WEIGHT = "layers.a.weight"
ALTERED = [
    ("optimizers/0/type", "SGD"),
    ("optimizers/0/state/0", {"momentum_buffer": torch.zeros(4, 4)}),
    ("optimizers/0/state/9", {}),
    ("optimizers/0/param_groups/0/params", [0, 1, 2]),
    ("optimizers/0/param_groups/0/params", [0, 0, 2, 3]),
    ("optimizers/0/parameters/0", ["layers.c.weight", *"xyz"]),
    ("data/generators", []),
    ("data/loader", {"position": 1}),
    ("rates/schedulers/0/base_lrs", [0.1, 0.2]),
    ("rates/schedulers/0", {}),
    ("callbacks/EarlyStopper/best", "high"),
    ("callbacks/SpeedMonitor/window", [[1]]),
    ("callbacks/RunRecorder/bytes", -1),
    ("max_duration", 3),
    (f"averages/EMA/{WEIGHT}", torch.zeros(2)),
    ("model/without_gradients", [3]),
    ("model/in_evaluation", 3),
    ("requests/pending", 1 << 20),
    ("guard/skipped_batches", ["one"]),
    ("microbatches/size", 0),
    ("progress/num_fits", "many"),
    ("loss", torch.zeros(3)),
    ("metrics/eval", 3),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run(save_folder=folder, save_interval="1ba", max_duration="1ep").fit()
    return folder / "ep0-ba2"


@pytest.mark.parametrize(("path", "value"), ALTERED, ids=lambda one: str(one)[:30])
def test_rejects_altered_state_and_changes_nothing(path, value, saved, tmp_path):
    checkpoint = tmp_path / "ep0-ba2"
    shutil.copytree(saved, checkpoint)

    def change(state):
        container, key = entry(state, path)
        container[key] = value

    forge(checkpoint, change)
    model, data, monitor = InOrder(), loader(), SpeedMonitor(2)
    before, order = weights(model), data.generator.get_state()
    callbacks = [monitor, EarlyStopper("loss", patience="9ep")]
    options = {"callbacks": callbacks, "train_dataloader": data, "max_duration": "1ep"}

    with pytest.raises(CheckpointError) as caught:
        run(model, load_path=checkpoint, save_folder=tmp_path, **options)

    part = "/".join(path.split("/")[:2])
    assert f"{checkpoint}: state/{part}" in str(caught.value)
    assert same(weights(model), before)
    assert torch.equal(data.generator.get_state(), order)
    assert monitor.state_dict() == SpeedMonitor(2).state_dict()


def test_moments_follow_the_names_of_parameters(tmp_path):
    options = {"algorithms": [], "callbacks": [], "schedulers": None, "eval_dataloader": None}
    whole = run(**options)
    whole.fit()
    run(save_folder=tmp_path, max_duration="1ep", **options).fit()

    again = run(InOrder(("b", "a")), load_path=tmp_path / "ep1-ba3", max_duration="1ep", **options)
    again.fit(duration="1ep")

    assert same(weights(again.state.model), weights(whole.state.model))


def test_rejects_another_optimizer_class(tmp_path):
    options = {"max_duration": "1ep", "schedulers": None}
    run(save_folder=tmp_path, **options).fit()
    other = {**options, "optimizers": partial(SGD, lr=0.1), "load_path": tmp_path}

    with pytest.raises(MismatchError, match=r"optimizers/0/type is 'Adam', .* this run is SGD"):
        run(**other)

    again = run(load_ignore_keys=["optimizers", "rates"], **other)
    assert again.state.timestamp.batch == 3


class Lookahead(SGD):
    """An optimizer whose state gets a further entry later."""

    def step(self, closure=None):
        loss = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["count"] = state.get("count", 0) + 1
            if state["count"] == 3:
                state["slow"] = parameter.detach().clone()
            if state["count"] > 3:
                parameter.data.lerp_(state["slow"], 0.5)
        return loss


def test_optimizer_whose_state_grows_resumes(tmp_path):
    def trainer(**options):
        build = partial(Lookahead, lr=0.1, momentum=0.9)
        return make_trainer(loader=batches(8), max_duration="4ep", optimizers=build, **options)

    whole = weights(trainer(save_folder=tmp_path).fit().model)
    again = trainer(load_path=tmp_path / "ep2-ba4")
    assert same(weights(again.fit().model), whole)
