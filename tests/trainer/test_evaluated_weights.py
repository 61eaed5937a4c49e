"""The weights of the model between two calls of a Trainer, and changes to them."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from composable import Algorithm, Event
from composable._support import surgery
from composable._support.tree import tensors_of
from composable.algorithms import EMA, SWA
from composable.checkpoint import load_weights
from composable.optim import SGDScheduleFree
from composable.optim.schedule_free import ScheduleFree
from composable.resume.modules import module_tensors
from composable.trainer import evaluated_weights
from composable.trainer.evaluated_weights import ChangedWeightsWarning
from tests.support.data import batches
from tests.support.models import linear, mlp, same, weights
from tests.support.runs import make_trainer, training_weights

AVERAGES = {
    "EMA": {"algorithms": [EMA("1ba")]},
    "SWA": {"algorithms": [SWA(swa_start="0ba", swa_end="99ba", update_interval="1ba")]},
    "schedule-free": {"optimizers": partial(SGDScheduleFree, lr=0.1)},
}
averages = pytest.mark.parametrize("options", AVERAGES.values(), ids=AVERAGES)


def through_data(model):
    model.weight.data.mul_(2)  # counted by no version


def in_place(model):
    with torch.no_grad():
        model.weight.mul_(2)


def loaded(model):
    model.load_state_dict(linear(7).state_dict())


def other_data(model):
    model.weight.data = model.weight.data * 2


def exchanged_rows(model):
    with torch.no_grad():
        model.weight.copy_(model.weight[[1, 0, 2]])


@averages
@pytest.mark.parametrize(("change", "seen"), [("one", True), ("data", False), ("same", None)])
def test_changes_of_a_large_tensor_are_seen_if_they_are_counted(options, change, seen, recwarn):
    model = nn.Sequential(nn.Linear(4, 500), nn.Linear(500, 3))
    trainer = make_trainer(model, **options)
    trainer.fit(duration="3ba")
    weight = model[0].weight
    if change == "same":
        weight.data = weight.data.clone()
        model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()})
    else:
        (weight.data if change == "data" else weight.detach())[1, 1] += 1
    trainer.eval(batches(12))

    if seen is None:  # an optimizer has no second copy of its averages to compare with
        seen = "optimizers" in options
    assert bool(recwarn) == seen


@averages
@pytest.mark.parametrize("change", [through_data, in_place, loaded, other_data, exchanged_rows])
def test_changed_weights_are_trained_and_the_average_starts_again(options, change):
    model = linear()
    trainer = make_trainer(model, **options)
    trainer.fit(duration="3ba")
    change(model)
    changed = weights(model)

    with pytest.warns(ChangedWeightsWarning, match="Training continues from the changed weights"):
        first = trainer.eval(batches(12))["eval"]["loss"]

    expected = make_trainer(linear(), loss_fn=trainer.state.loss_fn.function)
    expected.state.model.load_state_dict(changed)
    assert first == expected.eval(batches(12))["eval"]["loss"]
    seen = []
    trainer.add_callback(
        lambda e, s, _: seen.append(weights(s.model)) if e is Event.FIT_START else None
    )
    trainer.fit(duration="1ba")  # warned before
    assert same(seen[0], changed)
    if trainer.state.averages:
        (average,) = trainer.state.averages.values()
        assert same(average, training_weights(trainer))  # of one value
    assert trainer.state.timestamp.batch == 4


@averages
def test_weights_that_were_used_but_not_changed_are_no_warning(options):
    model = mlp()
    trainer, whole = make_trainer(model, **options), make_trainer(mlp(), **options)
    whole.fit(duration="4ba")

    for _ in range(4):
        trainer.fit(duration="1ba")
        model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()})
        model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        model.double().float()
        model.train()

    assert same(weights(model), weights(whole.state.model))
    assert same(training_weights(trainer), training_weights(whole))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "3", nn.Linear(5, 9)), r"3.bias has shape \[9\], and had \[3\]"),
        (lambda m: setattr(m, "3", nn.Linear(5, 3)), "3.bias is another parameter"),
        (lambda m: setattr(m, "4", nn.Linear(3, 3)), "4.bias is new"),
        (lambda m: m.__delattr__("3"), "3.bias is gone"),
    ],
)
def test_parameters_that_were_replaced_are_an_error(change, message):
    model = mlp()
    trainer = make_trainer(model, algorithms=[EMA("2ba")])
    trainer.fit(duration="3ba")
    change(model)

    with pytest.raises(ValueError, match=message + ".*build a new Trainer"):
        trainer.fit(duration="3ba")


def test_parameters_whose_shape_is_known_later_are_no_change():
    model = nn.Sequential(nn.LazyLinear(3))
    trainer = make_trainer(model, optimizers=None, max_duration=None)
    trainer.predict(batches(4))

    trainer._run.weights.check_names(trainer.state)
    assert model[0].weight.shape == (3, 4)


@averages
def test_model_holds_the_evaluated_weights_in_its_own_tensors(options):
    model = mlp()
    model[3].bias = nn.Parameter(torch.zeros(3))
    tensors = [*model.parameters()]
    before = [id(one) for one in tensors]
    trainer = make_trainer(model, **options)
    seen = {}

    def keep(event, state, logger):
        if event in (Event.FIT_END, Event.EVAL_STANDALONE_START):
            seen[event] = weights(state.model)

    trainer.add_callback(keep)
    trainer.fit()

    assert [id(one) for one in trainer.state.model.parameters()] == before
    assert same(seen[Event.FIT_END], training_weights(trainer))
    assert not same(seen[Event.FIT_END], weights(model))


def test_tied_parameters_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, inputs):
            return self.b(self.a(inputs))[:, :3]

    model, fresh = Tied(), Tied()
    trainer = make_trainer(model, algorithms=[EMA("2ba")])
    trainer.fit()
    trainer.save_checkpoint(tmp_path / "run")

    assert model.a.weight is model.b.weight
    load_weights(fresh, tmp_path / "run")
    assert same(weights(fresh), weights(model))
    fresh.load_state_dict(dict(zip(*zip(*model.state_dict().items(), strict=True), strict=True)))


def test_memory_that_is_full_is_that_of_the_host(monkeypatch):
    model = linear()
    trainer, clone = make_trainer(model, algorithms=[EMA("2ba")]), torch.Tensor.clone

    def full(tensor, *args, **kwargs):
        if tensor.shape == (3, 4):
            raise torch.OutOfMemoryError
        return clone(tensor, *args, **kwargs)

    def fill(event, state, logger):
        if event is Event.FIT_END:
            monkeypatch.setattr(torch.Tensor, "clone", full)

    trainer.add_callback(fill)
    trainer.fit()
    monkeypatch.undo()
    whole = make_trainer(linear(), algorithms=[EMA("2ba")])
    whole.fit()

    assert same(weights(model), weights(whole.state.model))
    assert same(training_weights(trainer), training_weights(whole))


class OtherAtEvaluation(Algorithm):
    """Evaluates a model with another parameter."""

    events = frozenset({Event.EVAL_START})
    writes = frozenset({"model"})

    def apply(self, event, state):
        return state.evolve(model=nn.Sequential(state.model, nn.Linear(3, 3)))


def test_evaluated_model_with_other_parameters_is_a_warning():
    with pytest.warns(UserWarning, match=r"other parameters or buffers, \['0.bias'.*training wei"):
        trainer = make_trainer(algorithms=[OtherAtEvaluation()], eval_dataloader=batches(4))
    with pytest.warns(UserWarning, match="which the trained model cannot hold"):
        trainer.fit()

    assert same(weights(trainer.state.model), weights(make_trainer().fit().model))


class Reads(TorchDispatchMode):
    """Counts the values of a model's tensors that each operation reads, unless it is paused."""

    def __init__(self, model):
        super().__init__()
        self.paused, self.found = False, Counter()
        self.owners = {t.untyped_storage()._cdata for t in module_tensors(model).values()}

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        owned = [t for t in tensors_of(arguments) if t.untyped_storage()._cdata in self.owners]
        if owned and not (self.paused or function.is_view):
            self.found[str(function)] = max(self.found[str(function)], *(t.numel() for t in owned))
        return result

    def __call__(self, event, state, logger):
        if event.name.endswith("BATCH_START"):
            self.paused = True
        elif event.name.endswith("BATCH_END"):
            self.paused = False

    def without(self, function):
        def quiet(*arguments, **named):
            before, self.paused = self.paused, True
            result = function(*arguments, **named)
            self.paused = before
            return result

        return quiet


@pytest.mark.parametrize("options", [{}, *AVERAGES.values()], ids=["none", *AVERAGES])
def test_calls_read_at_most_64_values_of_a_tensor_outside_of_steps(options, monkeypatch):
    model = nn.Sequential(nn.Linear(4, 200), nn.BatchNorm1d(200), nn.Linear(200, 3))
    reads = Reads(model)
    exchange = [(evaluated_weights, name) for name in ("copy_into", "copy_of", "equal_bits")]
    exchange += [(ScheduleFree, "eval"), (ScheduleFree, "train"), (surgery, "copy_on_write")]
    for place, name in exchange:
        monkeypatch.setattr(place, name, reads.without(getattr(place, name)))
    trainer = make_trainer(model, callbacks=[reads], **options)
    with reads:
        for _ in range(2):
            trainer.fit(duration="2ba")
            trainer.eval(batches(12))
            trainer.predict(batches(12))

    assert max(reads.found.values(), default=0) <= 64, reads.found
    assert bool(reads.found) == bool(options)
