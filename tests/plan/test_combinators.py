"""Combinators: what they are called, where they stand, and what they refuse."""

import attrs
import pytest

from composable import (
    Algorithm,
    AmbiguousOrderWarning,
    Event,
    IdleAlgorithmWarning,
    Plan,
    Stage,
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
from tests.support.runs import trained, trainer


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


# --- names and reprs ---


def test_a_combination_is_called_like_the_call_that_makes_it():
    mix = MixUp()

    assert chain(mix, LabelSmoothing()).name == "chain(MixUp, LabelSmoothing)"
    assert when(never, mix).name == "when(never, MixUp)"
    assert during("0.2dur", "3ep", mix).name == "during('0.2dur', '3ep', MixUp)"
    assert every("2ba", mix).name == "every('2ba', MixUp)"
    assert choose([mix, identity]).name == "choose([MixUp, identity])"
    assert anneal(MixUp, alpha=linear(0.4, 0.1)).name == "anneal(MixUp)"
    assert repr(during("0ba", "2ba", LabelSmoothing(0.2))) == (
        "during('0ba', '2ba', LabelSmoothing(smoothing=0.2))"
    )


def test_a_name_of_ones_own_is_kept():
    assert chain(MixUp(), name="mixing").name == "mixing"
    assert choose([MixUp()], name="perhaps").name == "perhaps"
    assert anneal(MixUp, name="mild", alpha=0.1).parts[0].name == "mild"


def test_functions_are_algorithms_here_too():
    def keep(event, state):
        return state

    assert chain(keep, MixUp()).name == "chain(keep, MixUp)"


# --- effects and place ---


def test_a_combination_declares_the_union_of_the_effects_of_its_parts():
    both = chain(MixUp(), EMA())

    assert both.events == MixUp().events | EMA().events
    assert both.writes == {"batch", "loss_fn", "model", "memory"}
    assert both.stage is Stage.MIX


def test_a_plan_shows_a_combination_as_one_line_at_each_event():
    plan = Plan.compile([during("0dur", "0.5dur", MixUp()), LabelSmoothing()])

    lines = plan.explain().splitlines()

    assert [line.split("  ")[0] for line in lines[2:]] == [
        "before_train_batch",
        "before_loss",
        "before_loss",
    ]
    assert "during('0dur', '0.5dur', MixUp)" in lines[2]


# --- before and after ---


def test_a_declaration_comes_before_the_name():
    assert names(Plan.compile([Second(), Third()])) == ["Third", "Second"]
    assert names(Plan.compile([Third(), Second()])) == ["Third", "Second"]


def test_a_declared_order_is_not_ambiguous_and_the_plan_gives_it_as_the_reason():
    plan = Plan.compile([Second(), Third()])  # warnings are errors in these tests

    assert plan.steps()[1].why == "after Third, as declared"


def test_without_a_declaration_two_writers_are_reported_with_the_ways_out():
    with pytest.warns(AmbiguousOrderWarning, match=r"chain\(First, Third\).*choose\(\[First, Thi"):
        Plan.compile([First(), Third()])


def test_a_chain_settles_the_order():
    plan = Plan.compile([chain(Third(), First())])  # no warning

    assert [part.name for part in plan.algorithms[0].parts] == ["Third", "First"]


def test_classes_can_be_given_in_place_of_names():
    @attrs.frozen(repr=False)
    class Zeroth(First):
        before = frozenset({First})

    assert names(Plan.compile([First(name="A"), Zeroth()])) == ["Zeroth", "A"]


def test_a_circle_is_refused():
    @attrs.frozen(repr=False)
    class Fourth(First):
        before = frozenset({"Third"})
        after = frozenset({"Second"})

    with pytest.raises(ValueError, match=r"\['Fourth', 'Second', 'Third'\] cannot be ordered"):
        Plan.compile([Second(), Third(), Fourth()])


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


# --- names ---


def test_two_of_one_name_are_refused_inside_combinations_too():
    with pytest.raises(ValueError, match=r"two named 'MixUp'.*MixUp\(\.\.\., name='MixUp2'\)"):
        Plan.compile([chain(EMA(), MixUp(0.1)), every("2ba", MixUp(0.2))])


def test_two_different_ones_of_one_name_in_one_chain_are_refused():
    with pytest.raises(ValueError, match="two named 'MixUp'"):
        Plan.compile([chain(during("0ba", "1ba", MixUp(0.1)), during("1ba", "2ba", MixUp(0.2)))])


def test_one_algorithm_can_have_two_windows():
    mix = MixUp()

    Plan.compile([chain(during("0ba", "1ba", mix), during("3ba", "4ba", mix))])


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
        trainer(algorithms=chain(forgetful, Third()))

    assert any("chain(forgetful, Third) at INIT" in note for note in raised.value.__notes__)


def test_parts_that_listen_to_both_events_of_a_pair_run_in_reverse_at_the_second():
    ran = []

    @attrs.frozen(repr=False)
    class Bracket(Algorithm):
        events = frozenset({Event.BEFORE_LOSS, Event.AFTER_LOSS})

        def apply(self, event, state):
            ran.append((self.name, event))
            return state

    trained(algorithms=chain(Bracket(name="b"), Bracket(name="a")), max_duration="1ba")

    assert [name for name, _ in ran] == ["b", "a", "a", "b"]


def test_a_chain_trains():
    assert trained(algorithms=chain(MixUp(), LabelSmoothing()))
