"""Training steps of several updates: bad input, losses that are not finite, terms, names."""

import math
import re
import signal
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch._dynamo.utils import counters as dynamo_counters
from torch.nn.functional import cross_entropy, mse_loss

from composable import AmbiguousOrderWarning, Event, Update, chain, during, replay
from composable.algorithms import EMA, GradientClipping, LabelSmoothing, MixUp
from composable.callbacks import GradientNoise, LRMonitor, OptimizerMonitor
from composable.checkpoint.errors import MismatchError
from composable.core.algorithm import leaves
from composable.loggers import InMemoryLogger
from composable.losses.part_weights import SplitLossError
from composable.optim import per_group
from composable.resume.changes import ChangedRunWarning
from composable.trainer.checking import CheckError
from composable.trainer.guards import NonFiniteLossError, NonFiniteLossWarning
from tests.support.commands import Command
from tests.support.data import batches
from tests.support.models import same, weights
from tests.support.updates import (
    adam,
    lbfgs,
    lower,
    lower_loss,
    pair,
    sgd,
    upper,
    upper_loss,
    whole,
    whole_loss,
    with_updates,
)

# --- bad input ---


def detached(model, batch):
    return upper_loss(model, batch)["loss"].detach()


def of_the_input(model, batch):
    inputs = batch[0].clone().requires_grad_()
    return model.lower(inputs).square().mean()


def of_a_vector(model, batch):
    return model(batch[0]).mean(0)


def foreign(parameters):
    return torch.optim.SGD([*parameters, *OTHER.parameters()], lr=0.1)


OTHER, PARTS = nn.Linear(1, 1), r"its modules are \['lower', 'upper'\]: pass"
BAD = {  # arguments of the update, and the error
    "name": ({"name": 3}, "name=3 of an update must be a string"),
    "slash": ({"name": "a/b"}, "name='a/b' of an update must be a name without a slash"),
    "names": ({"name": "lower"}, r"updates have the names \['lower', 'lower'\], which must"),
    "loss": ({"loss": 3}, "loss=3 of the update 'upper' must be a function"),
    "batch": ({"batch": 3}, "batch=3 of the update 'upper' must be a function"),
    "every": ({"every": 0}, "every of the update 'upper'=0 must be at least 1"),
    "times": ({"times": 0}, "times of the update 'upper'=0 must be at least 1"),
    "class": ({"optimizer": torch.optim.SGD}, "of the update 'upper' must be a function, such"),
    "instance": (
        {"optimizer": torch.optim.SGD(OTHER.parameters(), lr=0.1)},
        r"optimizer=SGD\(\.\.\.\) of the update 'upper' must be a function, such",
    ),
    "foreign": ({"optimizer": foreign}, "the optimizer of the update 'upper' has param"),
    "no optimizer": ({"optimizer": lambda p: 3}, "the update 'upper': optimizers contains"),
    "none": ({"parameters": []}, rf"'upper' has parameters=\[\], which match no .*{PARTS}"),
    "pattern": ({"parameters": "other.*"}, f"'upper' has parameters='other.*{PARTS}"),
    "one of two": ({"parameters": ["upper", "head"]}, "the update 'upper' has .*='head'"),
    **{
        kind: ({"parameters": given}, f"parameters of the update 'upper' {what}: pass names")
        for kind, given, what in [
            ("generator", OTHER.parameters(), "is an object of the type generator"),
            ("Linear", OTHER, "is an object of the type Linear"),
            ("Parameter", ["upper", OTHER.weight], "contains an object of the type Parameter"),
        ]
    },
    "module": ({"loss": nn.Linear(1, 1)}, "the loss of the update 'upper' has parameters"),
    "detached": ({"loss": detached}, "the update 'upper' has no gradient for its parameters"),
    "input": ({"loss": of_the_input}, "the update 'upper' has no gradient for its parameters"),
    "vector": ({"loss": of_a_vector}, r"the update 'upper' returned a tensor of shape \(3,\)"),
    "no loss": (
        {"loss": lambda m, b: {"a": 1}},
        r"'upper' returned \['a'\], and must return 'loss'",
    ),
    "number": ({"loss": lambda m, b: 0.5}, "the update 'upper' returned float and must"),
}
BAD_RUNS = [
    ({"deepspeed_config": {"a": 1}}, r"\['lower', 'upper'\] and deepspeed_config"),
    ({"decay_norms_and_biases": False}, r"\['lower', 'upper'\] and decay_norms_and"),
    ({"optimizers": sgd}, r"\['lower', 'upper'\] and optimizers exclude"),
    ({"train_metrics": {"a": mse_loss}}, r"\['lower', 'upper'\] and train_metrics"),
    (
        {"updates": [upper(optimizer=lbfgs)], "precision": "amp_fp16"},
        "LBFGS of the update 'upper' comp",
    ),
    ({"updates": [3]}, r"updates contains 3: each must be a composable\.Update"),
]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_the_name_of_the_update(name):
    given, message = BAD[name]
    with pytest.raises((TypeError, ValueError, CheckError), match=message):
        with_updates([lower(), upper(**{"every": 2, **given})]).check()


@pytest.mark.parametrize(("options", "message"), BAD_RUNS)
def test_what_a_run_of_updates_cannot_have_is_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        with_updates(**{"updates": [lower(), upper()], **options})


# --- what an update sees ---


def test_only_the_parameters_of_an_update_require_a_gradient_and_all_do_afterwards():
    seen = []

    def loss(model, batch, state):
        seen.append(
            (state.timestamp.batch, [n for n, p in model.named_parameters() if p.requires_grad])
        )
        return upper_loss(model, batch)

    trainer = with_updates([upper(loss=loss), lower()], max_duration="1ba")
    state = trainer.fit()
    assert seen == [(0, ["upper.1.weight", "upper.1.bias"])]
    assert all(p.requires_grad and p.grad is None for p in state.model.parameters())


def test_a_loss_takes_the_averages_of_the_state():
    def loss(model, batch, state):
        target = state.averages.get("EMA", {}).get("upper.1.weight", 0.0)
        return (model.upper[1].weight - target).square().mean()

    trainer = with_updates([upper(loss=loss)], algorithms=EMA(half_life="2ba"), max_duration="3ba")
    assert trainer.fit().losses["upper"] < 0.01


def test_minibatches_of_a_batch_are_those_of_a_plain_loop():
    def minibatch(batch, repetition):
        rows = torch.arange(len(batch[0])) % 2 == repetition
        return tuple(one[rows] for one in batch)

    model, expected = pair(dropout=0.0, norm=False), pair(dropout=0.0, norm=False)
    with_updates([whole(batch=minibatch, times=2)], model, max_duration="1ep").fit()
    optimizer = sgd(expected.parameters())
    for batch in batches(12):
        for repetition in range(2):
            optimizer.zero_grad()
            whole_loss(expected, minibatch(batch, repetition)).backward()
            optimizer.step()
    assert same(weights(model), weights(expected))


def test_random_numbers_of_minibatches_depend_on_the_seed_the_batch_and_the_repetition():
    drawn = []

    def draw(batch, repetition):
        drawn.append((repetition, torch.rand(()).item()))
        return batch

    for _ in range(2):
        with_updates([upper(), lower(batch=draw, times=2)], max_duration="2ba").fit()
    assert drawn[:4] == drawn[4:]
    assert len({value for _, value in drawn[:4]}) == 4


# --- losses that are not finite ---


def due_but_at(number):
    return lambda state: state.timestamp.batch != number


def breaking_at(loss, number):
    """Return a loss that is not finite in a batch."""

    def breaking(model, batch, state):
        value = loss(model, batch)
        return value * math.nan if state.timestamp.batch == number else value

    return breaking


@pytest.mark.parametrize("optimizer", [sgd, adam, lbfgs])
@pytest.mark.parametrize("number", [0, 3, 5])
@pytest.mark.filterwarnings("ignore::composable.trainer.guards.NonFiniteLossWarning")
def test_a_skipped_batch_is_undone_as_a_whole(optimizer, number):
    """The bits are those of a run in which no update is due in the batch."""
    averaged = {"algorithms": EMA(half_life="2ba"), "times": 2}
    skipping = with_updates(
        [whole(optimizer=optimizer, **averaged), lower(loss=breaking_at(lower_loss, number))],
        nonfinite_loss="skip",
    )
    due = due_but_at(number)
    never = with_updates([whole(optimizer=optimizer, every=due, **averaged), lower(every=due)])
    one, other = skipping.fit(), never.fit()
    assert same(weights(one.model), weights(other.model))
    assert same(dict(one.averages["whole/EMA"]), dict(other.averages["whole/EMA"]))
    assert bool(one.losses) == (number != 5)  # a skipped batch logs no loss
    for a, b in zip(one.optimizers, other.optimizers, strict=True):
        assert str(a.state_dict()) == str(b.state_dict())


def test_a_rolled_back_batch_is_undone_as_a_whole(tmp_path):
    once = []

    def loss(model, batch, state):
        value = lower_loss(model, batch)
        if state.timestamp.batch == 3 and not once:
            once.append(3)
            return value * math.nan
        return value

    rolled = with_updates(
        [upper(), lower(loss=loss)],
        nonfinite_loss="rollback",
        save_folder=tmp_path,
        save_interval="1ba",
    )
    due = due_but_at(3)
    never = with_updates([upper(every=due), lower(every=due)])
    with pytest.warns(NonFiniteLossWarning):
        rolled.fit()
    never.fit()
    assert same(weights(rolled.state.model), weights(never.state.model))


def test_an_update_that_is_always_skipped_ends_the_run_with_its_name():
    always = lower(loss=lambda model, batch: lower_loss(model, batch) * math.nan)
    trainer = with_updates([upper(), always], nonfinite_loss="skip", max_duration="20ba")
    with (
        pytest.warns(NonFiniteLossWarning, match="in the update 'lower' was nan"),
        pytest.raises(NonFiniteLossError, match="10 consecutive batches in the update 'lower'"),
    ):
        trainer.fit()


# --- terms and losses ---


def test_losses_are_logged_where_an_update_ran_and_only_there():
    log = InMemoryLogger()
    with_updates(
        [upper(), lower(every=2)], loggers=log, log_interval="1ba", max_duration="4ba"
    ).fit()
    found = {}
    for time, metrics in log.records:
        for name in metrics:
            found.setdefault(name, []).append(time.batch)
    assert found["loss/train/upper"] == found["loss/train/upper/size"] == [1, 2, 3, 4]
    assert found["loss/train/lower"] == [2, 4]
    assert {"lr/upper", "lr/lower"} <= found.keys()
    assert "loss/train" not in found


def of_outputs(model, batch):
    size, distance = model(batch[0]).square().mean(), model(batch[0]).abs().mean()
    return {"loss": size + 0.1 * distance, "size": size}


def of_labeled(model, batch):
    size = model(batch[0])[batch[1] > 0].square().mean()
    return {"loss": 2 * size, "size": size}


@pytest.mark.parametrize("split", [{"grad_accum": 2}, {"microbatch_size": 1}])
@pytest.mark.parametrize(
    ("loss", "mean_over"),
    [
        (of_outputs, "examples"),
        (of_outputs, None),
        (of_labeled, lambda batch: (batch[1] > 0).sum()),  # of no example in some parts
    ],
)
def test_terms_are_means_over_the_whole_batch(split, loss, mean_over):
    update = partial(upper, mean_over=mean_over, loss=loss)
    model = partial(pair, dropout=0.0, norm=False)
    given = {"train_dataloader": in_double(), "max_duration": "1ba"}
    one = with_updates([update()], model().double(), **given)
    other = with_updates([update()], model().double(), **given, **split)
    expected, found = one.fit().losses, other.fit().losses
    assert expected.keys() == found.keys() == {"upper", "upper/size"}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.double(), rtol=1e-12, atol=0)


def in_double():
    return [(inputs.double(), targets) for inputs, targets in batches(20, 10)]


def test_terms_are_those_of_the_first_call_of_a_closure():
    model = pair(dropout=0.0)
    expected = {
        name: one.detach() for name, one in upper_loss(pair(dropout=0.0), batches(4)[0]).items()
    }
    options = {"train_dataloader": batches(4), "max_duration": "1ba"}
    losses = with_updates([upper(optimizer=lbfgs)], model, **options).fit().losses
    assert losses["upper"].equal(expected["loss"])
    assert losses["upper/size"].equal(expected["size"])


def test_a_loss_that_draws_random_numbers_asks_for_what_it_is_a_mean_over():
    noisy = with_updates([upper(), lower(mean_over=None)], grad_accum=2)
    with pytest.raises(SplitLossError, match=r"'lower': .*draws random numbers.* Pass mean_over="):
        noisy.fit()


def test_terms_with_different_divisors_ask_for_what_they_are_means_over():
    def loss(model, batch):
        data = cross_entropy(model(batch[0]), batch[1], ignore_index=0)
        size = model(batch[0]).square().mean()
        return {"loss": data + size, "size": size}

    with pytest.raises(
        SplitLossError, match=r"'upper': .*for the terms that it returns.*mean_over="
    ):
        with_updates([upper(loss=loss, mean_over=None)], pair(norm=False), grad_accum=2).fit()


# --- names, and what else a run has ---


def test_algorithms_of_updates_have_the_names_of_these_in_the_plan_and_in_the_memory():
    clip = GradientClipping("norm", 0.1)
    within = during("1ba", "3ba", chain(clip, MixUp(interpolate_loss=True)))
    updates = [upper(algorithms=clip, times=2), lower(algorithms=within, every=2)]
    trainer = with_updates(updates)
    names = [one.name for each in trainer.plan.algorithms for one in leaves(each)]
    assert sorted(names) == ["lower/GradientClipping", "lower/MixUp", "upper/GradientClipping"]
    explained = trainer.plan.explain(width=200)
    assert "Updates of each step, in this order: upper (times=2), lower (every=2)." in explained
    assert "upper/GradientClipping" in explained


def test_monitors_measure_each_update_under_its_name():
    log = InMemoryLogger()
    callbacks = [OptimizerMonitor("1ba"), LRMonitor("1ba")]
    with_updates([upper(), lower()], callbacks=callbacks, loggers=log).fit()
    names = {name for _, metrics in log.records for name in metrics}
    assert {f"l2_norm/grad/global/{one}" for one in ("upper", "lower")} <= names
    assert {"lr/upper", "lr/lower"} <= names
    assert "l2_norm/grad/global" not in names


def test_gradient_noise_refuses_several_losses():
    with pytest.raises(ValueError, match="GradientNoise measures the gradients of one loss"):
        with_updates([upper(), lower()], callbacks=GradientNoise("1ba"), grad_accum=2).fit()


def test_schedules_of_an_update_and_of_all_multiply():
    def half(clock):
        return 0.5

    halved = lower(schedulers=per_group({}, default=half), optimizer=sgd)
    trainer = with_updates([upper(schedulers=half), halved], schedulers=lambda clock: 0.1)
    trainer.fit()
    assert trainer._run.rates.read() == pytest.approx({"lr/upper": 0.005, "lr/lower": 0.005})


def test_each_update_has_a_loss_scale():
    def large(model, batch):
        return 1e5 * lower_loss(model, batch)

    updates = [upper(), lower(loss=large)]
    trainer = with_updates(updates, precision="amp_fp16", max_duration="3ba")
    trainer.fit()
    upper_scale, lower_scale = (one.scaler for one in trainer._run.updates)
    assert lower_scale.num_skipped > upper_scale.num_skipped
    assert lower_scale.scale < upper_scale.scale


def test_compiled_losses_train_with_the_same_bits():
    before = dynamo_counters["stats"]["unique_graphs"]
    one = with_updates([upper(), lower()], compile={"backend": "aot_eager"}).fit()
    assert dynamo_counters["stats"]["unique_graphs"] >= before + 2
    assert same(weights(one.model), weights(with_updates([upper(), lower()]).fit().model))


def test_a_check_takes_all_updates_and_changes_nothing():
    trainer = with_updates([upper(), lower(every=50)])
    before = weights(trainer.state.model)
    trainer.check()
    assert same(weights(trainer.state.model), before)
    assert not trainer.state.losses
    assert same(weights(trainer.fit().model), weights(with_updates([upper()]).fit().model))


def test_a_batch_is_replayed(tmp_path):
    def train():
        with_updates([upper(times=2), lower()], save_folder=tmp_path, save_interval="2ba").fit()

    train()
    assert replay(train, tmp_path, batch=3).same


def test_each_update_has_averages_of_its_weights():
    updates = [upper(algorithms=EMA("2ba")), lower(algorithms=EMA("3ba"))]
    trainer = with_updates(updates, eval_dataloader=batches(12), loss_fn=cross_entropy)
    state = trainer.fit()
    averages = {**state.averages["upper/EMA"], **state.averages["lower/EMA"]}
    assert all(name.startswith("upper") for name in state.averages["upper/EMA"])
    assert averages.keys() == weights(state.model).keys()
    assert same(weights(state.model), averages)  # the evaluated weights


def test_one_part_of_a_model_is_exported_with_its_averages(tmp_path):
    trainer = with_updates([upper(), lower(algorithms=EMA("2ba"))])
    averages = trainer.fit().averages["lower/EMA"]
    found = load_file(trainer.export_weights(tmp_path / "lower.safetensors", part="lower"))
    assert same(found, {n.removeprefix("lower."): one for n, one in averages.items()})
    with pytest.raises(ValueError, match=r"part='low' must be .* one of \['lower'"):
        trainer.export_weights(tmp_path / "other.safetensors", part="low")


KILLED = """
import os, signal
from tests.support.updates import lower, lower_loss, upper, with_updates

def loss(model, batch, state):
    if state.timestamp.batch == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return lower_loss(model, batch)

loss.__qualname__ = "lower_loss"
updates = [upper(times=2), lower(loss=loss)]
with_updates(updates, save_folder="run", save_interval="1ba").fit()
"""


def test_a_run_that_is_killed_between_two_updates_of_a_batch_continues_with_the_same_bits(tmp_path):
    assert Command(tmp_path, KILLED).finish()[0] == -signal.SIGKILL
    options = {"save_folder": tmp_path / "run", "save_interval": "1ba", "autoresume": True}
    updates = [upper(times=2), lower()]
    resumed = with_updates(updates, **options)
    assert resumed.state.timestamp.batch == 3
    one, other = resumed.fit(), with_updates(updates).fit()
    assert same(weights(one.model), weights(other.model))
    assert one.losses == other.losses


# --- resuming with other updates ---


def resumed(folder, updates):
    saving = {"save_folder": folder, "save_interval": "1ba"}
    with_updates([upper(), lower()], **saving).fit(duration="2ba")
    return with_updates(updates, **saving, autoresume=True)


def doubled(model, batch):
    return 2 * lower_loss(model, batch)


def whole_batch(batch, repetition):
    return batch


@pytest.mark.parametrize(
    "changed",
    [{"every": 2}, {"times": 2}, {"batch": whole_batch}, {"loss": doubled}, {"mean_over": None}],
    ids=lambda one: next(iter(one)),
)
def test_a_resume_with_another_update_says_what_changed(changed, tmp_path):
    (name,) = changed
    with pytest.warns(ChangedRunWarning, match=f"updates/lower/{name}: "):
        resumed(tmp_path, [upper(), lower(**changed)])


@pytest.mark.parametrize("updates", [["high", "lower"], ["lower", "upper"], ["upper"]], ids=str)
def test_a_resume_with_other_names_of_updates_is_refused(updates, tmp_path):
    renamed = [lower() if one == "lower" else upper(name=one) for one in updates]
    message = rf"has the updates \['upper', 'lower'\], and this run has {re.escape(str(updates))}"
    with pytest.raises(MismatchError, match=message):
        resumed(tmp_path, renamed)


def test_a_resumed_log_has_the_losses_since_its_last_row(tmp_path):
    def rows(**options):
        log = InMemoryLogger()
        updates = [upper(), lower(every=4)]
        options = {"save_folder": tmp_path, "save_interval": "1ba", **options}
        trainer = with_updates(
            updates, loggers=log, log_interval="3ba", max_duration="9ba", **options
        )
        trainer.fit(duration="5ba" if "autoresume" not in options else None)
        return [(time.batch, sorted(values)) for time, values in log.records]

    names = ["loss/train/upper", "loss/train/upper/size", "lr/lower", "lr/upper"]
    assert rows() == [(3, names)]
    with_lower = sorted([*names, "loss/train/lower"])
    assert rows(autoresume=True) == [(3, names), (6, with_lower), (9, with_lower)]


def test_terms_have_the_dtype_of_the_loss():
    losses = with_updates([upper()], max_duration="1ba").fit().losses
    assert losses["upper/size"].dtype is losses["upper"].dtype is torch.float32


def test_a_loss_is_given_the_name_of_its_update():
    seen = []

    def loss(model, batch, state):
        seen.append(state.update)
        return whole_loss(model, batch)

    updates = [upper(loss=loss), lower(loss=loss, times=2)]
    with_updates(updates, max_duration="1ba").fit()
    assert seen == ["upper", "lower", "lower"]


def test_a_function_acts_in_its_update():
    seen = []

    def function(event, state):
        seen.append((event, state.update))
        return state

    with_updates([upper(), lower(algorithms=function)], max_duration="1ba").fit()
    assert {update for event, update in seen if event is Event.AFTER_LOSS} == {"lower"}
    assert {Event.INIT, Event.FIT_START, Event.BATCH_END} <= {event for event, _ in seen}


def test_advice_about_an_algorithm_beside_that_of_an_update_names_the_update():
    clip = GradientClipping("norm", 1.0)
    with pytest.warns(
        AmbiguousOrderWarning, match=r"pass both to the Update 'lower', in one chain"
    ):
        with_updates([upper(), lower(algorithms=clip)], algorithms=clip).fit()
    with pytest.raises(TypeError, match="the update 'upper' calls the model itself: change"):
        with_updates([upper()], algorithms=LabelSmoothing(0.1)).fit()


@pytest.mark.parametrize("split", [{}, {"grad_accum": 2}, {"accumulate_batches": 2}], ids=str)
def test_the_examples_of_a_dictionary_are_counted_by_its_first_tensor(split):
    def loss(model, batch):
        return whole_loss(model, (batch["inside"], batch["edges"]))

    data = [{"inside": inputs, "edges": targets} for inputs, targets in batches(12)]
    given = {"max_duration": "1ep", **split}
    one = with_updates([whole(loss=loss)], train_dataloader=data, **given).fit()
    other = with_updates([whole()], train_dataloader=batches(12), **given).fit()
    assert one.timestamp.sample == other.timestamp.sample
    assert same(weights(one.model), weights(other.model))


class Shared(nn.Module):
    """Two heads with one body, and a weight with two names."""

    def __init__(self):
        super().__init__()
        body = nn.Linear(4, 4)
        self.actor, self.critic = (nn.Sequential(body, nn.Linear(4, 1)) for _ in range(2))
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)
        self.second.weight = self.first.weight


@pytest.mark.parametrize(
    ("parameters", "used"), [("critic", "critic"), (["second", "critic.0"], "second")]
)
def test_a_part_with_two_names_is_trained_and_averaged_by_either(parameters, used):
    model = Shared()

    def loss(model, batch):
        return model.second(model.critic(batch[0])).square().mean()

    sgd = partial(torch.optim.SGD, lr=0.1)
    update = Update("one", loss=loss, parameters=parameters, optimizer=sgd, algorithms=EMA("1ba"))
    state = with_updates([update], model, train_dataloader=batches([4])).fit()
    expected = {id(p) for p in getattr(model, used).parameters()}
    expected |= {id(p) for p in model.critic[0].parameters()}
    (optimizer,) = state.optimizers
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == expected
    named = {name for name, p in model.named_parameters() if id(p) in expected}
    assert state.averages["one/EMA"].keys() == named
