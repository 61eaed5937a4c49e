"""Distillation from the snapshot of the previous cycle."""

from copy import deepcopy
from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.testing import assert_close

from composable import Algorithm, Event, IdleAlgorithmWarning, Stage
from composable.algorithms import LabelSmoothing, MixUp, SnapshotDistillation, WholeLoss
from composable.functional import distillation_loss
from composable.losses.positions import positions_of
from tests.support.campaign import each_once
from tests.support.data import batches
from tests.support.hub_models import HEADS
from tests.support.models import conv_net, mlp, same, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, sgd

ALPHA, T = 0.4, 1.5
LENGTHS = [2, 6, 3, 5]
taught = partial(SnapshotDistillation, "3ba", alpha=ALPHA, temperature=T)
double_mlp = partial(mlp, dtype=torch.float64)
DOUBLE = batches(12, dtype=torch.float64)


def by_hand(model, loader, *, cycle=3, first_cycle=2, frozen=0):
    """Train for three epochs with snapshots, in a plain loop; `frozen` steps without layer 0."""
    optimizer, teacher = sgd(model.parameters()), None
    for step, (inputs, targets) in enumerate([*loader, *loader, *loader], 1):
        model[0].requires_grad_(step > frozen)
        outputs = model.train()(inputs)
        loss = cross_entropy(outputs, targets)
        if teacher is not None:
            with torch.no_grad():
                of_teacher = teacher(inputs)
            divergence = distillation_loss(outputs, of_teacher, temperature=T)
            loss = (1 - ALPHA) * loss + ALPHA * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % cycle == 0 and step // cycle + 1 >= first_cycle:
            teacher = deepcopy(model).eval()
    return weights(model)


def run(model, algorithms, loader=None, **options):
    trainer = make_trainer(
        model, loader, algorithms=algorithms, **{"max_duration": "3ep", **options}
    )
    trainer.fit()
    return trainer


def trained(*args, **options):
    return weights(run(*args, **options).state.model)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (taught(), {}),
        (taught(first_cycle=3), {"first_cycle": 3}),
        (SnapshotDistillation("1ep", ALPHA, T), {}),
        (SnapshotDistillation("1ba", ALPHA, T), {"cycle": 1}),
    ],
)
def test_a_run_equals_a_plain_loop(algorithm, options):
    assert_close(trained(mlp(), algorithm), by_hand(mlp(), batches(12), **options))


def test_the_teacher_predicts_in_evaluation_mode_and_leaves_the_statistics_of_the_student():
    class Recorder(nn.Identity):
        """Records in which mode it is called."""

        def forward(self, inputs):
            modes.append(self.training)
            return inputs

    loader, modes = batches(12, images=True), []
    model = nn.Sequential(*conv_net(), Recorder())

    found = run(model, taught(), loader, max_duration="2ep").state.model

    assert modes == [True] * 3 + [True, False] * 3
    assert found[1].num_batches_tracked == 6


def test_frozen_parameters_are_not_copied_before_they_are_unfrozen(tmp_path):
    def build(**options):
        model = mlp()
        model[0].requires_grad_(False)
        return make_trainer(model, algorithms=taught(), **options)

    def unfrozen(trainer, duration):
        trainer.state.model.requires_grad_(True)
        trainer.fit(duration=duration)
        return weights(trainer.state.model)

    trainer = build(save_folder=tmp_path, save_interval="1ba")
    trainer.fit(duration="6ba")
    first = trainer.state.memory["SnapshotDistillation"]

    whole = unfrozen(trainer, "3ba")

    assert first["teacher"].keys() == {"3.weight", "3.bias"}
    assert_close(whole, by_hand(mlp(), batches(12), frozen=6))
    for place, duration in [("ep2-ba6", "3ba"), ("ep2-ba7", "2ba")]:
        assert same(unfrozen(build(load_path=tmp_path / place), duration), whole)


WEIGHT = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
SPLITS = {
    "plain": (cross_entropy, []),
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHT), []),
    "ignored class": (nn.CrossEntropyLoss(ignore_index=1), []),
    "class weights, smoothed": (nn.CrossEntropyLoss(weight=WEIGHT), [LabelSmoothing(0.1)]),
    "class weights, mixed": (
        nn.CrossEntropyLoss(weight=WEIGHT),
        [MixUp(0.5), LabelSmoothing(0.1)],
    ),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), []),
    "weighted sum": (nn.CrossEntropyLoss(reduction="sum", weight=WEIGHT), [LabelSmoothing(0.1)]),
    "whole loss": (nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1), [WholeLoss()]),
}


@pytest.mark.parametrize(
    ("name", "split"),
    each_once(list(SPLITS), [{"grad_accum": 3}, {"accumulate_batches": 1, "grad_accum": 2}]),
)
def test_a_batch_that_is_split_trains_as_a_whole_one(name, split):
    loss_fn, others = SPLITS[name]
    options = {"loader": DOUBLE, "algorithms": [taught(), *others], "loss_fn": loss_fn}

    whole = trained(double_mlp(), **options)

    assert_close(trained(double_mlp(), **options, **split), whole)


def test_labels_weight_the_positions_of_the_divergence():
    (inputs, targets), *_ = DOUBLE
    loss_fn = nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=2)
    trainer = make_trainer(double_mlp(), DOUBLE, loss_fn=loss_fn)
    state = trainer.state.evolve(batch=(inputs, targets), outputs=double_mlp()(inputs))

    _, class_dim, found, _ = positions_of(state, "name")

    assert class_dim == 1
    assert_close(found, torch.where(targets == 2, 0, WEIGHT[targets]))


@pytest.mark.parametrize(
    "head",
    [
        *("causal", "causal, Llama", "decoder that does not shift", "masked", "tokens, as tuples"),
        *("classes", "sequences", "sequences, BART", "choices", "pictures"),
    ],
)
def test_a_model_of_transformers_learns_where_its_own_loss_has_labels(head):
    model, batch = HEADS[head].build(), HEADS[head].batch(LENGTHS)
    state = make_trainer(model, [batch], loss_fn=None).state.evolve(batch=batch)
    state = state.evolve(outputs=state.forward())

    logits, class_dim, found, _ = positions_of(state, "name")

    (slope,) = torch.autograd.grad(state.compute_loss(state.outputs), logits)
    assert torch.equal(found != 0, (slope != 0).any(class_dim))


@pytest.mark.parametrize("head", ["causal", "classes"])
def test_a_model_of_transformers_is_taught_with_its_own_loss_in_any_split(head):
    loader = [HEADS[head].batch(LENGTHS, seed=seed) for seed in range(3)]
    options = {"loader": loader, "algorithms": taught(), "loss_fn": None}

    whole = trained(HEADS[head].build(), **options)

    assert_close(trained(HEADS[head].build(), **options, grad_accum=2), whole)
    assert not same(whole, trained(HEADS[head].build(), **{**options, "algorithms": []}))


@pytest.mark.parametrize("precision", ["bf16", "amp_bf16"])
def test_snapshots_teach_in_16_bits(precision):
    teacher = Watch(Event.FIT_END, read=lambda s: s.memory["SnapshotDistillation"]["teacher"])

    model = run(mlp(), taught(), precision=precision, callbacks=teacher).state.model

    assert all(one.isfinite().all() for one in weights(model).values())
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    assert {one.dtype for one in teacher.values[0].values()} == {dtype}
    assert same(teacher.values[0], weights(model))  # the end of the last cycle


def test_a_loss_that_moves_its_labels_teaches_all_positions():
    def shifted(outputs, targets):
        return cross_entropy(outputs[:, :-1].flatten(0, 1), targets[:, 1:].flatten())

    tokens = torch.arange(20).reshape(4, 5) % 7
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
    state = make_trainer(model, [(tokens, tokens[:, 1:])], loss_fn=shifted).state
    state = state.evolve(batch=(tokens, tokens[:, 1:]), outputs=model(tokens))

    assert positions_of(state, "name", -1)[1:] == (-1, None, False)
    with pytest.raises(ValueError, match=r"\(4, 5, 7\); pass class_dim=1, or class_dim=-1"):
        positions_of(state, "name")


@pytest.mark.parametrize("length", ["2ep", "10ba"])
def test_a_cycle_that_does_not_divide_the_run_is_an_error_with_a_length_that_it_divides(length):
    trainer = make_trainer(mlp(), algorithms=SnapshotDistillation("4ba"), max_duration=length)

    with pytest.raises(
        ValueError, match=r"cycle='4ba' does not divide the run .* max_duration='8ba"
    ):
        trainer.fit()


def test_a_run_of_the_cycles_before_the_first_teacher_is_reported():
    with pytest.warns(IdleAlgorithmWarning, match="no teacher.* shorter cycle than '3ba'"):
        run(mlp(), taught(), max_duration="3ba")


def test_a_regression_has_no_classes_to_learn():
    loader = [(inputs, torch.randn(len(inputs), 3)) for inputs, _ in batches(12)]

    with pytest.raises(ValueError, match="needs a loss of classes, and loss_fn=mse_loss"):
        run(mlp(), taught(), loader, loss_fn=mse_loss)


def test_outputs_without_classes_are_named_by_their_shape():
    flat, loader = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), batches(12)

    with pytest.raises(TypeError, match=r"a tensor of shape \(4,\) and torch.float32"):
        run(flat, taught(), loader, loss_fn=lambda found, _: found.square().mean())


@attrs.frozen
class Widen(Algorithm):
    """Replaces the model by one with other shapes after some batches."""

    events = frozenset({Event.BATCH_START})
    stage = Stage.SURGERY
    writes = frozenset({"model"})

    def match(self, event, state):
        return state.timestamp.batch == 4

    def apply(self, event, state):
        first, *_, last = state.model
        wide = nn.Linear(first.in_features, 9), nn.ReLU(), nn.Linear(9, last.out_features)
        return state.evolve(model=nn.Sequential(*wide))


def test_a_teacher_that_does_not_fit_the_model_is_an_error_with_a_cure():
    with pytest.raises(
        ValueError,
        match=r"0.bias is of shape \(5,\) in the teacher, and of shape "
        r"\(9,\) in the model.* pass a higher first_cycle",
    ):
        run(mlp(), [taught(), Widen()])


def test_a_teacher_in_a_checkpoint_is_checked():
    algorithm, state = taught(), make_trainer(mlp(), algorithms=taught()).state
    teacher = weights(mlp())

    algorithm.check_memory({"teacher": teacher, "frozen": []}, state)

    part = {k: v for k, v in teacher.items() if k != "3.weight"}
    algorithm.check_memory({"teacher": part, "frozen": ["3.weight"]}, state)
    for memory, words in [
        ({}, "must have the entries teacher, frozen"),
        ({"teacher": part, "frozen": []}, r"3.weight is missing in the teacher"),
        ({"teacher": part, "frozen": 3}, "frozen must be a list"),
    ]:
        with pytest.raises(ValueError, match=words):
            algorithm.check_memory(memory, state)
