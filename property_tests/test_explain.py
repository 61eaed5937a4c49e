"""Law: a run calls exactly the algorithms and callbacks in its plan, in the order of the plan."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from composable import Event, Plan
from tests.support.algorithm_cases import (
    algorithms,
    cases_on,
    combinations,
    everything,
    on_a_problem,
)
from tests.support.campaign import second_once
from tests.support.runs import LANGUAGE, PROBLEMS, VISION
from tests.support.strategies import few
from tests.support.tracing import (
    Present,
    check_brackets,
    check_what_was_read_and_written,
    check_who_ran,
    traced,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning", "ignore::composable.IdleAlgorithmWarning"
)


def run(problem, listed, watchers=0, split=None):
    """Return the plan and the trace of a run: training, evaluation and prediction."""
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


@few
@given(on_a_problem(combinations), st.integers(0, 2), st.sampled_from([None, 2]))
@example((VISION, everything(VISION)), 1, None)
@example((LANGUAGE, everything(LANGUAGE)), 1, None)
def test_plan_lists_calls_reads_and_writes_of_a_run(drawn, watchers, split):
    plan, trace = run(*drawn, watchers, split)

    check_who_ran(plan, trace)
    check_brackets(trace)
    check_what_was_read_and_written(plan, trace)
    assert {firing.event for firing in trace.firings} >= {Event.INIT, Event.PREDICT_END}


EACH = second_once((problem, case) for problem in PROBLEMS for case in cases_on(problem))


@pytest.mark.parametrize(("problem", "case"), EACH, ids=repr)
def test_an_algorithm_reads_and_writes_what_it_declares(problem, case):
    plan, trace = run(problem, case.example)

    assert any(call.acted for _, call in trace.calls())
    check_what_was_read_and_written(plan, trace)


@given(on_a_problem(algorithms))
def test_explain_prints_a_row_for_every_line_in_their_order(drawn):
    _, algorithm = drawn
    plan = Plan.compile([algorithm])

    printed = [row.split()[:2] for row in plan.explain(width=200).splitlines()[2:]]

    assert printed == [[line.event.value, line.who] for line in plan.steps()]
