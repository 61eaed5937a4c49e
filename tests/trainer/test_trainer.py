"""The loop: what it calls, with what, and when."""

import time
from collections import namedtuple
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from composable import (
    Callback,
    Control,
    Event,
    State,
    Time,
    Trainer,
    UnsupportedRequestWarning,
)
from composable.algorithms import EMA, BlurPool, GradientClipping
from composable.loggers import InMemoryLogger
from composable.utils.reproducibility import seed_step
from tests.support.tiny import (
    CLASSES,
    Ask,
    Watch,
    batches,
    linear,
    make_trainer,
    same,
    seeded,
    sgd,
    weights,
)

# Training


def test_a_plain_module_trains_as_in_a_plain_loop():
    by_hand = linear()
    optimizer = sgd(by_hand.parameters())
    for _ in range(2):
        for inputs, targets in batches():
            cross_entropy(by_hand(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    trainer = make_trainer()
    state = trainer.fit()

    assert same(weights(state.model), weights(by_hand))
    assert trainer.state is state
    assert state.timestamp.batch == 6


def test_a_model_with_a_loss_gets_the_whole_batch():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()
            self.called_with = []

        def forward(self, batch):
            self.called_with.append(batch)
            return self.layer(batch["x"])

        def loss(self, outputs, batch):
            assert batch is self.called_with[-1]
            return cross_entropy(outputs, batch["y"])

    data = [{"x": x, "y": y} for x, y in batches()]
    model = WithLoss()
    trainer = make_trainer(model, train_dataloader=data, loss_fn=None, input_key="x")
    trainer.fit()

    plain = make_trainer()
    plain.fit()
    assert same(weights(model.layer), weights(plain.state.model))
    assert set(model.called_with[0]) == {"x", "y"}


def test_a_given_loss_comes_before_that_of_the_model():
    class WithLoss(nn.Linear):
        def loss(self, outputs, batch):
            raise AssertionError

    trainer = make_trainer(WithLoss(4, CLASSES), loss_fn=cross_entropy)
    trainer.fit()


@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), lambda o, t: cross_entropy(o, t)])
def test_a_loss_may_be_any_callable(loss_fn):
    plain = make_trainer()
    plain.fit()
    trainer = make_trainer(loss_fn=loss_fn)
    trainer.fit()

    assert same(weights(trainer.state.model), weights(plain.state.model))


def test_the_events_of_a_step_fire_in_the_documented_order():
    watch = Watch()
    trainer = make_trainer(
        train_dataloader=batches([4, 4]),
        eval_dataloader=batches([4]),
        max_duration="1ep",
        callbacks=[watch],
    )
    assert [e.value for e, _ in watch.seen] == ["init", "before_load", "after_load"]
    watch.seen.clear()
    trainer.fit()

    step = """
        before_dataloader after_dataloader batch_start before_train_batch before_forward
        after_forward before_loss after_loss before_backward after_backward after_train_batch
        before_optimizer_step after_optimizer_step before_zero_grad after_zero_grad batch_end
        batch_checkpoint
    """
    evaluation = """
        eval_before_all eval_start eval_batch_start eval_before_forward eval_after_forward
        eval_batch_end eval_end eval_after_all
    """
    expected = f"""
        fit_start iteration_start epoch_start {step} {step} before_dataloader epoch_end
        {evaluation} epoch_checkpoint iteration_end iteration_checkpoint fit_end
    """
    seen = [e.value for e, _ in watch.seen]
    assert seen == expected.split()


def test_what_a_state_holds_at_each_point():
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

    make_trainer(callbacks=[Look()]).fit()


def test_a_batch_that_an_algorithm_changed_for_the_loss_is_back_after_the_step():
    data = batches([4])
    after = (Event.AFTER_LOSS, Event.AFTER_BACKWARD, Event.BATCH_END)
    seen = Watch(*after, read=lambda s: s.targets.tolist())

    def flip(event, state):
        if event is Event.BEFORE_LOSS:
            return state.with_batch(targets=(state.targets + 1) % CLASSES)
        return state

    make_trainer(
        train_dataloader=data, max_duration="1ep", algorithms=[flip], callbacks=[seen]
    ).fit()

    targets = data[0][1]
    assert seen.values == [((targets + 1) % CLASSES).tolist(), *[targets.tolist()] * 2]


def test_gradients_left_by_somebody_else_are_not_trained_on():
    plain = make_trainer()
    plain.fit()
    model = linear()
    trainer = make_trainer(model)
    cross_entropy(model(torch.ones(1, 4)), torch.tensor([0])).backward()

    trainer.fit()

    assert same(weights(model), weights(plain.state.model))


def test_fit_returns_the_global_generators_as_they_were():
    before = torch.get_rng_state()

    make_trainer(seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES), nn.Dropout()))).fit()

    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_that_of_the_public_helper():
    def build():
        return seeded(lambda: nn.Sequential(nn.Dropout(), nn.Linear(4, CLASSES)))

    by_hand = build()
    optimizer = sgd(by_hand.parameters())
    with torch.random.fork_rng():
        for step, (inputs, targets) in enumerate(batches()):
            seed_step(17, step)
            cross_entropy(by_hand(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    trainer = make_trainer(build(), max_duration="1ep")
    trainer.fit()

    assert same(weights(trainer.state.model), weights(by_hand))


# Optimizers


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model: [torch.optim.SGD(model.parameters(), lr=0.1)],
        lambda model: partial(torch.optim.SGD, lr=0.1),
        lambda model: lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda model: (
            torch.optim.SGD([model.weight], lr=0.1),
            torch.optim.SGD([model.bias], lr=0.1),
        ),
        lambda model: [
            torch.optim.SGD([model.weight], lr=0.1),
            lambda parameters: torch.optim.SGD(list(parameters)[1:], lr=0.1),
        ],
    ],
    ids=["instance", "list", "partial", "function", "two", "instance and function"],
)
def test_optimizers_may_be_given_in_any_form(wrap):
    plain = make_trainer()
    plain.fit()
    model = linear()

    make_trainer(model, optimizers=wrap(model)).fit()

    assert same(weights(model), weights(plain.state.model))


def test_each_of_two_optimizers_steps_with_its_own_rate():
    model = linear()
    before = weights(model)
    optimizers = [
        torch.optim.SGD([model.weight], lr=0.1),
        torch.optim.SGD([model.bias], lr=0.0),
    ]

    make_trainer(model, optimizers=optimizers).fit()

    assert not torch.equal(model.weight, before["weight"])
    assert torch.equal(model.bias, before["bias"])


def strided():
    """Build a small convolutional classifier with two layers that BlurPool replaces."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2, CLASSES),
        )
    )


def image_batches(count=3):
    return [(x.reshape(4, 1, 6, 6), y) for x, y in batches([4] * count, features=36)]


def test_an_optimizer_made_before_surgery_still_trains_every_parameter():
    model = strided()
    before = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    blur = BlurPool(min_channels=1)

    trainer = make_trainer(
        model, optimizers=optimizer, algorithms=[blur], train_dataloader=image_batches()
    )
    trainer.fit()

    after = weights(trainer.state.model)
    assert type(trainer.state.model[0]).__name__ == "BlurConv2d"
    assert trainer.state.optimizers == (optimizer,)
    assert before.keys() == after.keys()
    assert not any(torch.equal(before[name], after[name]) for name in before)

    factory = make_trainer(
        strided(),
        optimizers=partial(torch.optim.SGD, lr=0.5),
        algorithms=[blur],
        train_dataloader=image_batches(),
    )
    factory.fit()
    assert same(weights(factory.state.model), after)


def test_surgery_leaves_the_model_that_was_given():
    model = strided()

    trainer = make_trainer(
        model, algorithms=[BlurPool(min_channels=1)], train_dataloader=image_batches()
    )

    assert type(model[0]) is nn.Conv2d
    assert trainer.state.model is not model


# Schedules


def rates_of(**changes):
    memory = InMemoryLogger()
    make_trainer(loggers=[memory], **changes).fit()
    return memory.series("lr")


def with_scheduler(build, **changes):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return rates_of(model=model, optimizers=optimizer, schedulers=build(optimizer), **changes)


halving = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)


def test_a_torch_scheduler_steps_after_each_epoch():
    assert with_scheduler(halving) == [1.0] * 3 + [0.5] * 3


def test_a_torch_scheduler_steps_after_each_batch_where_asked():
    rates = with_scheduler(halving, step_schedulers_every_batch=True)

    assert rates == [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]


def test_a_torch_scheduler_may_be_a_class_to_be_built():
    assert rates_of(schedulers=halving) == [0.1] * 3 + [0.05] * 3


def test_a_schedule_is_a_function_of_time():
    assert rates_of(schedulers=lambda clock: clock.timestamp.batch) == pytest.approx(
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    )


def test_schedules_multiply():
    rates = rates_of(schedulers=[lambda clock: 0.5, lambda clock: clock.timestamp.epoch + 1])

    assert rates == pytest.approx([0.05] * 3 + [0.1] * 3)


def test_a_schedule_counts_from_the_rate_that_the_optimizer_was_made_with():
    model = linear()
    optimizer = torch.optim.SGD(
        [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 2.0}], lr=0.1
    )
    trainer = make_trainer(model, optimizers=optimizer, schedulers=lambda clock: 0.5)
    trainer.fit()
    trainer.fit(duration="1ep")

    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1.0]


class Constant(nn.Module):
    """A model whose loss does not change, so that a plateau is certain."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, CLASSES))

    def forward(self, inputs):
        return (inputs @ self.weight) * 0.0


def test_a_plateau_scheduler_follows_the_loss_of_the_first_evaluator():
    model = Constant()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)

    rates = rates_of(
        model=model,
        optimizers=optimizer,
        schedulers=plateau,
        eval_dataloader=batches([4]),
        max_duration="3ep",
    )

    assert rates == pytest.approx([1.0] * 6 + [0.1] * 3)
    assert plateau.best == pytest.approx(torch.tensor(CLASSES).log().item())


def test_a_plateau_scheduler_waits_for_the_evaluator_it_follows():
    from composable import Evaluator

    model = Constant()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    evaluators = [
        Evaluator("rare", batches([4]), eval_interval="2ep"),
        Evaluator("often", batches([4]), eval_interval="1ep"),
    ]

    rates = rates_of(
        model=model,
        optimizers=optimizer,
        schedulers=plateau,
        eval_dataloader=evaluators,
        max_duration="5ep",
    )

    # Evaluated after epochs 2 and 4: the second time it has not improved.
    assert rates == pytest.approx([1.0] * 12 + [0.1] * 3)


# Batches of other shapes, microbatches


Pair = namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        (lambda x, y: {"x": x, "y": y}, {"input_key": "x", "target_key": "y"}),
        (lambda x, y: Pair(x, y), {}),
        (lambda x, y: Pair(x, y), {"input_key": "image", "target_key": "label"}),
        (lambda x, y: [y, {"a": (x, "text")}], {"input_key": [1, "a", 0], "target_key": 0}),
        (lambda x, y: (x, y), {"input_key": lambda batch: batch[0]}),
        (
            lambda x, y: {"x": x, "y": y},
            {"input_key": (lambda b: b["x"], lambda b, v: {**b, "x": v}), "target_key": "y"},
        ),
    ],
)
def test_batches_of_any_shape_train_alike(shape, keys):
    plain = make_trainer(grad_accum=2)
    plain.fit()

    data = [shape(x, y) for x, y in batches()]
    trainer = make_trainer(train_dataloader=data, grad_accum=2, **keys)
    trainer.fit()

    assert same(weights(trainer.state.model), weights(plain.state.model))


@pytest.mark.parametrize("split", [{"grad_accum": 2}, {"microbatch_size": 3}])
def test_microbatches_add_up_to_the_batch(split):
    sizes = [4, 5, 3]
    whole = make_trainer(train_dataloader=batches(sizes))
    whole.fit()
    watch = Watch(Event.AFTER_FORWARD, read=lambda s: len(s.inputs))

    trainer = make_trainer(train_dataloader=batches(sizes), callbacks=[watch], **split)
    trainer.fit()

    for ours, theirs in zip(
        trainer.state.model.parameters(), whole.state.model.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    expected = {"grad_accum": [2, 2, 3, 2, 2, 1], "microbatch_size": [3, 1, 3, 2, 3]}
    assert watch.values == 2 * expected[next(iter(split))]
    torch.testing.assert_close(trainer.state.loss, whole.state.loss)


def test_a_loss_over_tokens_weighs_microbatches_by_their_tokens():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 4, generator=draw)
    targets = torch.tensor([0, -100, -100, 2])
    data = [(inputs, targets)]
    whole = make_trainer(train_dataloader=data)
    whole.fit()

    trainer = make_trainer(train_dataloader=data, microbatch_size=3, loss_mean_over="tokens")
    trainer.fit()

    torch.testing.assert_close(trainer.state.model.weight, whole.state.model.weight)
    torch.testing.assert_close(trainer.state.loss, whole.state.loss)


def test_a_microbatch_without_tokens_has_no_share():
    inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    data = [(inputs, torch.tensor([0, 1, -100, -100]))]
    whole = make_trainer(train_dataloader=data)
    whole.fit()

    trainer = make_trainer(train_dataloader=data, grad_accum=2, loss_mean_over="tokens")
    trainer.fit()

    torch.testing.assert_close(trainer.state.model.weight, whole.state.model.weight)
    torch.testing.assert_close(trainer.state.loss, whole.state.loss)


def test_the_tensors_of_a_batch_are_on_the_device():
    watch = Watch(Event.AFTER_DATALOADER, read=lambda s: (s.inputs.device, s.device))

    make_trainer(device="cpu", callbacks=[watch]).fit()

    cpu = torch.device("cpu")
    assert set(watch.values) == {(cpu, cpu)}


# Counting


def test_timestamps_count_batches_samples_and_tokens():
    watch = Watch(Event.BATCH_END, read=lambda s: s.timestamp)
    trainer = make_trainer(
        train_dataloader=batches([4, 4, 2]),
        callbacks=[watch],
        count_tokens=lambda batch: batch[0].numel(),
    )
    now = trainer.fit().timestamp

    assert [t.batch for t in watch.values] == [1, 2, 3, 4, 5, 6]
    assert [t.sample for t in watch.values] == [4, 8, 10, 14, 18, 20]
    assert [t.token for t in watch.values] == [16, 32, 40, 56, 72, 80]
    assert [t.sample_in_epoch for t in watch.values] == [4, 8, 10] * 2
    assert [t.epoch for t in watch.values] == [0, 0, 0, 1, 1, 1]
    assert (now.epoch, now.batch_in_epoch, now.iteration) == (2, 0, 1)


def test_wall_time_leaves_evaluation_out():
    class Slow(Callback):
        def eval_batch_start(self, state, logger):
            time.sleep(0.2)

        def batch_start(self, state, logger):
            time.sleep(0.01)

    now = make_trainer(eval_dataloader=batches([4]), callbacks=[Slow()]).fit().timestamp

    assert 0.06 <= now.total_wct < 0.3  # six batches; the two evaluations took 0.4 s


@pytest.mark.parametrize(
    ("max_duration", "batch"), [("4ba", 4), (1, 3), ("9sp", 3), ("2ep", 6), ("33tok", 3)]
)
def test_a_run_is_as_long_as_it_was_asked_to_be(max_duration, batch):
    trainer = make_trainer(max_duration=max_duration, count_tokens=lambda b: b[0].numel())

    assert trainer.fit().timestamp.batch == batch


def test_a_run_may_be_measured_in_seconds():
    class Slow(Callback):
        def batch_start(self, state, logger):
            time.sleep(0.03)

    now = make_trainer(max_duration="0.1s", callbacks=[Slow()]).fit().timestamp

    assert 1 <= now.batch <= 4
    assert now.total_wct >= 0.1


def test_iterations_are_groups_of_epochs():
    watch = Watch(
        Event.ITERATION_START,
        Event.ITERATION_END,
        read=lambda s: (s.timestamp.iteration, s.timestamp.epoch),
    )
    trainer = make_trainer(max_duration="2iter", iteration_length="2ep", callbacks=[watch])
    now = trainer.fit().timestamp

    assert (now.iteration, now.epoch) == (2, 4)
    assert [(e.name, *v) for e, v in watch.seen] == [
        ("ITERATION_START", 0, 0),
        ("ITERATION_END", 1, 2),
        ("ITERATION_START", 1, 2),
        ("ITERATION_END", 2, 4),
    ]


def test_a_loader_without_a_length_is_gone_through_to_its_end():
    class Stream:
        def __iter__(self):
            return iter(batches())

    plain = make_trainer()
    plain.fit()
    trainer = make_trainer(train_dataloader=Stream())
    now = trainer.fit().timestamp

    assert trainer.state.epoch_length is None
    assert (now.epoch, now.batch) == (2, 6)
    assert same(weights(trainer.state.model), weights(plain.state.model))


# Fit again


def test_fitting_twice_is_fitting_for_longer():
    longer = make_trainer(max_duration="3ep")
    longer.fit()

    trainer = make_trainer(max_duration="1ep")
    trainer.fit()
    trainer.fit(duration="1ep")
    now = trainer.fit(duration="3ba").timestamp

    assert (now.epoch, now.batch) == (3, 9)
    assert same(weights(trainer.state.model), weights(longer.state.model))


def test_a_run_can_go_on_in_the_middle_of_an_epoch():
    longer = make_trainer(max_duration="2ep")
    longer.fit()
    watch = Watch(Event.EPOCH_START, Event.EPOCH_END, read=lambda s: s.timestamp.batch)

    trainer = make_trainer(max_duration="2ba", callbacks=[watch])
    trainer.fit()
    trainer.fit(duration="4ba")

    assert same(weights(trainer.state.model), weights(longer.state.model))
    assert [(e.name, b) for e, b in watch.seen] == [
        ("EPOCH_START", 0),
        ("EPOCH_END", 3),
        ("EPOCH_START", 3),
        ("EPOCH_END", 6),
    ]


def test_a_run_can_go_on_after_a_fit_for_a_duration_without_max_duration():
    trainer = make_trainer(max_duration=None)

    trainer.fit(duration="2ba")

    assert trainer.fit(duration="3ba").timestamp.batch == 5


# Requests


def asking(control, event=Event.BATCH_END, batch=2, **changes):
    trainer = make_trainer(callbacks=[Ask(control, event, batch)], **changes)
    trainer.fit()
    return trainer


@pytest.mark.parametrize("event", [Event.BATCH_START, Event.AFTER_LOSS, Event.BATCH_END])
def test_a_callback_can_stop_training_after_its_batch(event):
    batch = 2 if event is Event.BATCH_END else 1

    assert asking(Control.STOP, event, batch).state.timestamp.batch == 2


def test_training_stopped_at_the_end_of_an_epoch_ends_the_epoch():
    now = asking(Control.STOP, Event.BATCH_END, 3).state.timestamp

    assert (now.epoch, now.batch, now.batch_in_epoch) == (1, 3, 0)


def test_a_stopped_run_can_go_on():
    plain = make_trainer()
    plain.fit()

    trainer = asking(Control.STOP, batch=2)
    trainer.fit()

    assert trainer.state.timestamp.batch == 6
    assert same(weights(trainer.state.model), weights(plain.state.model))


def test_a_callback_can_end_the_epoch():
    trainer = asking(Control.END_EPOCH, batch=2)

    now = trainer.state.timestamp
    assert (now.epoch, now.batch) == (2, 5)  # two batches, and then three


def test_a_callback_can_ask_for_an_evaluation():
    watch = Watch(Event.EVAL_START, read=lambda s: s.timestamp.batch)
    make_trainer(
        eval_dataloader=batches([4]),
        eval_interval=None,
        callbacks=[Ask(Control.EVALUATE, Event.BATCH_END, 2), watch],
    ).fit()

    assert watch.values == [2]


def test_a_callback_can_ask_for_a_save():
    saved = []
    watch = Watch(Event.BEFORE_SAVE, Event.AFTER_SAVE, read=lambda s: s.timestamp.batch)
    trainer = make_trainer(
        saver=lambda state: saved.append(state),
        callbacks=[
            Ask(Control.SAVE, Event.BATCH_CHECKPOINT, 2),
            Ask(Control.SAVE, Event.EPOCH_CHECKPOINT, 6),
            watch,
        ],
    )
    trainer.fit()

    assert [state.timestamp.batch for state in saved] == [2, 6]
    assert all(type(state) is State for state in saved)
    assert [(e.name, b) for e, b in watch.seen] == [
        ("BEFORE_SAVE", 2),
        ("AFTER_SAVE", 2),
        ("BEFORE_SAVE", 6),
        ("AFTER_SAVE", 6),
    ]


def test_a_save_without_a_folder_is_reported():
    with pytest.warns(
        UnsupportedRequestWarning, match="requested Control.SAVE.*pass a save_folder"
    ):
        asking(Control.SAVE)


def test_a_callback_can_ask_for_a_log():
    memory = InMemoryLogger()
    asking(Control.LOG, batch=2, loggers=[memory], log_interval="4ba")

    assert [t.batch for t, _ in memory.records] == [2, 4]


# Logging


def test_loss_and_rate_are_logged_with_their_time():
    memory = InMemoryLogger()
    losses = Watch(Event.BATCH_END, read=lambda s: s.loss.item())

    make_trainer(loggers=[memory], callbacks=[losses]).fit()

    assert memory.series("loss/train") == losses.values
    assert memory.series("lr") == [0.1] * 6
    assert [t.batch for t, _ in memory.records] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("interval", "logged"),
    [("2ba", [2, 4, 6]), ("1ep", [3, 6]), ("0.5dur", [3, 6]), ("12sp", [3, 6]), (2, [6])],
)
def test_the_loop_logs_each_interval(interval, logged):
    memory = InMemoryLogger()
    make_trainer(loggers=[memory], log_interval=interval).fit()

    assert [t.batch for t, _ in memory.records] == logged


def test_an_epoch_of_unknown_length_is_logged_when_it_is_over():
    class Stream:
        def __iter__(self):
            return iter(batches())

    memory = InMemoryLogger()
    make_trainer(train_dataloader=Stream(), loggers=[memory], log_interval="1ep").fit()

    assert [t.batch for t, _ in memory.records] == [3, 6]


def test_every_optimizer_and_group_has_its_rate_logged():
    memory, model = InMemoryLogger(), linear()
    optimizers = [
        torch.optim.SGD([{"params": [model.weight], "lr": 0.1}], lr=0.5),
        torch.optim.SGD([model.bias], lr=0.2),
    ]
    optimizers[0].add_param_group({"params": [], "lr": 0.3})

    make_trainer(model, optimizers=optimizers, loggers=[memory], max_duration="1ba").fit()

    _, metrics = memory.records[0]
    del metrics["loss/train"]
    assert metrics == {"lr": 0.1, "lr/group1": 0.3, "lr/optimizer1": 0.2}


def test_what_a_run_was_started_with_is_logged():
    memory = InMemoryLogger()
    make_trainer(loggers=[memory], algorithms=[EMA("10ba")], schedulers=lambda c: 1.0).fit()

    given = memory.hyperparameters
    assert given["seed"] == 17
    assert given["max_duration"] == "2ep"
    assert given["optimizers"] == ["SGD"]
    assert given["algorithms"]["EMA"].startswith("EMA(half_life=Time('10ba')")
    assert given["torch"] == torch.__version__


def test_without_a_seed_one_is_drawn_and_recorded():
    memory = InMemoryLogger()
    trainer = make_trainer(seed=None, loggers=[memory])
    other = make_trainer(seed=None)
    trainer.fit()

    assert memory.hyperparameters["seed"] == trainer.state.key.seed
    assert trainer.state.key != other.state.key


def test_the_seed_is_the_one_that_was_given():
    assert make_trainer(seed=2**64 - 1).state.key.seed == 2**64 - 1


# Clipping, through the loop


def test_clipping_bounds_the_update_and_leaves_held_gradients_alone():
    model = linear()
    before = weights(model)
    held = []

    class Hold(Callback):
        def before_optimizer_step(self, state, logger):
            held.append([(p.grad, p.grad.clone()) for p in model.parameters()])

    # Callbacks run after algorithms, so these are the gradients that backward wrote.
    make_trainer(
        model,
        algorithms=[GradientClipping("norm", 1e-3)],
        callbacks=[Hold()],
        max_duration="1ba",
    ).fit()

    update = [before[name] - tensor for name, tensor in weights(model).items()]
    norm = torch.linalg.vector_norm(torch.cat([u.flatten() for u in update]))
    assert norm <= 0.1 * 1e-3 * 1.01
    assert norm > 0.1 * 1e-3 * 0.99
    for grad, copy in held[0]:
        assert torch.equal(grad, copy)
        assert grad.norm() > 1e-3


def test_clipping_that_never_binds_changes_nothing():
    plain = make_trainer()
    plain.fit()
    trainer = make_trainer(algorithms=[GradientClipping("value", 1e6)])
    trainer.fit()

    assert same(weights(trainer.state.model), weights(plain.state.model))


# Regression, so that nothing is about classes alone


def test_a_regression_trains():
    data = [(x, x.sum(1, keepdim=True)) for x, _ in batches()]
    trainer = make_trainer(
        seeded(lambda: nn.Linear(4, 1)),
        train_dataloader=data,
        loss_fn=mse_loss,
        max_duration="60ep",
    )
    assert trainer.fit().loss < 0.01


def test_the_example_of_the_docs_needs_no_more_than_it_says():
    trainer = Trainer(
        linear(),
        train_dataloader=batches(),
        max_duration=1,
        loss_fn=cross_entropy,
        optimizers=sgd,
        progress_bar=False,
    )

    assert trainer.fit().max_duration == Time.parse("1ep")


# Interruptions, counts, and other edges


def test_a_batch_without_a_token_has_no_share_for_a_function_that_counts_either():
    inputs, targets = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, -100, -100])
    trainer = make_trainer(
        train_dataloader=[(inputs, targets)],
        eval_dataloader=[(inputs[4:], targets[4:]), (inputs[:4], targets[:4])],
        max_duration="1ba",
        grad_accum=3,
        loss_mean_over=lambda batch: int((batch[1] != -100).sum()),
    )

    model = nn.Linear(4, CLASSES)
    model.load_state_dict(trainer.state.model.state_dict())
    expected = cross_entropy(model(inputs), targets)
    state = trainer.fit()

    assert torch.allclose(state.loss, expected)
    loss = cross_entropy(state.model(inputs[:4]), targets[:4]).item()
    assert state.metrics["eval"]["loss"] == pytest.approx(loss)


def test_the_gradients_that_the_optimizers_see_are_those_of_their_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, CLASSES))
    seen = []

    def look(event, state):
        if event is Event.BEFORE_OPTIMIZER_STEP:
            seen.append(set(state.current_gradients()))
        return state

    make_trainer(
        model, optimizers=torch.optim.SGD(model[1].parameters(), lr=0.1), algorithms=look
    ).fit()

    assert seen
    assert all(names == {"1.weight", "1.bias"} for names in seen)


def test_a_loader_with_more_batches_than_its_length_does_not_overshoot():
    class Liar(list):
        def __len__(self):
            return 3

    trained = []

    def look(event, state, logger):
        if event is Event.BATCH_START:
            trained.append(state.timestamp.batch)

    state = make_trainer(
        train_dataloader=Liar(5 * batches()[:1]), max_duration="3ba", callbacks=look
    ).fit()

    assert trained == [0, 1, 2]
    assert state.timestamp.batch == 3


def test_the_rate_that_is_logged_at_the_end_of_an_epoch_is_that_of_its_last_batch():
    class Unsized:
        def __iter__(self):
            return iter(batches())

    used, memory = [], InMemoryLogger()

    def look(event, state, logger):
        if event is Event.BEFORE_OPTIMIZER_STEP:
            used.append(state.optimizers[0].param_groups[0]["lr"])

    make_trainer(
        train_dataloader=Unsized(),
        schedulers=decay(),
        max_duration="2ep",
        log_interval="1ep",
        callbacks=look,
        loggers=memory,
    ).fit()

    last_of_epochs = used[len(batches()) - 1 :: len(batches())]
    assert memory.series("lr") == last_of_epochs


def decay():
    return lambda clock: 0.5**clock.timestamp.batch


@pytest.mark.parametrize("event", [Event.EVAL_BATCH_START, Event.EVAL_END])
@pytest.mark.parametrize("interval", ["1ep", "2ba"])
def test_an_interrupted_evaluation_repeats_no_batch_and_steps_no_scheduler_twice(event, interval):
    def run(interrupt):
        rates, left = [], [interrupt]

        def look(now, state, logger):
            if now is Event.BATCH_START:
                rates.append((state.timestamp.batch, state.optimizers[0].param_groups[0]["lr"]))
            if now is event and left[0]:
                left[0] = False
                raise KeyboardInterrupt

        trainer = make_trainer(
            eval_dataloader=batches(),
            eval_interval=interval,
            schedulers=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5),
            max_duration="3ep",
            callbacks=look,
        )
        if interrupt:
            with pytest.raises(KeyboardInterrupt):
                trainer.fit()
        trainer.fit()
        return rates

    assert run(interrupt=True) == run(interrupt=False)


def test_an_iteration_whose_last_evaluation_was_interrupted_ends_when_training_goes_on():
    left, ends = [True], []

    def look(event, state, logger):
        if event is Event.EVAL_START and left[0]:
            left[0] = False
            raise KeyboardInterrupt
        if event is Event.ITERATION_END:
            ends.append(state.timestamp.epoch)

    trainer = make_trainer(
        eval_dataloader=batches(), iteration_length="1ep", max_duration="3ep", callbacks=look
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    trainer.fit()

    assert ends == [1, 2, 3]


def test_optimizers_that_an_algorithm_brings_follow_the_schedule():
    def swap(event, state):
        if event is not Event.FIT_START:
            return state
        return state.evolve(optimizers=(sgd(state.model.parameters()),))

    memory = InMemoryLogger()
    state = make_trainer(
        algorithms=swap, schedulers=lambda clock: 0.5, loggers=memory, max_duration="2ba"
    ).fit()

    rate = sgd(linear().parameters()).param_groups[0]["lr"]
    assert state.optimizers[0].param_groups[0]["lr"] == 0.5 * rate
    assert memory.series("lr") == [0.5 * rate] * 2


def test_a_state_takes_a_length_of_training_as_it_is_written():
    state = State(linear()).evolve(max_duration="3ba")

    assert state.max_duration == Time("3ba")


def test_gradients_of_a_state_are_a_copy_that_nobody_can_change():
    given = {"weight": torch.zeros(1)}
    state = State(linear()).evolve(gradients=given)

    given["bias"] = torch.zeros(1)

    assert set(state.gradients) == {"weight"}
    with pytest.raises(TypeError):
        state.gradients["bias"] = torch.zeros(1)


# Small promises


def test_an_optimizer_that_drops_gradients_in_its_own_way_does_so():
    class Own(torch.optim.SGD):
        dropped = 0

        def zero_grad(self, set_to_none=True):
            Own.dropped += 1
            super().zero_grad(set_to_none)

    plain = make_trainer()
    plain.fit()
    trainer = make_trainer(optimizers=lambda parameters: Own(parameters, lr=0.1))
    trainer.fit()

    assert Own.dropped == 7  # before the first batch, and after each of the six
    assert same(weights(trainer.state.model), weights(plain.state.model))


def test_every_microbatch_has_a_dropout_of_its_own():
    model = seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES), nn.Dropout()))
    data = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))]
    dropped = Watch(Event.AFTER_FORWARD, read=lambda state: state.outputs == 0)
    make_trainer(
        model, train_dataloader=data, grad_accum=2, max_duration="1ba", callbacks=[dropped]
    ).fit()

    first, second = dropped.values
    assert not torch.equal(first, second)


@pytest.mark.parametrize("event", [Event.AFTER_DATALOADER, Event.BATCH_START])
def test_a_loss_that_an_algorithm_changed_for_a_batch_is_back_after_it(event):
    def double(at, state):
        loss_fn = state.loss_fn
        if at is event:
            return state.evolve(loss_fn=lambda outputs, batch: 2 * loss_fn(outputs, batch))
        return state

    seen = Watch(Event.BATCH_END, read=lambda state: state.loss_fn)
    trainer = make_trainer(algorithms=[double], callbacks=[seen])
    given = trainer.state.loss_fn
    trainer.fit()

    assert all(loss_fn is given for loss_fn in seen.values)


def test_fit_trains_a_model_that_was_left_in_evaluation_mode():
    def build():
        return seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES), nn.Dropout()))

    plain = make_trainer(build())
    plain.fit()
    trainer = make_trainer(build().eval())
    trainer.fit()

    assert all(module.training for module in trainer.state.model.modules())
    assert same(weights(trainer.state.model), weights(plain.state.model))


def test_a_rate_that_is_a_tensor_stays_the_same_tensor():
    rate, model = torch.tensor(0.1), linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    make_trainer(model, optimizers=optimizer, schedulers=lambda clock: 0.5).fit()

    assert optimizer.param_groups[0]["lr"] is rate  # a compiled step reads it there
    assert rate.item() == pytest.approx(0.05)


def test_a_logged_rate_that_is_a_tensor_is_that_of_its_batch():
    memory, model = InMemoryLogger(), linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    make_trainer(
        model,
        optimizers=optimizer,
        schedulers=lambda clock: clock.timestamp.batch,
        loggers=[memory],
    ).fit()

    assert memory.series("lr") == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_every_fit_logs_what_it_was_started_with():
    memory = InMemoryLogger()
    trainer = make_trainer(loggers=[memory])
    trainer.fit()
    trainer.fit(duration="1ep")

    assert memory.hyperparameters["max_duration"] == "3ep"


def test_zero_is_a_seed():
    assert make_trainer(seed=0).state.key.seed == 0
