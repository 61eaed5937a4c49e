"""Law: the Trainer adds nothing: without algorithms it trains as a loop by hand does."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from composable import Clock
from composable.data import seeded_batches
from composable.optim import Schedule, cosine, linear, step
from composable.utils.reproducibility import seed_epoch, seed_step
from tests.support.data import batches, noisy_loader, shuffling_loader
from tests.support.models import conv_net, mlp, same, weights
from tests.support.runs import adam, make_trainer, plain_loop, sgd, trained
from tests.support.strategies import few, seeds

optimizers = st.sampled_from([sgd, adam, partial(torch.optim.AdamW, lr=0.01)])
counts = st.integers(3, 11)  # of examples, in batches of 4: the last one is short or not
epochs = st.integers(1, 3)
schedulers = st.sampled_from(
    [
        None,
        partial(StepLR, step_size=1, gamma=0.5),
        partial(StepLR, step_size=2, gamma=0.1),
        partial(CosineAnnealingLR, T_max=4),
        cosine(),
        linear(warmup="0.3dur"),
        step("2ba", 0.5, warmup="1ba"),
    ]
)


@pytest.mark.filterwarnings("ignore:CosineAnnealingLR has T_max=4")
@few
@given(optimizers, counts, epochs, schedulers, st.booleans())
def test_without_algorithms_the_weights_are_those_of_a_plain_loop(
    optimizer, count, epochs, scheduler, every_batch
):
    """Law of transparency: The weights equal those of a plain loop with SGD with momentum, Adam or
    AdamW, a short last batch, and no scheduler, one of PyTorch that steps every epoch or every
    batch, or a schedule.
    """
    by_hand, loader = mlp(), batches(count)
    optimizer_by_hand = optimizer(by_hand.parameters())
    (group,) = optimizer_by_hand.param_groups
    initial, steps = group["lr"], {}

    def set_the_rate(step):
        clock = Clock.at(batch=step, max_duration=epochs, epoch_length=len(loader))
        group["lr"] = initial * scheduler(clock)

    if isinstance(scheduler, Schedule):
        steps["before_batch"] = set_the_rate
    elif scheduler is not None:
        steps["after_batch" if every_batch else "after_epoch"] = scheduler(optimizer_by_hand).step

    expected = plain_loop(by_hand, loader, optimizer_by_hand, epochs=epochs, **steps)
    actual = trained(
        mlp(),
        loader,
        optimizers=optimizer,
        schedulers=scheduler,
        step_schedulers_every_batch=every_batch,
        max_duration=epochs,
    )

    assert same(actual, expected)


@few
@given(optimizers, st.integers(6, 11), epochs, seeds, st.booleans())
def test_with_dropout_and_shuffling_the_weights_are_those_of_a_plain_loop_that_seeds(
    optimizer, count, epochs, seed, convolutional
):
    """Law of transparency: With dropout and shuffling, they equal the weights of a loop that seeds
    by `seed_epoch` and `seed_step`.
    """
    make = conv_net if convolutional else partial(mlp, dropout=0.5)
    loader = partial(shuffling_loader, count, images=convolutional)
    model = make()
    seeding = {"before_epoch": partial(seed_epoch, seed), "before_batch": partial(seed_step, seed)}

    expected = plain_loop(model, loader(), optimizer(model.parameters()), epochs=epochs, **seeding)
    actual = trained(make(), loader(), optimizers=optimizer, max_duration=epochs, seed=seed)

    assert same(actual, expected)


@few
@given(optimizers, counts, epochs, seeds)
def test_with_a_data_set_that_draws_the_weights_are_those_of_a_plain_loop_that_seeds(
    optimizer, count, epochs, seed
):
    """Law of transparency: With a data set that draws random numbers, they equal the weights of a
    loop that reads it through `seeded_batches`.
    """
    by_hand, data = mlp(dropout=0.5), noisy_loader(count)

    expected = plain_loop(
        by_hand,
        lambda epoch, step: seeded_batches(data, seed, epoch=epoch, first_step=step),
        optimizer(by_hand.parameters()),
        epochs=epochs,
        before_batch=partial(seed_step, seed),
    )
    actual = trained(
        mlp(dropout=0.5),
        noisy_loader(count),
        optimizers=optimizer,
        max_duration=epochs,
        seed=seed,
    )

    assert same(actual, expected)


@pytest.mark.parametrize("loader", [batches, shuffling_loader, noisy_loader])
@few
@given(
    seed=seeds,
    interval=st.sampled_from(["1ba", "2ba", "1ep", "0.5dur", "3sp"]),
    at=st.integers(1, 5),
)
def test_evaluation_and_prediction_change_no_weight(loader, seed, interval, at):
    noisy = noisy_loader(images=True)

    def run(between, **evaluation):
        training = make_trainer(
            conv_net(), loader(images=True), max_duration=None, seed=seed, **evaluation
        )
        training.fit(duration=f"{at}ba")
        between(training)
        return weights(training.fit(duration=f"{6 - at}ba").model)

    def look(training):
        training.eval(noisy)
        training.predict(noisy)

    evaluated = run(look, eval_dataloader=noisy, eval_interval=interval)

    assert same(evaluated, run(lambda training: None))
