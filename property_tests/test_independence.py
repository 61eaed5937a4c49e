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
    ProxyFilter,
    SelectiveBackprop,
)
from composable.core.algorithm import leaves
from tests.support.algorithm_cases import (
    algorithm_sets,
    can_be_combined,
    combinations,
    everything,
    on_a_problem,
    problems,
)
from tests.support.algorithms import Draws, Jitter
from tests.support.campaign import each_once
from tests.support.data import batches, noisy_loader, shuffling_loader
from tests.support.models import conv_net, same
from tests.support.observers import Gambler, Watch
from tests.support.outcomes import outcome
from tests.support.runs import PROBLEMS, make_trainer, trained
from tests.support.strategies import few, fewer, seeds
from tests.support.tracing import check_streams, traced

pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning", "ignore::composable.IdleAlgorithmWarning"
)

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
        noise = torch.rand(len(inputs), 3, device=inputs.device)
        if self.training:  # not as a teacher
            self.noise = noise
        return self.scale * noise


ADDED = {
    "an algorithm that does nothing": {"more": [Nothing(), Nothing(copies=True, name="b")]},
    "an algorithm that draws": {"more": [GamblesToo()]},
    "a callback that draws": {"callbacks": [Gambler()]},
}


@pytest.mark.parametrize(("added", "loader"), each_once(list(ADDED), list(LOADERS)))
@fewer
@given(seed=seeds, algorithms=algorithm_sets(), split=st.integers(1, 3), evaluates=st.booleans())
def test_adding_what_does_nothing_or_draws_from_global_generators_changes_no_weight(
    added, loader, seed, algorithms, split, evaluates
):
    """Law of independence: An algorithm that has no effect, and callbacks and algorithms that
    draw from the global generators of PyTorch, Python and NumPy, change no weight, also if the
    loader shuffles, the data set draws and the model has dropout.
    """

    def run(more=(), **options):
        return trained(
            conv_net(),
            LOADERS[loader](images=True),
            eval_dataloader=LOADERS[loader](images=True) if evaluates else None,
            eval_interval="2ba",
            algorithms=[*algorithms, *more],
            seed=seed,
            grad_accum=split,
            max_duration="1ep",
            **options,
        )

    assert same(run(), run(**ADDED[added]))


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


@fewer
@given(one_and_others(), seeds)
def test_adding_any_algorithms_leaves_the_draws_of_every_other_unchanged(drawn, seed):
    """Law of independence: Algorithms, also under combinators, do not change the numbers that
    other algorithms draw.

    Law of combinators: Randomly nested combinations give the same weights in any order, are
    repeatable, and do not change the random numbers of other algorithms.
    """
    problem, one, others = drawn

    alone, together = streams(problem, one, seed), streams(problem, [one, *others], seed)

    assert together.draws_of(one.name) == alone.draws_of(one.name)


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
def test_all_algorithms_together_draw_what_each_draws_alone(problem):
    """Law of independence: Algorithms, also under combinators, do not change the numbers that
    other algorithms draw.
    """
    together = streams(problem, everything(problem), 17)

    for one in everything(problem):
        assert together.draws_of(one.name) == streams(problem, one, 17).draws_of(one.name)


@few
@given(on_a_problem(combinations), seeds)
def test_every_stream_is_named_after_its_algorithm_and_batch(drawn, seed):
    """Law of independence: Every stream is identified by the seed, the component that draws
    from it and the batch; no two streams are equal.
    """
    problem, listed = drawn

    check_streams(streams(problem, listed, seed), seed)


def changes_layers(case):
    """Return whether it replaces layers that the model of the next law lacks."""
    return case.example.stage in (Stage.SURGERY, Stage.LAYOUT, Stage.PRECISION)


@fewer
@given(seed=seeds, algorithms=algorithm_sets(but=changes_layers))
def test_adding_algorithms_does_not_shift_the_order_of_the_data_or_the_dropout(seed, algorithms):
    """Law of independence: Algorithms that do not change the examples change neither the data
    order nor the dropout.
    """

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

    selecting = (SelectiveBackprop, ProxyFilter, Jitter)
    others = [a for a in algorithms if not isinstance(a, selecting)]
    (order_alone, noise_alone), (order_together, noise_together) = seen(), seen(*others)

    assert same(order_alone, order_together)
    assert same(noise_alone, noise_together)


@given(seed=seeds, name=st.text("ab", min_size=1, max_size=3))
def test_two_names_draw_different_numbers(seed, name):
    """Law of independence: A second instance with another name draws numbers of its own."""
    algorithms = [Draws(name=name), Draws(name=name + "2")]

    memory = make_trainer(algorithms=algorithms, seed=seed).fit().memory

    assert memory[name] != memory[name + "2"]
    assert len(set(memory[name])) == 6
