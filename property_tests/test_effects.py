"""Law: an algorithm writes what it declares, and nothing in place."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composable import Algorithm, EffectError, State
from property_tests.strategies import algorithm_sets
from property_tests.test_combinators import combinations
from tests.runs import batches, conv_net, examples, trained, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning", "ignore::composable.IdleAlgorithmWarning"
)


@given(algorithm_sets() | combinations(), st.integers(1, 3))
def test_every_algorithm_writes_what_it_declares_and_nothing_in_place(algorithms, split):
    run = trainer(
        conv_net(),
        batches(images=True),
        eval_dataloader=batches(images=True),
        algorithms=algorithms,
        grad_accum=split,
        check_effects=True,
    )

    run.fit()
    run.predict(batches(images=True))  # an EffectError would say otherwise


@given(st.data(), algorithm_sets(min_size=1))
def test_an_algorithm_that_declares_less_than_it_writes_is_found(data, algorithms):
    chosen = data.draw(st.sampled_from(algorithms))
    hidden = data.draw(st.sampled_from(sorted(chosen.writes)))
    less = {"writes": frozenset(chosen.writes) - {hidden}, "__module__": __name__}
    cls = attrs.frozen(type(type(chosen).__name__, (type(chosen),), less), repr=False)
    liar = cls(**attrs.asdict(chosen, recurse=False))

    def attempt():
        run = trainer(
            conv_net(),
            [examples(images=True)] * 3,
            eval_dataloader=batches(images=True),
            algorithms=[liar],
            check_effects=True,
        )
        run.fit()
        return run

    written = fields_written_by(chosen)
    if hidden in written:
        with pytest.raises(EffectError, match=rf"wrote state.{hidden} at"):
            attempt()
    else:
        attempt()


def fields_written_by(algorithm):
    """The fields that an algorithm writes in the run above, as seen from outside."""
    written = set()

    def watched(event, state):
        new = algorithm(event, state) if event in algorithm.events else state
        names = [field.name for field in attrs.fields(State)]
        written.update(n for n in names if getattr(new, n) is not getattr(state, n))
        return new

    trained(
        conv_net(),
        [examples(images=True)] * 3,
        eval_dataloader=batches(images=True),
        algorithms=[watched],
        check_effects=False,
    )
    return written


@attrs.frozen(repr=False)
class Writes(Algorithm):
    """Writes a field that it doesn't declare, whenever it is asked."""

    field: str = "metrics"

    def apply(self, event, state):
        value = {"n": {}} if self.field in ("metrics", "memory") else torch.zeros(())
        return state.evolve(**{self.field: value})


@given(st.sampled_from(["metrics", "memory", "loss", "outputs"]))
def test_an_undeclared_write_is_found_at_the_first_event(field):
    with pytest.raises(EffectError, match=rf"Writes wrote state.{field} at INIT"):
        trained(algorithms=Writes(field), check_effects=True)
