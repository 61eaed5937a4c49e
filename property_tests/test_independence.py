"""Law: random numbers of a component don't depend on any other algorithm or callback."""

from functools import partial

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composable import Algorithm, Event, Stage
from composable.algorithms import (
    EMA,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from composable.core.algorithm import leaves
from tests.support.algorithm_cases import (
    algorithm_sets,
    combinations,
    everything,
    instances_of,
    on_a_problem,
    problems,
)
from tests.support.algorithms import Draws, Jitter
from tests.support.data import batches, noisy_loader, shuffling_loader
from tests.support.models import conv_net, mlp, same
from tests.support.observers import Gambler, Watch
from tests.support.outcomes import outcome
from tests.support.pairs import can_be_combined
from tests.support.runs import PROBLEMS, make_trainer, trained
from tests.support.strategies import few, seeds
from tests.support.tracing import check_streams, traced

pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning", "ignore::composable.IdleAlgorithmWarning"
)

mixups = instances_of(MixUp)


LOADERS = {"fixed": batches, "shuffling": shuffling_loader, "noisy": noisy_loader}


@attrs.frozen(repr=False)
class Nothing(Algorithm):
    """Acts at every event, and changes nothing."""

    copies: bool = False

    def apply(self, event, state):
        return state.evolve() if self.copies else state


@attrs.frozen(repr=False)
class GamblesToo(Algorithm):
    """Draws from the global generators at every event, which algorithms must not do."""

    def apply(self, event, state):
        Gambler().run_event(event, state, None)
        return state


class OnlyNoise(nn.Module):
    """Its outputs show which random numbers the forward pass drew, whatever the batch is."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, inputs):
        self.noise = torch.rand(len(inputs), 3)
        return self.scale * self.noise


@pytest.mark.parametrize("loader", LOADERS)
@given(seed=seeds, algorithms=algorithm_sets(), copies=st.booleans(), split=st.integers(1, 3))
def test_an_algorithm_that_does_nothing_changes_no_weight(loader, seed, algorithms, copies, split):
    def run(*more):
        return trained(
            conv_net(),
            LOADERS[loader](images=True),
            algorithms=[*algorithms, *more],
            seed=seed,
            grad_accum=split,
            max_duration="1ep",
        )

    assert same(run(), run(Nothing(copies)))


@pytest.mark.parametrize("loader", LOADERS)
@given(seed=seeds, algorithms=algorithm_sets(), split=st.integers(1, 3), evaluates=st.booleans())
def test_a_callback_that_draws_random_numbers_changes_no_weight(
    loader, seed, algorithms, split, evaluates
):
    def run(*callbacks):
        return trained(
            conv_net(),
            LOADERS[loader](images=True),
            eval_dataloader=LOADERS[loader](images=True) if evaluates else None,
            eval_interval="2ba",
            algorithms=algorithms,
            callbacks=callbacks,
            seed=seed,
            grad_accum=split,
            max_duration="1ep",
        )

    assert same(run(), run(Gambler()))


@pytest.mark.parametrize("loader", LOADERS)
@given(seed=seeds, mixup=mixups)
def test_an_algorithm_that_draws_from_global_generators_changes_no_other(loader, seed, mixup):
    def run(*more):
        return trained(mlp(dropout=0.5), LOADERS[loader](), algorithms=[mixup, *more], seed=seed)

    assert same(run(), run(GamblesToo()))


@st.composite
def one_and_others(draw):
    """Draw a problem, an algorithm, and others that may be under combinators."""
    problem = draw(problems)
    (one,) = draw(algorithm_sets(problem, min_size=1, max_size=1))
    others = draw(combinations(problem))
    apart = [a for a in others if all(goes_with(one, leaf) for leaf in leaves(a))]
    return problem, one, apart


def goes_with(one, other):
    return one.name != other.name and can_be_combined(one.name, other.name)


def streams(problem, listed, seed):
    """Return the trace of a run, which records the seed of each random stream."""
    with traced() as trace:
        outcome(problem, listed, seed=seed)
    return trace


@few
@given(one_and_others(), seeds)
def test_adding_any_algorithms_leaves_the_draws_of_every_other_unchanged(drawn, seed):
    problem, one, others = drawn

    alone, together = streams(problem, one, seed), streams(problem, [one, *others], seed)

    assert together.draws_of(one.name) == alone.draws_of(one.name)


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
def test_all_algorithms_together_draw_what_each_draws_alone(problem):
    together = streams(problem, everything(problem), 17)

    for one in everything(problem):
        assert together.draws_of(one.name) == streams(problem, one, 17).draws_of(one.name)


@few
@given(on_a_problem(combinations), seeds)
def test_every_stream_is_named_after_who_draws_from_it_and_after_the_batch(drawn, seed):
    problem, listed = drawn

    check_streams(streams(problem, listed, seed), seed)


@given(
    seed=seeds,
    mixup=mixups,
    others=st.lists(
        st.sampled_from(
            [
                SelectiveBackprop(start=0.0, end=1.0, keep=1.0, interrupt=0),
                EMA(half_life="1ba"),
                LabelSmoothing(0.2),
                GradientClipping("norm", 0.1),
                Draws(),
            ]
        ),
        unique=True,
        min_size=1,
    ),
)
def test_mixup_mixes_each_batch_alike_with_and_without_other_algorithms(seed, mixup, others):
    def mixed_batches(*algorithms):
        watch = Watch(Event.BEFORE_TRAIN_BATCH, read=lambda state: state.batch)
        make_trainer(
            mlp(dropout=0.5),
            shuffling_loader(),
            algorithms=algorithms,
            callbacks=watch,
            seed=seed,
        ).fit()
        return [[inputs, *targets] for inputs, targets in watch.values]

    alone, together = mixed_batches(mixup), mixed_batches(mixup, *others)

    assert all(map(same, alone, together))
    assert len(alone) == len(together) == 6


def changes_layers(case):
    """Return whether it replaces layers that the model of the next law lacks."""
    return case.example.stage in (Stage.SURGERY, Stage.LAYOUT, Stage.PRECISION)


@given(seed=seeds, algorithms=algorithm_sets(but=changes_layers))
def test_adding_algorithms_does_not_shift_the_order_of_the_data_or_the_dropout(seed, algorithms):
    def seen(*algorithms):
        order = Watch(Event.AFTER_DATALOADER, read=lambda state: state.targets)
        noise = Watch(Event.AFTER_TRAIN_BATCH, read=lambda state: state.model.noise)
        run = make_trainer(
            OnlyNoise(),
            noisy_loader(images=True),
            algorithms=algorithms,
            callbacks=[order, noise],
            seed=seed,
            optimizers=partial(torch.optim.SGD, lr=0.0),
        )
        run.fit()
        return order.values, noise.values

    selecting = (SelectiveBackprop, Jitter)
    others = [a for a in algorithms if not isinstance(a, selecting)]
    (order_alone, noise_alone), (order_together, noise_together) = seen(), seen(*others)

    assert same(order_alone, order_together)
    assert same(noise_alone, noise_together)


@given(seed=seeds, name=st.text("ab", min_size=1, max_size=3))
def test_two_names_draw_different_numbers(seed, name):
    algorithms = [Draws(name=name), Draws(name=name + "2")]

    memory = make_trainer(algorithms=algorithms, seed=seed).fit().memory

    assert memory[name] != memory[name + "2"]
    assert len(set(memory[name])) == 6
