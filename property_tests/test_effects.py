"""Laws: a run calls what its plan lists; an algorithm writes what it declares, not in place."""

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from composable import EffectError, Event, Plan, State
from tests.support.algorithm_cases import (
    algorithm_sets,
    algorithms,
    cases_on,
    combinations,
    everything,
    on_a_problem,
)
from tests.support.campaign import second_once
from tests.support.outcomes import outcome
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


def listed(problem):
    return algorithm_sets(problem) | combinations(problem)


@few
@given(on_a_problem(listed), st.integers(1, 3))
@example((VISION, everything(VISION)), 2)
@example((LANGUAGE, everything(LANGUAGE)), 2)
def test_every_algorithm_writes_what_it_declares_and_nothing_in_place(drawn, split):
    """Law of effects: Every algorithm of the library obeys the law, alone and under combinators."""
    problem, algorithms = drawn
    run = problem.trainer(
        eval_dataloader=problem.batches(),
        algorithms=algorithms,
        grad_accum=split,
        check_effects=True,
    )

    run.fit()
    run.predict(problem.batches())  # an EffectError would say otherwise


@pytest.mark.filterwarnings("ignore:.* replaced the model at EVAL_START and does not declare it")
@given(st.data(), on_a_problem(algorithms))
def test_an_algorithm_that_declares_less_than_it_writes_is_found(data, drawn):
    """Law of effects: An algorithm that declares less than it writes is detected."""
    problem, chosen = drawn
    hidden = data.draw(st.sampled_from(sorted(chosen.writes)))
    less = {"writes": frozenset(chosen.writes) - {hidden}, "__module__": __name__}
    cls = attrs.frozen(type(type(chosen).__name__, (type(chosen),), less), repr=False)
    liar = cls(**attrs.asdict(chosen, recurse=False))

    def attempt():
        run = problem.trainer(
            loader=problem.batches(10, 10) * 3,
            eval_dataloader=problem.batches(),
            algorithms=[liar],
            check_effects=True,
        )
        run.fit()

    written = fields_written_by(problem, chosen)
    if hidden in written:
        with pytest.raises(EffectError, match=rf"wrote state.{hidden} at"):
            attempt()
    else:
        attempt()


def fields_written_by(problem, algorithm):
    """Return the fields that an algorithm writes in the run above, by comparing states."""
    written = set()

    def watched(event, state):
        new = algorithm(event, state) if event in algorithm.events else state
        names = [field.name for field in attrs.fields(State)]
        written.update(n for n in names if getattr(new, n) is not getattr(state, n))
        return new

    outcome(problem, watched, loader=problem.batches(10, 10) * 3)
    return written


# --- the plan ---


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
