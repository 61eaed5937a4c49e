"""Which algorithms go together, and what is said of those that don't."""

from itertools import combinations

import attrs
import pytest

import composable.algorithms as library
from composable import (
    AmbiguousOrderWarning,
    CompatibilityWarning,
    Event,
    IncompatibleAlgorithmsError,
    Plan,
    Stage,
    chain,
    choose,
    during,
    every,
    identity,
    when,
)
from composable.algorithms import (
    EMA,
    BlurPool,
    Factorize,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    WeightStandardization,
)
from tests.support.algorithm_cases import ALGORITHMS, PAIRS
from tests.support.runs import make_trainer
from tests.support.stand_ins import (
    SWA,
    CutMix,
    GhostBatchNorm,
    ProgressiveResizing,
    SeqLengthWarmup,
    SqueezeExcite,
    stand_in,
)


def sometimes(state):
    return True


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        (
            [MixUp(), CutMix()],
            "CutMix and MixUp are incompatible: both mix the batch, and the pairs",
        ),
        ([CutMix(), MixUp()], r"choose\(\[CutMix, MixUp\]\).*windows that don't overlap.*during\("),
        ([MixUp(0.1), MixUp(0.2, name="again")], "MixUp and again are incompatible: both mix"),
        (
            [library.CutMix(), library.CutMix(name="again")],
            "CutMix and again are incompatible: both mix",
        ),
        ([EMA(), SWA()], "EMA and SWA are incompatible: both replace the model that is evaluated"),
    ],
)
def test_a_bad_mixture_is_refused_with_the_reason_and_the_ways_out(algorithms, message):
    with pytest.raises(IncompatibleAlgorithmsError, match=message):
        Plan.compile(algorithms)
    with pytest.raises(ValueError, match=message):
        make_trainer(algorithms=algorithms)


@pytest.mark.parametrize(
    "algorithms",
    [
        [chain(MixUp(), CutMix())],  # says which comes first, and both still act
        [chain(LabelSmoothing(), MixUp()), CutMix()],
        [choose([MixUp(), identity]), CutMix()],  # a batch may have both
        [chain(choose([MixUp(), identity]), CutMix())],
        [choose([chain(MixUp(), CutMix()), identity])],
        [every("2ba", MixUp()), CutMix()],
        [when(sometimes, MixUp()), CutMix()],
        [during("0ep", "2ep", MixUp()), during("1ep", "3ep", CutMix())],
        [during("0ep", "2ep", MixUp()), during("30ba", "40ba", CutMix())],  # unknown beforehand
    ],
)
def test_a_bad_mixture_is_found_wherever_it_is(algorithms):
    with pytest.raises(IncompatibleAlgorithmsError, match=r"MixUp and CutMix|CutMix and MixUp"):
        Plan.compile(algorithms)


@pytest.mark.parametrize(
    "algorithms",
    [
        [choose([MixUp(), CutMix()])],
        [choose([MixUp(), chain(LabelSmoothing(), CutMix()), identity])],
        [during("0ep", "2ep", choose([CutMix(), MixUp()]))],
        [during("0ep", "2ep", MixUp()), during("2ep", "3ep", CutMix())],
        [during("2ep", "3ep", MixUp()), during("0ep", "2ep", CutMix())],
        [chain(during("0dur", "0.5dur", MixUp()), during("0.5dur", "1dur", CutMix()))],
        [during("0dur", "0.5dur", EMA()), during("0.5dur", "1dur", SWA())],
        [during("0ep", "2ep", when(sometimes, MixUp())), during("2ep", "30ep", CutMix())],
        [during("0ep", "2ep", ProgressiveResizing()), during("2ep", "4ep", SeqLengthWarmup())],
        [BlurPool(), GhostBatchNorm()],  # they replace different layers
        *([one(), Factorize()] for one in (BlurPool, SqueezeExcite, WeightStandardization)),
        [MixUp(), EMA(), LabelSmoothing(), BlurPool(), GradientClipping("norm", 1.0)],
    ],
)
def test_what_cannot_meet_in_a_batch_goes_together(algorithms):
    Plan.compile(algorithms)  # warnings are errors in these tests


def test_a_conflict_can_name_a_class_and_counts_for_its_subclasses():
    Rival = stand_in("Rival", Stage.MIX, incompatible_with={MixUp: "they disagree"})

    @attrs.frozen(repr=False)
    class MyMixUp(MixUp):
        pass

    with pytest.raises(
        IncompatibleAlgorithmsError, match="MyMixUp and Rival are incompatible: they disagree"
    ):
        Plan.compile([Rival(), MyMixUp()])


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        ([ProgressiveResizing(), SeqLengthWarmup()], r"both write \['batch'\] in the stage RESIZE"),
        (
            [BlurPool(), SqueezeExcite()],
            r"both write \['model: convolution'\] in the stage SURGERY, so only their names put "
            r"BlurPool first. Fix their order with chain\(BlurPool, SqueezeExcite\), or .* with "
            r"choose\(\[BlurPool",
        ),
    ],
)
def test_two_writers_of_one_thing_in_one_stage_are_reported(algorithms, message):
    with pytest.warns(AmbiguousOrderWarning, match=message):
        Plan.compile(algorithms)


def test_surgeries_whose_order_does_not_matter_are_in_no_doubt():
    surgeries = [case.example for case in ALGORITHMS if case.example.stage is Stage.SURGERY]
    matters = {frozenset((pair.first, pair.second)) for pair in PAIRS}

    for one, other in combinations(surgeries, 2):
        if frozenset((one.name, other.name)) not in matters:
            Plan.compile([one, other])  # warnings are errors in these tests


def test_a_surgery_that_says_no_kind_may_replace_any():
    Anything = stand_in("Anything", Stage.SURGERY, Event.INIT, writes=["model"])

    with pytest.warns(AmbiguousOrderWarning, match=r"Anything and BlurPool both write \['model'\]"):
        Plan.compile([BlurPool(), Anything()])


def test_a_doubt_is_a_warning_of_its_own_and_a_chain_settles_it():
    fast, slow = EMA("1ba", name="fast"), EMA("9ba", name="slow")

    with pytest.warns(CompatibilityWarning, match="fast and slow may interfere: the mo") as w:
        plan = Plan.compile([fast, slow])

    assert [one.category for one in w] == [CompatibilityWarning]
    assert (
        plan.explain(width=999).splitlines()[-1].startswith("Caveat: fast and slow may interfere")
    )
    assert not Plan.compile([chain(fast, slow)]).caveats
