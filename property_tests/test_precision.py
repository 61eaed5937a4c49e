"""Precision: a run computes what a plain loop with autocast and a gradient scaler computes."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from composable import Precision
from composable.algorithms import GradientClipping
from composable.data import seeded_batches
from composable.optim.loss_scaling import unscale_
from composable.utils.reproducibility import seed_step
from property_tests.test_resume import check_resuming, points
from tests.support.algorithm_cases import algorithm_sets, cases_on
from tests.support.campaign import each_once
from tests.support.data import batches
from tests.support.models import mlp, weights
from tests.support.runs import LANGUAGE, PROBLEMS, adam, make_trainer
from tests.support.strategies import few, fewest

pytestmark = pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning")

NAMES = ["amp_bf16", "amp_fp16", "bf16", "fp16"]
FAST = {  # a convolution's backward pass in float16 takes a second on the CPU
    problem: [name for name in NAMES if name[-4:] == "bf16" or problem is LANGUAGE]
    for problem in PROBLEMS
}

precisions = st.one_of(
    st.sampled_from([Precision("fp32"), Precision("amp_bf16")]),
    st.builds(
        partial(Precision, "amp_fp16"),
        initial_scale=st.sampled_from([1.0, 2.0**16, 2.0**30]),
        growth_factor=st.sampled_from([2.0, 1.5]),
        backoff_factor=st.sampled_from([0.5, 0.3]),
        growth_interval=st.integers(1, 5),
    ),
)


def plain_loop(precision, *, epochs, clip, parts):
    """Train by hand, with autocast and the gradient scaler of PyTorch."""
    model, step = mlp(dropout=0.2), 0
    optimizer = adam(model.parameters())
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=precision.initial_scale,
        growth_factor=precision.growth_factor,
        backoff_factor=precision.backoff_factor,
        growth_interval=precision.growth_interval,
        enabled=precision.scales_loss,
    )
    model.train()
    for epoch in range(epochs):
        for inputs, targets in seeded_batches(DATA, 17, epoch=epoch, first_step=step):
            size = len(inputs) // parts
            for part in range(parts):
                seed_step(17, step, part)
                here = slice(part * size, (part + 1) * size)
                dtype = torch.bfloat16 if precision.name == "amp_bf16" else torch.float16
                with torch.autocast("cpu", dtype, enabled=precision.name != "fp32"):
                    loss = cross_entropy(model(inputs[here]), targets[here])
                scaler.scale(loss if parts == 1 else loss * (size / len(inputs))).backward()
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step += 1
    return weights(model), scaler


DATA = batches([4] * 5)


@few
@given(precision=precisions, clip=st.sampled_from([None, 0.1]), parts=st.sampled_from([1, 2, 4]))
def test_a_run_equals_a_plain_loop_with_autocast_and_gradient_scaler(precision, clip, parts):
    trainer = make_trainer(
        mlp(dropout=0.2),
        DATA,
        optimizers=adam,
        precision=precision,
        grad_accum=parts,
        algorithms=[GradientClipping("norm", clip)] if clip else [],
    )
    trainer.fit()
    expected, scaler = plain_loop(precision, epochs=2, clip=clip, parts=parts)

    found = weights(trainer.state.model)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    if precision.scales_loss:
        own = trainer._run.loss_scaler.state_dict()
        saved = scaler.state_dict()
        assert (own["scale"], own["streak"]) == (saved["scale"], saved["_growth_tracker"])


@given(
    st.lists(st.floats(-1e4, 1e4, width=16), min_size=1, max_size=8),
    st.integers(-20, 60),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_unscaled_gradients_equal_those_without_scaling(values, exponent, dtype):
    expected = torch.tensor(values, dtype=dtype)
    gradient = expected * 2.0**exponent
    found = unscale_([gradient], torch.tensor(2.0**exponent))

    assert not found
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize(
    ("problem", "name"), [(problem, name) for problem in FAST for name in FAST[problem]], ids=str
)
@fewest
@given(data=st.data())
def test_a_run_in_each_precision_resumes(problem, name, data):
    precision = Precision(name, initial_scale=2.0**32, growth_interval=2)  # overflows at first
    algorithms = data.draw(algorithm_sets(problem, max_size=4))
    check_resuming(
        data.draw(points),
        problem=lambda: problem,
        algorithms=lambda: algorithms,
        precision=lambda: precision,
    )


@pytest.mark.parametrize(
    ("problem", "name", "case"),
    [(on, *one) for on in FAST for one in each_once(FAST[on], cases_on(on))],
    ids=str,
)
def test_every_algorithm_trains_in_each_precision(problem, name, case):
    def train(precision):
        trainer = problem.trainer(algorithms=[case.example], precision=precision)
        return trainer.fit()

    # A scale with which no step overflows, and is skipped.
    plain, state = train("fp32"), train(Precision(name, initial_scale=2.0**10))
    low = Precision(name).weight_dtype or torch.float32
    assert {one.dtype for one in state.model.parameters()} == {low}
    if case.name == "NoOpModel":  # it has a loss of its own, which trains its one weight
        return
    torch.testing.assert_close(state.loss.float(), plain.loss, rtol=0.15, atol=0.05)
    assert state.loss.dtype is torch.float32
