"""What holds for every optimizer: resumed runs, copies, 16 bits, compiled models."""

import copy
import pickle
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable import Event
from composable.algorithms import NGramEmbeddings
from composable.optim import AdamWScheduleFree, Muon, RowAdagrad, SGDScheduleFree
from tests.support.campaign import each_pair
from tests.support.models import language_model, mlp, same, weights
from tests.support.observers import Watch
from tests.support.optimizers import (
    BY_ROLE,
    INNER,
    RUNS,
    WRAPPERS,
    parameters,
    several,
    stepped,
    wrapped,
)
from tests.support.outcomes import resumes_exactly
from tests.support.runs import LANGUAGE, PROBLEMS, make_trainer

TABLES = ("roles", "sparse table")  # of tokens
PRECISIONS = ("fp32", "amp_bf16", "bf16")
FREE = [partial(SGDScheduleFree, lr=0.5), partial(AdamWScheduleFree, lr=0.05)]


@pytest.mark.parametrize(
    ("name", "problem", "precision"),
    [
        *each_pair([name for name in RUNS if name not in TABLES], PROBLEMS, PRECISIONS),
        *product(TABLES, [LANGUAGE], PRECISIONS),
        ("roles", LANGUAGE, "amp_fp16"),
    ],
    ids=str,
)
def test_run_resumes_bit_for_bit_in_mid_epoch_after_an_evaluation(
    name, precision, problem, tmp_path
):
    watch = Watch(Event.EVAL_END, read=lambda state: weights(state.model))
    options = {
        **RUNS[name],
        "eval_dataloader": problem.batches(),
        "eval_interval": "1ba",
        "callbacks": watch,
        "max_duration": "5ba",
        "precision": precision,
    }

    whole, _ = resumes_exactly(lambda **more: problem.trainer(**options, **more).fit(), tmp_path)

    assert whole.timestamp.batch == 5
    seen, again = watch.values[2:5], watch.values[5:]
    assert all(same(a, b) for a, b in zip(seen, again, strict=True))


@pytest.mark.parametrize("name", ["muon", "wrapped foreach"])
def test_scaled_gradients_give_the_same_half_precision_run(name):
    losses = [
        make_trainer(mlp(), optimizers=RUNS[name]["optimizers"], precision=precision).fit().loss
        for precision in ("fp32", "amp_fp16")
    ]

    assert losses[0].item() == pytest.approx(losses[1].item(), rel=0.05)


@pytest.mark.compile
@pytest.mark.parametrize("optimizers", [BY_ROLE, partial(wrapped, "all", "muon")])
def test_compiled_model_trains_as_the_eager_one(optimizers):
    options = {"optimizers": optimizers, "algorithms": [NGramEmbeddings(rows=8)]}
    eager, compiled = (
        LANGUAGE.trainer(language_model(one_by_one=True), **options, compile=compile_).fit()
        for compile_ in (False, {"backend": "eager"})
    )

    assert same(weights(eager.model), weights(compiled.model))


# --- a loop of one's own ---

BUILDERS = {
    "muon": lambda params: Muon(params[:1], lr=0.1),
    "rows": partial(RowAdagrad, lr=0.1),
    "schedule-free sgd": FREE[0],
    "schedule-free adamw": FREE[1],
    "schedule-free sgd, evaluated": FREE[0],
    "schedule-free adamw, evaluated": FREE[1],
    "several": several,
}
WRAPPED = {
    f"{wrapper}, {inner}": lambda params, wrapper=wrapper, inner=inner: wrapped(
        wrapper, inner, params[:1] if inner == "muon" else params
    )
    for wrapper in WRAPPERS
    for inner in INNER
}


@pytest.mark.parametrize("name", BUILDERS | WRAPPED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_loaded_states_and_copies_continue_alike(name, dtype):
    params, loaded = parameters(dtype), parameters(dtype)
    build = (BUILDERS | WRAPPED)[name]
    optimizer, again = build(params), build(loaded)
    stepped(optimizer, params, 3)
    if name.endswith("evaluated"):
        optimizer.eval()
    others = [(loaded, again)]
    if name in BUILDERS:  # the copy of a wrapped optimizer has no hooks
        copied = pickle.loads(pickle.dumps((params, optimizer)))
        others += [copy.deepcopy((params, optimizer)), copied]
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for mine, value in zip(loaded, params, strict=True):
        mine.data.copy_(value.detach())

    for one in (optimizer, *(other for _, other in others)):
        if name.endswith("evaluated"):
            one.train()
    expected = stepped(optimizer, params, 3)

    for held, other in others:
        assert same(stepped(other, held, 3), expected)


def evaluated(make):
    def build(params):
        optimizer = make(params)
        optimizer.eval()
        return optimizer

    return build


ONES = torch.ones(3, 2)


@pytest.mark.parametrize(
    ("build", "gradient", "message"),
    [
        (RowAdagrad, ONES.cfloat(), r"complex parameters: pass torch\.view_as_real"),
        (RowAdagrad, ONES.to_sparse(), r"sparse_dim\(\) == 2: pass gradient.to_dense\(\)"),
        (FREE[0], ONES.to_sparse(1), "SGDScheduleFree does not support sparse gradients"),
        *(
            (evaluated(make), ONES, r"is in evaluation mode: call optimizer\.train\(\)")
            for make in FREE
        ),
    ],
)
def test_a_step_that_is_not_possible_is_refused(build, gradient, message):
    weight = nn.Parameter(ONES.to(gradient.dtype))
    optimizer = build([weight])
    weight.grad = gradient

    with pytest.raises(RuntimeError, match=message):
        optimizer.step()


@pytest.mark.parametrize("make", [*FREE, partial(wrapped, "all", "sgd")])
def test_complex_parameters_are_pairs_of_real_ones(make):
    whole = nn.Parameter(torch.tensor([1.0 + 2.0j, -0.5j]))
    pairs = nn.Parameter(torch.view_as_real(whole.detach()).clone())
    for p in (whole, pairs):
        optimizer = make([p])
        for grad in (torch.tensor([2.0 - 1.0j, 3.0 + 0j]), torch.ones(2, dtype=whole.dtype)):
            p.grad = grad if p is whole else torch.view_as_real(grad).clone()
            optimizer.step()

    assert_close(torch.view_as_real(whole.detach()), pairs.detach())
