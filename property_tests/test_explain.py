"""Law: the plan says what happens. Who ran in a run is who stands in it, in that order."""

from itertools import groupby

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from composable import Event, Plan
from composable.core.algorithm import leaves
from property_tests.specimens import (
    algorithms,
    combinations,
    everything,
    on_a_problem,
    specimens,
)
from property_tests.strategies import few
from property_tests.tracing import Present, traced, undeclared_reads
from tests.runs import LANGUAGE, PROBLEMS, VISION

pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning", "ignore::composable.IdleAlgorithmWarning"
)


def run(problem, listed, watchers=0, split=None):
    """The plan of a run, and the trace of it: training, evaluation and prediction."""
    with traced() as trace:
        training = problem.trainer(
            algorithms=listed,
            callbacks=[Present(trace, f"Present{i}") for i in range(watchers)],
            eval_dataloader=problem.batches(),
            grad_accum=split,
            check_effects=False,
        )
        training.fit()
        training.eval()
        training.predict(problem.batches())
    return training.plan, trace


def lines(plan):
    """The lines of a plan, by event."""
    by_event = {event: list(of_it) for event, of_it in groupby(plan.steps(), lambda s: s.event)}
    return {event: by_event.get(event, []) for event in Event}


@few
@given(on_a_problem(combinations), st.integers(0, 2), st.sampled_from([None, 2]))
@example((VISION, everything(VISION)), 1, None)
@example((LANGUAGE, everything(LANGUAGE)), 1, None)
def test_who_ran_at_each_event_is_who_stands_in_the_plan_in_that_order(drawn, watchers, split):
    plan, trace = run(*drawn, watchers, split)
    planned = lines(plan)

    for firing in trace.firings:
        assert firing.who == [line.who for line in planned[firing.event]], firing.event
        for call, algorithm in zip(firing.calls, plan.transforms(firing.event), strict=True):
            own = {leaf.name: type(leaf) for leaf in leaves(algorithm)}
            for part in call.all_parts():
                assert firing.event in part.algorithm.events
                assert part.algorithm.parts or type(part.algorithm) is own[part.who]
    assert {firing.event for firing in trace.firings} >= {Event.INIT, Event.PREDICT_END}


@few
@given(on_a_problem(combinations))
@example((VISION, everything(VISION)))
@example((LANGUAGE, everything(LANGUAGE)))
def test_what_was_read_and_written_stands_in_the_plan(drawn):
    plan, trace = run(*drawn)
    planned = lines(plan)

    for firing in trace.firings:
        for call, line in zip(firing.calls, planned[firing.event], strict=True):
            assert call.wrote <= set(line.writes), (firing.event, line.who)
            assert line.reads == tuple(sorted(call.algorithm.reads))
            assert not undeclared_reads(call), (firing.event, line.who)


EACH = [(problem, specimen) for problem in PROBLEMS for specimen in specimens(problem)]


@pytest.mark.parametrize(("problem", "specimen"), EACH, ids=repr)
def test_an_algorithm_reads_what_it_declares(problem, specimen):
    _, trace = run(problem, specimen.telling)

    assert any(call.acted for _, call in trace.calls())
    assert {name for _, call in trace.calls() for name in undeclared_reads(call)} == set()


@given(on_a_problem(algorithms))
def test_explain_prints_a_row_for_every_line_in_their_order(drawn):
    _, algorithm = drawn
    plan = Plan.compile([algorithm])

    printed = [row.split()[:2] for row in plan.explain().splitlines()[2:]]

    assert printed == [[line.event.value, line.who] for line in plan.steps()]
