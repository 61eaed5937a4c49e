"""Combinators: what they are called, where they stand, and what they refuse."""

import attrs
import pytest

from composable import (
    Algorithm,
    Event,
    IdleAlgorithmWarning,
    Plan,
    Stage,
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
from composable.algorithms import EMA, BlurPool, LabelSmoothing, MixUp
from composable.optim import linear
from tests.support.runs import make_trainer


@attrs.frozen(repr=False)
class First(Algorithm):
    """Writes the batch in the stage of augmentation."""

    stage = Stage.AUGMENT
    events = frozenset({Event.AFTER_DATALOADER})
    writes = frozenset({"batch"})

    def apply(self, event, state):
        return state


@attrs.frozen(repr=False)
class Second(First):
    """Comes after the class of the same stage whose name it gives."""

    after = frozenset({"Third"})


@attrs.frozen(repr=False)
class Third(First):
    """Sorts after `Second` by name."""


def names(plan):
    return [algorithm.name for algorithm in plan.algorithms]


# --- names ---


def keep(event, state):
    return state


@pytest.mark.parametrize(
    ("combination", "name"),
    [
        (chain(MixUp(), LabelSmoothing()), "chain(MixUp, LabelSmoothing)"),
        (chain(keep, MixUp()), "chain(keep, MixUp)"),
        (when(never, MixUp()), "when(never, MixUp)"),
        (during("0.2dur", "3ep", MixUp()), "during('0.2dur', '3ep', MixUp)"),
        (every("2ba", MixUp()), "every('2ba', MixUp)"),
        (choose([MixUp(), identity]), "choose([MixUp, identity])"),
        (anneal(MixUp, alpha=linear(0.4, 0.1)), "anneal(MixUp)"),
        (chain(MixUp(), name="mixing"), "mixing"),
        (choose([MixUp()], name="perhaps"), "perhaps"),
        (anneal(MixUp, name="mild", alpha=0.1).parts[0], "mild"),
    ],
)
def test_combination_is_named_after_its_call(combination, name):
    assert combination.name == name
    smoothing = during("0ba", "2ba", LabelSmoothing(0.2))
    assert repr(smoothing) == "during('0ba', '2ba', LabelSmoothing(smoothing=0.2))"


@pytest.mark.parametrize(
    "algorithms",
    [
        [chain(EMA(), MixUp(0.1)), every("2ba", MixUp(0.2))],
        [chain(during("0ba", "1ba", MixUp(0.1)), during("1ba", "2ba", MixUp(0.2)))],
    ],
)
def test_rejects_two_algorithms_of_one_name(algorithms):
    with pytest.raises(ValueError, match=r"two named 'MixUp'.*MixUp\(\.\.\., name='MixUp2'\)"):
        Plan.compile(algorithms)


@pytest.mark.parametrize("listed", [[Second(), Third()], [Third(), Second()]])
def test_declared_order_overrides_names_and_is_the_reason(listed):
    plan = Plan.compile(listed)  # warnings are errors in these tests

    assert names(plan) == ["Third", "Second"]
    assert plan.steps()[1].why == "after Third, as declared"


# --- before and after ---


def test_classes_can_be_given_in_place_of_names():
    @attrs.frozen(repr=False)
    class Zeroth(First):
        before = frozenset({First})

    assert names(Plan.compile([First(name="A"), Zeroth()])) == ["Zeroth", "A"]


def test_a_declaration_against_the_stages_is_refused():
    @attrs.frozen(repr=False)
    class Early(First):
        stage = Stage.SELECT
        after = frozenset({"First"})

    with pytest.raises(ValueError, match=r"its stage AUGMENT comes after SELECT.*chain\(First, E"):
        Plan.compile([First(), Early()])


# --- what can never act ---


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (during("3ba", "3ba", MixUp()), "no batch lies from 3ba up to 3ba"),
        (during("2ep", "1ep", MixUp()), "no batch lies from 2ep up to 1ep"),
        (during("0.2dur", "1dur", BlurPool()), "BlurPool acts before training begins"),
        (chain(EMA(), when(never, during("1ba", "0ba", MixUp()))), "no batch lies"),
    ],
)
def test_what_can_never_act_is_reported_when_the_plan_is_made(algorithm, why):
    with pytest.warns(IdleAlgorithmWarning, match=rf"can never act: {why}"):
        Plan.compile([algorithm])


# --- what is refused ---


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: chain(MixUp), TypeError, r"class MixUp; pass an instance"),
        (lambda: chain(3), TypeError, "pass an Algorithm"),
        (lambda: when(True, MixUp()), TypeError, "predicate=True must be a function of the state"),
        (lambda: during("x", "1ep", MixUp()), ValueError, "start='x': invalid time 'x'"),
        (lambda: during("0ep", 1.5, MixUp()), TypeError, "end=1.5: A time must be"),
        (lambda: every("x", MixUp()), ValueError, "interval='x': invalid time 'x'"),
        (lambda: every("0ba", MixUp()), ValueError, "interval='0ba' must be one or more batches"),
        (lambda: every("0.5dur", MixUp()), ValueError, "interval='0.5dur' must be one or more"),
        (lambda: choose([]), ValueError, "must contain at least one"),
        (lambda: choose([MixUp()], weights=[1, 2]), ValueError, r"weights=\[1, 2\] must be 1 num"),
        (lambda: choose([MixUp()], weights=[-1]), ValueError, r"weights=\[-1\] must be"),
        (lambda: choose([MixUp()], weights=[0]), ValueError, "not all zero"),
        (lambda: choose([MixUp()], weights=[float("nan")]), ValueError, "finite"),
        (lambda: anneal(MixUp(), alpha=1.0), TypeError, "must be a class of algorithms"),
        (lambda: anneal(MixUp, alpha=-1.0), ValueError, "alpha=-1.0"),
        (lambda: anneal(MixUp, beta=1.0), TypeError, "beta"),
    ],
)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_part_that_returns_no_state_is_named():
    def forgetful(event, state):
        return None

    with pytest.raises(TypeError, match="apply returned None and must return a State") as raised:
        make_trainer(algorithms=chain(forgetful, Third()))

    assert any("chain(forgetful, Third) at INIT" in note for note in raised.value.__notes__)


def test_parts_that_listen_to_both_events_of_a_pair_run_in_reverse_at_the_second():
    ran = []

    @attrs.frozen(repr=False)
    class Bracket(Algorithm):
        events = frozenset({Event.BEFORE_LOSS, Event.AFTER_LOSS})

        def apply(self, event, state):
            ran.append(self.name)
            return state

    algorithms = chain(Bracket(name="b"), Bracket(name="a"))
    make_trainer(algorithms=algorithms, max_duration="1ba").fit()

    assert ran == ["b", "a", "a", "b"]


# --- how deep ---


KINDS = {
    "when": lambda inner: when(always, inner),
    "every": lambda inner: every("1ba", inner),
    "during": lambda inner: during("0ba", "1dur", inner),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_are_the_limit(kind):
    algorithm = LabelSmoothing(0.1)
    for _ in range(100):
        algorithm = KINDS[kind](algorithm)

    # Words of more than 50 letters are broken.
    assert "LabelSmoothing" in "".join(Plan.compile([algorithm]).explain().split())
    make_trainer(algorithms=algorithm, max_duration="1ba").fit()
    with pytest.raises(ValueError, match="at most 100 deep"):
        KINDS[kind](algorithm)
