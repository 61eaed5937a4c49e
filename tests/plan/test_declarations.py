"""Every wrong declaration, and every wrong thing in the list, has its own clear error."""

import re

import attrs
import pytest

from composable import Algorithm, Event, Plan, Stage, State, chain, choose, during, when
from composable.algorithms import MixUp
from composable.core.algorithm import FunctionAlgorithm
from tests.support.models import linear
from tests.support.runs import make_trainer


def declaring(**declared):
    def apply(self, event, state):
        return state

    return attrs.frozen(type("Odd", (Algorithm,), {"apply": apply, **declared}), repr=False)()


EVENTS = "must be a set of members of Event"
FIELDS = "must be a set of fields of State"
CLASSES = "must be a set of classes of algorithm"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("events", "batch_end", f"is 'batch_end' and {EVENTS}"),
        ("events", {"batch_end"}, f"contains {{'batch_end'}} and {EVENTS}"),
        ("events", Event.INIT, f"is <Event.INIT: 'init'> and {EVENTS}"),
        ("events", None, f"is None and {EVENTS}."),
        ("stage", "mix", "is 'mix' and must be a member of Stage, such as Stage.MIX."),
        ("stage", 40, "is 40 and must be a member of Stage"),
        ("reads", {"weights"}, f"contains {{'weights'}} and {FIELDS}: averages, b"),
        ("reads", "batch", f"is 'batch' and {FIELDS}"),
        ("writes", {"weights"}, f"contains {{'weights'}} and {FIELDS}"),
        ("writes", [["batch"]], f"contains {{['batch']}} and {FIELDS}"),
        ("before", "MixUp", f"is 'MixUp' and {CLASSES}s, or"),
        ("before", MixUp, "is <class 'composable.algorithms.mixup.MixUp'> and must be"),
        ("before", [MixUp()], f"contains {{{MixUp()!r}}} and {CLASSES}"),
        ("after", {Event.INIT}, f"contains {{<Event.INIT: 'init'>}} and {CLASSES}"),
        ("after", {int}, f"contains {{<class 'int'>}} and {CLASSES}"),
        ("parts", [MixUp()], f"is [{MixUp()!r}] and must be a tuple of algorithms."),
        ("parts", (3,), "is (3,) and must be a tuple of algorithms."),
        ("incompatible_with", {"CutMix"}, "is {'CutMix'} and must map classes"),
        ("incompatible_with", {"CutMix": ""}, "contains 'CutMix': '' and must map classes"),
        ("discouraged_with", {3: "why"}, "contains 3: 'why' and must map classes of al"),
        ("replaces", "convolution", "is 'convolution' and must be a set of kinds of"),
        ("apply", Algorithm.apply, "Odd has no apply: implement apply(self, event, state) -> Sta"),
        ("replaces", {3}, "contains {3} and must be a set of kinds of layers, as"),
    ],
)
def test_wrong_declaration_is_an_error_when_the_plan_is_compiled(field, value, message):
    odd = declaring(**{field: value})
    message = message if field == "apply" else f"Odd.{field} {message}"

    for make in (lambda: Plan.compile([odd]), lambda: chain(odd), lambda: choose([odd])):
        with pytest.raises(TypeError, match=re.escape(message)):
            make()


MIX = MixUp()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: chain(MIX, name=3), TypeError, "name=3 must be a string."),
        (lambda: during("0ep", "1ep", MIX, name=""), ValueError, "name='' is empty"),
        (lambda: FunctionAlgorithm(print, name=3), TypeError, "name=3 must be a string."),
        (lambda: Plan.compile([MIX, MIX]), ValueError, "twice, the same instance: drop one of"),
        (
            lambda: Plan.compile([MIX, during("0ep", "1ep", MIX)]),
            ValueError,
            "twice, the same instance: drop one of them, or put both into one chain(...).",
        ),
    ],
)
def test_what_is_wrong_with_the_list_is_said(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize("returned", [None, 1, "yes", State(linear())])
def test_a_match_that_is_neither_true_nor_false_is_refused(returned):
    odd = declaring(match=lambda self, event, state: returned, events=frozenset({Event.BATCH_END}))

    message = re.escape(f"Odd.match returned {returned!r} and must return True or False.")
    with pytest.raises(TypeError, match=message):
        make_trainer(algorithms=odd).fit()
    # The condition of a combinator may return anything.
    make_trainer(algorithms=when(lambda state: [], declaring())).fit()


def test_a_circle_is_told_from_one_to_the_next():
    ring = [
        attrs.frozen(
            type(
                name,
                (Algorithm,),
                {"before": {following}, "stage": Stage.AUGMENT, "apply": MixUp.apply},
            ),
            repr=False,
        )
        for name, following in [("Ada", "Bob"), ("Bob", "Cid"), ("Cid", "Ada"), ("Dan", "Ada")]
    ]

    with pytest.raises(
        ValueError, match=r"\['Ada', 'Bob', 'Cid'\] cannot be ordered: .* cyclic: "
    ) as e:
        Plan.compile([one() for one in ring])

    told = str(e.value).split("cyclic: ")[1].split(". ")[0].split(" before ")
    assert told[0] == told[-1]
    assert " ".join(told) in "Ada Bob Cid Ada Bob Cid"


# --- an `__init__` of its own is refused where the algorithm is defined ---


def test_own_init_is_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"Mine defines __init__, .* @attrs.frozen"):

        class Mine(Algorithm):
            def __init__(self, factor):
                self.factor = factor


@pytest.mark.parametrize("slots", [True, False])
def test_fields_are_fine(slots):
    @attrs.frozen(slots=slots)
    class Mine(Algorithm):
        factor: float = 0.5

        def apply(self, event, state):
            return state

    class Child(Mine):
        pass

    assert (Child(2.0).factor, Child(2.0).name) == (2.0, "Child")
