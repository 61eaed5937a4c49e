"""The options of Muon: their formulas, and how attention is divided."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import orthogonalize, polar_express_coefficients
from composable.optim import Muon, muon_groups
from tests.support.hugging_face import build
from tests.support.models import mlp, same, weights
from tests.support.optimizers import OPTIONS_OF_MUON
from tests.support.runs import LANGUAGE, make_trainer

SHAPES = [(6, 4), (6, 4), (4, 6), (5, 2, 3, 1)]
EXACT = {"dtype": torch.float64, "weight_decay": 0.0, "lr": 0.1}


def steps_of(count=3, shapes=SHAPES, **options):
    """Step with given gradients; return the changes of the parameters, and the gradients."""
    draw = torch.Generator().manual_seed(0)
    params = [
        nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64)) for shape in shapes
    ]
    optimizer, changes, grads = Muon(params, **{**EXACT, **options}), [], []
    for _ in range(count):
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64)
        optimizer.step()
        changes.append([p.detach() - one for p, one in zip(params, before, strict=True)])
        grads.append([p.grad for p in params])
    return changes, grads


def scale(shape):
    rows, columns = shape[0], shape[1:].numel()
    return max(1, rows / columns) ** 0.5


def polar(update):
    return orthogonalize(update.flatten(1), dtype=torch.float64).reshape(update.shape)


def momenta(grads, momentum):
    """Return the averages of gradients after each step."""
    average, found = torch.zeros_like(grads[0]), []
    for grad in grads:
        average = momentum * average + (1 - momentum) * grad
        found.append(average)
    return found


@pytest.mark.parametrize("i", range(len(SHAPES)))
def test_equalized_rows_are_those_of_norm_one(i):
    changes, grads = steps_of(1, equalize_rows=True)

    update = grads[0][i] * (1 - 0.95**2)
    rows = update / torch.linalg.vector_norm(update.flatten(1), dim=1)[
        (..., *(None,) * (update.ndim - 1))
    ].expand_as(update)
    assert_close(changes[0][i], -0.1 * scale(update.shape) * polar(rows))


@pytest.mark.parametrize("nesterov", [True, False])
def test_two_momenta_are_blended_before_the_term_of_nesterov(nesterov):
    changes, grads = steps_of(
        3, momentum=0.85, slow_momentum=0.98, slow_share=0.3, nesterov=nesterov
    )

    for i, shape in enumerate(SHAPES):
        own = [step[i] for step in grads]
        fast, slow = momenta(own, 0.85), momenta(own, 0.98)
        for change, grad, one, other in zip(changes, own, fast, slow, strict=True):
            update = 0.7 * one + 0.3 * other
            update = 0.15 * grad + 0.85 * update if nesterov else update
            assert_close(change[i], -0.1 * scale(torch.Size(shape)) * polar(update))


def test_rows_are_divided_by_averaged_norms_and_the_norm_of_the_whole_is_kept():
    plain, _ = steps_of(3)
    changes, _ = steps_of(3, neuron_beta2=0.9)

    for i, _ in enumerate(SHAPES):
        average = 0.0
        for before, after in zip(plain, changes, strict=True):
            update = before[i].flatten(1) / scale(before[i].shape)
            average = 0.9 * average + 0.1 * update.square().mean(1) / 0.01
            rows = update / average.sqrt()[:, None]
            rows *= update.norm() / rows.norm()
            assert_close(after[i].flatten(1), rows * scale(before[i].shape))


def test_rows_of_small_updates_are_scaled_up_to_a_share_of_those_of_the_weights():
    draw = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 6, generator=draw, dtype=torch.float64))
    with torch.no_grad():
        weight *= torch.tensor([[0.01], [1.0], [10.0], [0.0]])
    before, grad = weight.detach().clone(), torch.randn(4, 6, generator=draw, dtype=torch.float64)
    weight.grad = grad

    Muon([weight], update_floor=0.5, **EXACT).step()

    update = polar(grad)
    least = 0.5 * before.norm(dim=1, keepdim=True) / update.norm(dim=1, keepdim=True)
    assert (least > 1).flatten().tolist() == [False, True, True, False]
    assert_close(weight.detach() - before, -0.1 * update * least.clamp(min=1))


def test_zero_gradients_change_nothing():
    weight = nn.Parameter(torch.ones(3, 2))
    weight.grad = torch.zeros(3, 2)

    Muon([weight], lr=0.1, weight_decay=0.0, **OPTIONS_OF_MUON).step()

    assert torch.equal(weight.detach(), torch.ones(3, 2))


def soap(grads, momentum, beta2):
    """Return the preconditioned momentum of a matrix after each step, by the formula of SOAP."""
    left = right = square = None
    rows = columns = average = 0.0
    found = []
    for grad in grads:
        average = momentum * average + (1 - momentum) * grad
        update = (1 - momentum) * grad + momentum * average
        rows = beta2 * rows + (1 - beta2) * grad @ grad.T
        columns = beta2 * columns + (1 - beta2) * grad.T @ grad
        if left is None:
            left, right = (torch.linalg.eigh(one)[1].flip(1) for one in (rows, columns))
            square = torch.zeros_like(grad)
            found.append(update)
            continue
        projected = left.T @ update @ right
        square = beta2 * square + (1 - beta2) * projected**2
        new = left @ (projected / square.sqrt()) @ right.T
        found.append(new * update.norm() / new.norm())
        row_order = (left.T @ rows @ left).diag().argsort(descending=True)
        column_order = (right.T @ columns @ right).diag().argsort(descending=True)
        square = square[row_order][:, column_order]
        left = torch.linalg.qr(rows @ left[:, row_order])[0]
        right = torch.linalg.qr(columns @ right[:, column_order])[0]
    return found


def test_soap_preconditions_the_momentum_in_its_eigenbases():
    shapes = [(5, 5), (5, 2, 3, 1), (5, 5)]  # in which no two eigenvalues are equal
    changes, grads = steps_of(5, shapes, soap_beta2=0.9)

    for i, shape in enumerate(shapes):
        updates = soap([step[i].flatten(1) for step in grads], 0.95, 0.9)
        for change, update in zip(changes, updates, strict=True):
            expected = -0.1 * scale(torch.Size(shape)) * polar(update)
            assert_close(change[i].flatten(1), expected, rtol=1e-6, atol=1e-8)


def test_soap_of_parameters_whose_first_gradients_come_later():
    params = [nn.Parameter(torch.eye(3, dtype=torch.float64)) for _ in range(2)]
    optimizer = Muon(params, soap_beta2=0.9, **EXACT)
    draw = torch.Generator().manual_seed(0)
    grads = [torch.randn(3, 3, generator=draw, dtype=torch.float64) for _ in range(3)]
    for step in range(4):
        params[0].grad = grads[step] if step < 3 else None
        params[1].grad = grads[step - 1] if step else None
        optimizer.step()

    assert_close(*params)


# --- Polar Express ---


def test_coefficients_of_polar_express_are_those_of_the_records():
    records = [
        (8.1566, -22.4833, 15.8788),
        (4.0429, -2.8089, 0.5000),
        (3.8917, -2.7725, 0.5061),
        (3.2858, -2.3681, 0.4645),
        (2.3465, -1.7098, 0.4232),
    ]

    assert_close(polar_express_coefficients(5), records, rtol=0, atol=5e-5)


def test_no_polynomial_of_five_steps_is_nearer_to_one():
    values = torch.logspace(-3, 0, 2000, dtype=torch.float64)
    found = polar_express_coefficients(5, safety=0.0, cushion=0.0)

    for a, b, c in found:
        low, high = values.min(), values.max()
        values = a * values + b * values**3 + c * values**5
        assert_close(values.max() - 1, 1 - values.min(), rtol=1e-3, atol=1e-6)  # equal errors
        assert values.min() > low / high
    standard = torch.logspace(-3, 0, 2000, dtype=torch.float64)
    for _ in range(5):
        standard = 3.4445 * standard - 4.7750 * standard**3 + 2.0315 * standard**5
    assert (values - 1).abs().max() < 0.12 < (standard - 1).abs().max()


def test_steps_have_coefficients_of_their_own_and_the_last_serve_for_more():
    matrix = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    triples, exact = [(3.0, -4.0, 2.0), (2.0, -1.5, 0.5)], {"dtype": torch.float64}
    first = orthogonalize(matrix, steps=1, coefficients=triples[0], **exact)
    x = first
    for _ in range(2):
        gram = x @ x.mT
        x = 2.0 * x + (-1.5 * gram + 0.5 * gram @ gram) @ x

    assert_close(orthogonalize(matrix, steps=3, coefficients=triples, **exact), x)
    assert_close(orthogonalize(matrix, steps=1, coefficients=triples, **exact), first)


# --- attention ---


def split(model, by):
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [g for g in muon_groups(model, split_attention=by) if g["half"] == "muon"]
    return {names[id(p)]: g["stacked"] for g in groups for p in g["params"] if g["stacked"] > 1}


@pytest.mark.parametrize(
    ("name", "by", "expected"),
    [
        ("gpt2", "projections", {"c_attn": 3}),
        ("gpt2", "heads", {"c_attn": 9}),
        ("bert", "heads", {"query": 3, "key": 3, "value": 3}),
        ("llama", "heads", {"q_proj": 6, "k_proj": 2, "v_proj": 2}),
    ],
)
def test_projections_of_transformers_are_divided_by_role(name, by, expected):
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 2} if name == "llama" else {}
    found = split(build(name, **sizes), by)

    assert {path.split(".")[-2]: count for path, count in found.items()} == expected


def test_attention_of_torch_is_divided_by_head():
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 2))

    assert split(model, "heads") == {"0.in_proj_weight": 6}
    assert split(model, "projections") == split(model, None) == {"0.in_proj_weight": 3}
    with pytest.warns(UserWarning, match="split_attention='heads' divides nothing in Sequential"):
        muon_groups(mlp(), split_attention="heads")


def test_weights_of_conv1d_are_updated_as_transposed_linear_ones_and_by_head():
    model = build("gpt2")
    names = {id(p): name for name, p in model.named_parameters()}
    groups = muon_groups(model, split_attention="heads")
    fused = next(p for p in model.parameters() if names[id(p)].endswith("h.0.attn.c_attn.weight"))
    held = [nn.Parameter(part.clone()) for part in fused.detach().mT.chunk(9)]
    grads = torch.randn(fused.shape, generator=torch.Generator().manual_seed(0))
    fused.grad = grads
    for part, grad in zip(held, grads.mT.chunk(9), strict=True):
        part.grad = grad.clone()
    options = {"lr": 0.1, "neuron_beta2": None, "equalize_rows": True, "update_floor": 0.3}

    Muon(groups, **options).step()
    Muon(held, **options).step()

    assert_close(fused.detach().mT, torch.cat([part.detach() for part in held]))


# --- runs ---


@pytest.mark.parametrize("name", OPTIONS_OF_MUON)
def test_each_option_changes_the_run(name):
    plain, changed = (
        LANGUAGE.trainer(
            LANGUAGE.model(one_by_one=True),
            optimizers=partial(Muon, lr=0.05, **options),
            max_duration="3ba",
        ).fit()
        for options in ({}, {name: OPTIONS_OF_MUON[name]})
    )

    assert not same(weights(plain.model), weights(changed.model))


def test_trainer_divides_the_attention_of_its_model():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    with pytest.warns(UserWarning, match="divides nothing"):
        make_trainer(model, optimizers=partial(Muon, split_attention="heads"))
