"""Wrappers of any optimizer: EMA-Nesterov, cautious decay, momentum warm-up and Lookahead."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.testing import assert_close

import composable.functional as F
from composable.checkpoint.errors import MismatchError
from composable.optim import (
    MultiOptimizer,
    Muon,
    RowAdagrad,
    cosine,
    per_option,
    with_cautious_weight_decay,
    with_ema_nesterov,
    with_lookahead,
    with_momentum_warmup,
)
from tests.support.data import batches
from tests.support.models import mlp, same, weights
from tests.support.optimizers import INNER, WRAPPERS, parameters, several, stepped, wrapped
from tests.support.runs import make_trainer

NESTEROV, _, WARMUP, LOOKAHEAD = WRAPPERS.values()
EACH = pytest.mark.parametrize("wrapper", WRAPPERS)
ALL = pytest.mark.parametrize("inner", INNER)


def optimizer_parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


# --- numbers ---


def test_ema_nesterov_takes_the_steps_of_its_definition():
    params, (weight,) = parameters(), parameters()[:1]
    lr, x, m = 0.25, weight.detach(), torch.zeros_like(weight)
    optimizer = with_ema_nesterov(SGD(params[:1], lr=lr), lookahead=0.5, decay=0.8, start=2, end=4)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = rate = lr / (step + 1)
        before = 0.5 * (lr / step) / lr if 2 <= step < 4 else 0.0  # the rate of the last step
        y = x + before * m
        assert_close(params[0].detach(), y)
        params[0].grad = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        optimizer.step()
        new = y - rate * params[0].grad
        m, x = 0.8 * m + 0.2 * (new - x), new

    assert_close(params[0].detach(), x)


def test_distance_follows_a_warmed_up_rate():
    params = parameters()
    optimizer = NESTEROV(SGD(params, lr=0.1))
    optimizer.param_groups[0] |= {"initial_lr": 0.1, "lr": 0.025}

    stepped(optimizer, params, steps=1)

    lookahead = optimizer.state[params[0]]["ema_nesterov_lookahead"]
    assert lookahead == pytest.approx(0.6 * 0.9 * 0.25)


def test_cautious_decay_is_that_of_adamw_where_weights_move_to_zero():
    ours, theirs, plain = parameters(), parameters(), parameters()
    make = partial(AdamW, lr=0.1)
    stepped(with_cautious_weight_decay(make(ours, weight_decay=0.2)), ours, steps=1)
    stepped(make(theirs, weight_decay=0.2), theirs, steps=1)
    stepped(make(plain, weight_decay=0.0), plain, steps=1)

    inward = [(end - start) * start <= 0 for start, end in zip(parameters(), plain, strict=True)]
    for own, one, *others in zip(ours, inward, theirs, plain, strict=True):
        assert_close(own.detach(), torch.where(one, *others).detach())
    assert torch.cat([one.flatten() for one in inward]).unique().tolist() == [False, True]


def test_weights_that_move_to_zero_or_stay_decay_also_if_they_are_small():
    before = {"w": torch.tensor([1e-30, 1e-30, 1.0])}
    after = {"w": torch.tensor([0.5e-30, 1.5e-30, 1.0])}

    decayed = F.cautious_weight_decay(before, after, decay=0.5)["w"]

    assert_close(decayed, torch.tensor([0.0, 1.5e-30, 0.5]), rtol=1e-6, atol=0.0)


def test_decay_that_is_set_during_training_is_cautious_too():
    params = parameters()
    optimizer = with_cautious_weight_decay(SGD(params, lr=0.1, weight_decay=0.1))
    (group,) = optimizer.param_groups
    group["weight_decay"] = 0.3

    stepped(optimizer, params, steps=1)

    assert (group["weight_decay"], group["cautious_weight_decay"]) == (0.0, 0.3)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("sgd", [0.5, 0.6, 0.7, 0.8, 0.9, 0.9]),
        ("foreach", [0.5, 0.6, 0.7, 0.8, 0.9, 0.9]),
        ("muon", [0.5, 0.6125, 0.725, 0.8375, 0.95, 0.95]),
    ],
)
def test_momentum_rises_to_that_of_the_optimizer(inner, expected):
    params, seen = parameters()[:1], []
    optimizer = wrapped("warmup", inner, params)
    (group,) = optimizer.param_groups
    stepped(optimizer, params, 6, lambda: seen.append(group.get("momentum", group.get("betas"))))

    assert [one if isinstance(one, float) else one[0] for one in seen] == pytest.approx(expected)


def test_only_the_matrices_of_muon_have_a_momentum_warmup():
    optimizer = wrapped("warmup", "muon", mlp())
    optimizer.step()

    matrices, others = optimizer.param_groups
    assert (matrices["momentum"], others["betas"]) == (0.5, (0.9, 0.999))


@EACH
@ALL
def test_it_takes_effect_and_without_one_the_steps_are_those_of_the_optimizer(wrapper, inner):
    idle = {
        "nesterov": partial(with_ema_nesterov, lookahead=0.0),
        "decay": lambda one: one,  # there is none
        "warmup": partial(with_momentum_warmup, start=0.9, num_steps=0),
        "lookahead": partial(with_lookahead, decay=0.0, interval=2),
    }[wrapper]
    builders = (
        INNER[inner],
        lambda params: idle(INNER[inner](params)),
        partial(wrapped, wrapper, inner),
    )

    plain, idling, effective = (
        stepped(build(params), params) for build in builders for params in [parameters()[:1]]
    )

    assert same(idling, plain)
    assert not same(effective, plain)


@given(st.integers(0, 6), st.floats(-1, 1), st.floats(0, 1))
def test_weights_behind_the_lookahead_move_by_the_steps_of_the_optimizer(seed, lookahead, decay):
    generator = torch.Generator().manual_seed(seed)
    before, after, average = (
        {"w": torch.randn(3, generator=generator, dtype=torch.float64)} for _ in range(3)
    )

    point, new = F.ema_nesterov_step(
        before, after, average, lookahead=lookahead, last_lookahead=0.25, decay=decay
    )

    assert_close(point["w"] - lookahead * new["w"], after["w"])
    step = after["w"] - (before["w"] - 0.25 * average["w"])
    assert_close(new["w"], decay * average["w"] + (1 - decay) * step)


def test_every_few_steps_lookahead_averages_the_weights_with_the_slow_ones():
    params, plain = parameters(), parameters()
    optimizer = with_lookahead(SGD(params, lr=0.1), decay=0.75, interval=3)
    inner = SGD(plain, lr=0.1)
    slow = {str(i): p.detach().clone() for i, p in enumerate(plain)}
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 8):
        for i, (p, q) in enumerate(zip(params, plain, strict=True)):
            # The second never has a gradient in the first step of an interval.
            q.grad = torch.randn(q.shape, generator=generator, dtype=q.dtype)
            q.grad = None if i == 1 and step % 3 == 1 else q.grad
            p.grad = q.grad
        optimizer.step()
        inner.step()
        if step % 3 == 0:
            fast = {str(i): p.detach() for i, p in enumerate(plain)}
            slow = F.ema(slow, fast, smoothing=0.75)
            for i, p in enumerate(plain):
                p.data.copy_(slow[str(i)])

        assert_close([p.detach() for p in params], [p.detach() for p in plain])


def test_decay_of_lookahead_can_rise_over_a_run():
    seen = []
    make_trainer(
        optimizers=lambda params: with_lookahead(SGD(params, lr=0.1), decay=0.8, interval=1),
        schedulers=per_option({"lr": cosine(), "lookahead_decay": lambda s: s.elapsed**3}),
        max_duration="4ba",
        callbacks=lambda event, state, logger: (
            seen.append(state.optimizers[0].param_groups[0]["lookahead_decay"])
            if event.value == "before_optimizer_step"
            else None
        ),
    ).fit()

    assert seen == pytest.approx([0.8 * (step / 4) ** 3 for step in range(4)])


def test_decay_of_lookahead_that_a_schedule_moves_out_of_range_is_an_error():
    optimizer = with_lookahead(SGD(params := [nn.Parameter(torch.ones(1))], lr=0.1), interval=1)
    optimizer.param_groups[0]["lookahead_decay"] = 1.5
    params[0].grad = torch.ones(1)

    with pytest.raises(ValueError, match=r"lookahead_decay=1\.5 must be"):
        optimizer.step()


# --- a loop of one's own ---


SOAP = partial(Muon, soap_beta2=0.9)


@pytest.mark.parametrize(
    "build",
    [
        RowAdagrad,
        lambda params: SOAP(params[:1]),
        lambda params: several(params, [LOOKAHEAD]),
        lambda params: MultiOptimizer([MultiOptimizer([RowAdagrad(params[1:])]), SOAP(params[:1])]),
        lambda params: LOOKAHEAD(MultiOptimizer([SOAP(params[:1]), RowAdagrad(params[1:])])),
        lambda params: copy.deepcopy(SOAP(params[:1])),
    ],
    ids=["rows", "soap", "wrapped in several", "nested", "several wrapped", "copy"],
)
def test_states_in_float32_of_16_bit_weights_are_loaded_to_the_bit(build):
    optimizer, again = (build(parameters(torch.bfloat16)) for _ in range(2))
    stepped(optimizer, optimizer_parameters(optimizer), steps=3)
    saved = copy.deepcopy(optimizer.state_dict())

    again.load_state_dict(saved)

    found = again.state_dict()
    assert found["param_groups"] == saved["param_groups"]
    assert found["state"].keys() == saved["state"].keys()
    states = [(found["state"][number], values) for number, values in saved["state"].items()]
    assert any(value.dtype is torch.float32 for _, values in states for value in values.values())
    for loaded, values in states:
        assert same(list(loaded.values()), list(values.values()))


def test_a_state_in_float32_is_loaded_for_a_model_that_is_now_in_bfloat16():
    optimizer, again = (several(parameters(d)) for d in (torch.float32, torch.bfloat16))
    stepped(optimizer, optimizer_parameters(optimizer))

    again.load_state_dict(optimizer.state_dict())

    assert {again.state[p]["exp_avg"].dtype for p in again.param_groups[0]["params"]} == {
        torch.bfloat16
    }


@EACH
def test_closure_is_called_once_at_the_point_of_the_gradients(wrapper):
    ours, theirs, calls = parameters(), parameters(), []
    one, other = (wrapped(wrapper, "sgd", params) for params in (ours, theirs))

    def loss():
        calls.append([p.detach().clone() for p in ours])
        total = sum((p**2).sum() for p in ours)
        one.zero_grad()
        total.backward()
        return total

    for _ in range(3):
        at = [p.detach().clone() for p in ours]
        assert one.step(loss).item() == pytest.approx(sum((p**2).sum() for p in at).item())
        assert same(calls.pop(), at)
        assert not calls
        for p in theirs:
            p.grad = 2 * p.detach()
        other.step()

    assert same(ours, theirs)


@EACH
def test_scheduler_of_torch_sets_the_rates(wrapper):
    params = parameters()
    optimizer = wrapped(wrapper, "sgd", params)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    stepped(optimizer, params, 2, scheduler.step)

    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**2 * 0.25, rel=0.2)
    assert not same(params, parameters())


@EACH
@pytest.mark.parametrize("inner", ["foreach", "fused"])
def test_step_that_grad_scaler_skips_changes_nothing(wrapper, inner):
    params = parameters(torch.float32)
    optimizer = wrapped(wrapper, inner, params)
    stepped(optimizer, params, steps=2)
    before = copy.deepcopy([[p.detach() for p in params], optimizer.state_dict()])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(sum((p * torch.inf).sum() for p in params)).backward()

    scaler.step(optimizer)

    assert same(params, before[0])
    assert optimizer.state_dict()["param_groups"] == before[1]["param_groups"]


def test_all_wrappers_together_see_each_others_steps():
    params, plain = parameters(), parameters()
    stepped(wrapped("all", "sgd", params), params)
    alone = NESTEROV(WARMUP(INNER["sgd"](plain)))

    assert not same(stepped(alone, plain), params)


# --- in the Trainer ---


def test_states_of_16_bit_weights_are_float32_and_belong_to_their_wrappers(tmp_path):
    options = {"precision": "bf16", "save_folder": tmp_path / "run"}
    inside = partial(several, wrappers=WRAPPERS.values())
    (optimizer,) = make_trainer(mlp(), optimizers=inside, **options).fit().optimizers
    states = [one for one in optimizer.state_dict()["state"].values() if "exp_avg" in one]
    assert {one["ema_nesterov"].dtype for one in states} == {torch.float32}

    with pytest.raises(MismatchError, match=r"MultiOptimizer with EMANesterov, Caut.*"):
        make_trainer(mlp(), load_path=tmp_path / "run", precision="bf16", optimizers=several)


@EACH
def test_trainer_steps_as_a_plain_loop(wrapper):
    model, data = mlp(), batches(24)
    optimizer = wrapped(wrapper, "muon", model)
    for inputs, targets in data:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    trainer = make_trainer(
        mlp(), data, optimizers=partial(wrapped, wrapper, "muon"), max_duration="1ep"
    )

    assert same(weights(trainer.fit().model), weights(model))


@EACH
def test_checkpoint_with_other_wrappers_is_refused_by_name(wrapper, tmp_path):
    make_trainer(
        mlp(), optimizers=partial(wrapped, wrapper, "sgd"), save_folder=tmp_path / "run"
    ).fit()

    with pytest.raises(MismatchError, match=r"type is '?SGD with \w+.*of this run is SGD"):
        make_trainer(mlp(), optimizers=INNER["sgd"], load_path=tmp_path / "run").fit()
