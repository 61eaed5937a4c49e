"""What the training loop calls, and what a state holds when it does.

That it trains like a plain loop is in property_tests/test_transparency.py, the order of its events
and its length in property_tests/test_event_order.py.
"""

import pickle
import time
from collections import namedtuple
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Callback, Control, Event, State, Time, UnsupportedRequestWarning
from composable.algorithms import EMA, GradientClipping
from tests.support.data import batches
from tests.support.models import CLASSES, linear, same, seeded, weights
from tests.support.observers import Asks, Watch
from tests.support.runs import make_trainer, sgd, trained


def with_dropout():
    return seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES), nn.Dropout()))


# --- the loss ---


class WithLoss(nn.Linear):
    """A model with a loss of its own."""

    def __init__(self):
        super().__init__(4, CLASSES)
        self.called_with = []

    def forward(self, batch):
        self.called_with.append(batch)
        return super().forward(batch["x"])

    def loss(self, outputs, batch):
        assert batch is self.called_with[-1]
        return cross_entropy(outputs, batch["y"])


def test_model_with_a_loss_is_called_with_the_whole_batch():
    data = [{"x": x, "y": y} for x, y in batches(12)]
    model = seeded(WithLoss)

    assert same(trained(model, train_dataloader=data, loss_fn=None, input_key="x"), trained())
    assert set(model.called_with[0]) == {"x", "y"}


def test_loss_fn_overrides_the_loss_of_the_model():
    model = linear()
    model.loss = None

    assert same(trained(model, loss_fn=nn.CrossEntropyLoss()), trained())


@pytest.mark.parametrize("event", [Event.AFTER_DATALOADER, Event.BATCH_START, Event.BEFORE_LOSS])
def test_targets_and_loss_fn_replaced_by_an_algorithm_are_restored_after_the_step(event):
    def change(at, state):
        if at is not event:
            return state
        if event is Event.BEFORE_LOSS:
            return state.with_batch(targets=(state.targets + 1) % CLASSES)
        return state.evolve(loss_fn=lambda outputs, batch: 2 * given(outputs, batch))

    after = (Event.AFTER_LOSS, Event.AFTER_BACKWARD, Event.BATCH_END)
    seen = Watch(*after, read=lambda state: (state.targets, state.loss_fn))
    data = batches([4])
    trainer = make_trainer(train_dataloader=data, algorithms=[change], callbacks=[seen])
    given = trainer.state.loss_fn
    trainer.fit()

    targets = data[0][1]
    used = (targets + 1) % CLASSES if event is Event.BEFORE_LOSS else targets
    for i, (now, loss_fn) in enumerate(seen.values):
        assert torch.equal(now, targets if i % 3 else used)
        assert i % 3 < 2 or loss_fn is given


# --- the step ---


def test_model_starts_in_training_mode_without_gradients():
    model = with_dropout().eval()
    cross_entropy(model(torch.ones(1, 4)), torch.tensor([0])).backward()

    assert same(trained(model), trained(with_dropout()))
    assert all(module.training for module in model.modules())


def test_state_at_each_point_of_a_step():
    class Look(Callback):
        def before_forward(self, state, logger):
            assert state.inputs.shape == (4, 4)
            assert state.model.training

        def after_forward(self, state, logger):
            assert state.outputs.shape == (4, CLASSES)
            assert state.outputs.requires_grad

        def after_loss(self, state, logger):
            assert state.loss.requires_grad
            assert not list(state.current_gradients())

        def after_backward(self, state, logger):
            assert not state.loss.requires_grad
            assert sorted(state.current_gradients()) == ["bias", "weight"]

        def after_optimizer_step(self, state, logger):
            assert sorted(state.current_gradients()) == ["bias", "weight"]

        def batch_end(self, state, logger):
            assert not state.current_gradients()
            assert state.timestamp.batch_in_epoch > 0

    trainer = make_trainer(callbacks=[Look()])

    assert trainer.fit() is trainer.state


@pytest.mark.parametrize(
    "wrap",
    [
        sgd,
        lambda parameters: [sgd(parameters)],
        lambda parameters: partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        lambda parameters: lambda parameters: sgd(parameters),
        lambda parameters: tuple(sgd([one]) for one in parameters),
        lambda parameters: [sgd([next(parameters)]), lambda given: sgd(list(given)[1:])],
    ],
    ids=["instance", "list", "partial", "function", "two", "instance and function"],
)
def test_forms_of_optimizers(wrap):
    model = linear()

    assert same(trained(model, optimizers=wrap(model.parameters())), trained())


def test_zero_grad_of_an_optimizer_is_called():
    class Own(torch.optim.SGD):
        dropped = 0

        def zero_grad(self, set_to_none=True):
            Own.dropped += 1
            super().zero_grad(set_to_none)

    assert same(trained(optimizers=partial(Own, lr=0.1, momentum=0.9)), trained())
    assert Own.dropped == 7  # before the first batch, and after each of the six


def test_gradients_are_those_of_the_optimized_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, CLASSES))
    seen = Watch(Event.BEFORE_OPTIMIZER_STEP, read=lambda state: set(state.current_gradients()))

    make_trainer(model, optimizers=sgd(model[1].parameters()), callbacks=[seen]).fit()

    assert seen.values == [{"1.weight", "1.bias"}] * 6


def test_gradient_clipping_has_defaults():
    assert GradientClipping() == GradientClipping("norm", 1.0)


def test_clipped_gradients_update_the_weights_and_leave_the_tensors_of_backward():
    model = linear()
    before = weights(model)
    # Callbacks run after algorithms, so these are the gradients that backward wrote.
    held = Watch(
        Event.BEFORE_OPTIMIZER_STEP,
        read=lambda state: [(p.grad, p.grad.clone()) for p in model.parameters()],
    )
    clipping = GradientClipping("norm", 1e-3)

    after = trained(model, algorithms=[clipping], callbacks=[held], max_duration="1ba")

    update = torch.cat([(before[name] - after[name]).flatten() for name in before])
    assert update.norm() == pytest.approx(0.1 * 1e-3, rel=0.01)
    for grad, copy in held.values[0]:
        assert torch.equal(grad, copy)
        assert grad.norm() > 1e-3


# --- batches ---

Pair = namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        (lambda x, y: {"x": x, "y": y}, {"input_key": "x", "target_key": "y"}),
        (Pair, {}),
        (Pair, {"input_key": "image", "target_key": "label"}),
        (lambda x, y: [y, {"a": (x, "text")}], {"input_key": [1, "a", 0], "target_key": 0}),
        (lambda x, y: (x, y), {"input_key": lambda batch: batch[0]}),
        (
            lambda x, y: {"x": x, "y": y},
            {"input_key": (lambda b: b["x"], lambda b, v: {**b, "x": v}), "target_key": "y"},
        ),
    ],
)
def test_batches_of_any_structure(shape, keys):
    data = [shape(x, y) for x, y in batches(12)]

    assert same(trained(train_dataloader=data, grad_accum=2, **keys), trained(grad_accum=2))


def test_dataloader_with_more_batches_than_its_length():
    class Liar(list):
        def __len__(self):
            return 3

    started = Watch(Event.BATCH_START, read=lambda state: state.timestamp.batch)

    make_trainer(
        train_dataloader=Liar(5 * batches(12)[:1]), max_duration="3ba", callbacks=[started]
    ).fit()

    assert started.values == [0, 1, 2]


# --- time ---


@pytest.fixture
def seconds(monkeypatch):
    """Stop the clock; return a function that builds callbacks which advance it."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def passes(**durations):
        def let_pass(event, state, logger):
            now[0] += durations.get(event.value, 0.0)

        return let_pass

    return passes


def test_wall_time_excludes_evaluation(seconds):
    passes = seconds(batch_start=0.25, eval_batch_start=8.0)

    now = make_trainer(eval_dataloader=batches([4]), callbacks=[passes]).fit().timestamp

    assert now.total_wct == 6 * 0.25


@pytest.mark.parametrize(
    ("max_duration", "batch"), [("0.5s", 2), ("0.6s", 3), (1, 3), ("33tok", 3)]
)
def test_length_of_a_run_in_seconds_epochs_and_tokens(max_duration, batch, seconds):
    trainer = make_trainer(
        max_duration=max_duration,
        count_tokens=lambda batch: batch[0].numel(),
        callbacks=[seconds(batch_start=0.25)],
    )

    assert trainer.fit().timestamp.batch == batch


# --- requests ---


def test_stop_in_the_last_batch_of_an_epoch_ends_the_epoch():
    now = make_trainer(callbacks=[Asks(Event.BATCH_END, 2, Control.STOP)]).fit().timestamp

    assert (now.epoch, now.batch, now.batch_in_epoch) == (1, 3, 0)


def test_save_request_without_a_folder_warns():
    trainer = make_trainer(callbacks=[Asks(Event.BATCH_END, 1, Control.SAVE)])

    with pytest.warns(
        UnsupportedRequestWarning, match="requested Control.SAVE.*pass a save_folder"
    ):
        trainer.fit()


def test_state_parses_max_duration():
    assert State(linear()).evolve(max_duration="3ba").max_duration == Time("3ba")


def test_gradients_of_a_state_are_a_read_only_copy():
    given = {"weight": torch.zeros(1)}
    state = State(linear()).evolve(gradients=given)
    given["bias"] = torch.zeros(1)

    assert set(state.gradients) == {"weight"}
    with pytest.raises(TypeError):
        state.gradients["bias"] = torch.zeros(1)


def test_state_is_pickled():
    state = make_trainer(algorithms=[EMA("1ba")]).fit().evolve(loss_fn=None)
    loaded = pickle.loads(pickle.dumps(state))
    assert isinstance(loaded, State)
    assert same(weights(loaded.model), weights(state.model))
    assert same(loaded.averages["EMA"], state.averages["EMA"])
    assert loaded.timestamp == state.timestamp
    with pytest.raises(TypeError):
        loaded.memory["EMA"] = {}
    with pytest.raises(TypeError, match=r"cannot be pickled.* save_checkpoint\(path\)"):
        pickle.dumps(make_trainer())


REQUESTS = {
    "frozen": frozenset({"weight"}),
    "lr_override": lambda rate: 0.0,
    "gradients": {"weight": torch.zeros(CLASSES, 4), "bias": torch.ones(CLASSES)},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_step_without_algorithms_follows_the_requests_of_its_state(name):
    trainer = make_trainer()
    before = weights(trainer.state.model)

    state = trainer.train_batch(trainer.state.evolve(batch=batches(4)[0], **{name: REQUESTS[name]}))

    after = weights(state.model)
    assert torch.equal(after["weight"], before["weight"])
    assert torch.equal(after["bias"], before["bias"]) is (name == "lr_override")
    assert (state.frozen, state.lr_override, state.gradients) == (frozenset(), None, None)
