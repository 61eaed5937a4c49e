"""`check_algorithm`: every law can be broken, is found to be, and is kept by the library."""

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
    TABLE,
    ActsWhenLookedAt,
    Good,
    HalvesAtEveryFit,
    loss_of_looks,
)

LIBRARY = [
    MixUp(),
    LabelSmoothing(0.1),
    EMA("2ba"),
    SelectiveBackprop(),
    GradientClipping("norm", 0.1),
    BlurPool(),
]


def case_of(algorithm):
    return Case(
        algorithm,
        model=classifier,
        lone_model=smooth_classifier,
        dataloader=[image_batch(3), image_batch(2, seed=1)],
        loss_fn=loss_of_looks if isinstance(algorithm, ActsWhenLookedAt) else cross_entropy,
        microbatches=True,
        options={"max_duration": "4ep" if isinstance(algorithm, HalvesAtEveryFit) else "2ep"},
    )


@pytest.mark.parametrize(
    ("law", "broken", "seen"), TABLE, ids=[f"{law}-{type(who).__name__}" for law, who, _ in TABLE]
)
def test_who_breaks_a_law_is_found_and_told_what_was_seen(law, broken, seen):
    verdict = LAWS[law].check(case_of(broken))

    assert isinstance(verdict, Violation)
    assert seen in verdict.what


def test_every_law_has_somebody_who_breaks_it():
    assert {law for law, _, _ in TABLE} == set(LAWS)


@pytest.mark.parametrize("law", LAWS)
def test_a_good_algorithm_breaks_no_law(law):
    assert not isinstance(LAWS[law].check(case_of(Good())), Violation)


@pytest.mark.parametrize("algorithm", LIBRARY, ids=lambda one: one.name)
def test_the_algorithms_of_the_library_keep_every_law_that_applies(algorithm):
    report = check_algorithm(algorithm, microbatches=True, max_duration="2ep")

    inapplicable = {"surgery", "memory"}
    inapplicable -= {"surgery"} if isinstance(algorithm, BlurPool) else set()
    inapplicable -= {"memory"} if isinstance(algorithm, EMA) else set()
    assert set(report.not_checked) == inapplicable
    assert {*report.checked, *report.not_checked} == set(LAWS)


def test_combinations_are_algorithms_too():
    check_algorithm(choose([during("0dur", "0.5dur", MixUp()), identity]), max_duration="2ep")


def test_the_error_names_the_law_the_algorithm_the_event_the_place_and_the_cure():
    writes_in_place = next(who for _, who, seen in TABLE if "in place" in seen)

    with pytest.raises(LawViolation) as caught:
        check_algorithm(writes_in_place)

    error = caught.value
    assert (error.law, error.algorithm) == ("effects", writes_in_place)
    assert (error.event, error.where) == (Event.AFTER_DATALOADER, "state.batch[0]")
    assert str(error).startswith("WritesInPlace(factor=0.9) violates the law 'effects': it writes")
    assert "Hint: return state.evolve(...) with new values" in str(error)


def test_a_method_that_happens_once_is_done_at_init():
    @attrs.frozen(repr=False)
    class Halves(HalvesAtEveryFit):
        events = frozenset({Event.INIT})

    assert LAWS["parts"].check(case_of(Halves())) is None
    assert LAWS["resumes"].check(case_of(Halves())) is None


def test_what_was_not_checked_is_said_with_the_reason():
    report = check_algorithm(Good(), max_duration="1ep")

    assert set(report.not_checked) == {"surgery", "memory", "microbatches"}
    assert "not checked: memory, because it stores nothing in state.memory" in str(report)
    assert str(report).startswith(f"Good(factor=0.9) obeys {len(LAWS) - 3} laws: frozen, hyper")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        report.checked = ()


def test_a_function_is_an_algorithm_that_declares_nothing():
    def half(event, state):
        if event is not Event.AFTER_DATALOADER:
            return state
        return state.with_batch(inputs=state.inputs / 2)

    report = check_algorithm(half, max_duration="1ep")

    assert "does not declare what it writes" in report.not_checked["effects"]


class LanguageModel(nn.Module):
    """Takes a dictionary, and has a loss of its own."""

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


def test_model_batches_and_loss_can_be_anyones():
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


def test_a_run_of_one_batch_has_no_parts():
    report = check_algorithm(Good(), dataloader=[image_batch(3)], max_duration="1ep")

    assert "cannot be split into two parts" in report.not_checked["parts"]
    assert "nothing is left to resume" in report.not_checked["resumes"]


def test_who_changes_layers_during_the_run_is_not_resumed():
    @attrs.frozen(repr=False)
    class Widens(Algorithm):
        events = frozenset({Event.EPOCH_START})
        writes = frozenset({"model"})

        def apply(self, event, state):
            if state.timestamp.epoch != 1:
                return state
            return state.evolve(model=nn.Sequential(state.model, nn.Identity()))

    verdict = LAWS["resumes"].check(case_of(Widens()))

    assert isinstance(verdict, NotApplicable)
    assert "changed the layers" in verdict.reason


def test_the_global_generators_are_left_alone():
    before = torch.get_rng_state()

    check_algorithm(MixUp(), max_duration="1ep")

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("wrong", [3, MixUp])
def test_what_is_no_algorithm_is_refused(wrong):
    with pytest.raises(TypeError, match="algorithms contains"):
        check_algorithm(wrong)
