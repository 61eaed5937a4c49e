"""Law: a switch takes effect, also in a compiled model."""

import pytest
from torch.nn.functional import cross_entropy

from composable.testing.laws import LAWS
from composable.testing.runs import Case
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.campaign import drawn
from tests.support.runs import PROBLEMS

SWITCHES = [(case, problem) for case in ALGORITHMS for problem in PROBLEMS if case.acts_on(problem)]
COMPILE = {"backend": "aot_eager"}  # what freezes a flag is the trace, not the code


def verdict(case, problem, options):
    law = Case(
        case.example,
        model=problem.model,
        lone_model=problem.model,
        dataloader=list(problem.batches()),
        loss_fn=cross_entropy,
        no_effect=case.no_effect,
        options={**problem.options, "max_duration": "3ba", **options},
    )
    return LAWS["takes_effect"].check(law)


@pytest.mark.parametrize(
    ("case", "problem", "options"),
    [
        *((*one, {}) for one in SWITCHES),
        *((*one, {"compile": COMPILE}) for one in drawn(SWITCHES, 2)),
    ],
    ids=repr,
)
def test_a_method_changes_outputs_within_three_steps_or_says_why_not(case, problem, options):
    """Law of methods: A switch takes effect: within three steps, training with an algorithm gives
    other outputs than training without it, also in a compiled model, or its case gives the reason
    why not.
    """
    found = verdict(case, problem, options)

    assert found is None or getattr(found, "reason", found) == case.no_effect
