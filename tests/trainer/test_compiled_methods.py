"""Every method trains a compiled model like an eager one, in the documented number of graphs."""

import re

import pytest
import torch

from tests.support.campaign import drawn
from tests.support.cases import ROOT, all_cases
from tests.support.compiled import counting_aot
from tests.support.models import weights
from tests.support.runs import PROBLEMS

PAGE = ROOT / "docs/compilation.md"
ROWS = dict(re.findall(r"^\| \[`(\w+)`\]\([\w./]+\) \| (\d+) \|", PAGE.read_text(), re.MULTILINE))
METHODS = {case.name: case.algorithm for case in all_cases() if case.algorithm}
ROUNDED = {"blurpool": 1e-6}
"""Methods whose compiled layers compute in another order."""


def test_table_has_every_method():
    assert ROWS.keys() == METHODS.keys()


@pytest.mark.compile
@pytest.mark.parametrize("name", drawn(METHODS, 10))
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
    assert len(backend) == int(ROWS[name])
