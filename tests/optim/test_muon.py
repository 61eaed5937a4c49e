"""Muon against PyTorch's Muon and AdamW, its groups, and runs with it."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from composable.functional import squeeze_excite
from composable.optim import Muon, muon, muon_groups
from composable.optim.building import update_param_groups
from tests.support.models import Tied, language_model, mlp, same, seeded, weights
from tests.support.optimizers import INNER, parameters, stepped
from tests.support.runs import LANGUAGE, VISION, make_trainer, trained

SHAPES = [(6, 6), (6, 6), (12, 6), (6, 12), (12, 6), (1, 4), (5, 1)]


# --- numbers ---


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.float32),
        ({}, torch.bfloat16),
        ({}, torch.float64),
        # Not in bfloat16: there torch 2.13 divides its momentum in place.
        ({"nesterov": False, "weight_decay": 0.0}, torch.float32),
        ({"adjust_lr_fn": "match_rms_adamw", "momentum": 0.8}, torch.float32),
        (
            {"adjust_lr_fn": "original", "ns_steps": 3, "ns_coefficients": (3.0, -4.0, 2.0)},
            torch.float32,
        ),
    ],
)
def test_matrices_have_the_bits_of_torch(options, dtype):
    ours, theirs = parameters(dtype, SHAPES), parameters(dtype, SHAPES)

    mine = stepped(Muon(ours, lr=0.02, **options), ours)

    assert same(mine, stepped(torch.optim.Muon(theirs, lr=0.02, **options), theirs))
    assert not same(mine, parameters(dtype, SHAPES))


def test_many_small_matrices_differ_from_torch_by_rounding_only():
    shapes = [(16, 16)] * 100
    ours, theirs = parameters(torch.float32, shapes), parameters(torch.float32, shapes)

    first = stepped(Muon(ours, lr=0.01), ours, steps=3)
    second = stepped(torch.optim.Muon(theirs, lr=0.01), theirs, steps=3)

    # A product in bfloat16 whose last bit differs changes an entry of the update by about 2**-8.
    for one, other in zip(first, second, strict=True):
        assert_close(one, other, rtol=0, atol=3 * 0.01 * 2**-6)


@pytest.mark.parametrize("options", [{}, {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.5}])
def test_other_parameters_have_the_bits_of_adamw(options):
    ours, theirs = (
        parameters(torch.float32, [(3,), (2, 3), ()]),
        parameters(torch.float32, [(3,), (2, 3), ()]),
    )
    group = {"params": ours, "half": "adamw"}
    named = {f"adamw_{name}": value for name, value in options.items()}

    mine = stepped(Muon([group], adamw_lr=0.1, **named), ours)

    adamw = torch.optim.AdamW(theirs, lr=0.1, **{"weight_decay": 0.1, **options})
    assert same(mine, stepped(adamw, theirs))


def test_convolutions_and_stacked_projections_are_updated_as_their_matrices():
    conv, stack = parameters(torch.float32, [(4, 3, 2, 2), (9, 5)])
    flat = nn.Parameter(conv.detach().flatten(1).clone())
    parts = [nn.Parameter(part.clone()) for part in stack.detach().chunk(3)]
    generator = torch.Generator().manual_seed(1)
    conv.grad, stack.grad = (torch.randn(p.shape, generator=generator) for p in (conv, stack))
    conv.grad = conv.grad.to(memory_format=torch.channels_last)
    flat.grad = conv.grad.flatten(1)
    for part, grad in zip(parts, stack.grad.chunk(3), strict=True):
        part.grad = grad.clone()

    Muon([{"params": [conv]}, {"params": [stack], "stacked": 3}], lr=0.1).step()
    torch.optim.Muon([flat, *parts], lr=0.1).step()

    assert torch.equal(conv.flatten(1), flat)
    assert torch.equal(stack, torch.cat(parts))


def test_large_matrices_are_updated_in_smaller_batches(monkeypatch):
    together, apart = (parameters(torch.float32, [(6, 6)] * 5) for _ in range(2))
    first = stepped(Muon(together, lr=0.1), together)
    monkeypatch.setattr(muon, "_ELEMENTS_ON_CPU", 72)

    layout = {"stacked": 1, "transposed": False, "batched": False}
    sizes = [len(batch.indices) for batch in muon._batches(apart, layout)]
    assert sizes == [2, 2, 1]
    assert same(first, stepped(Muon(apart, lr=0.1), apart))


def test_float32_is_nearer_to_the_exact_factor():
    exact, rough = parameters(torch.float32, [(6, 6)]), parameters(torch.float32, [(6, 6)])
    precise = stepped(Muon(exact, lr=0.1, dtype=torch.float32), exact)

    assert not same(precise, stepped(Muon(rough, lr=0.1), rough))


def test_closure_and_group_of_a_copy():
    model = mlp()
    optimizer = Muon(model, lr=0.1)

    def loss():
        optimizer.zero_grad()
        value = model(torch.ones(2, 4)).square().sum()
        value.backward()
        return value

    first = optimizer.step(loss)
    assert optimizer.step(loss) < first
    copy.deepcopy(optimizer).add_param_group({"params": [nn.Parameter(torch.zeros(2, 2))]})


# --- groups ---


def matrix_names(model, **options):
    names = {id(p): name for name, p in model.named_parameters()}
    *hidden, others = muon_groups(model, **options)
    everything = [id(p) for group in (*hidden, others) for p in group["params"]]
    assert sorted(everything) == sorted(names)
    return {names[id(p)]: group["stacked"] for group in hidden for p in group["params"]}


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (mlp, {"0.weight": 1}),
        (VISION.model, {"0.weight": 1}),
        (
            language_model,
            dict.fromkeys(
                ["attention.weight", *(f"hidden{i}.{j}.weight" for i in (1, 2) for j in (0, 2))], 1
            ),
        ),
        (
            Tied,
            {"attention.in_proj_weight": 3, "attention.out_proj.weight": 1, "mixer.weight": 1},
        ),
        (
            lambda: nn.Sequential(nn.LSTM(3, 4), nn.GRU(4, 4), nn.RNN(4, 4), nn.Linear(4, 2)),
            {
                "0.weight_ih_l0": 4, "0.weight_hh_l0": 4, "1.weight_ih_l0": 3,
                "1.weight_hh_l0": 3, "2.weight_ih_l0": 1, "2.weight_hh_l0": 1,
            },
        ),
        (
            lambda: nn.Sequential(
                parametrizations.orthogonal(nn.Linear(4, 4)),
                parametrizations.weight_norm(nn.Linear(4, 4)),
                nn.Linear(4, 2),
            ),
            {"0.parametrizations.weight.original": 1},
        ),
    ],
)  # fmt: skip
def test_hidden_matrices_are_chosen_by_the_rule(build, expected):
    assert matrix_names(build()) == expected


def test_choices_override_the_rule():
    model = Tied()

    assert matrix_names(model, others=["attention.*"]) == {"mixer.weight": 1}
    chosen = matrix_names(model, stacked={"mix*": 2}, matrices=["places"])
    assert (chosen["mixer.weight"], chosen["places"]) == (2, 1)
    assert "3.weight" in matrix_names(mlp(), matrices=["3.weight"])


def test_model_without_hidden_matrix_warns():
    with pytest.warns(UserWarning, match="Linear has no hidden matrix"):
        muon_groups(nn.Linear(2, 2))


def test_parameters_of_the_loss_are_no_hidden_matrices():
    model, extra = mlp(), nn.Linear(3, 3)
    loss = nn.Sequential(nn.Linear(2, 2), model[0], extra)

    hidden, others = muon_groups(model, loss)

    assert [id(p) for p in hidden["params"]] == [id(model[0].weight)]
    assert (
        len(others["params"]) == len({id(p) for p in [*model.parameters(), *loss.parameters()]}) - 1
    )


@pytest.mark.parametrize("names", [["words"], ["score"]])
def test_trainer_names_an_embedding_among_the_matrices(names):
    model = language_model()
    if names == ["score"]:
        model.score.weight = model.words.weight
    held = [model.get_submodule(name).weight for name in names]
    rest = [p for p in model.parameters() if all(p is not one for one in held)]
    optimizer = Muon([{"params": held}, {"params": rest, "half": "adamw"}])

    with pytest.raises(ValueError, match=r"'words.weight'.*which is an embedding and not a hidden"):
        LANGUAGE.trainer(model, optimizers=optimizer).fit()


def test_new_parameters_join_the_half_to_which_they_belong():
    before = seeded(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.LazyLinear(3)))
    before(torch.zeros(1, 2, 5, 5))
    optimizer = Muon(before, lr=0.1)
    after = squeeze_excite(before, min_channels=1, latent_channels=2)

    update_param_groups([optimizer], before, after)

    fresh = muon_groups(after)
    for group, expected in zip(optimizer.param_groups, fresh, strict=True):
        assert {id(p) for p in group["params"]} == {id(p) for p in expected["params"]}
    nested = nn.Sequential(after, nn.MultiheadAttention(4, 2), nn.Linear(4, 2))
    update_param_groups([optimizer], after, nested)
    assert {g["stacked"] for g in optimizer.param_groups if g["half"] == "muon"} == {1, 3}


# --- runs ---


FAST = INNER["muon"]


def test_trainer_divides_the_parameters_that_it_passes_to_a_factory():
    model = mlp()
    trainer = make_trainer(model, optimizers=lambda p: Muon(p, lr=0.05, adamw_lr=0.01))

    ours = weights(trainer.fit().model)

    other = mlp()
    assert same(ours, trained(other, optimizers=FAST(other)))


def test_muon_trains_a_small_transformer():
    model = language_model(one_by_one=True)
    run = partial(LANGUAGE.trainer, optimizers=FAST, max_duration="12ep")
    before = run(model, max_duration="1ba").fit().loss

    assert run(language_model(one_by_one=True)).fit().loss < 0.8 * before


def test_norms_and_biases_without_weight_decay_are_groups_of_the_adamw_half():
    model = language_model()
    trainer = LANGUAGE.trainer(model, optimizers=FAST, decay_norms_and_biases=False)

    (optimizer,) = trainer.fit().optimizers

    groups = {group["name"]: group for group in optimizer.param_groups}
    assert {name: (g["half"], g["weight_decay"]) for name, g in groups.items()} == {
        "matrices": ("muon", 0.1),
        "weights": ("adamw", 0.1),
        "norms_and_biases": ("adamw", 0.0),
    }
    assert len(groups["norms_and_biases"]["params"]) == sum(p.ndim < 2 for p in model.parameters())
    after = nn.ModuleDict({"model": model, "norm": nn.LayerNorm(3), "extra": nn.Linear(3, 3)})
    update_param_groups([optimizer], nn.ModuleDict({"model": model}), after)
    assert groups["norms_and_biases"]["params"][-1] is after["extra"].bias


@pytest.mark.parametrize(
    ("options", "rate"),
    [({}, 1e-3), ({"adjust_lr_fn": "match_rms_adamw"}, 0.02), ({"adamw_lr": 0.5}, 0.5)],
)
def test_default_rate_of_the_adamw_half_follows_the_scaling(options, rate):
    matrices, others = Muon(mlp(), lr=0.02, **options).param_groups

    assert (matrices["lr"], others["lr"]) == (0.02, rate)
