"""What a load refuses, by the path in the checkpoint, and what fires after it: AFTER_LOAD."""

import shutil
from contextlib import nullcontext
from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from composable import Algorithm, Callback, Event
from composable.algorithms import EMA
from composable.callbacks import EarlyStopper, SpeedMonitor
from composable.checkpoint import CheckpointError, MismatchError, MissingCheckpointError
from composable.resume import ChangedRunWarning
from tests.support.data import batches, shuffling_loader
from tests.support.forging import forge
from tests.support.models import linear, same, seeded, weights
from tests.support.observers import Watch
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer, training_weights


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


def run(model=None, **changes):
    options = {
        "train_dataloader": shuffling_loader(12, generator=torch.Generator().manual_seed(3)),
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
    ("previous_timestamp", None),
    ("optimizers", [None]),
    ("optimizers", [{"state": {}, "param_groups": [{"params": "x"}]}]),
    ("optimizers/0/type", "SGD"),
    ("optimizers/0/state/0", {"momentum_buffer": torch.zeros(4, 4)}),
    ("optimizers/0/state/9", {}),
    ("optimizers/0/param_groups/0/params", [0, 1, 2]),
    ("optimizers/0/param_groups/0/params", [0, 0, 2, 3]),
    ("optimizers/0/parameters/0", ["layers.c.weight", *"xyz"]),
    ("data/generators", []),
    ("data", {"generators": 3}),
    ("data/loader", {"position": 1}),
    ("rates/schedulers/0/base_lrs", [0.1, 0.2]),
    ("rates/schedulers/0", {}),
    ("rates", {}),
    ("callbacks/EarlyStopper/best", "high"),
    ("callbacks", {"EarlyStopper": {"other": 1}}),
    ("callbacks/SpeedMonitor/window", [[1]]),
    ("callbacks/RunRecorder/bytes", -1),
    ("max_duration", 3),
    (f"averages/EMA/{WEIGHT}", torch.zeros(2)),
    ("model", {}),
    ("model", {"weights": 3, "buffers": {}}),
    ("model/without_gradients", [3]),
    ("model/in_evaluation", 3),
    ("requests/pending", 1 << 20),
    ("requests", {"pending": "all"}),
    ("guard/skipped_batches", ["one"]),
    ("guard", {"skipped_batches": None}),
    ("microbatches/size", 0),
    ("microbatches", 3),
    ("evaluation", {"last_run": 3}),
    ("progress", {}),
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
    model, monitor = InOrder(), SpeedMonitor(2)
    data = shuffling_loader(12, generator=torch.Generator().manual_seed(3))
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
    def run(**options):
        build = partial(Lookahead, lr=0.1, momentum=0.9)
        options = {"loader": batches(8), "max_duration": "4ep", **options}
        return make_trainer(optimizers=build, **options).fit()

    resumes_exactly(run, tmp_path, 4)


# --- AFTER_LOAD ---


WAYS = {
    "load_path": lambda path: {"load_path": path / "ep1-ba3"},
    "folder": lambda path: {"load_path": path},
    "autoresume": lambda path: {"save_folder": path, "autoresume": True},
    "weights": lambda path: {"load_path": path, "load_weights_only": True},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.fixture
def trained_before(tmp_path):
    trainer = make_trainer(save_folder=tmp_path, max_duration="1ep", algorithms=[EMA("1ba")])
    trainer.fit()
    return tmp_path, {"raw": training_weights(trainer), "scored": weights(trainer.state.model)}


@ways
def test_algorithms_act_on_loaded_values(trained_before, way):
    options = way(trained_before[0])
    expected = trained_before[1]["scored" if "load_weights_only" in options else "raw"]

    def halve(event, state):
        if event is not Event.AFTER_LOAD:
            return state
        assert same(weights(state.model), expected)
        with torch.no_grad():
            state.model.weight.mul_(0.5)
        return state.remember("halve", state.timestamp.batch)

    with nullcontext() if "load_weights_only" in options else pytest.warns(ChangedRunWarning):
        trainer = make_trainer(
            linear(5),
            algorithms=[halve, EMA("1ba")],
            max_duration="1ep",
            check_effects=False,
            **options,
        )
    assert torch.equal(training_weights(trainer)["weight"], expected["weight"] * 0.5)
    assert trainer.state.memory["halve"] == trainer.state.timestamp.batch


@ways
def test_callbacks_see_loaded_values(trained_before, way):
    options = way(trained_before[0])
    expected = trained_before[1]["scored" if "load_weights_only" in options else "raw"]
    watch = Watch(Event.AFTER_LOAD, read=lambda state: weights(state.model))
    make_trainer(
        linear(5), algorithms=[EMA("1ba")], callbacks=[watch], max_duration="1ep", **options
    )
    (seen,) = watch.values
    assert same(seen, expected)


@attrs.frozen(repr=False)
class Wrap(Algorithm):
    """Wraps the model, a surgery that must be done before values are restored."""

    events = frozenset({Event.AFTER_LOAD})
    writes = frozenset({"model"})

    def apply(self, event, state):
        return state.evolve(model=nn.Sequential(state.model))


def test_surgery_is_done_once_and_before_the_values_are_restored(tmp_path):
    options = {"algorithms": [Wrap()], "save_folder": tmp_path, "autoresume": True}
    expected = weights(make_trainer(**options).fit().model)

    resumed = make_trainer(linear(5), **options)

    assert same(weights(resumed.state.model), expected)
    assert list(expected) == ["0.weight", "0.bias"]


def test_callbacks_have_their_state(tmp_path):
    class Count(Callback):
        count = 0
        seen = None

        def after_load(self, state, logger):
            self.seen = self.count

        def batch_end(self, state, logger):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    options = {"save_folder": tmp_path, "autoresume": True}
    make_trainer(callbacks=[Count()], **options).fit()
    again = Count()
    make_trainer(callbacks=[again], **options)
    assert again.seen == 6


def test_resumed_run_continues_with_what_after_load_changed(trained_before):
    path, _ = trained_before

    def lengthen(event, state):
        return state.evolve(max_duration="3ep") if event is Event.AFTER_LOAD else state

    with pytest.warns(ChangedRunWarning):
        trainer = make_trainer(
            algorithms=[lengthen, EMA("1ba")], max_duration="1ep", load_path=path
        )
    assert trainer.fit().timestamp.epoch == 3


def test_file_of_another_program_names_arguments_that_the_trainer_has(tmp_path):
    torch.save({"epoch": 3, "net": linear(5).state_dict()}, tmp_path / "nested.pt")
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")

    with pytest.raises(MissingCheckpointError, match=r"other.pt' .*load_weights_only=True"):
        make_trainer(load_path=tmp_path / "other.pt")
    with pytest.raises(MismatchError) as caught:
        make_trainer(load_path=tmp_path / "nested.pt", load_weights_only=True)
    assert str(caught.value).endswith(
        "Drop load_path, and load them into the model before you build the Trainer, by "
        "composable.checkpoint.load_weights(model, path, key=...), such as key='net'."
    )
    with pytest.raises(MismatchError, match=r"list them in load_ignore_keys, such as load_ignore"):
        make_trainer(load_path=tmp_path / "other.pt", load_weights_only=True)
