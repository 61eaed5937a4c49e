"""Every method trains a compiled model like an eager one, in the documented number of graphs."""

import pytest
import torch

from tests.support.campaign import drawn
from tests.support.cases import all_cases
from tests.support.compiled import GRAPHS, USUAL_GRAPHS, counting_aot
from tests.support.models import weights
from tests.support.runs import PROBLEMS

METHODS = {case.name: case.algorithm for case in all_cases() if case.algorithm}
ROUNDED = {"blurpool": 1e-6}
"""Methods whose compiled layers compute in another order."""


def test_methods_with_another_number_of_graphs_exist():
    assert METHODS.keys() >= GRAPHS.keys()


@pytest.mark.compile
@pytest.mark.parametrize("name", drawn(METHODS, 6))
def test_method_trains_compiled_model(name):
    algorithm = METHODS[name]
    problem = next(one for one in PROBLEMS if algorithm.acts_on(one))
    torch.compiler.reset()
    backend = counting_aot()

    def train(**options):
        return problem.trainer(
            algorithms=[algorithm.example], eval_dataloader=problem.batches(), **options
        ).fit()

    compiled, eager = train(compile={"backend": backend}), train()

    tolerance = ROUNDED.get(name, 0.0)
    for key, tensor in weights(eager.model).items():
        torch.testing.assert_close(
            weights(compiled.model)[key], tensor, rtol=tolerance, atol=tolerance
        )
    assert compiled.metrics["eval"] == pytest.approx(eager.metrics["eval"], rel=tolerance)
    assert len(backend) == GRAPHS.get(name, (USUAL_GRAPHS, ""))[0]
