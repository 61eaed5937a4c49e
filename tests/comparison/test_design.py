"""What is checked before anything trains."""

from functools import partial

import pytest
import torch
from torch import nn

from composable import IncompatibleAlgorithmsError, Time, Trainer
from composable.algorithms import EMA, SWA, LabelSmoothing, MixUp
from composable.comparison.building import BuildError
from composable.comparison.design import choose_seeds, default_durations, default_folder
from composable.recipes import Recipe
from tests.comparison.small import build, clouds, descend, design

RATES = {"lr": [0.01, 0.1]}


def one_evaluator(algorithms, seed, lr=0.1, **changes):
    arguments = {
        "model": nn.Linear(2, 2),
        "train_dataloader": clouds(0),
        "eval_dataloader": clouds(1, 4),
        "loss_fn": nn.functional.cross_entropy,
        "optimizers": partial(torch.optim.SGD, lr=lr),
        "max_duration": "4ep",
        "algorithms": algorithms,
        "seed": seed,
    }
    return Trainer(**{**arguments, **changes})


def test_the_defaults_follow_from_the_trainer():
    made = design()
    assert made.protocol.durations == ("1ep", "2ep", "4ep")
    assert list(made.subject.arms) == ["baseline", "other", "baseline (repeated)"]
    assert (made.protocol.metric, made.protocol.mode) == ("test/accuracy", "max")
    assert made.epoch_length == 10
    assert made.protocol.notes == (
        "The comparison tuned nothing: every arm has the hyperparameters of build.",
    )


def test_tuning_uses_the_other_evaluator():
    made = design(tune=RATES)
    assert (made.protocol.tuning_metric, made.protocol.tuning_mode) == (
        "validation/accuracy",
        "max",
    )
    assert made.protocol.notes == ()
    other = design(tune=RATES, tuning_metric="validation/loss").protocol
    assert (other.tuning_metric, other.tuning_mode, other.mode) == ("validation/loss", "min", "max")


def test_the_repeated_baseline_has_its_settings_to_try_and_other_seeds():
    made = design(tune=RATES)
    assert made.tried["baseline (repeated)"] == made.tried["baseline"]
    again, base = (made.seeds(arm) for arm in ("baseline (repeated)", "baseline"))
    assert not set(again) & set(base)
    assert made.seeds("other") == base


def test_tuning_with_a_single_evaluator_is_refused():
    with pytest.raises(ValueError, match=r"tuning_metric='eval/loss' and metric='eval/loss'"):
        design(build=one_evaluator, metric="loss", tune=RATES)


def test_a_mode_against_the_name_of_the_metric_is_noted():
    made = design(mode="min")
    assert made.protocol.mode == "min"
    assert made.protocol.notes[0] == (
        "mode='min' was passed, which the name of test/accuracy does not suggest."
    )
    assert design(mode="max").protocol.notes == design().protocol.notes


def test_a_duration_that_the_build_function_refuses_is_an_error():
    def short(algorithms, seed, max_duration="4ep"):
        if max_duration == "8ep":
            raise ValueError("at most 4 epochs")
        return one_evaluator(algorithms, seed, max_duration=max_duration)

    with pytest.raises(BuildError, match=r"build fails for max_duration='8ep'.*at most 4 epochs"):
        design(build=short, metric="eval/loss", durations=["4ep", "8ep"])
    assert design(build=short, metric="eval/loss").protocol.durations == ("1ep", "2ep", "4ep")


def test_a_required_duration_needs_schedules():
    def required(algorithms, seed, max_duration):
        return one_evaluator(algorithms, seed, max_duration=max_duration)

    with pytest.raises(ValueError, match="needs a default for the parameter max_duration"):
        design(build=required, metric="eval/loss")
    assert design(build=required, metric="eval/loss", durations="3ep").protocol.durations == (
        "3ep",
    )


def ignoring(algorithms, seed):
    return build(algorithms, 0)


def broken(algorithms, seed):
    raise RuntimeError("no data")


def returning_none(algorithms, seed):
    return None


UNBOUNDED = partial(one_evaluator, max_duration=None)
OF_SIZE = partial(one_evaluator, metrics={"size": lambda outputs, targets: outputs.norm(dim=1)})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"build": 3}, TypeError, "build=3 must be a function"),
        ({"build": ignoring}, BuildError, "ignores its argument seed"),
        ({"build": ignoring, "durations": ["2ep"]}, BuildError, "ignores its argument seed"),
        ({"build": broken}, BuildError, "before anything is trained: RuntimeError: no data"),
        ({"build": returning_none}, BuildError, "must return a Trainer, and returned None"),
        ({"build": UNBOUNDED, "metric": "eval/loss"}, ValueError, "has none; pass durations"),
        ({"build": OF_SIZE, "metric": "eval/size"}, ValueError, "pass mode='min' or mode='max'"),
        ({"metric": "test/acc"}, ValueError, r"metric='test/acc'.*metrics/test/accuracy"),
        *(
            (
                {"tune": RATES, "metric": one, "tuning_metric": one},
                ValueError,
                "Pass two evaluators",
            )
            for one in ("test/accuracy", "validation/accuracy")
        ),
        (
            {"arms": {"two": [EMA(half_life="20ba"), SWA()]}},
            IncompatibleAlgorithmsError,
            "arm 'two' cannot be composed",
        ),
        *(
            ({"durations": lengths}, ValueError, "must be lengths of runs")
            for lengths in ([], ["0ep"], ["0.5dur"])
        ),
        ({"seeds": 0}, ValueError, "seeds=0 must be at least 1"),
        ({"target": "0.9"}, TypeError, "target='0.9' must be a finite number"),
        ({"target": float("nan")}, ValueError, "target=nan must be finite"),
        ({"mode": "highest"}, ValueError, "mode='highest' must be 'min', 'max' or None"),
        ({"tune": {"rate": [1, 2]}}, ValueError, r"\['rate'\] for arm 'baseline', which neither"),
        ({"repeat_baseline": 1}, TypeError, "repeat_baseline=1 must be True or False"),
        ({"arms": {}}, ValueError, "at least one arm"),
        ({"arms": {"baseline (repeated)": []}}, ValueError, "as the A/A arm"),
        ({"durations": ["1ep", "10ba"]}, ValueError, "must have one unit"),
        ({"durations": {}}, ValueError, r"durations has schedules for \[\]; it must"),
        ({"durations": {"mixup": ["1ep"]}}, ValueError, r"has schedules for \['mixup'\]; it must"),
        (
            {"durations": {"baseline (repeated)": "1ep"}},
            ValueError,
            r"has schedules for \['baseline \(rep",
        ),
        ({"durations": {"other": []}}, ValueError, r"durations\['other'\]=\[\] must be lengths"),
        ({"durations": {"other": ["1q"]}}, ValueError, r"durations\['other'\]='1q'"),
        ({"durations": {"other": "9ba"}}, ValueError, r"durations\['other'\].* must have one unit"),
    ],
)
def test_invalid_arguments_are_errors(changes, error, message):
    with pytest.raises(error, match=message):
        design(**changes)


@pytest.mark.parametrize(
    ("durations", "of_both", "of_others"),
    [
        ({"both": ["2ep", "1ep"]}, ("1ep", "2ep"), ("1ep", "2ep", "4ep")),
        ({"baseline": ["1ep", "3ep"]}, ("1ep", "3ep"), ("1ep", "3ep")),
    ],
)
def test_arms_without_schedules_have_those_of_the_baseline(durations, of_both, of_others):
    arms = {"other": [], "both": [LabelSmoothing(0.1), MixUp()]}
    protocol = design(arms=arms, durations=durations).protocol
    assert protocol.durations == of_others
    assert protocol.schedules == {
        "baseline": of_others,
        "other": of_others,
        "both": of_both,
        "baseline (repeated)": of_others,
    }


def test_values_of_tune_that_leave_no_choice_are_said():
    assert design(tune={"lr": [0.3]}).protocol.notes == (
        "The comparison tuned nothing: every arm has the single values of tune.",
    )


def test_the_arguments_of_a_recipe_and_of_an_arm_reach_the_build_function():
    optimizer = partial(torch.optim.SGD, lr=0.2)
    made = design(
        arms={"smooth": lambda smoothing: Recipe([LabelSmoothing(smoothing)], optimizer)},
        tune={"lr": [0.1, 0.2], "smooth": {"lr": [0.1], "smoothing": [0.1, 0.3]}},
    )
    settings = made.tried["smooth"][1]
    assert made.subject.arguments(_trial("smooth", settings)) == {
        "algorithms": [LabelSmoothing(0.3)],
        "optimizers": optimizer,
        "lr": 0.1,
    }


def _trial(arm, settings):
    from composable.comparison.records import Trial

    return Trial(arm, settings, "1ep", 0, "reporting")


def test_the_folder_has_the_name_of_the_module_of_the_build_function():
    assert default_folder(build).parts == ("comparisons", "small")
    assert default_folder(partial(build, lr=0.1)).parts == ("comparisons", "small")


# --- weights that are shared by all calls of build ---


def sharing(backbone, of=lambda backbone: nn.Sequential(backbone, nn.Linear(2, 2))):
    """Return a function that builds Trainers of models with one layer."""
    return lambda algorithms, seed: one_evaluator(algorithms, seed, model=of(backbone))


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({"of": lambda backbone: backbone}, r"model belongs to .* copy\.deepcopy\(model\)"),
        ({}, "2 of the parameters of an earlier call"),
    ],
)
def test_a_build_function_that_continues_a_global_model_or_part_is_an_error(of, message):
    backbone = nn.Linear(2, 2)
    weight = backbone.weight.detach().clone()

    with pytest.raises(BuildError, match=message):
        design(build=sharing(backbone, **of), metric="loss")
    assert backbone.weight.equal(weight)


def reset(backbone):
    backbone.reset_parameters()
    return nn.Sequential(backbone, nn.Linear(2, 2))


@pytest.mark.parametrize(
    "shared",
    [sharing(nn.Linear(2, 2), of=reset), sharing(nn.Linear(2, 2).requires_grad_(False))],
    ids=["set in each call", "not trained"],
)
def test_a_shared_part_without_trained_weights_may_be_compared(shared):
    assert design(build=shared, metric="loss").protocol.metric == "eval/loss"


# --- seeds ---


@pytest.mark.parametrize("given", [(5, 2), (1, 1), (2000, 3), ([7, 4000, 12], [1, 2]), (3, [5])])
def test_the_four_groups_of_seeds_are_disjoint(given):
    reporting, tuning, offset = choose_seeds(*given)
    own = {*reporting, *tuning}
    assert len(own) == len(reporting) + len(tuning)
    assert not own & {seed + offset for seed in own}


def test_more_seeds_keep_those_of_fewer():
    few, many = choose_seeds(5, 2), choose_seeds(20, 4)
    assert (many[0][:5], many[1][:2], many[2]) == few


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((0, 2), ValueError, "seeds=0 must be at least 1"),
        ((5, 0), ValueError, "tuning_seeds=0 must be at least 1"),
        ((True, 2), TypeError, "seeds=True must be a number of seeds"),
        (("5", 2), TypeError, "seeds='5' must be a number of seeds"),
        (([1.5], 2), TypeError, "seeds=1.5 must be an integer"),
        (([], 2), ValueError, "at least one seed"),
        (([1, 1], 2), ValueError, "listed twice"),
        (([-1], 2), ValueError, "seeds=-1 must be at least 0"),
        ((3, [2, 9]), ValueError, r"tuning_seeds=\[2, 9\] has \[2\], which are reported"),
    ],
)
def test_invalid_seeds_are_errors(given, error, message):
    with pytest.raises(error, match=message):
        choose_seeds(*given)


# --- schedules ---


@pytest.mark.parametrize(
    ("longest", "durations"),
    [
        ("8ep", ("2ep", "4ep", "8ep")),
        ("10ep", ("2ep", "5ep", "10ep")),
        ("1ep", ("1ep",)),
        ("2ep", ("1ep", "2ep")),
        ("100ba", ("25ba", "50ba", "100ba")),
    ],
)
def test_the_default_schedules_are_a_quarter_a_half_and_the_whole(longest, durations):
    assert default_durations(longest) == durations


def test_durations_are_sorted_and_listed_once():
    assert design(durations=["8ep", "2ep", Time("4ep"), 2]).protocol.durations == (
        "2ep",
        "4ep",
        "8ep",
    )
    assert design(durations="100ba").protocol.durations == ("100ba",)


# --- loops of the user's own ---

LOOP = {
    "build": None,
    "run": descend,
    "arms": {"fast": {"factor": 2}},
    "baseline": {"factor": 1},
    "metric": "test/loss",
    "durations": ["10ba", "20ba"],
}


def test_a_loop_is_planned_as_a_build_function_is():
    made = design(**LOOP, tune=RATES)
    assert list(made.subject.arms) == ["baseline", "fast", "baseline (repeated)"]
    assert made.protocol.durations == ("10ba", "20ba")
    assert (made.protocol.tuning_metric, made.protocol.mode) == ("validation/loss", "min")
    trial = _trial("fast", made.tried["fast"][1])
    assert made.subject.arguments(trial) == {"arm": {"factor": 2}, "lr": 0.1}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"build": build}, TypeError, "pass either build"),
        ({"run": None}, TypeError, "pass either build"),
        ({"run": lambda seed: None}, TypeError, "must take arm, seed, duration by these names"),
        ({"durations": None}, ValueError, "run=... needs durations"),
        (
            {"tune": {"depth": [1]}},
            ValueError,
            r"neither the function nor the arm takes. Give .* build\(algorithms, seed, depth=",
        ),
    ],
)
def test_invalid_arguments_with_a_loop_are_errors(changes, error, message):
    with pytest.raises(error, match=message):
        design(**{**LOOP, **changes})
