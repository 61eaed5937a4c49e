"""Seeds that are computed together: the results of separate runs."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import composable.algorithms as A
from composable import Callback, Control, Trainer
from composable.comparison import Trial
from composable.comparison.seeds.dropout import SeededDropout
from composable.comparison.seeds.many_seeds import train_seeds, why_not
from composable.comparison.trials.trial import run_trial
from composable.core.key import Key
from composable.optim import AdamWScheduleFree, Muon, cosine
from composable.plan.combinators import during
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.runs import VISION

SEEDS = (3, 4, 5)


def data(shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(28, *shape, generator=generator, dtype=dtype)
    return TensorDataset(x, torch.randint(4, (28,), generator=generator))


def perceptron(dropout=0.0):
    layers = [nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU()]
    return nn.Sequential(*layers, *[nn.Dropout(dropout)] * bool(dropout), nn.Linear(12, 4))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def builder(model=perceptron, shape=(16,), dtype=torch.float64, trainers=None, **options):
    examples = data(shape, dtype)

    def build(algorithms, seed):
        made = {"optimizers": SGD, "loss_fn": cross_entropy} | options
        trainer = Trainer(
            model().to(dtype),
            train_dataloader=DataLoader(examples, batch_size=8, shuffle=True),
            eval_dataloader=DataLoader(examples, batch_size=16),
            algorithms=algorithms,
            seed=seed,
            **made,
        )
        if trainers is not None:
            trainers.append(trainer)
        return trainer

    return build


def trials(duration="3ep", seeds=SEEDS):
    return [Trial("arm", {}, duration, seed, "reporting") for seed in seeds]


def both(build, algorithms=(), **options):
    """Return the results of seeds that are computed together, after comparing them."""
    arguments = {"algorithms": list(algorithms)}
    many = train_seeds(build, arguments, trials(), **{"seeds_at_once": True} | options)
    separate = [run_trial(build, arguments, one) for one in trials()]
    assert len(many.results) == len(separate)
    for one, other in zip(many.results, separate, strict=True):
        assert (one.trial, one.outcome, one.batches) == (other.trial, other.outcome, other.batches)
        assert [e.batch for e in one.curve] == [e.batch for e in other.curve]
        for mine, theirs in zip(one.curve, other.curve, strict=True):
            assert mine.metrics == pytest.approx(dict(theirs.metrics), rel=1e-9)
    return many


def test_seeds_that_share_a_model_are_trained_one_after_another():
    model = perceptron()
    many = train_seeds(builder(lambda: model), {"algorithms": []}, trials(), seeds_at_once=True)
    assert many.reason == "the Trainers of different seeds share parameters"


def test_a_large_model_is_trained_one_seed_after_another(monkeypatch):
    monkeypatch.setattr("composable.comparison.seeds.many_seeds._LARGEST", 100)
    arguments = {"algorithms": []}
    assert train_seeds(builder(), arguments, trials()).reason == (
        "the model has more than 100 parameters"
    )
    assert train_seeds(builder(), arguments, trials(), seeds_at_once=True).together


class Attribute(nn.Linear):
    """Counts its calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 100)


class Branch(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


class OfBatchOne(nn.Linear):
    """Computes something else under vmap."""

    def forward(self, x):
        mapped = torch._C._functorch.is_batchedtensor(x)
        return super().forward(x) * (1.01 if mapped else 1.0)


def hidden():
    return nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


class Noise(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand(4)


class Attention(nn.Linear):
    def forward(self, x):
        x = super().forward(x)[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)[:, 0]


class DropsConstant(nn.Linear):
    def forward(self, x):
        return super().forward(x) * nn.functional.dropout(torch.ones(4), 0.5)


def convolutional_dropout(inplace=False):
    first, *rest, last = convolutional()
    return nn.Sequential(
        nn.Dropout(0.1),
        first,
        nn.Dropout2d(0.3, inplace=inplace),
        *rest,
        nn.Dropout(0.2, inplace=inplace),
        last,
    )


# --- the same results ---


def test_plain_runs():
    many = both(builder())
    assert (many.together, many.reason) == (True, None)
    assert len({one.curve[-1].metrics["eval/loss"] for one in many.results}) == len(SEEDS)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_optimizers(name):
    optimizer = partial(getattr(torch.optim, name), lr=0.01)
    assert both(builder(lambda: nn.Linear(16, 4), optimizers=optimizer)).together


@pytest.mark.parametrize("kind", [Muon, AdamWScheduleFree])
def test_optimizers_that_step_seed_by_seed(kind):
    assert both(builder(hidden, optimizers=partial(kind, lr=0.01))).together


def test_parameter_groups_and_schedules():
    def optimizer(parameters):
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.05}, {"params": rest}], lr=0.1)

    assert both(builder(optimizers=optimizer, schedulers=cosine())).together
    steps = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    assert both(builder(schedulers=steps)).together


TOGETHER = [
    A.CutOut(),
    A.CutMix(),
    A.EMA(half_life="3ba"),
    A.GradientClipping(clipping_threshold=0.1),
    A.LabelSmoothing(),
    A.LayerFreezing(freeze_start=0.0),
    A.MixUp(),
    A.ProgressiveResizing(finetune_fraction=0.0, initial_scale=0.5),
    A.SAM(),
    A.SelectiveBackprop(start=0.0, end=1.0),
    A.SqueezeExcite(latent_channels=4, min_channels=4),
    A.SWA(),
]


@pytest.mark.parametrize("algorithm", TOGETHER, ids=lambda one: type(one).__name__)
def test_algorithms(algorithm):
    many = both(builder(convolutional, (3, 8, 8)), [algorithm])
    assert many.together, many.reason


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (partial(perceptron, dropout=0.3), (16,)),
        (convolutional_dropout, (3, 8, 8)),
        (partial(convolutional_dropout, inplace=True), (3, 8, 8)),
    ],
)
@pytest.mark.parametrize("algorithms", [[], [A.SAM(), A.EMA(half_life="3ba")]], ids=len)
def test_dropout(model, shape, algorithms):
    many = both(builder(model, shape), algorithms)
    assert many.together, many.reason


@pytest.mark.parametrize("kind", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_dropout_of_channels(kind):
    size = (2,) * int(kind.__name__[-2])

    def model():
        unflatten = nn.Unflatten(1, (16 // math.prod(size), *size))
        return nn.Sequential(
            nn.Linear(16, 16), unflatten, kind(0.5), nn.Flatten(), nn.Linear(16, 4)
        )

    many = both(builder(model))
    assert many.together, many.reason


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_that_draws_nothing(p):
    many = both(builder(lambda: nn.Sequential(nn.Linear(16, 4), nn.Dropout(p))))
    assert many.together, many.reason


@pytest.mark.parametrize("inplace", [False, True])
def test_seeds_have_masks_of_their_own(inplace):
    drop = partial(nn.functional.dropout, p=0.5, inplace=inplace)
    states = [torch.Generator().manual_seed(seed).get_state() for seed in SEEDS]
    with torch.random.fork_rng(devices=[]):
        with SeededDropout(states) as dropout:
            found = torch.func.vmap(lambda x: drop(drop(x)))(torch.ones(len(SEEDS), 5, 40))
        for i, seed in enumerate(SEEDS):
            torch.manual_seed(seed)
            assert torch.equal(found[i], drop(drop(torch.ones(5, 40))))
            assert torch.equal(dropout.generators[i], torch.get_rng_state())
    assert not torch.equal(found[0], found[1])


def test_several_algorithms_and_one_that_acts_for_a_while():
    algorithms = [A.LabelSmoothing(), A.EMA(half_life="3ba"), during("1ep", "2ep", A.MixUp())]
    assert both(builder(convolutional, (3, 8, 8)), algorithms).together


SEPARATE = {
    "ChannelsLast": "not contiguous in memory",
    "StochasticDepth": "draws random numbers",
}
"""Why algorithms that act on images need separate runs; the others are computed together."""


@pytest.mark.filterwarnings("ignore::UserWarning")  # such as of one that finds no layers
@pytest.mark.parametrize("case", ALGORITHMS, ids=repr)
def test_every_algorithm_is_computed_together_or_says_why_not(case):
    def build(algorithms, seed):
        model = VISION.model().double()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        loader = [(x.double(), y) for x, y in VISION.batches()]
        options = {"eval_dataloader": loader[:2], "check_effects": False, "seed": seed}
        return VISION.trainer(model, loader, algorithms=algorithms, **options)

    if type(case.example).__name__ == "Alibi":
        return  # it does not act on images, and fails by itself
    many = both(build, [case.example])
    reason = SEPARATE.get(type(case.example).__name__)
    assert many.together == (reason is None), many.reason
    assert reason is None or reason in many.reason


# --- the seeds train one after another ---


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: Noise(16, 4), "draws random numbers"),
        (lambda: Attention(16, 4), "draws random numbers"),
        (lambda: DropsConstant(16, 4), "the same for all seeds"),
        (lambda: Attribute(16, 4), "changes its own attributes"),
        (lambda: Branch(16, 4), "data-dependent control flow"),
        (lambda: OfBatchOne(16, 4), "differ under vmap"),
    ],
)
def test_a_model_that_vmap_would_change_trains_seed_by_seed(model, reason):
    many = both(builder(model))
    assert not many.together
    assert reason in many.reason


def test_models_of_different_structures_train_seed_by_seed():
    sizes = iter([8, 9, 10] * 3)

    def model():
        width = next(sizes)
        return nn.Sequential(nn.Linear(16, width), nn.Linear(width, 4))

    many = both(builder(model))
    assert "differ" in many.reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"grad_accum": 2}, "microbatches"),
        ({"precision": "amp_bf16"}, "precision"),
        ({"optimizers": partial(torch.optim.Rprop, lr=0.01)}, "Rprop"),
        ({"loss_fn": nn.CrossEntropyLoss(weight=torch.ones(4))}, "the loss has parameters"),
    ],
)
def test_why_not_names_the_reason(options, reason):
    build = builder(dtype=torch.float32, **options)
    assert reason in why_not(build([], 0))
    assert reason in train_seeds(build, {"algorithms": []}, trials("1ep")).reason


def test_one_seed_and_false_train_separately():
    build = builder()
    assert not both(build, seeds_at_once=False).together
    assert train_seeds(build, {"algorithms": []}, trials("1ep", (7,))).reason == "there is one seed"


def test_a_run_that_ends_early_leaves_the_others():
    class Stop(Callback):
        def batch_end(self, state, logger):
            wanted = state.key == Key(SEEDS[1]) and state.timestamp.batch == 5
            return Control.STOP if wanted else None

    many = both(builder(callbacks=Stop))
    assert [one.outcome for one in many.results] == ["finished", "stopped", "finished"]


def test_a_run_that_diverges_leaves_the_others():
    class Poison(Callback):
        def batch_end(self, state, logger):
            if state.key == Key(SEEDS[0]) and state.timestamp.batch == 6:
                with torch.no_grad():
                    next(state.model.parameters()).fill_(math.nan)

    many = both(builder(callbacks=Poison))
    assert [one.outcome for one in many.results] == ["diverged", "finished", "finished"]


def test_an_interruption_ends_all_runs():
    class Interrupt(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_seeds(builder(callbacks=Interrupt), {"algorithms": []}, trials(), seeds_at_once=True)


def test_weights_after_the_runs_are_those_of_separate_runs():
    found, own = [], []
    for trainers, at_once in ((found, True), (own, False)):
        build = builder(trainers=trainers)
        train_seeds(build, {"algorithms": []}, trials(), seeds_at_once=at_once)
    for one, other in zip(found, own, strict=True):
        mine, theirs = one.state.model.state_dict(), other.state.model.state_dict()
        for name, tensor in theirs.items():
            torch.testing.assert_close(mine[name], tensor, rtol=1e-9, atol=1e-12)


def test_auto_measures_and_continues_with_the_faster_kind():
    arguments = {"algorithms": [A.EMA(half_life="3ba")]}
    many = train_seeds(builder(), arguments, trials("10ep"))
    assert many.ratio is not None
    assert many.together == (many.ratio < 1)
    for one, trial in zip(many.results, trials("10ep"), strict=True):
        other = run_trial(builder(), arguments, trial)
        for mine, theirs in zip(one.curve, other.curve, strict=True):
            assert mine.metrics == pytest.approx(dict(theirs.metrics), rel=1e-9)


def test_trials_differ_in_the_seed_only():
    different = [*trials("1ep"), *trials("2ep")]
    with pytest.raises(ValueError, match="must differ in the seed only"):
        train_seeds(builder(), {"algorithms": []}, different)
    with pytest.raises(ValueError, match="seeds_at_once='no' must be"):
        train_seeds(builder(), {"algorithms": []}, trials(), seeds_at_once="no")
