"""Law: a run is a function of its arguments: it can be repeated, replayed and split."""

import copy
import random
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from composable import Event, Time
from composable.algorithms import EMA, BlurPool, LabelSmoothing, MixUp
from composable.loggers import InMemoryLogger
from tests.support.algorithm_cases import algorithm_sets
from tests.support.data import batches, noisy_loader, shuffling_loader, stream
from tests.support.models import conv_net, mlp, same, weights
from tests.support.observers import Gambler, Raise, Watch
from tests.support.outcomes import differences, left_by
from tests.support.runs import adam, make_trainer, trained, training_weights
from tests.support.strategies import few, fewer, seeds

pytestmark = [
    pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning"),
    pytest.mark.filterwarnings("ignore:.* follows the elapsed share of a run"),  # of a stream
    pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning"),
]

LOADERS = st.sampled_from([batches, stream, shuffling_loader, noisy_loader])


@fewer
@given(LOADERS, algorithm_sets(), seeds, st.integers(1, 3))
def test_the_same_seed_gives_the_same_weights_and_the_same_logged_losses(
    loader, algorithms, seed, split
):
    """Law of determinism: The same seed gives the same weights and the same logged losses."""

    def run():
        memory = InMemoryLogger()
        trained_weights = trained(
            conv_net(),
            loader(images=True),
            eval_dataloader=loader(images=True),
            algorithms=algorithms,
            loggers=memory,
            seed=seed,
            grad_accum=split,
        )
        return trained_weights, [metrics for _, metrics in memory.records]

    (weights_of_one, metrics_of_one), (weights_of_other, metrics_of_other) = run(), run()

    assert same(weights_of_one, weights_of_other)
    assert metrics_of_one == metrics_of_other
    assert sum("loss/train" in metrics for metrics in metrics_of_one) == 6


@fewer
@given(st.lists(seeds, min_size=2, max_size=2, unique=True))
def test_another_seed_changes_order_dropout_and_draws(two_seeds):
    """Law of determinism: Another seed gives another data order, dropout and other random
    numbers.
    """

    def run(seed):
        watch = Watch(Event.AFTER_FORWARD, read=lambda state: (state.inputs, state.outputs))
        model = mlp(dropout=0.5)
        make_trainer(model, shuffling_loader(40, 40), callbacks=watch, seed=seed).fit()
        return watch.values

    def mixed(seed):
        return trained(mlp(), batches(), algorithms=MixUp(alpha=1.0), seed=seed)

    def noise(seed):
        model = mlp(dropout=0.5)
        return trained(model, batches(40, 40), max_duration="1ba", seed=seed)

    one, other = map(run, two_seeds)

    for (ours, _), (theirs, _) in zip(one, other, strict=True):
        assert not torch.equal(ours, theirs)
    assert not same(*map(mixed, two_seeds))
    assert not same(*map(noise, two_seeds))


NOW = ("batch", "timestamp", "memory", "averages", "key")
"""The fields that a step depends on, beside the model and its optimizers."""


@fewer
@given(st.data(), algorithm_sets(), seeds, st.integers(0, 5), st.integers(1, 3))
def test_a_step_replayed_alone_gives_the_same_weights_and_loss(data, algorithms, seed, k, split):
    """Law of determinism: A step replayed in isolation, from the weights, optimizer, batch, memory
    and time before it, gives the same weights and loss.
    """
    options = {
        "loader": noisy_loader(images=True),
        "algorithms": algorithms,
        "seed": seed,
        "grad_accum": split,
        "optimizers": adam,
    }
    before = Watch(
        Event.AFTER_DATALOADER,
        read=lambda state: {
            "model": copy.deepcopy(state.model.state_dict()),
            "optimizer": copy.deepcopy(state.optimizers[0].state_dict()),
            "now": {name: getattr(state, name) for name in NOW},
        },
    )
    after = Watch(
        Event.AFTER_ZERO_GRAD,
        read=lambda state: (weights(state.model), state.loss, state.memory.get("Draws")),
    )
    make_trainer(conv_net(), callbacks=[before, after], **options).fit()
    torch.rand(data.draw(st.integers(0, 3)))  # what happened before must not matter

    fresh = make_trainer(conv_net(seed=1), **{**options, "seed": seed ^ 1})
    fresh.state.model.load_state_dict(before.values[k]["model"])
    fresh.state.optimizers[0].load_state_dict(before.values[k]["optimizer"])
    state = fresh.train_batch(fresh.state.evolve(**before.values[k]["now"]))

    expected_weights, expected_loss, expected_draws = after.values[k]
    assert same(weights(state.model), expected_weights)
    assert torch.equal(state.loss, expected_loss)
    assert state.memory.get("Draws") == expected_draws


@pytest.mark.filterwarnings("ignore:the first [0-9]+ batches of the epoch are")  # of a stream
# Nothing here depends on the length of the run, as a fraction of it ("0.5dur") would.
@fewer
@given(
    LOADERS,
    st.lists(
        st.sampled_from(
            [MixUp(), LabelSmoothing(), BlurPool(min_channels=0), EMA(half_life="1ba")]
        ),
        unique=True,
    ),
    seeds,
    st.one_of(
        st.lists(st.integers(1, 7).map("{}ba".format), min_size=2, max_size=4),
        st.lists(st.integers(1, 2).map("{}ep".format), min_size=2, max_size=3),
    ),
    st.booleans(),
    st.sampled_from(["1ep", "2ep"]),
)
def test_fitting_in_parts_gives_the_weights_of_fitting_at_once(
    loader, algorithms, seed, parts, evaluates, iteration_length
):
    """Law of determinism: Several calls of `fit`, also calls that end mid-epoch, give the same
    weights as a single call.
    """

    def run(parts):
        training = make_trainer(
            conv_net(),
            loader(images=True),
            eval_dataloader=loader(images=True) if evaluates else None,
            max_duration=None,
            iteration_length=iteration_length,
            algorithms=algorithms,
            seed=seed,
        )
        for part in parts:
            training.fit(duration=part)
        return training.state

    once, split = run([sum(map(Time, parts[1:]), Time(parts[0]))]), run(parts)

    assert differences(left_by(once), left_by(split)) == []
    assert once.timestamp.iteration == split.timestamp.iteration


def generators():
    """Return the states of the global generators."""
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


@fewer
@given(LOADERS, algorithm_sets(), seeds, st.integers(0, 2**32 - 1))
def test_global_generators_of_the_caller_do_not_matter_and_are_restored(
    loader, algorithms, seed, seed_of_the_caller
):
    """Law of determinism: The state of the caller's global generators has no effect, and is
    restored at the end, also after an exception.
    """
    options = {"algorithms": algorithms, "seed": seed, "eval_dataloader": loader(images=True)}
    expected = trained(conv_net(), loader(images=True), **options)
    torch.manual_seed(seed_of_the_caller)
    random.seed(seed_of_the_caller)
    np.random.seed(seed_of_the_caller)  # noqa: NPY002
    before = generators()

    training = make_trainer(conv_net(), loader(images=True), **options)

    training.fit()
    assert generators() == before
    assert same(training_weights(training), expected)
    training.eval()
    assert generators() == before
    training.predict(loader(images=True))
    assert generators() == before


def test_building_a_trainer_whose_callbacks_draw_restores_the_global_generators():
    before = generators()

    with Gambler():  # it watches INIT, BEFORE_LOAD and AFTER_LOAD too
        make_trainer(mlp(), callbacks=Gambler())

    assert generators() == before


@few
@given(seeds, st.integers(0, 5))
def test_global_generators_of_the_caller_are_restored_after_an_error(seed, at):
    """Law of determinism: The state of the caller's global generators has no effect, and is
    restored at the end, also after an exception.
    """
    error = Raise(RuntimeError("no disk"), Event.AFTER_FORWARD, at)
    training = make_trainer(mlp(dropout=0.5), noisy_loader(), callbacks=error, seed=seed)
    before = generators()

    with pytest.raises(RuntimeError, match="no disk"):
        training.fit()

    assert generators() == before


# --- the length of a run ---

sessions = st.tuples(
    st.integers(1, 9),  # max_duration
    st.lists(st.sampled_from([None, 1, 2, 4]), min_size=1, max_size=3),  # the calls of fit
    st.sampled_from([1, 2, 3, 4, 6, 99]),  # the batch after which it is killed
)


def expected(scripts):
    """Return the batches after each call: a model of the clock, and of what a checkpoint keeps."""
    clock, kept, found = 0, [], []  # the calls in a checkpoint, with their ends
    for whole, script, kill in scripts:
        calls, repeating, resumed = list(kept), True, clock > 0
        for i, longer in enumerate(script):
            repeating = repeating and i < len(calls) and calls[i][0] == longer
            if not repeating:
                calls[i:] = [(longer, clock + longer if longer else whole)]
            killed = False
            if i + 1 == len(calls):  # otherwise it had ended before
                end = calls[i][1] if longer else whole
                if end <= clock and not resumed:
                    found.append("reached")
                    break
                killed, resumed = clock < kill <= end, False
                if end > clock:
                    clock, kept = kill if killed else end, list(calls)
            found.append(clock)
            if killed:
                break
    return found


@few
@given(st.lists(sessions, min_size=1, max_size=4))
@example([(9, [1], 1), (2, [None], 99)])
@example([(2, [1, None], 99)])
@example([(9, [1, None], 1), (3, [1, None], 99)])
def test_run_is_as_long_as_the_last_call_of_fit_and_the_trainer_say(scripts):
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for whole, script, kill in scripts:
            trainer = make_trainer(
                max_duration=f"{whole}ba",
                callbacks=Raise(KeyboardInterrupt(), Event.AFTER_SAVE, kill),
                save_folder=folder,
                save_interval="1ba",
                autoresume=True,
            )
            for longer in script:
                try:
                    end = trainer.fit(duration=longer and f"{longer}ba").timestamp.batch
                except (ValueError, KeyboardInterrupt) as error:
                    reached = "is reached" in str(error)
                    found.append("reached" if reached else trainer.state.timestamp.batch)
                    break
                found.append(end)

    assert found == expected(scripts)
