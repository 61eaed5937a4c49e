"""Roles of parameters, and an optimizer for each: by hand, and in runs."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from composable.distributed import DDP, FSDP2
from composable.optim import (
    AdamWScheduleFree,
    MultiOptimizer,
    Muon,
    by_role,
    role_groups,
)
from composable.optim.building import update_param_groups
from tests.support.models import Tied, language_model, mlp, same, weights
from tests.support.optimizers import BY_ROLE, parameters, several
from tests.support.parallel_runs import fit, linear_net
from tests.support.processes import run
from tests.support.runs import make_trainer


def names_by_role(model, *more, **options):
    named = {id(p): name for one in (*more, model) for name, p in one.named_parameters()}
    groups = role_groups(model, *more, **options)
    return [(g["name"], g.get("stacked", 1), [named[id(p)] for p in g["params"]]) for g in groups]


def test_roles_follow_modules_names_and_shapes():
    assert [(name, len(params)) for name, _, params in names_by_role(language_model())] == [
        ("matrices", 5),
        ("embeddings", 2),
        ("head", 1),
        ("norms_and_biases", 10),
    ]
    assert names_by_role(Tied()) == [
        ("matrices", 3, ["attention.in_proj_weight"]),
        ("matrices", 1, ["attention.out_proj.weight", "mixer.weight"]),
        ("embeddings", 1, ["tokens.weight"]),
        (
            "norms_and_biases",
            1,
            ["attention.in_proj_bias", "attention.out_proj.bias", "norm.weight", "norm.bias",
             "head.bias"],
        ),
        ("others", 1, ["places"]),
    ]  # fmt: skip


def test_a_user_may_define_roles_by_names_of_parameters_and_modules():
    found = names_by_role(Tied(), roles={"outputs": ["attention.out*"], "matrices": ["places"]})

    assert ("outputs", 1, ["attention.out_proj.weight", "attention.out_proj.bias"]) in found
    assert ("matrices", 1, ["places"]) in found  # a batch of matrices
    assert names_by_role(mlp(), roles={"first": ["0"]})[-1] == ("first", 1, ["0.weight", "0.bias"])


def test_the_weights_of_a_loss_are_others():
    assert names_by_role(nn.Linear(2, 2, bias=False), nn.Linear(2, 3)) == [
        ("head", 1, ["weight"]),
        ("norms_and_biases", 1, ["bias"]),
        ("others", 1, ["weight"]),
    ]


def test_a_role_without_parameters_is_reported_and_a_tied_head_named():
    head = by_role({"head": {"lr": 1.0}}, partial(SGD, lr=0.1))
    with pytest.warns(
        UserWarning, match=r"'head', and no .*: the head is tied, 'tokens.weight' is"
    ):
        assert isinstance(head(Tied()), SGD)
    with pytest.warns(UserWarning, match="'tables', and no parameter of Sequential has it. Drop"):
        by_role({"tables": partial(SGD, lr=0.1)}, partial(SGD, lr=0.1))(mlp())


def test_muon_as_the_default_updates_all_roles_but_matrices_by_adamw():
    optimizer = by_role({"embeddings": {"lr": 0.3}}, partial(Muon, lr=0.02))(language_model())

    assert {g["name"]: (g["half"], g["lr"]) for g in optimizer.param_groups} == {
        "matrices": ("muon", 0.02),
        "embeddings": ("adamw", 0.3),
        "head": ("adamw", 0.001),
        "norms_and_biases": ("adamw", 0.001),
    }


def stepped(model, optimizers, count=3):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        for one in optimizers:
            one.step()
    return weights(model)


def test_steps_have_the_bits_of_the_optimizers_by_themselves():
    ours, theirs = language_model(), language_model()
    groups = {group["name"]: group for group in role_groups(theirs)}
    rates = {
        "embeddings": {"lr": 0.1, "betas": (0.8, 0.9)},
        "norms_and_biases": {"weight_decay": 0},
    }
    rest = [groups[name] | rates.get(name, {}) for name in groups if name != "matrices"]
    apart = [Muon([groups["matrices"]], lr=0.02), AdamW(rest, lr=0.01)]
    without = by_role(
        {k: v for k, v in BY_ROLE.optimizers.items() if k != "tables"}, BY_ROLE.default
    )

    assert same(stepped(ours, [without(ours)]), stepped(theirs, apart))


def test_schedulers_of_momentum_find_the_options_that_all_optimizers_have():
    first, second = torch.zeros(1), torch.zeros(1)
    same = MultiOptimizer([Adam([first], 0.1), Adam([second], 0.2)])
    other = MultiOptimizer([Adam([first], 0.1), SGD([second], 0.2, momentum=0.9)])

    OneCycleLR(same, max_lr=0.1, total_steps=4)
    assert [group["betas"][0] for group in same.param_groups] == [0.95, 0.95]
    with pytest.raises(ValueError, match="support momentum or beta1"):
        OneCycleLR(other, max_lr=0.1, total_steps=4)
    OneCycleLR(other, max_lr=0.1, total_steps=4, cycle_momentum=False)


def test_a_closure_is_called_once_and_schedulers_set_all_rates():
    params, calls = parameters(), []
    optimizer = several(params)
    for p in params:
        p.grad = torch.ones_like(p)
    scheduler = StepLR(optimizer, 1, gamma=0.5)

    assert optimizer.step(lambda: calls.append(1) or 7.0) == 7.0
    scheduler.step()

    assert calls == [1]
    rates = [group["lr"] for one in optimizer.optimizers for group in one.param_groups]
    assert rates == [0.01, 0.05]
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


# --- runs ---


def test_a_scheduler_of_pytorch_and_a_loop_of_two_optimizers_agree():
    options = {"schedulers": partial(StepLR, step_size=1, gamma=0.5)}
    both = by_role({"head": partial(SGD, lr=0.1)}, partial(SGD, lr=0.2))
    ours = make_trainer(mlp(), optimizers=both, **options).fit()
    model = mlp()
    groups = [g | ({"lr": 0.1} if g["name"] == "head" else {}) for g in role_groups(model)]

    theirs = make_trainer(model, optimizers=SGD(groups, lr=0.2), **options).fit()

    assert same(weights(ours.model), weights(theirs.model))


def test_norms_and_biases_have_no_decay_if_the_trainer_says_so():
    both = by_role({"head": partial(AdamW, weight_decay=0.5)}, partial(AdamW, weight_decay=0.1))
    (optimizer,) = make_trainer(
        mlp(), optimizers=both, decay_norms_and_biases=False
    ).state.optimizers

    assert {g["name"]: g["weight_decay"] for g in optimizer.param_groups} == {
        "head": 0.5,
        "matrices": 0.1,
        "norms_and_biases": 0.0,
    }


def test_the_average_of_a_schedule_free_part_is_evaluated():
    both = by_role({"head": partial(AdamWScheduleFree, lr=0.1)}, partial(SGD, lr=0.1))
    trainer = make_trainer(mlp(), optimizers=both)
    evaluated = weights(trainer.fit().model)

    trainer._run.take_training_weights()

    trained = weights(trainer.state.model)
    different = {name for name in trained if not torch.equal(trained[name], evaluated[name])}
    assert different == {"3.weight"}


def test_a_new_parameter_joins_the_group_of_its_role():
    before = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
    without = {k: v for k, v in BY_ROLE.optimizers.items() if k != "tables"}
    optimizer = by_role(without, BY_ROLE.default)(before)
    new = [nn.LayerNorm(4), nn.MultiheadAttention(4, 2), nn.Linear(4, 4), nn.Embedding(3, 4)]
    after = nn.Sequential(before[0], before[1], *new, before[2])

    update_param_groups([optimizer], before, after)

    held = {(g["name"], g.get("stacked", 1)): g for g in optimizer.param_groups}
    found = {key: {id(p) for p in group["params"]} for key, group in held.items()}
    for group in role_groups(after):
        key = group["name"], group.get("stacked", 1)
        assert found[key] == {id(p) for p in group["params"]}, key
    assert held["matrices", 3]["lr"] == 0.02
    stepped(after, [optimizer], 1)


@pytest.mark.parametrize("parallel", [DDP(), FSDP2()], ids=repr)
def test_two_processes_train_the_model_of_one(parallel):
    """One of the optimizers has a state when it is built."""
    roles = {"matrices": partial(Muon, lr=0.1, dtype=torch.float32)}
    optimizers = by_role(roles, default=partial(torch.optim.Adagrad, lr=0.1))
    train = partial(fit, model=linear_net, optimizers=optimizers)
    (alone,) = run(partial(train, parallel=None), 1)
    for one in run(partial(train, parallel=parallel), 2):
        assert [one["size"], one["loss"]] == pytest.approx([alone["size"], alone["loss"]], rel=1e-4)
