"""`check_algorithm` finds the violations of every law, and the algorithms here have none."""

from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Algorithm, Event, choose, during, identity
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from composable.testing import LawViolation, check_algorithm
from composable.testing.laws import LAWS, NotApplicable
from composable.testing.problems import classifier, image_batch, smooth_classifier
from composable.testing.runs import Case, Violation
from tests.testing.broken_algorithms import (
    DRAWS_GLOBALLY,
    HALVES,
    HALVES_ONCE,
    TABLE,
    WRITES_IN_PLACE,
    Good,
    loss_of_looks,
    variant,
)


def check(law, algorithm):
    case = Case(
        algorithm,
        model=classifier,
        lone_model=smooth_classifier,
        dataloader=[image_batch(3), image_batch(2, seed=1)],
        loss_fn=loss_of_looks if law == "when_never" else cross_entropy,
        microbatches=True,
        options={"max_duration": "4ep" if algorithm in (HALVES, HALVES_ONCE) else "2ep"},
    )
    return LAWS[law].check(case)


@pytest.mark.parametrize(("law", "broken", "seen"), TABLE, ids=[f"{a}: {c}" for a, _, c in TABLE])
def test_finds_a_violation(law, broken, seen):
    verdict = check(law, broken)

    assert isinstance(verdict, Violation)
    assert seen in verdict.what


@pytest.mark.parametrize("law", LAWS)
def test_a_good_algorithm_violates_no_law_and_a_broken_one_violates_it(law):
    assert not isinstance(check(law, Good()), Violation)
    assert law in {broken for broken, _, _ in TABLE}


@pytest.mark.parametrize(
    ("algorithm", "applicable"),
    [
        (MixUp(), set()),
        pytest.param(LabelSmoothing(0.1), set(), marks=pytest.mark.campaign),
        (EMA("2ba"), {"memory"}),
        pytest.param(SelectiveBackprop(), set(), marks=pytest.mark.campaign),
        pytest.param(GradientClipping("norm", 0.1), set(), marks=pytest.mark.campaign),
        (BlurPool(), {"surgery"}),
        (choose([during("0dur", "0.5dur", MixUp()), identity]), set()),
    ],
)
def test_the_algorithms_of_the_library_obey_every_law(algorithm, applicable):
    before = torch.get_rng_state()

    report = check_algorithm(algorithm, microbatches=True, max_duration="2ep")

    assert set(report.not_checked) == {"surgery", "memory"} - applicable
    assert {*report.checked, *report.not_checked} == set(LAWS)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_error_names_the_law_the_algorithm_the_event_the_field_and_a_hint():
    with pytest.raises(LawViolation) as caught:
        check_algorithm(WRITES_IN_PLACE)

    error = caught.value
    assert (error.law, error.algorithm) == ("effects", WRITES_IN_PLACE)
    assert (error.event, error.where) == (Event.AFTER_DATALOADER, "state.batch[0]")
    assert str(error).startswith("WritesInPlace(factor=0.9) violates the law 'effects': it writes")
    assert "Hint: return state.evolve(...) with new values" in str(error)


def test_a_draw_from_a_global_generator_is_named_before_what_follows_from_it():
    with pytest.raises(LawViolation, match="global generator at AFTER_DATALOADER") as caught:
        check_algorithm(DRAWS_GLOBALLY)

    assert caught.value.law == "leaves_generators"


@pytest.mark.parametrize("law", ["parts", "resumes"])
def test_an_algorithm_may_act_once_at_init(law):
    assert check(law, HALVES_ONCE) is None


def test_the_report_gives_the_reason_why_a_law_was_not_checked():
    report = check_algorithm(Good(), max_duration="1ep")

    assert set(report.not_checked) == {"surgery", "memory", "microbatches"}
    assert "not checked: memory, because it stores nothing in state.memory" in str(report)
    assert str(report).startswith(f"Good(factor=0.9) obeys {len(LAWS) - 3} laws: frozen, hyper")

    report = check_algorithm(Good(), dataloader=[image_batch(3)], max_duration="1ep")

    assert "cannot be split into two parts" in report.not_checked["parts"]
    assert "nothing is left to resume" in report.not_checked["resumes"]


def test_accepts_a_function():
    def half(event, state):
        if event is not Event.AFTER_DATALOADER:
            return state
        return state.with_batch(inputs=state.inputs / 2)

    report = check_algorithm(half, max_duration="1ep")

    assert "does not declare what it writes" in report.not_checked["effects"]


class LanguageModel(nn.Module):
    """A model that takes a dictionary and has its own loss."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, batch):
        return self.head(self.embed(batch["tokens"]))

    def loss(self, outputs, batch):
        return cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


@attrs.frozen(repr=False)
class Truncates(Algorithm):
    events = frozenset({Event.AFTER_DATALOADER})
    reads = frozenset({"batch"})
    writes = frozenset({"batch"})

    def apply(self, event, state):
        return state.evolve(batch={name: part[:, :3] for name, part in state.batch.items()})


def test_accepts_any_model_batches_and_loss():
    model = LanguageModel()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokens = torch.arange(12).reshape(2, 6) % 7

    report = check_algorithm(
        Truncates(),
        model=model,
        dataloader=[{"tokens": tokens, "labels": tokens.flip(1)}] * 2,
        microbatches=True,
        max_duration="1ep",
        input_key="tokens",
        target_key="labels",
        optimizers=partial(torch.optim.AdamW, lr=0.01),
    )

    assert set(report.not_checked) == {"surgery", "memory"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_algorithm_that_changes_layers_during_the_run_is_not_resumed():
    def widens(self, state):
        if state.timestamp.epoch != 1:
            return state
        return state.evolve(model=nn.Sequential(state.model, nn.Identity()))

    at = {"events": frozenset({Event.EPOCH_START}), "writes": frozenset({"model"})}
    verdict = check("resumes", variant(widens, **at))

    assert isinstance(verdict, NotApplicable)
    assert "changed the layers" in verdict.reason


@pytest.mark.parametrize("wrong", [3, MixUp])
def test_rejects_what_is_not_an_algorithm(wrong):
    with pytest.raises(TypeError, match="algorithms contains"):
        check_algorithm(wrong)
