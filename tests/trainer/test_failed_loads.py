"""A load that fails changes nothing, whichever part fails: while building, and in a run."""

import copy
import shutil

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from composable import Algorithm, Callback, Event
from composable._support.tree import map_tensors
from composable.algorithms import EMA
from composable.callbacks import EarlyStopper
from composable.loggers import JSONLinesLogger
from composable.resume import ChangedRunWarning
from composable.resume.modules import module_tensors
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.run import Run
from tests.support.data import batches, shuffling_loader
from tests.support.models import seeded
from tests.support.outcomes import differences
from tests.support.runs import make_trainer

ARMED: set[str] = set()
"""The parts that refuse to be restored, after they have changed."""


def trip(part):
    if part in ARMED:
        raise ValueError(f"{part} refuses")


class Refusing(nn.Module):
    """A module with a state of its own beside tensors."""

    part = "model"

    def __init__(self):
        super().__init__()
        self.net = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        self.calls = ["none"]

    def forward(self, inputs):
        self.calls = [f"{self.calls[0]}+"]
        return self.net(inputs)

    def get_extra_state(self):
        return self.calls

    def set_extra_state(self, state):
        self.calls = state
        trip(self.part)


class Loss(Refusing):
    part = "loss_fn"

    def forward(self, outputs, targets):
        return cross_entropy(self.net(nn.functional.pad(outputs, (0, 1))), targets)


class RefusingSGD(SGD):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        trip("optimizers")


class RefusingStepLR(StepLR):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        trip("schedulers")


class Count(Callback):
    """Refuses its state, or what it sees of the restored run."""

    count, after = 0, 0

    def batch_end(self, state, logger):
        self.count += 1

    def after_load(self, state, logger):
        self.after += 1
        trip("after_load of a callback")

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
        trip("callbacks")


class Remembers(Algorithm):
    """Changes the weights in place when they were loaded, and refuses a memory, or them."""

    events = frozenset({Event.BATCH_END, Event.AFTER_LOAD})
    reads = writes = frozenset({"memory"})

    def apply(self, event, state):
        if event is Event.AFTER_LOAD:
            with torch.no_grad():
                next(state.model.parameters()).zero_()
            trip("after_load of an algorithm")
        return state.remember(self.name, state.timestamp.batch)

    def check_memory(self, memory, state):
        trip("memory")


OF_USERS = (
    *("model", "loss_fn", "optimizers", "schedulers", "callbacks", "memory"),
    *("after_load of an algorithm", "after_load of a callback"),
)
PARTS = [name for field in Run.__attrs_attrs__ for name in field.metadata.values()]
LIVE = [
    one for one in (*OF_USERS, *PARTS) if not one.startswith(("after_load", "guard", "progress"))
]


def of_user():
    """Build what a user passes to a Trainer."""
    own = torch.Generator().manual_seed(3)
    model, loss = Refusing(), Loss()
    optimizer = RefusingSGD([*model.parameters(), *loss.parameters()], lr=0.1, momentum=0.9)
    return {
        "model": model,
        "loss_fn": loss,
        "optimizers": optimizer,
        "schedulers": RefusingStepLR(optimizer, step_size=1),
        "train_dataloader": shuffling_loader(12, generator=own),
        "callbacks": [EarlyStopper("loss", patience="9ep"), Count()],
    }


def build(given, folder, **options):
    return make_trainer(
        **given,
        algorithms=[EMA("1ba"), Remembers()],
        eval_dataloader=batches([4]),
        loggers=JSONLinesLogger(folder / "metrics.jsonl"),
        save_folder=folder,
        save_interval="2ba",
        nonfinite_loss="rollback",
        check_effects=False,
        **options,
    )


def tensors(module):
    return {name: tensor.detach() for name, tensor in module_tensors(module).items()}


def left(given, folder):
    """Return everything of a user that a load may change."""
    modules = {name: given[name] for name in ("model", "loss_fn")}
    return copy.deepcopy(
        {
            "tensors": {name: tensors(one) for name, one in modules.items()},
            "modes": [m.training for one in modules.values() for m in one.modules()],
            "trained": [p.requires_grad for one in modules.values() for p in one.parameters()],
            "extra": {name: one.get_extra_state() for name, one in modules.items()},
            "optimizer": given["optimizers"].state_dict(),
            "scheduler": given["schedulers"].state_dict(),
            "generator": given["train_dataloader"].generator.get_state(),
            "drawn": torch.get_rng_state(),
            "callbacks": [one.state_dict() for one in given["callbacks"]],
            "files": {str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()},
        }
    )


@pytest.fixture
def refusing(monkeypatch):
    """Let a part of a run refuse to be restored."""

    def arm(part, run):
        if part in run.parts:
            kind = type(run.parts[part])
            load = kind.load_state_dict

            def refuse(self, state):
                load(self, state)
                trip(part)

            monkeypatch.setattr(kind, "load_state_dict", refuse)
        ARMED.add(part)

    yield arm
    ARMED.clear()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    trainer = build(of_user(), folder, max_duration="3ba")
    trainer.fit()
    return folder, trainer._run


@pytest.mark.parametrize("part", [*OF_USERS, *PARTS])
def test_a_load_that_fails_while_a_trainer_is_built_changes_nothing(part, saved, refusing):
    folder, run = saved
    given = of_user()
    given["model"].net[1].eval().weight.requires_grad_(False)
    before = left(given, folder)
    refusing(part, run)

    with pytest.raises(Exception, match=f"{part} refuses"):
        build(given, folder, load_path=folder / "ep0-ba2", save_overwrite=True)

    assert differences(before, left(given, folder)) == []


def test_a_difference_that_is_an_error_changes_nothing(saved):
    given = of_user()
    before = left(given, saved[0])

    with pytest.raises(ChangedRunWarning):  # warnings are errors in tests
        build(given, saved[0], autoresume=True, grad_accum=2)

    assert differences(before, left(given, saved[0])) == []


@pytest.mark.parametrize("part", LIVE)
def test_a_load_that_fails_in_a_run_changes_nothing(part, refusing, tmp_path):
    given, other = of_user(), of_user()
    build(other, tmp_path / "whole", max_duration="6ba").fit()
    trainer = build(given, tmp_path / "run", max_duration="6ba")
    trainer.fit(duration="3ba")
    checkpoints, run = trainer._checkpoints, trainer._run
    shutil.rmtree(tmp_path / "run" / "ep1-ba3")  # so that batch 2 is loaded

    def everything():
        tree = {**checkpoints.capture(False), "guard": None}  # it counts the attempt
        waiting = {**vars(checkpoints.callbacks), "session": None}
        return left(given, tmp_path / "run"), map_tensors(torch.clone, tree), waiting

    with trainer._training():
        before = everything()
        refusing(part, run)
        with pytest.raises(Exception, match=f"{part} refuses"):
            checkpoints.roll_back(NonFiniteLossError("NaN", batch=99))
        assert differences(before, everything()) == []
    ARMED.clear()
    trainer.fit(duration="3ba")
    assert differences(tensors(given["model"]), tensors(other["model"])) == []
