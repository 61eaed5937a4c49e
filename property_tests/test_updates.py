"""Laws of training steps of several updates."""

import attrs
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, SAM, GradientClipping
from property_tests.test_resume import check_resuming, points
from tests.support.data import batches
from tests.support.models import same, weights
from tests.support.runs import adam, make_trainer, sgd, training_weights
from tests.support.strategies import few
from tests.support.updates import (
    lbfgs,
    lower,
    pair,
    plain_updates,
    upper,
    whole,
    with_updates,
)

kinds = st.sampled_from([upper, lower, whole])


@st.composite
def updates(draw):
    """Draw a list of updates of different names."""
    found = []
    for i, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=3))):
        one = kind(
            every=draw(st.integers(1, 3)),
            times=draw(st.integers(1, 2)),
            optimizer=draw(st.sampled_from([sgd, adam])),
        )
        found.append(attrs.evolve(one, name=f"{one.name}{i}"))
    return found


@few
@given(updates(), st.booleans(), st.floats(0, 0.5))
def test_updates_train_as_a_plain_loop_does(given_updates, split, dropout):
    """Law of updates: Each update is a forward and a backward pass of its loss and a step of its
    optimizer, one after the other, also if the batch is split.
    """
    options = {"grad_accum": 2} if split else {}
    # Batch norm of a microbatch of one example has no statistics.
    model = {"dropout": dropout, "norm": not split}
    trainer = with_updates(given_updates, pair(**model), **options)
    trainer.fit()
    expected = plain_updates(given_updates, pair(**model), split=split)
    assert same(weights(trainer.state.model), expected)


@few
@given(updates(), points)
def test_updates_that_are_stopped_anywhere_continue_with_the_same_bits(given_updates, at):
    """Law of updates: A run that is resumed after any batch is bit-identical to the whole run."""
    made = {"updates": given_updates, "loader": batches(12), "loss_fn": None, "optimizers": None}
    check_resuming(at, model=pair, **{name: lambda one=one: one for name, one in made.items()})


@few
@given(
    st.sampled_from([sgd, adam, lbfgs]),
    st.sets(st.sampled_from([EMA(half_life="2ba"), SAM(), GradientClipping("norm", 0.1)])),
    st.sampled_from([None, 1, 2, 3]),
    st.floats(0, 0.5),
)
def test_one_update_of_all_parameters_is_a_run_with_one_loss(
    optimizer, algorithms, grad_accum, dropout
):
    """Law of updates: One update of all parameters is bit-identical to a run with `loss_fn`, with
    dropout, batch norm, a split batch, SAM, clipping and averages.
    """
    model = {"dropout": dropout, "norm": grad_accum is None}
    given = {"algorithms": [*algorithms], "grad_accum": grad_accum}
    one = with_updates([whole(optimizer=optimizer)], pair(**model), **given)
    other = make_trainer(
        pair(**model),
        optimizers=optimizer,
        loss_fn=cross_entropy,
        loss_mean_over="examples",
        **given,
    )
    for trainer in (one, other):
        trainer.fit()
    assert same(training_weights(one), training_weights(other))
    assert same(weights(one.state.model), weights(other.state.model))
    assert one.state.losses["whole"].equal(other.state.loss)


@few
@given(st.booleans(), st.floats(0, 0.5), st.booleans())
def test_an_optimizer_with_a_closure_trains_as_a_plain_loop_does(split, dropout, search):
    """Law of updates: `step(closure)` of LBFGS is bit-identical to a plain loop whose closure seeds
    dropout as its first call; the buffers are written by the first call alone.
    """
    line_search = "strong_wolfe" if search else None
    update = whole(optimizer=lambda p: lbfgs(p, line_search_fn=line_search))
    model = {"dropout": dropout, "norm": False}
    trainer = make_trainer(
        pair(**model),
        optimizers=update.optimizer,
        loss_fn=cross_entropy,
        grad_accum=2 if split else None,
        seed=17,
    )
    trainer.fit()
    expected = plain_updates([update], pair(**model), split=split)
    assert same(weights(trainer.state.model), expected)
