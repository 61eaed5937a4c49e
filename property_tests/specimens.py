"""Every algorithm of the library, as the laws meet it.

A new algorithm gets one entry in `SPECIMENS`, and with it every law that speaks of all algorithms.
A test fails where an exported class has none. What it does in a chain with others goes into
`property_tests/pairs.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from torch import nn

from composable import (
    Algorithm,
    State,
    Time,
    always,
    anneal,
    chain,
    choose,
    during,
    every,
    identity,
    never,
    when,
)
from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    Alibi,
    AugMix,
    BlurPool,
    ChannelsLast,
    ColOut,
    CutMix,
    CutOut,
    Factorize,
    GatedLinearUnits,
    GhostBatchNorm,
    GradientClipping,
    GyroDropout,
    LabelSmoothing,
    LayerFreezing,
    LowPrecisionGroupNorm,
    LowPrecisionLayerNorm,
    MixUp,
    NoOpModel,
    ProgressiveResizing,
    RandAugment,
    SelectiveBackprop,
    SeqLengthWarmup,
    SqueezeExcite,
    StochasticDepth,
    WeightStandardization,
)
from property_tests.pairs import can_be_combined
from tests.runs import (
    LANGUAGE,
    LENGTH,
    PROBLEMS,
    VISION,
    Draws,
    GradientNoise,
    Jitter,
    Problem,
    WordNoise,
)


@attrs.frozen(eq=False)
class Specimen:
    """An algorithm, with what makes it act in a run of a few batches.

    Args:
        kind: Its class.
        hyperparameters: The values that each may have; all combinations must be allowed. The
            first of each make the instance that the table of pairs is about.
        cannot: The problems on which it can't act, each with the reason.
        sees_microbatches: Why its gradients depend on how a batch is split, if they do: it takes
            statistics of a microbatch, say, or draws for each.
        alone: Why it is kept out of random sets and of the table of pairs, if it is: the laws
            meet it by itself.
    """

    kind: type[Algorithm]
    hyperparameters: Mapping[str, Sequence[Any]] = attrs.field(factory=dict)
    cannot: Mapping[Problem, str] = attrs.field(factory=dict)
    sees_microbatches: str = ""
    alone: str = ""

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.kind.__name__

    @property
    def telling(self) -> Algorithm:
        """The instance with the first of all values."""
        return self.kind(**{name: values[0] for name, values in self.hyperparameters.items()})

    @property
    def instances(self) -> st.SearchStrategy[Algorithm]:
        """A strategy for instances."""
        values = {n: st.sampled_from(list(v)) for n, v in self.hyperparameters.items()}
        return st.builds(self.kind, **values)

    def acts_on(self, problem: Problem) -> bool:
        """Whether it can act on a problem."""
        return problem not in self.cannot

    def __repr__(self) -> str:
        return self.name


FLAGS = [False, True]

NO_IMAGES = "token ids are no images"
NO_CONVOLUTIONS = "it has no convolutions"

SPECIMENS = [
    Specimen(
        Alibi,
        {"max_sequence_length": [LENGTH], "train_sequence_length_scaling": [0.5, 0.25, 1.0]},
        cannot={VISION: "images are no sequences of tokens"},
    ),
    Specimen(
        AugMix,
        {"severity": [9, 3], "width": [2, 1], "augmentations": ["safe"]},
        cannot={LANGUAGE: NO_IMAGES},
    ),
    Specimen(
        BlurPool,
        {"min_channels": [0], "blur_first": [True, False], "replace_maxpools": [True, False]},
        cannot={LANGUAGE: "it has no strided layers"},
    ),
    Specimen(ChannelsLast, cannot={LANGUAGE: NO_CONVOLUTIONS}),
    Specimen(ColOut, {"p_row": [0.25], "p_col": [0.25, 0.0]}, cannot={LANGUAGE: NO_IMAGES}),
    Specimen(
        CutOut,
        {"num_holes": [2, 1], "length": [3, 0.5], "per_sample": [True, False]},
        cannot={LANGUAGE: NO_IMAGES},
    ),
    Specimen(EMA, {"half_life": ["2ba", "1ba", "1ep"], "ema_start": ["0dur", "3ba", "0.5dur"]}),
    Specimen(
        Factorize,
        {
            "min_channels": [0],
            "latent_channels": [1, 0.25],
            "min_features": [0],
            "latent_features": [1, 0.25],
        },
    ),
    Specimen(
        GatedLinearUnits,
        {
            "gated_layer_bias": [True, False],
            "non_gated_layer_bias": [True, False],
            "act_fn": [None, torch.tanh],
        },
        cannot={VISION: "it has no feed-forward block"},
    ),
    Specimen(
        GhostBatchNorm,
        {"ghost_batch_size": [2, 3]},
        cannot={LANGUAGE: "it has no batch norm"},
        sees_microbatches="it takes statistics of parts of each",
    ),
    Specimen(
        GradientClipping,
        {"clipping_type": ["norm", "value", "adaptive"], "clipping_threshold": [0.01, 0.1]},
    ),
    Specimen(
        GyroDropout,
        {"sigma": [4, 8], "tau": [2, 1]},
        sees_microbatches="each of them counts as a step, and has masks of its own",
        alone="it needs a length of the run in batches or epochs, which not every run has",
    ),
    Specimen(
        LabelSmoothing,
        {"smoothing": [0.3, 0.1]},
        cannot={LANGUAGE: "the label -100 of padding is no class that could be smoothed"},
    ),
    Specimen(LayerFreezing, {"freeze_start": [0.0, 0.3], "freeze_level": [1.0, 0.6]}),
    Specimen(
        LowPrecisionGroupNorm,
        {"precision": [torch.bfloat16]},
        cannot={LANGUAGE: "it has no group norm"},
    ),
    Specimen(
        LowPrecisionLayerNorm,
        {"precision": [torch.bfloat16]},
        cannot={VISION: "it has no layer norm"},
    ),
    Specimen(
        MixUp,
        {"alpha": [1.0, 0.4], "per_sample": FLAGS, "interpolate_loss": FLAGS},
        cannot={LANGUAGE: "between two token ids lies no token"},
    ),
    Specimen(
        CutMix,
        {"per_sample": [True, False], "uniform_sampling": FLAGS, "interpolate_loss": FLAGS},
        cannot={LANGUAGE: NO_IMAGES},
    ),
    Specimen(NoOpModel, alone="it leaves no layers and no outputs to those that look at them"),
    Specimen(
        ProgressiveResizing,
        {"mode": ["crop", "resize"], "initial_scale": [0.75], "size_increment": [2]},
        cannot={LANGUAGE: NO_IMAGES},
    ),
    Specimen(
        RandAugment,
        {"severity": [9, 3], "depth": [3, 1], "augmentations": ["safe"]},
        cannot={LANGUAGE: NO_IMAGES},
    ),
    Specimen(SAM, {"rho": [0.5, 0.05], "interval": [1, 2]}),
    Specimen(
        SelectiveBackprop,
        {"start": [0.0, 0.3], "end": [1.0], "keep": [0.5, 1.0], "interrupt": [2, 0, 1]},
    ),
    Specimen(
        SeqLengthWarmup,
        {
            "duration": [0.5, 1.0],
            "min_seq_length": [2, 1],
            "max_seq_length": [5, 4],
            "step_size": [1, 2],
        },
        cannot={VISION: "images are no sequences of tokens"},
    ),
    Specimen(
        SqueezeExcite,
        {"latent_channels": [2, 0.5], "min_channels": [0]},
        cannot={LANGUAGE: NO_CONVOLUTIONS},
    ),
    Specimen(
        StochasticDepth,
        {"target": [nn.ReLU], "drop_rate": [0.5], "method": ["block", "sample"]},
        cannot={LANGUAGE: "it has no such block"},
        sees_microbatches="it draws for each",
    ),
    Specimen(
        SWA,
        {
            "swa_start": ["0dur", "2ba", "0.3dur"],
            "swa_end": ["0.7dur", "1dur"],
            "update_interval": ["1ba", "2ba", "1ep"],
            "schedule_swa_lr": [True],
            "anneal_strategy": ["linear", "cos"],
            "anneal_steps": [2, 0],
            "swa_lr": [0.02],
        },
    ),
    Specimen(WeightStandardization, cannot={LANGUAGE: NO_CONVOLUTIONS}),
]

EXTRAS = [
    Specimen(Jitter, cannot={LANGUAGE: "token ids can't be scaled"}),
    Specimen(WordNoise, cannot={VISION: "pixels are no words"}),
    Specimen(GradientNoise),
    Specimen(Draws),
]
"""Algorithms of the tests, which do what no algorithm of the library does."""


def specimens(problem: Problem, *, extras: bool = True) -> list[Specimen]:
    """Those that can act on a problem."""
    return [one for one in SPECIMENS + EXTRAS * extras if one.acts_on(problem)]


def sociable(problem: Problem, *, extras: bool = True) -> list[Specimen]:
    """Those that can act on a problem together with others."""
    return [one for one in specimens(problem, extras=extras) if not one.alone]


def instances_of(kind: type[Algorithm]) -> st.SearchStrategy[Any]:
    """A strategy for instances of one class."""
    return next(one.instances for one in SPECIMENS + EXTRAS if one.kind is kind)


def algorithms(problem: Problem = VISION) -> st.SearchStrategy[Algorithm]:
    """Any one algorithm that can act on a problem."""
    return st.sampled_from(specimens(problem)).flatmap(lambda one: one.instances)


@st.composite
def algorithm_sets(
    draw: Any,
    problem: Problem = VISION,
    *,
    min_size: int = 0,
    max_size: int | None = None,
    but: Callable[[Specimen], Any] = lambda specimen: False,
) -> list[Algorithm]:
    """A subset of all algorithms that can act on a problem together, in any order.

    Args:
        draw: Given by Hypothesis.
        problem: What they act on.
        min_size: How many there are at least, where all can be combined.
        max_size: How many there are at most.
        but: Says which are left out.
    """
    pool = [one for one in sociable(problem) if not but(one)]
    chosen: list[Specimen] = []
    some = st.lists(st.sampled_from(pool), unique_by=id, min_size=min_size, max_size=max_size)
    for one in draw(some):
        if all(can_be_combined(one.name, other.name) for other in chosen):
            chosen.append(one)
    return [draw(one.instances) for one in chosen]


def everything(problem: Problem) -> list[Algorithm]:
    """Each algorithm that can act on a problem, but for those that can't be combined."""
    chosen: list[Specimen] = []
    for one in sociable(problem):
        if all(can_be_combined(one.name, other.name) for other in chosen):
            chosen.append(one)
    return [one.telling for one in chosen]


# --- under combinators ---


def early(state: State) -> bool:
    """The condition that holds in the first batches, at all events of a step."""
    return state.timestamp.batch < 3


def annealed(algorithm: Algorithm) -> Algorithm:
    """The algorithm with hyperparameters that are functions of time, and stay what they are."""
    given = {f.name: getattr(algorithm, f.name) for f in attrs.fields(type(algorithm))}
    name = given.pop("name")
    return anneal(
        type(algorithm), name=name, **{key: _constant(value) for key, value in given.items()}
    )


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda clock: value


@st.composite
def wrapped(draw: Any, algorithm: Algorithm) -> Algorithm:
    """The algorithm under a combinator."""
    kinds = ["when", "during", "every", "choose", "chain", "split"]
    kind = draw(st.sampled_from(kinds + ["anneal"] * (not algorithm.parts)))
    if kind == "when":
        return when(draw(st.sampled_from([always, early, never])), algorithm)
    if kind == "every":
        return every(draw(st.sampled_from(["2ba", "1ba", "3ba", "1ep", "2ep"])), algorithm)
    if kind == "choose":
        return choose([algorithm, identity], weights=[draw(st.integers(1, 3)), 1])
    if kind == "anneal":
        return annealed(algorithm)
    if kind == "chain":
        return chain(*draw(st.permutations([identity, algorithm])))
    unit, whole = draw(st.sampled_from([("ba", 1), ("dur", 6)]))
    points = sorted(draw(st.lists(st.integers(0, 6), min_size=3, max_size=3)))
    start, middle, end = (Time(Fraction(point, whole), unit) for point in points)
    if kind == "during":
        return during(start, end, algorithm)
    return chain(during(start, middle, algorithm), during(middle, end, algorithm))


@st.composite
def combinations(draw: Any, problem: Problem = VISION, *, min_size: int = 0) -> list[Algorithm]:
    """A list of algorithms, some of them under combinators, nested at random."""
    listed = []
    for algorithm in draw(algorithm_sets(problem, min_size=min_size)):
        for _ in range(draw(st.integers(0, 2))):
            algorithm = draw(wrapped(algorithm))
        listed.append(algorithm)
    return listed


problems = st.sampled_from(PROBLEMS)


def on_a_problem(strategy: Callable[[Problem], Any]) -> st.SearchStrategy[tuple[Problem, Any]]:
    """A problem, and what a strategy draws for it."""
    return problems.flatmap(lambda problem: st.tuples(st.just(problem), strategy(problem)))
